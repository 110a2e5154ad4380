"""The card of a run: its numbers are those of the run, and nothing tells where it was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from reported_runs import HOSTILE, write_fake_run
from sample_record import RECORD

from glassloop.report.card import base_model, card_text, data_name, limits, run_card
from glassloop.runs.record import Columns, read_run, write_run
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_the_card_of_every_task_has_the_results_of_the_run(task: str, tmp_path: Path) -> None:
    record = write_fake_run(tmp_path / "run", task)
    text = card_text(run_card(tmp_path / "run"))
    found = ModelCard(text).data
    assert {one.metric_type: one.metric_value for one in found.eval_results} == {
        key.removeprefix("eval_"): round(value, 6)
        for key, value in (record.evaluation or {}).items()
        if key not in ("eval_loss", "eval_runtime")
    }
    assert found.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert found.datasets is None, "a file is not on the hub"
    assert "95 % interval" in text
    assert " to " in text
    assert "The random seed was 42." in text
    for heading in ("Results", "How to use it", "Data", "Training", "Limits"):
        assert f"\n## {heading}\n" in text
    assert "## Calibration" not in text


def test_hostile_labels_and_file_names_stay_text(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run", label=HOSTILE, text=HOSTILE)
    text = card_text(run_card(tmp_path / "run"))
    assert "<script>" not in text.partition("\n---\n")[2]
    assert ModelCard(text).data.model_name == "run"


def test_no_folder_of_the_machine_is_told(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run")
    record = read_run(tmp_path / "run")
    data = replace(record.data, source=str(tmp_path / "secret" / "rows.csv"))
    settings = replace(record.settings, output_dir=str(tmp_path / "run"))
    write_run(
        tmp_path / "run",
        replace(record, data=data, settings=settings, model=replace(record.model, name=str(tmp_path / "base"))),
    )
    text = card_text(run_card(tmp_path / "run"))
    assert str(tmp_path) not in text
    assert "secret" not in text
    assert "fine-tuned from base on rows.csv" in text


def test_names_of_the_hub() -> None:
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="glue/mrpc")))
    assert (found.identifier, found.config, found.on_hub) == ("nyu-mll/glue", "mrpc", True)
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="owner/name")))
    assert (found.identifier, found.on_hub) == ("owner/name", True)
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="/data/My rows.csv")))
    assert (found.name, found.identifier, found.on_hub) == ("My rows.csv", "my-rows-csv", False)
    assert base_model("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    assert base_model("/models/mine") is None


def test_limits_name_truncation_balance_and_the_missing_license() -> None:
    lines = [*limits(RECORD)]
    assert lines[1] == "Texts are truncated to 64 tokens."
    assert lines[2] == "Labels are not equally frequent: a has 20 training rows, b has 7."
    assert lines[-1].startswith("No license is stated")
    chosen = replace(RECORD, settings=replace(RECORD.settings, load_best_model_at_end=True, eval_strategy="epoch"))
    assert any("chosen on the validation rows" in line for line in limits(chosen))
    assert "pairs of texts" not in lines[0]


def test_the_seeds_of_a_folder_are_told(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "seed-1")
    entry = {"status": "finished", "metrics": {"accuracy": 0.8}}
    seeds = {"1": entry, "2": {**entry, "metrics": {"accuracy": 0.9}}}
    settings = {"source": "rows.csv", "model": "quickstart", "training": {}, "data": {}, "new_head": False}
    (tmp_path / "seeds.json").write_text(json.dumps({"settings": settings, "seeds": seeds}), encoding="utf-8")
    text = card_text(run_card(tmp_path / "seed-1"))
    assert "The same training with 2 random seeds:" in text
    assert "| accuracy | 0.8500 | 0.0707 | 0.8000 | 0.9000 |" in text
    (tmp_path / "seeds.json").write_text("{", encoding="utf-8")
    assert "random seeds" not in card_text(run_card(tmp_path / "seed-1"))


def test_pairs_are_named(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run")
    assert read_run(tmp_path / "run").data.columns == Columns("first", "second", ("label",))
    assert "for pairs of texts: one class per row" in card_text(run_card(tmp_path / "run"))
