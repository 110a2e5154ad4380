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
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import DataError
from glassloop.cli.calibrate import calibrate
from glassloop.cli.evaluate import evaluate
from glassloop.predict import baselines
from glassloop.predict.baselines import refitted_baselines
from glassloop.predictor import SeedsPredictor, Wanted, evaluate_run
from glassloop.runs.record import read_calibration, read_run, write_run
from glassloop.scores.calibration import probability_scores
from glassloop.scores.metrics import recorded_measures
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run
from glassloop.training.evaluate import baseline_record, run_content

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

LABELS = ["pos, really", "neg"]
OTHERS = [(f"{'bad' if number % 3 else 'very good'} story {number}", LABELS[number % 2]) for number in range(12)]
NUMBERED = [(text, str(LABELS.index(label))) for text, label in OTHERS]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    return path


def evaluated(run: Path, data: Path | str | None = None, split: str | None = None, **options: Any) -> dict[str, float]:
    """Return the metrics of the command, which `evaluate_run` gives too."""
    source = None if data is None else str(data)
    size, positive = options.pop("batch_size", 4), options.pop("positive", None)
    evaluate(str(run), source, split, positive_label=positive, device="cpu", batch_size=size, **options)
    return evaluate_run(str(run), Wanted(source, split, options, (), positive, "cpu", size)).metrics


def write_both(folder: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    write_rows(folder / "train.csv", OTHERS)
    write_rows(folder / "validation.csv", rows or OTHERS)
    return folder


def rows_of(run: Path, split: str) -> list[tuple[str, str]]:
    with (run.parent / f"{split}.csv").open(newline="") as opened:
        return [(row["text"], row["label"]) for row in csv.DictReader(opened)]


def share_right(run: Path, rows: list[tuple[str, str]]) -> float:
    found = Predictor(run, device="cpu").predict([text for text, _ in rows])
    return sum(answer.label == label for answer, (_, label) in zip(found, rows, strict=True)) / len(rows)


# --- the data of the run
def test_its_own_data_give_the_figures_of_the_run(text_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((text_run / "run.json").read_text())
    found = evaluated(text_run)
    for name in ("eval_loss", "eval_accuracy", "eval_f1_macro"):
        assert found[name] == pytest.approx(stored["evaluation"][name], abs=1e-5)
    out = capsys.readouterr().out
    head, *lines = out.splitlines()
    assert head.split("  ")[0] == "validation (11 rows)"
    assert head.rstrip().endswith("this run  frequencies   words  frozen")
    shown = {line.split("  ")[0]: line.split()[-4:-2] for line in lines[:7]}
    assert shown["accuracy"] == [f"{found['eval_accuracy']:.4f}", f"{stored['baseline']['accuracy']:.4f}"]
    assert [*shown][:4] == ["loss", "accuracy", "f1 (macro)", "balanced accuracy"]
    assert [*shown][4:] == ["log loss", "Brier score", "calibration error"]
    assert lines[8].split() == ["class", "precision", "recall", "f1", "rows"]
    assert [line.split()[-1] for line in lines[9:11]] == ["8", "3"]
    assert " ".join(" ".join(lines[12:]).split()).startswith(f"• {stored['verdict']}")


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


def test_a_split_by_name(text_run: Path, says, capsys: pytest.CaptureFixture[str]) -> None:
    for split, number in (("train", 40), ("validation", 11), ("test", 9)):
        expected = share_right(text_run, rows_of(text_run, split))
        assert evaluated(text_run, split=split)["eval_accuracy"] == pytest.approx(expected)
        assert f"{split} ({number} rows)" in capsys.readouterr().out
    with says('the data has no split "tset"; did you mean "test"?', "use one of train, validation, test"):
        evaluated(text_run, split="tset")


@pytest.fixture
def cut_run(lively_dir: Path, session_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on one file, from which its validation rows were cut."""
    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    rows = [(f"{'good' if row % 3 else 'bad'} film {row}", LABELS[row % 3 == 0]) for row in range(30)]
    write_rows(tmp_path / "rows.csv", rows)
    settings = {"output_dir": str(tmp_path / "run"), "max_steps": 1, "device": "cpu", "precision": "fp32", "disable_tqdm": True}
    return train_run(GivenSettings(str(tmp_path / "rows.csv"), str(lively_dir), {**settings, "save_strategy": "no"}, {}))


def test_its_own_data_that_changed_are_refused_and_an_empty_name_does_not_mean_them(cut_run: Path, monkeypatch) -> None:
    """The validation rows are cut from the file: another file would score rows that were trained on."""
    path = cut_run.parent / "rows.csv"
    before = path.read_text()
    head, *rows = before.splitlines()
    first, last = rows[0], rows[-1]
    edited, moved = [*rows[:-1], last.replace("film", "story")], [*rows[1:], first]
    for changed in ([*rows, 'good new film,"pos, really"'], rows[1:], moved, edited):
        path.write_text("\n".join([head, *changed]) + "\n")
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
    monkeypatch.chdir(cut_run.parent)
    shutil.copy("rows.csv", "train.csv")
    with pytest.raises(DataError, match='"": there is no such file or folder'):
        evaluated(cut_run, data="")  # as with a shell variable that is not set, even in a folder with data


def test_a_split_that_was_added_later_may_be_scored(text_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(text_run.parent, tmp_path / "copy")
    run = read_run(folder / "run")
    splits = {name: split for name, split in run.data.splits.items() if name != "test"}
    write_run(folder / "run", replace(run, data=replace(run.data, source=str(folder), splits=splits)))
    assert evaluated(folder / "run", split="test")["eval_accuracy"] >= 0


# --- other data
def test_labels_of_other_data_are_compared_by_name(text_run: Path, tmp_path: Path) -> None:
    """The model numbers its labels against the alphabet, the data would number them by it."""
    expected = share_right(text_run, OTHERS)
    assert expected not in (0.0, 0.5, 1.0)
    for size in (1, 5, 64):
        found = evaluated(text_run, write_both(tmp_path / "other"), batch_size=size)
        assert found["eval_accuracy"] == pytest.approx(expected)
    rows = [(text, "neg") for text, _ in OTHERS]  # other data may lack a label
    found = evaluated(text_run, write_both(tmp_path / "less", rows))
    assert found["eval_accuracy"] == pytest.approx(share_right(text_run, rows))
    for path in (tmp_path / "other").iterdir():
        path.write_text(path.read_text().replace("text,label", "body,verdict", 1))
    assert evaluated(text_run, tmp_path / "other", text="body", label="verdict")["eval_accuracy"] == pytest.approx(expected)


def test_numbers_in_other_data_are_read_in_the_order_of_the_run(says, text_run: Path, tmp_path: Path) -> None:
    """The run was given its labels in an order; a model alone does not say what 0 and 1 in somebody's file mean."""
    other = write_rows(tmp_path / "other.csv", NUMBERED)
    right = share_right(text_run, OTHERS)
    assert right != 0.5
    assert evaluated(text_run, other)["eval_accuracy"] == pytest.approx(right)
    assert evaluated(text_run, other, labels=LABELS[::-1])["eval_accuracy"] == pytest.approx(1 - right)
    with says(
        "other.csv, row 2: the labels here are numbers (0, 1), but those of the model are words (pos, really, neg)",
        "use the same labels in all splits, or list their names in the order of their numbers: --labels NAME,NAME",
        DataError,
    ):
        evaluated(text_run / "model", other)
    assert evaluated(text_run / "model", other, labels=LABELS)["eval_accuracy"] == pytest.approx(right)


def test_what_cannot_be_compared(says, text_run: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "other.csv", [*OTHERS, ("so so", "neutral")])
    remedy = "fix the row, or train the model for other labels: glassloop train --new_head"
    with says('other.csv, row 14: label "neutral" is not one of pos, really, neg', remedy, DataError):
        evaluated(text_run, tmp_path / "other.csv")
    (write_both(tmp_path / "other") / "test.csv").write_text("text\ngood\n")
    with says("the split test has no labels to compare with", "choose another split with --split, or use glassloop predict"):
        evaluated(text_run, tmp_path / "other", split="test")


def test_a_bare_model_needs_data(says, text_run: Path) -> None:
    model = text_run / "model"
    problem = f"{model} is a model without a run, so there is no data to evaluate on"
    with says(problem, "name the data: glassloop evaluate MODEL DATA"):
        evaluated(model)
    assert evaluated(model, text_run.parent)["eval_accuracy"] == evaluated(text_run)["eval_accuracy"]


def test_other_data_stand_beside_the_baselines_of_the_training_rows(text_run: Path, tmp_path: Path, capsys) -> None:
    counts = read_run(text_run).data.splits["train"].label_counts
    rare, frequent = sorted(counts, key=lambda name: counts[name])
    rows = [(f"story {number}", frequent if number % 4 else rare) for number in range(8)]
    evaluated(text_run, write_rows(tmp_path / "fresh.csv", rows))
    out = capsys.readouterr().out
    assert out.startswith("fresh.csv (8 rows)"), "a file is shown by its name"
    assert "train (" not in out
    line = next(line for line in out.splitlines() if line.startswith("accuracy"))
    assert line.split()[-3] == "0.7500", "the class frequencies"


SIMPLE = ["class frequencies", "words", "frozen encoder"]


def names_of(run: Path, **wanted: Any) -> list[str]:
    return [one.name for one in evaluate_run(str(run), Wanted(device="cpu", **wanted)).results[0].baselines]


def test_every_split_is_judged_against_the_baselines_of_the_run(text_run: Path, monkeypatch, capsys) -> None:
    (result,) = evaluate_run(str(text_run), Wanted(split="test", device="cpu")).results
    assert [one.name for one in result.baselines] == SIMPLE
    assert result.verdict is not None
    assert re.search("than|from|against|over|to", result.verdict.sentence)
    right = {one.name: one.scores["accuracy"].value for one in result.baselines}
    best = max(right.values())
    assert f"against {best:.4f} (" in result.verdict.sentence, "the best of them"
    assert names_of(text_run, split="train") == []
    # Fitted again, they are those of the run, and their embeddings come from the cache.
    record = read_run(text_run)
    examples = evaluate_run(str(text_run), Wanted(device="cpu")).examples
    monkeypatch.setattr("glassloop.predict.baselines.FrozenEncoder.computed", pytest.fail)
    held_out = {"validation": (examples, "validation")}
    again = refitted_baselines(record, examples, held_out, PlainBackend("cpu", "fp32"))["validation"]
    measures = recorded_measures(record.metrics, record.positive_label, record.data.task, LABELS)
    assert [baseline_record(one, measures).scores for one in again.each] == [one.scores for one in record.baselines]


def test_without_baselines_and_where_they_cannot_be_fitted(text_run: Path, lively_dir: Path, tmp_path: Path, capsys) -> None:
    assert names_of(text_run, split="test", baselines=False) == names_of(text_run, baselines=False) == []
    folder = shutil.copytree(text_run.parent, tmp_path / "copy")
    run, record = folder / "run", read_run(folder / "run")
    record = replace(record, data=replace(record.data, source=str(folder)))
    write_run(run, replace(record, settings=replace(record.settings, baselines=False)))
    capsys.readouterr()
    assert names_of(run, split="test") == [], "the run has none"
    assert capsys.readouterr().err == ""
    model = shutil.copytree(lively_dir, tmp_path / "model")
    write_run(run, replace(record, model=replace(record.model, name=str(model))))
    assert names_of(run, split="test") == SIMPLE
    shutil.rmtree(model)
    capsys.readouterr()
    result = evaluate_run(str(run), Wanted(split="test", device="cpu")).results[0]
    assert (result.verdict is not None, [*result.baselines]) == (True, [])
    note = "compared with the majority only: the baselines cannot be fitted again: "
    assert capsys.readouterr().err.count(note) == 1
    write_run(run, record)
    fresh = write_rows(tmp_path / "fresh.csv", OTHERS)
    assert names_of(run, data=str(fresh)) == SIMPLE
    write_rows(folder / "train.csv", OTHERS)
    capsys.readouterr()
    assert names_of(run, data=str(fresh)) == []
    told = capsys.readouterr().err
    assert note in told
    assert "the data has changed since the run: train: 40 rows" in told


def test_several_held_out_splits_each_have_a_verdict_and_the_first_the_temperature(
    lively_dir: Path, session_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    rows = [(f"{'good' if row % 3 else 'bad'} film {row % 7}", LABELS[row % 5 < 2]) for row in range(90)]
    write_rows(tmp_path / "train.csv", rows[:60])
    write_rows(tmp_path / "validation.csv", rows[60:])
    settings = {"output_dir": str(tmp_path / "run"), "max_steps": 12, "learning_rate": 5e-3, "device": "cpu"}
    settings |= {"precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
    run = train_run(GivenSettings(str(tmp_path), str(lively_dir), settings, {"selection_fold": "1/3"}))
    record, stored = read_run(run), read_calibration(run / "model")
    assert record.probabilities is not None
    assert stored is not None
    assert (stored.split, stored.temperature) == ("selection", record.probabilities.temperature)
    assert [*record.judged] == ["selection", "validation"]
    content = run_content(run, record)["splits"]
    for told in content.values():
        assert [one.name for one in told["baselines"]] == SIMPLE
        assert told["verdict"]
    assert record.judged["validation"].verdict != record.verdict
    # Evaluated again, they say the same: the selection rows at temperatures that were fitted without each of them.
    again = {one.split: one for one in evaluate_run(str(run), Wanted(device="cpu")).results}
    for name, told in record.judged.items():
        assert again[name].verdict.sentence == told.verdict
        assert again[name].baselines == told.baselines
    first, second = (again[name].probabilities for name in ("selection", "validation"))
    assert first.after["log_loss"].value == pytest.approx(record.probabilities.after["log_loss"].value, abs=1e-6)
    rows_of_second = again["validation"].rows
    used = probability_scores(rows_of_second, stored.temperature)["log_loss"].value
    assert second.after["log_loss"].value == pytest.approx(used), "other rows, at the stored temperature"
    # A calibration on other rows: now these are judged by cross-fitting, and those of before at its temperature.
    calibrate(str(run), split="validation", target="none", force=True)
    moved = read_calibration(run / "model")
    assert moved is not None
    again = {one.split: one for one in evaluate_run(str(run), Wanted(device="cpu")).results}
    found = again["validation"].probabilities
    assert found.temperature == moved.temperature
    used = probability_scores(rows_of_second, moved.temperature)["log_loss"].value
    assert found.after["log_loss"].value != pytest.approx(used)
    used = probability_scores(again["selection"].rows, moved.temperature)["log_loss"].value
    assert again["selection"].probabilities.after["log_loss"].value == pytest.approx(used)


# --- A folder of seeds: each seed as if alone, mean and deviation, and all seeds as one model.
def test_each_seed_the_mean_and_all_seeds_as_one(seeds_folder: Path, tmp_path: Path, capsys) -> None:
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


def test_the_baselines_of_several_seeds_are_fitted_once(seeds_folder: Path, monkeypatch, capsys) -> None:
    fit, calls = baselines.refitted_baselines, []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return fit(*given)

    monkeypatch.setattr(baselines, "refitted_baselines", counted)
    content = json.loads(str(evaluate(str(seeds_folder), split="test", device="cpu")))
    assert len(calls) == 1
    assert [one["name"] for one in content["baselines"]] == SIMPLE
    for seed in content["seeds"].values():
        assert seed["splits"]["test"]["baselines"] == content["baselines"]
    lines = capsys.readouterr().out.splitlines()
    shown = next(line for line in lines if line.startswith("frozen encoder "))
    assert f"{content['baselines'][2]['scores']['accuracy']['value']:.4f}" in shown, "of the test split"
    head = next(line for line in lines if line.startswith("baselines "))
    assert head.split("  ", 1)[1].split() == ["accuracy", "95%", "confidence", "interval", "log", "loss", "seconds"]
