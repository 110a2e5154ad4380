"""Opening folders, and predictions in int8: compared with the stored ones before they are used."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from packs import needs_kernels

from glassloop import Predictor
from glassloop import predictor as int8
from glassloop.backends.fast.inference_model import Int8Layer
from glassloop.base.errors import ModelError
from glassloop.predictor import Agreement, SeedsPredictor, open_model, spread
from glassloop.serve.hosted import load_hosted


@pytest.mark.slow
def test_a_run_its_model_precisions_and_damaged_exports(text_run: Path, says, tmp_path: Path) -> None:
    folder, run, _, _, backend = open_model(text_run, "cpu")
    assert (folder, backend.name) == (text_run / "model", "packed")
    assert run is not None
    assert open_model(text_run / "model", "cpu")[1] is None
    assert type(open_model(text_run, "cpu", light=True)[3]).__name__ == "LightClassifier"
    problem = '"int4" is not a known precision of predictions; did you mean "int8"?'
    with says(problem, "choose one of: auto, fp32, bf16, fp16, int8"):
        open_model(tmp_path, "cpu", "int4")
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path, "cpu")
    assert "export.json: the record of the export cannot be read: not JSON" in caught.value.problem


TEXTS = ["a good film", "bad", "the story is very very very very very very very very good", "not good not bad"]


def test_what_int8_says_of_its_agreement_and_a_drop_of_more_than_a_point() -> None:
    found = Agreement("validation", 408, 5, 0.0512, {"accuracy": (0.73284, 0.73529), "f1 (yes)": (0.83048, 0.8321)})
    changed = "int8: 5 of 408 stored predictions for validation changed, logits by up to 0.051"
    assert str(found) == f"{changed}; accuracy 0.7328 → 0.7353, f1 (yes) 0.8305 → 0.8321"
    score = Agreement("validation", 1, None, 0.002, {"pearson": (0.9, 0.9), "mse": (0.1, 0.2)})
    changed = "int8: 1 stored prediction for validation, logits by up to 0.002"
    assert str(score) == f"{changed}; pearson 0.9000 → 0.9000, mse 0.1000 → 0.2000"
    assert score.dropped == [], "an error has no fixed scale"
    assert spread([*range(100)], 3) == [0, 49, 99]
    assert spread([1, 2], 3) == [1, 2]
    for after, dropped in [(0.84, []), (0.8301, []), (0.8299, ["f1"]), (float("nan"), ["f1"])]:
        assert Agreement("validation", 408, 5, 0.05, {"accuracy": (0.7, 0.7), "f1": (0.84, after)}).dropped == dropped


@needs_kernels
@pytest.mark.slow
def test_int8_unless_metrics_drop(text_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fast = Predictor(text_run, device="cpu"), Predictor(text_run, device="cpu", precision="int8")
    said = capsys.readouterr().err
    assert plain.agreement is None
    assert (fast.agreement.split, fast.agreement.rows, fast.backend.name) == ("validation", 11, "int8")
    assert str(fast.agreement) in said
    assert [one.label for one in fast.predict(TEXTS)] == [one.label for one in plain.predict(TEXTS)]
    stored = [json.loads(line) for line in (text_run / "validation-predictions.jsonl").read_text().splitlines()]
    again, wanted = fast.logits([row["text"] for row in stored]), np.array([row["logits"] for row in stored])
    apart = np.abs(again - wanted).max()
    assert apart == pytest.approx(fast.agreement.difference, abs=0.02)
    assert 0 < apart < 0.05 * np.abs(wanted).max()
    monkeypatch.setattr(Int8Layer, "__call__", lambda layer, x, groups: torch.zeros_like(x))
    with pytest.raises(ModelError) as caught:
        Predictor(text_run, device="cpu", precision="int8")
    said = r"int8: \d+ of 11 stored predictions for validation changed, .*: accuracy.* dropped by more than a point"
    assert re.fullmatch(said, caught.value.problem)
    assert caught.value.remedy == "use precision fp32"


@needs_kernels
@pytest.mark.slow
def test_int8_for_threads_pairs_seeds_and_server(text_run: Path, pair_run: Path, seeds_folder: Path, tmp_path: Path) -> None:
    assert Predictor(pair_run, device="cpu", precision="int8").predict("good", "bad")[0].scores
    seeds = SeedsPredictor(seeds_folder, device="cpu", precision="int8")
    assert {one.backend.name for one in (seeds, *seeds.others)} == {"int8"}
    assert len(seeds.predict(TEXTS)) == 4
    light = Predictor(text_run, device="cpu", precision="int8", light=True)
    assert type(light.model).__name__ == "PooledClassifier", "a light model has no int8 layers"
    (hosted,) = load_hosted([str(text_run)], "cpu", "int8")
    assert hosted.checked == 11
    assert hosted.info()["backend"] == "int8"
    predictor = Predictor(text_run, device="cpu", precision="int8")
    wanted = [one.label for one in predictor.predict(TEXTS)]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: [one.label for one in predictor.predict(TEXTS)], range(20))]
    assert found == [wanted] * 20
    from glassloop.predict.files import model_key

    plain, fast = (Predictor(text_run, device="cpu", precision=precision) for precision in ("fp32", "int8"))
    keys = {str(model_key(one.model_dirs, "cpu", one.answering, int8=one.agreement is not None)) for one in (plain, fast)}
    assert len(keys) == 2


@pytest.mark.slow
def test_what_has_no_int8(says, text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "why_not_int8", lambda model: "BertModel has layers without an int8 form")
    with says("precision int8: BertModel has layers without an int8 form", "use precision fp32", ModelError):
        Predictor(text_run, device="cpu", precision="int8")
    monkeypatch.setattr(int8, "why_not_int8", lambda model: None)
    problem = f"precision int8: {text_run / 'model'} has no stored predictions to compare with"
    with says(problem, "name the folder of a finished run, or use precision fp32"):
        Predictor(text_run / "model", device="cpu", precision="int8")
    copied = shutil.copytree(text_run, tmp_path / "run")
    (copied / "validation-predictions.jsonl").unlink()
    with says(f"precision int8: {copied} has no stored predictions to compare with"):
        Predictor(copied, device="cpu", precision="int8")
    predictor = Predictor(text_run, device="cpu")
    predictor.backend.device = type("Device", (), {"type": "cuda"})()
    with says("precision int8 needs a CPU, but the device is cuda", "use device cpu, or use precision fp32"):
        int8.quantize(predictor, text_run)
