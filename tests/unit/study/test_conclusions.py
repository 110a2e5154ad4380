"""What a study shows: all settings on validation against the chosen one, the test split once, failed runs counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_study import drawn_study
from run_folders import drawn_rows
from safetensors.torch import load_file, save_file

from glassloop.runs.record import SplitFacts, read_run, write_run
from glassloop.study import conclusions
from glassloop.study.conclusions import Scores, average_weights, conclude


def test_settings_are_compared_with_the_chosen_one(tmp_path: Path) -> None:
    drawn = drawn_study(tmp_path)
    record, undecided = conclude(tmp_path, drawn, print), replace(drawn, chosen=None)
    assert conclude(tmp_path, undecided, print) is undecided, "without a choice there are no results"
    weak, chosen, stopped = record.results["settings"]
    assert record.results["chosen"] == "learning_rate 0.0001"
    assert weak["comparison"]["difference"] < 0
    assert weak["comparison"]["corrected"] >= weak["comparison"]["p_value"]
    assert "verdict" in weak["comparison"]
    assert chosen["comparison"] is None
    assert len(chosen["validation"]["points"]) == 2
    assert chosen["validation"]["low"] < chosen["validation"]["mean"] < chosen["validation"]["high"]
    assert (stopped["validation"], stopped["trained"], stopped["failed"], stopped["runs"]) == (None, 0.25, 1, 2)
    assert stopped["selection"] == 0.1
    assert record.results["sentence"].startswith("learning_rate 0.0001 is ")
    assert record.results["design"].startswith("2 seeds and 120 rows: differences above ")
    assert [entry["runs"] for entry in record.results["expected_best"]] == [1, 2, 3, 4]
    final = record.results["final"]
    assert final["validation"]["ensemble"]["mean"] > 0.7
    assert (final["test"], record.test_evaluations) == (None, ()), "there is no test split"


def test_the_test_split_is_evaluated_once_and_a_second_setting_is_reported(tmp_path: Path, monkeypatch) -> None:
    record = drawn_study(tmp_path)
    for name in record.runs_of(1, final=True):
        run = read_run(tmp_path / "runs" / name)
        splits = {**run.data.splits, "test": SplitFacts(3)}
        write_run(tmp_path / "runs" / name, replace(run, data=replace(run.data, splits=splits)))
    calls: list[str] = []

    def evaluated(run: str, wanted: object) -> SimpleNamespace:
        calls.append(Path(run).name)
        return SimpleNamespace(examples=None, results=[None])

    def write(path: Path, examples: object, result: object) -> None:
        path.write_bytes((path.parent / "validation-predictions.jsonl").read_bytes())

    monkeypatch.setattr(conclusions, "evaluate_run", evaluated)
    monkeypatch.setattr(conclusions, "write_predictions", write)
    first = conclude(tmp_path, record, print)
    assert calls == ["final-seed-1", "final-seed-2"], "only the chosen setting"
    assert first.test_evaluations == ("learning_rate 0.0001",)
    assert conclude(tmp_path, first, print).test_evaluations == first.test_evaluations
    assert len(calls) == 2, "not again"
    again = conclude(tmp_path, replace(first, test_evaluations=("learning_rate 0.1",)), print)
    assert again.results["warning"].startswith("the test split was used for 2 settings")


# --- The model soup: the mean of the weights, and kept only if it is better on validation.
FINAL = {1: "final-seed-1", 2: "final-seed-2"}


def write_models(folder: Path) -> list[Path]:
    models = []
    for number, name in enumerate(FINAL.values(), 1):
        model = folder / "runs" / name / "model"
        model.mkdir(parents=True)
        weights = {"w": torch.full((2,), float(number)), "half": torch.ones(2, dtype=torch.bfloat16), "ids": torch.tensor([3])}
        save_file(weights, model / "model.safetensors")
        (model / "config.json").write_text("{}")
        models.append(model)
    return models


def test_weights_are_averaged_and_other_files_copied(tmp_path: Path) -> None:
    average_weights(write_models(tmp_path), tmp_path / "soup")
    found = load_file(tmp_path / "soup" / "model.safetensors")
    assert found["w"].tolist() == [1.5, 1.5]
    assert found["ids"].tolist() == [3]
    assert (tmp_path / "soup" / "config.json").exists()


@pytest.mark.parametrize(("skill", "offered"), [(6.0, True), (0.1, False)])
def test_the_soup_is_kept_only_if_it_is_better(tmp_path: Path, monkeypatch, skill: float, offered: bool) -> None:
    record = drawn_study(tmp_path)
    seeds = {seed: drawn_rows(120, 1.0, seed) for seed in range(8)}
    assert Scores(tmp_path, record, "accuracy", "equivalent").soup([*FINAL.values()], seeds) is None, "there are no models"
    write_models(tmp_path)
    monkeypatch.setattr(Scores, "soup_rows", lambda *given: drawn_rows(120, skill, 9))
    found = Scores(tmp_path, record, "accuracy", "equivalent").soup([*FINAL.values()], seeds)
    assert found is not None
    assert found.offered is offered
    assert (tmp_path / "soup").exists() is offered
    assert ((found.difference or 0.0) > 0) is offered
