"""Test `glassloop calibrate`: what is stored and what is not, and the runs it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import drawn_rows, with_baselines, write_run_with_model

from glassloop.base.errors import DataError, ModelError, SettingsError
from glassloop.base.files import sha256_of
from glassloop.cli.calibrate import calibrate
from glassloop.predict.calibration import costs_of, named_target, remove_calibration, target_for
from glassloop.runs.record import (
    RUNNING,
    Target,
    model_of_run,
    read_calibration,
    read_predictions,
    read_run,
    write_calibration,
    write_run,
)
from glassloop.scores.calibration import negative_log_likelihood
from glassloop.scores.statistics import scored_rows
from glassloop.settings.training import SCORE, SEVERAL
from glassloop.training.evaluate import store_temperature


def test_it_is_kept_beside_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSLOOP_NO_REPORT", raising=False)
    run = write_run_with_model(tmp_path / "run")
    (run / "report.html").write_text("old")
    content = calibrate(str(run), min_recall=0.9, force=True).content
    told = capsys.readouterr()
    found = read_calibration(run / "model")
    assert content["stored"] is True
    assert content["file"] == run / "model" / "calibration.json"
    assert (found.target, found.split, found.num_rows, found.folds) == (Target("precision", 0.9), "validation", 120, 10)
    assert found.predictions == sha256_of(run / "validation-predictions.jsonl")
    assert found.weights == {"model.safetensors": sha256_of(run / "model" / "model.safetensors")}
    assert [gain.name for gain in found.gains] == ["loss", "calibration error", "precision", "recall"]
    assert (content["temperature"], content["thresholds"]) == (found.temperature, found.thresholds)
    assert "thresholds for the highest precision at a recall of 0.9 or more" in told.out
    assert f'threshold {found.thresholds["label 1"]:.4f} for "label 1"' in told.out
    assert "Calibration" in (run / "report.html").read_text(encoding="utf-8"), "the report is written again"
    assert "## Calibration" in (run / "model" / "README.md").read_text(encoding="utf-8")
    model_of_run(run)  # card and calibration are not files that must not change
    remove_calibration(str(run))
    assert read_calibration(run / "model") is None
    assert "## Calibration" not in (run / "model" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ModelError, match=r"there is no calibration\.json to remove"):
        remove_calibration(str(run))


def test_what_does_not_help_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run_with_model(tmp_path / "run", signal=30.0)  # no errors: nothing can be gained
    content = calibrate(str(run)).content
    assert content["stored"] is False
    assert not (run / "model" / "calibration.json").exists()
    told = capsys.readouterr().out
    assert "no temperature: these rows do not determine one" in told
    assert "no thresholds: the f1 changes by +0.0000 ± " in told
    assert "nothing was stored; --force stores it anyway" in told
    assert calibrate(str(run), force=True).content["stored"] is True
    capsys.readouterr()
    calibrate(str(run))
    assert f"{run}/model/calibration.json was not changed" in capsys.readouterr().err


def test_every_task_with_labels_a_chosen_class_and_many_which_have_a_temperature_only(tmp_path: Path, says) -> None:
    for task, labels in [(SEVERAL, 3), ("single_label_classification", 4)]:
        run = write_run_with_model(tmp_path / task, task, num_labels=labels)
        content = calibrate(str(run), force=True).content
        found = read_calibration(run / "model")
        assert found.positive_label is None
        assert len(found.thresholds) == (3 if task == SEVERAL else 0)
        assert [gain.name for gain in found.gains] == ["loss", "calibration error", *(["f1"] if task == SEVERAL else [])]
        json.dumps(content["gains"])
    run = write_run_with_model(tmp_path / "run")
    assert [*calibrate(str(run), positive_label="label 0", force=True).content["thresholds"]] == ["label 0"]
    with says('"label 7" is not a label; did you mean "label 1"?', "labels: label 0, label 1"):
        calibrate(str(run), positive_label="label 7")
    rows = drawn_rows(30, labels=("a", "b", "c"))
    assert target_for(rows, None) is None
    with says("the run has 3 classes: only the most likely one is chosen, without a threshold"):
        target_for(rows, "f1")


def test_runs_that_cannot_be_calibrated(says, tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "score", SCORE)
    with says("the run predicts a score: it has no probabilities to calibrate", "calibrate a run with labels"):
        calibrate(str(run))
    run = write_run_with_model(tmp_path / "few", num_rows=19)
    with says("validation has 19 rows, at least 20 are needed", "use more rows", DataError):
        calibrate(str(run))
    run = write_run_with_model(tmp_path / "running", status=RUNNING)
    with pytest.raises(ModelError, match="the run is not finished"):
        calibrate(str(run))
    run = write_run_with_model(tmp_path / "run")
    with says(f'{run} has no stored predictions for the split "test"', "use one of validation"):
        calibrate(str(run), split="test")
    with says("--folds is 1", None):
        calibrate(str(run), folds=1)
    flipped(run, best=True)
    with pytest.raises(SettingsError, match=r'no threshold of "label 1" reaches a precision of 1: the highest is 0\.'):
        calibrate(str(run), min_precision=1.0)
    flipped(run, best=False)
    with says('all rows of validation have the label "label 1": nothing can be fitted', "use rows of all labels", DataError):
        calibrate(str(run))
    (run / "validation-predictions.jsonl").write_text("{")
    with pytest.raises(ModelError, match=r"validation-predictions\.jsonl, line 1"):
        calibrate(str(run))
    (run / "validation-predictions.jsonl").unlink()
    with says(f'{run} has no stored predictions for the split "validation"', "train again with rows for validation"):
        calibrate(str(run))
    with pytest.raises(ModelError, match="is not a run folder"):
        calibrate(str(tmp_path))


def flipped(run: Path, *, best: bool) -> None:
    """Make the most confident row wrong, or give all rows one label."""
    path = run / "validation-predictions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if best:
        max(lines, key=lambda line: line["logits"][1] - line["logits"][0])["label"] = "label 0"
    else:
        lines = [line | {"label": "label 1"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_it_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run")
    code = "import sys; from glassloop.cli.calibrate import calibrate; calibrate(sys.argv[1], force=True);"
    code += "print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_few_rows_get_fewer_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run_with_model(tmp_path / "run", num_rows=20)
    labels = [json.loads(line)["label"] for line in (run / "validation-predictions.jsonl").read_text().splitlines()]
    rarer = min(labels.count(label) for label in {*labels})
    assert 2 <= rarer < 10
    assert calibrate(str(run), force=True).exit_status == 0
    shown = capsys.readouterr()
    assert f"{rarer} folds instead of 10: the number of rows of the rarer class is {rarer}" in shown.err
    assert f"(20 rows, {rarer} folds)" in shown.out
    with pytest.raises(SettingsError, match="--folds is 10") as caught:
        calibrate(str(run), folds=10)
    assert caught.value.remedy == f"use 2 to {rarer}, the number of rows of the rarer class"


TARGETS = "use f1, precision, recall, cost or none"
COST = "false_positive=1, false_negative=5"


def test_the_target_and_options_and_costs_that_do_not_fit(says) -> None:
    for given, wanted in [
        ({}, Target("f1")),
        ({"target": "none"}, None),
        ({"target": "precision", "recall": 0.9}, Target("precision", 0.9)),
        ({"recall": 0.9}, Target("precision", 0.9)),
        ({"precision": 0.8}, Target("recall", 0.8)),
        ({"cost": COST}, Target("cost", None, 1.0, 5.0)),
    ]:
        limits = {name: value for name, value in given.items() if name != "target"}
        assert target_for(drawn_rows(30), named_target(**given), **limits) == wanted
    for given, problem, remedy in [
        ({"target": "precison"}, '--target is "precison"; did you mean "precision"?', TARGETS),
        ({"target": "precision"}, "--target precision needs --min_recall", "for example --min_recall 0.9"),
        ({"target": "cost"}, "--target cost needs --cost", "for example --cost false_positive=1,false_negative=5"),
        (
            {"target": "f1", "recall": 0.9},
            "--min_recall does not fit --target f1",
            "use it with --target precision, or omit it",
        ),
        ({"recall": 0.9, "precision": 0.9}, "--min_precision does not fit --target precision", None),
        ({"recall": 1.5}, "1.5 is not a share above 0 and up to 1", "use a number such as 0.9"),
        ({"precision": 0.0}, "0 is not a share above 0 and up to 1", None),
        ({"recall": float("nan")}, "nan is not a share above 0 and up to 1", None),
    ]:
        with says(problem, remedy):
            named_target(**given)
    for text in [
        *("", "1,5", "a=1,b=2", "false_positive=1", "false_positive=x,false_negative=1", "false_positive=-1,false_negative=1"),
        *("false_positive=0,false_negative=0", "false_positive=1,false_positive=2,false_negative=1"),
    ]:
        with pytest.raises(SettingsError, match="--cost"):
            costs_of(text)


def test_the_temperature_in_use_stays_unless_a_fit_is_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run_with_model(tmp_path / "run", num_rows=400)
    fitted = calibrate(str(run), target="none", force=True).content["temperature"]
    content = calibrate(str(run)).content
    assert content["temperature"] == read_calibration(run / "model").temperature == fitted, "not 1"
    capsys.readouterr()
    # Thresholds may be stored beside it, with the gain of the loss from the temperature in use.
    content = calibrate(str(run), cost="false_positive=1,false_negative=9").content
    assert content["stored"] is True
    found = read_calibration(run / "model")
    assert (content["temperature"], found.temperature, found.thresholds) == (fitted, fitted, content["thresholds"])
    entries = read_predictions(run, "validation")
    rows = scored_rows(entries, "single_label_classification", ("label 0", "label 1"), run)
    assert content["gains"][0]["before"] == pytest.approx(negative_log_likelihood(rows, fitted))
    assert f"the temperature stays {fitted:.4g}: " in capsys.readouterr().out
    assert [gain.name for gain in found.gains] == ["cost"]
    assert found.temperature_rows == found.fingerprint == "abd"
    other = replace(read_run(run).data.splits["validation"], fingerprint="other")
    record = read_run(run)
    write_run(run, replace(record, data=replace(record.data, splits={**record.data.splits, "test": other})))
    shutil.copy(run / "validation-predictions.jsonl", run / "test-predictions.jsonl")
    calibrate(str(run), split="test", cost="false_positive=1,false_negative=5")
    found = read_calibration(run / "model")
    assert (found.fingerprint, found.temperature_rows) == ("other", "abd"), "only its thresholds were fitted on the other rows"
    # Nothing new: what is used from now on is what the file has.
    before = (run / "model" / "calibration.json").read_bytes()
    content = calibrate(str(run), target="none", split="validation").content
    assert (run / "model" / "calibration.json").read_bytes() == before
    assert (content["stored"], content["temperature"], content["thresholds"]) == (False, fitted, found.thresholds)
    # Far from the best one, it is replaced.
    write_calibration(run / "model", replace(found, temperature=12.0))
    assert calibrate(str(run), target="none", split="validation").content["temperature"] == pytest.approx(fitted)
    (run / "model" / "calibration.json").write_text("{")
    content = calibrate(str(run), target="none", force=True, split="validation").content
    assert content["temperature"] == pytest.approx(fitted), "which repairs it"


def test_a_calibration_has_the_warning_that_holds_with_it(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run", num_rows=400)
    record = with_baselines(run, worse=True)
    store_temperature(run, record, "validation", record.probabilities)
    stored = read_calibration(run / "model")
    assert stored.warning == record.probabilities.warning
    assert stored.warning.startswith("the predicted probabilities are worse than the class frequencies")
    calibrate(str(run), cost="false_positive=1,false_negative=9")
    again = read_calibration(run / "model")
    assert (again.temperature, again.warning) == (1.5, stored.warning), "thresholds do not change probabilities"
    write_calibration(run / "model", replace(again, temperature=12.0, warning=stored.warning))
    calibrate(str(run), target="none")
    assert read_calibration(run / "model").warning == "", "at the new temperature they are better"
