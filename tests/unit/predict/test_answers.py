"""What a predictor is asked and what it answers."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import FOUND

from glassloop.base.errors import DataError, ModelError
from glassloop.predict.answers import Answering, answering_of, calibration_note, columns_of
from glassloop.runs.record import Columns, read_run, weights_of, write_calibration
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

LOGITS = np.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.4]])
NAMES = ("a", "b", "c")
COLUMNS = Columns("sentence1", "sentence2", ("label",))


def test_forms_and_what_is_no_text() -> None:
    for given, found in [
        *[(["x", "y"], [["x", "y"]]), ([("x", "y")], [["x"], ["y"]]), ([["x", "y"], ("z", "w")], [["x", "z"], ["y", "w"]])],
        ([{"sentence1": "x", "sentence2": "y", "label": "1"}], [["x"], ["y"]]),
        ([{"text": "x", "text_pair": "y"}], [["x"], ["y"]]),
        ([{"text": "x"}], [["x"]]),
    ]:
        assert columns_of(given, COLUMNS) == found
    for given, problem in [
        (["x", ("y", "z")], "text 2 is a pair, but text 1 is a text"),
        ([("x", "y", "z")], "text 1 has 3 parts, but a pair has two"),
        ([{"texts": "x"}], 'text 1 has the keys texts, but no "text"'),
        (["x", 3], 'text 2 is "3", not text'),
        ([("x", None)], 'text 1 is "None", not text'),
    ]:
        with pytest.raises(DataError) as caught:
            columns_of(given, COLUMNS)
        assert caught.value.problem == problem


def test_temperature_and_thresholds(says) -> None:
    plain, warm = Answering(CLASSES, NAMES), Answering(CLASSES, NAMES, temperature=2.0)
    assert [one.label for one in plain.describe(LOGITS)] == [one.label for one in warm.describe(LOGITS)] == ["a", "b"]
    np.testing.assert_allclose(warm.shares(LOGITS), plain.shares(LOGITS / 2))
    assert warm.describe(LOGITS)[0].logits == LOGITS[0].tolist()
    found = Answering(SEVERAL, NAMES, thresholds={"a": 0.95, "c": 0.2}).describe(LOGITS)
    assert [one.label for one in found] == [["b", "c"], ["b", "c"]]
    assert [one.label for one in Answering(CLASSES, NAMES, thresholds={"c": 0.3}).describe(LOGITS)] == ["a", "c"]
    assert [one.label for one in Answering(CLASSES, NAMES, thresholds={"a": 0.9}).describe(LOGITS)] == ["b", "b"]
    every = Answering(CLASSES, NAMES, thresholds=dict.fromkeys(NAMES, 0.99))
    assert [one.label for one in every.describe(LOGITS)] == ["a", "b"], "if none reaches its threshold, the most likely"
    (found,) = Answering(SCORE, ("score",)).describe(np.array([[1.5]]))
    assert (found.label, found.scores, found.logits) == (1.5, {}, [1.5])
    with says("temperature is 0.0, not a positive number", "use 1 for no change"):
        Answering(CLASSES, NAMES, temperature=0.0)
    with says('there is a threshold for "x", which is not a label', "labels: a, b, c"):
        Answering(CLASSES, NAMES, thresholds={"x": 0.5})
    with says("a threshold is 2, not a probability", "use a number from 0 to 1"):
        Answering(CLASSES, NAMES, thresholds={"a": 2})


LABELS = ("label 0", "label 1")


def test_a_calibration_is_used_unless_others_are_given_or_it_is_damaged(tmp_path: Path) -> None:
    found, used = answering_of(tmp_path, None, CLASSES, LABELS, None, None)
    assert (found.temperature, found.thresholds, used) == (1.0, {}, None)
    write_calibration(tmp_path, FOUND)
    found, used = answering_of(tmp_path, None, CLASSES, LABELS, None, None)
    assert (found.temperature, found.thresholds, used) == (2.0, {"label 1": 0.25}, FOUND)
    said = "calibrated on 60 rows of validation: temperature 2, threshold 0.2500 for label 1"
    assert calibration_note(FOUND, found) == said
    found, used = answering_of(tmp_path, None, CLASSES, LABELS, None, {"label 0": 0.9})
    assert (found.temperature, found.thresholds, used) == (2.0, {"label 0": 0.9}, FOUND)
    found, used = answering_of(tmp_path, None, CLASSES, LABELS, 1.0, None)
    assert (found.temperature, found.thresholds, used) == (1.0, {}, None)
    limits = {f"label {number}": 0.5 for number in range(9)}
    found, _ = answering_of(Path("none"), None, "multi_label_classification", [*limits], 1.5, limits)
    assert calibration_note(FOUND, found).endswith("threshold 0.5000 for label 2 and 6 more")
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(ModelError, match="the calibration cannot be read"):
        answering_of(tmp_path, None, CLASSES, LABELS, None, None)
    answering_of(tmp_path, None, CLASSES, LABELS, 1.0, None)
    write_calibration(tmp_path, replace(FOUND, weights={"model.safetensors": "abc"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="fitted for other weights"):
        answering_of(tmp_path, None, CLASSES, LABELS, None, None)


@pytest.mark.slow
def test_predictor_server_and_seeds_use_a_calibration_where_it_belongs(
    text_run: Path, seeds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run answers with its thresholds, also behind a server; several seeds together do not use that of one of them."""
    from glassloop import Predictor
    from glassloop.cli.predict import predict
    from glassloop.predictor import SeedsPredictor, Wanted, evaluate_run
    from glassloop.serve.app import Question, described
    from glassloop.serve.batching import Answered
    from glassloop.serve.hosted import load_hosted

    folder = shutil.copytree(seeds_folder, tmp_path / "seeds")
    run = folder / "seed-1"
    before = Predictor(run, device="cpu")
    texts = ["a good film", "a bad film"]
    first, second = before.names
    (plain, _) = before.predict(texts)
    thresholds = {first: 1.0}  # never
    write_calibration(run / "model", replace(FOUND, temperature=4.0, thresholds=thresholds, weights=weights_of(run / "model")))
    found = Predictor(run, device="cpu")
    assert [answer.label for answer in found.predict(texts)] == [second, second]
    assert np.array_equal(found.logits(texts), before.logits(texts))
    shares = Answering(found.task, tuple(found.names), 4.0).shares(np.array([plain.logits]))[0]
    assert [*found.predict(texts)[0].scores.values()] == pytest.approx(shares)
    used = before.answering.temperature
    assert (used != 1.0, Predictor(run, device="cpu", temperature=used).predict(texts)[0]) == (True, plain)
    assert Predictor(run / "model", device="cpu").predict(texts)[0].label == second, "a bare model folder, too"
    capsys.readouterr()
    (answer,) = predict(str(run), texts[0], device="cpu").content["predictions"]
    assert answer["label"] == second
    assert "calibrated on 60 rows of validation: temperature 4, threshold 1.0000 for" in capsys.readouterr().err
    (hosted,) = load_hosted([str(run)], "cpu")
    info = hosted.info()
    assert (info["temperature"], info["thresholds"]) == (4.0, thresholds)
    assert info["calibration"] == {"target": "highest F1", "split": "validation", "rows": 60, "written": FOUND.written}
    encoded = found.encoded([texts])
    answer = described(hosted, Question([texts]), Answered(found.forward(encoded.rows), encoded))
    assert (answer["temperature"], answer["thresholds"]) == (4.0, thresholds)
    assert [entry["label"] for entry in answer["predictions"]] == [second, second]
    ensemble = SeedsPredictor(folder, device="cpu")
    assert (ensemble.calibration, ensemble.answering.temperature, ensemble.answering.thresholds) == (None, 1.0, {})
    evaluated = evaluate_run(str(run), Wanted(device="cpu")).metrics
    told = capsys.readouterr().err
    assert "metrics are computed without the thresholds of the run, which predict and serve use" in told
    (run / "model" / "calibration.json").unlink()
    again = evaluate_run(str(run), Wanted(device="cpu")).metrics
    assert all(again[name] == value for name, value in evaluated.items() if "second" not in name and "runtime" not in name)


@pytest.mark.slow
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_lines_of_the_card_load_the_model(
    pair_run: Path, text_run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, calibrated: bool
) -> None:
    """Both blocks of the card are run in the model folder, and print the same answer and probabilities."""
    from glassloop.report.card import update_card

    run = shutil.copytree(text_run if calibrated else pair_run, tmp_path / "run")
    assert (run / "model" / "README.md").is_file(), "a training writes it"
    if calibrated:
        names = read_run(run).data.labels or ()
        given = replace(FOUND, thresholds={names[0]: 0.999}, temperature=3.0, weights=weights_of(run / "model"))
        write_calibration(run / "model", given)
        update_card(run)
    text = (run / "model" / "README.md").read_text(encoding="utf-8")
    printed = []
    capsys.readouterr()
    monkeypatch.chdir(run / "model")
    for block in re.findall(r"```python\n(.*?)\n```", text, re.DOTALL):
        exec(block, {})
        printed.append(capsys.readouterr().out.strip())
    if not calibrated:  # two towers: other programs load the encoder alone
        numbers = re.findall(r"-?\d+\.\d*(?:e-?\d+)?", printed[1])
        assert len(numbers) == 2 * json.loads((run / "model" / "config.json").read_text())["hidden_size"]
        return
    label, _, shares = printed[1].rpartition(" [")
    assert f"label={label!r}" in printed[0]
    wanted = [float(part) for part in shares.rstrip("]").split(",")]
    own = re.search(r"scores=\{(.*?)\}", printed[0])
    assert [float(value) for value in re.findall(r": ([\d.e-]+)", own[1])] == pytest.approx(wanted, abs=1e-5)
