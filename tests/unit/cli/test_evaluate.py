"""evaluate and predict of the command: labels compared by name, the right split, and texts as the run was trained on."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from glassloop import Predictor
from glassloop.base.errors import DataError
from glassloop.cli.evaluate import evaluate
from glassloop.predictor import SeedsPredictor, Wanted, evaluate_run
from glassloop.runs.record import read_run, write_run

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

LABELS = ["pos, really", "neg"]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    return path


def evaluated(
    run: Path,
    data: Path | str | None = None,
    split: str | None = None,
    batch_size: int = 4,
    positive: str | None = None,
    **given: Any,
) -> dict[str, float]:
    source = None if data is None else str(data)
    wanted = Wanted(source, split, given, (), positive, "cpu", batch_size)
    evaluate(str(run), source, split, positive_label=positive, device="cpu", batch_size=batch_size, **given)
    return evaluate_run(str(run), wanted).metrics


def rows_of(run: Path, split: str) -> list[tuple[str, str]]:
    with (run.parent / f"{split}.csv").open(newline="") as opened:
        return [(row["text"], row["label"]) for row in csv.DictReader(opened)]


def share_right(run: Path, rows: list[tuple[str, str]]) -> float:
    found = Predictor(run, device="cpu").predict([text for text, _ in rows])
    return sum(answer.label == label for answer, (_, label) in zip(found, rows, strict=True)) / len(rows)


OTHERS = [(f"{'bad' if number % 3 else 'very good'} story {number}", LABELS[number % 2]) for number in range(12)]


# --- evaluate ----------------------------------------------------------------------------------------------------


def test_its_own_data_give_the_figures_of_the_run(text_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((text_run / "run.json").read_text())
    found = evaluated(text_run)
    for name in ("eval_loss", "eval_accuracy", "eval_f1_macro"):
        assert found[name] == pytest.approx(stored["evaluation"][name], abs=1e-5)
    out = capsys.readouterr().out
    head, *lines = out.splitlines()
    assert head.split("  ")[0] == "validation (11 rows)"
    assert head.rstrip().endswith("this run  majority baseline")
    shown = {line.split("  ")[0]: line.split()[-2:] for line in lines[:4]}
    assert shown["accuracy"] == [f"{found['eval_accuracy']:.4f}", f"{stored['baseline']['accuracy']:.4f}"]
    assert [*shown] == ["loss", "accuracy", "f1 (macro)", "balanced accuracy"]
    assert lines[5].split() == ["class", "precision", "recall", "f1", "rows"]
    assert [line.split()[-1] for line in lines[6:8]] == ["8", "3"]
    assert " ".join(" ".join(lines[9:]).split()).startswith(f"• {stored['verdict']}")


def test_the_class_whose_f1_counts(text_run: Path, says, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(text_run, positive="neg")
    rows = rows_of(text_run, "validation")
    answers = Predictor(text_run, device="cpu").predict([text for text, _ in rows])
    given, wanted = [answer.label == "neg" for answer in answers], [name == "neg" for _, name in rows]
    right = sum(one and other for one, other in zip(given, wanted, strict=True))
    assert found["eval_f1"] == pytest.approx(2 * right / (sum(given) + sum(wanted)))
    assert "eval_f1_macro" not in found
    assert "f1 (neg)" in capsys.readouterr().out
    with says('positive_label is "nge", not one of pos, really, neg; did you mean "neg"?', "name one of the labels"):
        evaluated(text_run, positive="nge")


@pytest.mark.parametrize(("split", "rows"), [("train", 40), ("validation", 11), ("test", 9)])
def test_a_split_by_name(text_run: Path, split: str, rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    expected = share_right(text_run, rows_of(text_run, split))
    assert evaluated(text_run, split=split)["eval_accuracy"] == pytest.approx(expected)
    assert f"{split} ({rows} rows)" in capsys.readouterr().out


@pytest.fixture
def cut_run(lively_dir: Path, session_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on one file, from which its validation rows were cut."""
    from glassloop.settings.file import GivenSettings
    from glassloop.study.run import train_run

    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    write_rows(
        tmp_path / "rows.csv", [(f"{'good' if row % 3 else 'bad'} film {row}", LABELS[row % 3 == 0]) for row in range(30)]
    )
    settings = {"output_dir": str(tmp_path / "run"), "max_steps": 1, "device": "cpu", "precision": "fp32", "disable_tqdm": True}
    return train_run(GivenSettings(str(tmp_path / "rows.csv"), str(lively_dir), {**settings, "save_strategy": "no"}, {}))


def test_an_empty_name_is_not_the_data_of_the_run(cut_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with a shell variable that is not set, even in a folder with data."""
    monkeypatch.chdir(cut_run.parent)
    (cut_run.parent / "train.csv").write_text((cut_run.parent / "rows.csv").read_text())
    with pytest.raises(DataError, match='"": there is no such file or folder'):
        evaluated(cut_run, data="")


@pytest.mark.parametrize("change", ["added", "removed", "moved", "edited"])
def test_its_own_data_that_changed_are_refused(cut_run: Path, change: str) -> None:
    """The validation rows are cut from the file: another file would score rows that were trained on."""
    path = cut_run.parent / "rows.csv"
    before = path.read_text()
    head, *rows = before.splitlines()
    first, last = rows[0], rows[-1]
    changed = {"added": [*rows, 'good new film,"pos, really"'], "removed": rows[1:], "moved": [*rows[1:], first]}
    changed["edited"] = [*rows[:-1], last.replace("film", "story")]
    path.write_text("\n".join([head, *changed[change]]) + "\n")
    with pytest.raises(DataError) as caught:
        evaluated(cut_run)
    what = re.escape(f"{path}: the data has changed since the run: ")
    found = re.match(rf"{what}(\w+): \d+ rows \((\w{{8}})\) then, \d+ rows \((\w{{8}})\) now", caught.value.problem)
    assert found, caught.value.problem
    assert read_run(cut_run).data.splits[found[1]].fingerprint.startswith(found[2])
    assert found[2] != found[3]
    assert caught.value.remedy == "restore the data; to evaluate on other data, name it: glassloop evaluate RUN DATA"
    path.write_text(before)
    evaluated(cut_run)


def test_a_split_that_was_added_later_may_be_scored(cut_run: Path, text_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(text_run.parent, tmp_path / "copy")
    run = read_run(folder / "run")
    splits = {name: split for name, split in run.data.splits.items() if name != "test"}
    write_run(folder / "run", replace(run, data=replace(run.data, source=str(folder), splits=splits)))
    assert evaluated(folder / "run", split="test")["eval_accuracy"] >= 0


def test_a_file_is_shown_by_its_name(text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(text_run, write_rows(tmp_path / "fresh.csv", OTHERS))
    out = capsys.readouterr().out
    assert out.startswith("fresh.csv (12 rows)")
    assert "train (" not in out


def test_no_such_split(says, text_run: Path) -> None:
    with says('the data has no split "tset"; did you mean "test"?', "use one of train, validation, test"):
        evaluated(text_run, split="tset")


def test_labels_of_other_data_are_compared_by_name(text_run: Path, tmp_path: Path) -> None:
    """The model numbers its labels against the alphabet, the data would number them by it."""
    write_rows(tmp_path / "other" / "train.csv", OTHERS)
    write_rows(tmp_path / "other" / "validation.csv", OTHERS)
    expected = share_right(text_run, OTHERS)
    assert expected not in (0.0, 0.5, 1.0)
    for size in (1, 5, 64):
        assert evaluated(text_run, tmp_path / "other", batch_size=size)["eval_accuracy"] == pytest.approx(expected)


NUMBERED = [(text, str(LABELS.index(label))) for text, label in OTHERS]


def test_numbers_in_other_data_are_read_in_the_order_of_the_run(text_run: Path, tmp_path: Path) -> None:
    """The run was given its labels in an order, so its numbers have a meaning; another order can be given now."""
    other = write_rows(tmp_path / "other.csv", NUMBERED)
    right = share_right(text_run, OTHERS)
    assert right != 0.5
    assert evaluated(text_run, other)["eval_accuracy"] == pytest.approx(right)
    assert evaluated(text_run, other, labels=LABELS[::-1])["eval_accuracy"] == pytest.approx(1 - right)


def test_numbers_in_other_data_need_an_order(says, text_run: Path, tmp_path: Path) -> None:
    """A model alone does not say what 0 and 1 in somebody's file mean."""
    other = write_rows(tmp_path / "other.csv", NUMBERED)
    with says(
        "other.csv, row 2: the labels here are numbers (0, 1), but those of the model are words (pos, really, neg)",
        "use the same labels in all splits, or list their names in the order of their numbers: --labels NAME,NAME",
        DataError,
    ):
        evaluated(text_run / "model", other)
    found = evaluated(text_run / "model", other, labels=LABELS)
    assert found["eval_accuracy"] == pytest.approx(share_right(text_run, OTHERS))


def test_other_data_may_lack_a_label(text_run: Path, tmp_path: Path) -> None:
    rows = [(text, "neg") for text, _ in OTHERS]
    write_rows(tmp_path / "other" / "train.csv", OTHERS)
    write_rows(tmp_path / "other" / "validation.csv", rows)
    found = evaluated(text_run, tmp_path / "other")
    assert found["eval_accuracy"] == pytest.approx(share_right(text_run, rows))


def test_a_label_the_model_does_not_know(says, text_run: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "other.csv", [*OTHERS, ("so so", "neutral")])
    with says(
        'other.csv, row 14: label "neutral" is not one of pos, really, neg',
        "fix the row, or train the model for other labels: glassloop train --new_head",
        DataError,
    ):
        evaluated(text_run, tmp_path / "other.csv")


def test_a_split_without_labels(says, text_run: Path, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        write_rows(tmp_path / "other" / f"{name}.csv", OTHERS)
    (tmp_path / "other" / "test.csv").write_text("text\ngood\n")
    with says("the split test has no labels to compare with", "choose another split with --split, or use glassloop predict"):
        evaluated(text_run, tmp_path / "other", split="test")


def test_columns_of_other_data_are_named_by_flags(text_run: Path, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        path = write_rows(tmp_path / "other" / f"{name}.csv", OTHERS)
        path.write_text(path.read_text().replace("text,label", "body,verdict", 1))
    found = evaluated(text_run, tmp_path / "other", text="body", label="verdict")
    assert found["eval_accuracy"] == pytest.approx(share_right(text_run, OTHERS))


def test_a_bare_model_needs_data(says, text_run: Path) -> None:
    model = text_run / "model"
    with says(
        f"{model} is a model without a run, so there is no data to evaluate on", "name the data: glassloop evaluate MODEL DATA"
    ):
        evaluated(model)
    own = evaluated(text_run)
    assert evaluated(model, text_run.parent)["eval_accuracy"] == own["eval_accuracy"]


def test_other_data_stand_beside_the_majority_of_training(
    text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training rows are not read again: the run has counted their labels."""
    counts = read_run(text_run).data.splits["train"].label_counts
    frequent = max(counts, key=lambda name: counts[name])
    rows = [
        (f"story {number}", frequent if number % 4 else next(name for name in counts if name != frequent))
        for number in range(8)
    ]
    evaluated(text_run, write_rows(tmp_path / "other.csv", rows))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy"))
    assert line.split()[-1] == "0.7500"


# --- A folder of seeds: each seed as if alone, mean and deviation, and all seeds as one model.


def test_each_seed_the_mean_and_all_seeds_as_one(
    seeds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = Wanted(device="cpu")
    content = json.loads(str(evaluate(str(seeds_folder), device="cpu", out=str(tmp_path / "rows.jsonl"))))
    captured = capsys.readouterr()
    scores = []
    for seed in ("1", "2"):
        run = seeds_folder / f"seed-{seed}"
        scores.append(evaluate_run(str(run), wanted).results[0].metrics)
        assert content["seeds"][seed]["run"] == str(run)
        assert content["seeds"][seed]["splits"]["validation"]["metrics"] == pytest.approx(scores[-1])
    for name in scores[0]:
        assert content["mean"][name] == pytest.approx(mean(one[name] for one in scores))
        assert content["standard_deviation"][name] == pytest.approx(stdev(one[name] for one in scores))
    assert "seed-3" in captured.err
    lines = captured.out.splitlines()
    assert lines[0].split()[:3] == ["validation", "(11", "rows)"]
    starts = ("seed 1", "seed 2", "mean of 2", "standard deviation", "all seeds as one model", "majority baseline")
    assert all(line.startswith(start) for line, start in zip(lines[1:], starts, strict=False))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    answers = SeedsPredictor(seeds_folder, device="cpu").predict([row["text"] for row in rows])
    assert [row["prediction"] for row in rows] == [answer.label for answer in answers]
    right = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    assert content["together"]["accuracy"] == pytest.approx(right)
