"""Models with a pooled head after their training: the same numbers in the predictor, files, int8, seeds and the server."""

from __future__ import annotations

import csv
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packs import needs_kernels
from run_folders import make_run, sentence
from served import make_service
from starlette.testclient import TestClient

from glassloop import Predictor
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import DataError
from glassloop.data.encoding import tokenizer_key
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.models.pooled import Pooling, pooled
from glassloop.predictor import SeedsPredictor, Wanted, evaluate_run
from glassloop.runs.record import FINISHED, read_run, write_run
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.conclusions import averaged_logits
from glassloop.serve.app import make_app
from glassloop.serve.hosted import load_hosted, measured_budget, warm_up
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES

FORMS = {  # pairs, and how they are pooled
    "one text": (False, Pooling("mean", normalize=True)),
    "one sequence": (True, Pooling("last")),
    "two towers": (True, Pooling("mean", towers=True)),
    "two towers of first tokens": (True, Pooling("cls", towers=True)),
}
TEXTS = [*(sentence(row) for row in range(13)), "very " * 60, "good"]


def columns_of(pairs: bool) -> list[list[str]]:
    return [TEXTS, TEXTS[::-1]] if pairs else [TEXTS]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> dict[str, Path]:
    """A finished run of each form, with the checksum of its tokenizer, as a training writes it."""
    found = {}
    for name, (pairs, pooling) in FORMS.items():
        run = found[name] = make_run(tmp_path_factory.mktemp("pooled") / "run", labels=3, pairs=pairs, pooling=pooling)
        key = tokenizer_key(load_tokenizer(run / "model"))[:16]
        write_run(run, replace(read_run(run), identity={"tokenizer": key}))
    return found


def by_hand(run: Path, columns: list[list[str]], max_length: int = 32) -> np.ndarray:
    """The logits of rows, one at a time and without padding, from the encoder and the head alone."""
    model, tokenizer = load_model(run / "model").eval(), load_tokenizer(run / "model")
    how: dict[str, Any] = {"truncation": True, "max_length": max_length, "return_tensors": "pt"}
    found = []
    for row in zip(*columns, strict=True):
        apart = [(text,) for text in row] if model.pooling.towers else [row]
        encoded = [tokenizer(*texts, **how) for texts in apart]
        with torch.inference_mode():
            hidden = [model.base_model(**inputs).last_hidden_state for inputs in encoded]
            vectors = [
                pooled(one, inputs["attention_mask"], model.pooling.mode) for one, inputs in zip(hidden, encoded, strict=True)
            ]
            found.append(model.head(model.pooling.features(torch.cat(vectors)))[0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_predict_gives_the_same_numbers(form: str, runs: dict[str, Path], tmp_path: Path) -> None:
    run, pairs = runs[form], FORMS[form][0]
    columns = columns_of(pairs)
    wanted = by_hand(run, columns)
    assert np.ptp(wanted, axis=0).min() > 0.05, "the rows have different answers"
    predictor = Predictor(run, device="cpu", batch_size=4)
    assert predictor.towers == FORMS[form][1].towers
    plain = Predictor(run, device="cpu", batch_size=4)
    plain.use(PlainBackend("cpu"))
    light = Predictor(run, device="cpu", batch_size=4, light=True)
    assert type(light.model).__name__ == "LightClassifier"
    for one in (predictor, plain, light, Predictor(run / "model", device="cpu")):
        one.max_length = 32  # a model folder does not say it
        np.testing.assert_allclose(one.logits(*columns), wanted, atol=2e-5)
    assert (predictor.backend.name, plain.backend.name) == ("packed", "plain")
    rows = [*zip(*columns, strict=True)] if pairs else TEXTS
    np.testing.assert_allclose([one.logits for one in predictor.predict(rows)], wanted, atol=2e-5)
    np.testing.assert_allclose([one.logits for one in predictor.predict(iter(rows))], wanted, atol=2e-5)
    encoded = predictor.encoded(columns).rows
    np.testing.assert_allclose(predictor.forward(encoded), wanted, atol=2e-5)
    names = read_run(run).data.columns.texts
    with (tmp_path / "rows.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([names, *zip(*columns, strict=True)])
    assert predictor.predict_file(tmp_path / "rows.csv", tmp_path / "out.jsonl") == len(TEXTS)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    shares = np.array([[row[f"score_{name}"] for name in predictor.names] for row in written])
    np.testing.assert_allclose(shares, np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True), atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_an_evaluation_of_other_rows(form: str, runs: dict[str, Path], tmp_path: Path) -> None:
    run, pairs = runs[form], FORMS[form][0]
    columns, names = columns_of(pairs), read_run(run).data.columns.texts
    logits = by_hand(run, columns)
    labels = [f"label {place}" for place in logits.argmax(1)]
    with (tmp_path / "rows.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([(*names, "label"), *zip(*columns, labels, strict=True)])
    found = evaluate_run(str(run), Wanted(str(tmp_path / "rows.csv"), device="cpu"))
    assert found.metrics["eval_accuracy"] == 1.0
    np.testing.assert_allclose(found.results[0].rows.logits, logits, atol=2e-5)


def test_two_towers_need_pairs_and_cut_each_text_on_its_own(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["two towers"]
    predictor = Predictor(run, device="cpu")
    for alone in ("a text", ["a text"], [{"text": "a text"}]):
        with pytest.raises(DataError, match="the model compares two texts") as caught:
            predictor.predict(alone)
        assert "pairs" in caught.value.remedy
    (tmp_path / "rows.csv").write_text("text,label\na text,label 0\n")
    with pytest.raises(DataError, match="compares two texts"):
        Predictor(run / "model", device="cpu").predict_file(tmp_path / "rows.csv", tmp_path / "out.csv", "text")
    with pytest.raises(DataError, match="compares two texts"):
        evaluate_run(str(run / "model"), Wanted(str(tmp_path / "rows.csv"), device="cpu"))
    (row,) = predictor.encoded([["very " * 60], ["good film"]]).rows
    assert (row.num_tokens, row.cut.num_first, row.cut.num_second) == (32 + 4, 1, 0)
    assert [*row.inputs["token_type_ids"]] == [0] * 32 + [1] * 4
    predictor.predict(["very " * 60], ["good film"])
    assert "1 of 1 row (100%) lost the end of the first text (1): cut to 32 tokens" in predictor.notes[0]


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
def test_int8(form: str, runs: dict[str, Path]) -> None:
    predictor = Predictor(runs[form], device="cpu", precision="int8")
    assert (predictor.backend.name, predictor.agreement and predictor.agreement.rows) == ("int8", 24)
    columns = columns_of(FORMS[form][0])
    wanted = by_hand(runs[form], columns)
    np.testing.assert_allclose(predictor.logits(*columns), wanted, atol=0.1 * np.abs(wanted).max())


def test_several_seeds(tmp_path: Path) -> None:
    for seed, mode in ((1, "mean"), (2, "max")):
        make_run(tmp_path / f"seed-{seed}", labels=3, pairs=True, rows=4, pooling=Pooling(mode, towers=True))
    entries = {seed: SeedRecord(status=FINISHED) for seed in (1, 2)}
    write_seeds(SeedsRecord(RunSettings("rows.csv"), entries, tmp_path))
    columns = columns_of(pairs=True)
    alone = [by_hand(tmp_path / f"seed-{seed}", columns) for seed in (1, 2)]
    found = SeedsPredictor(tmp_path, device="cpu").logits(*columns)
    np.testing.assert_allclose(found, averaged_logits(alone, CLASSES), atol=2e-5)


# --- the server ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", FORMS)
def test_a_server_answers_like_the_predictor(form: str, runs: dict[str, Path]) -> None:
    run, pairs = runs[form], FORMS[form][0]
    columns = columns_of(pairs)
    wanted = by_hand(run, columns)
    with ExitStack() as stack:
        service = make_service(stack, [run])
        assert service.hosted[0].checked == 16
        assert service.hosted[0].pairs == pairs
        client = TestClient(make_app(service), base_url="http://localhost:8000")
        rows = [[*row] for row in zip(*columns, strict=True)]
        found = client.post("/v1/predict", json={"inputs": rows}).json()["predictions"]
        np.testing.assert_allclose([one["logits"] for one in found], wanted, atol=2e-5)
        cut = [{"tokens": 30, "first": True, "second": False}, None]
        if not pairs:
            assert [found[13]["truncated"], found[0]["truncated"]] == cut
        raw = client.post("/predict", json={"inputs": rows, "raw_scores": True}).json()
        by_label = [[{one["label"]: one["score"] for one in row}[f"label {place}"] for place in range(3)] for row in raw]
        np.testing.assert_allclose(by_label, wanted, atol=2e-5)
        long = client.post("/v1/predict", json={"inputs": [rows[13]], "truncate": False})
        assert long.status_code == 413
        longest = {"one text": 62, "one sequence": 66}.get(form, 62)
        assert long.json()["error"] == f"a text has {longest} tokens, but the model takes 32; set truncate"
        other = client.post("/predict", json={"inputs": "a text" if pairs else ["a text", "another"]})
        assert other.status_code == 422


@pytest.mark.parametrize("form", FORMS)
def test_a_server_measures_and_warms_up_any_form(form: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(runs[form], device="cpu")
    monkeypatch.setattr("glassloop.serve.hosted.MEASURED_SECONDS", 0.0)
    assert measured_budget(predictor) == 256
    sizes: list[int] = []
    forward = predictor.forward

    def noted(rows: Any) -> np.ndarray:
        for row in rows:
            types = [*row.inputs.get("token_type_ids", [])]
            assert not predictor.towers or {*types} == {0, 1}, "both texts have tokens"
        sizes.append(sum(row.num_tokens for row in rows))
        return forward(rows)

    monkeypatch.setattr(predictor, "forward", noted)
    for predictor.max_length in (32, 31, 17):  # rests of one token, which are no pair
        sizes.clear()
        warm_up(predictor, 256)
        assert len(sizes) == 10
        assert max(sizes) > 200
    (hosted,) = load_hosted([str(runs[form] / "model")], "cpu")
    assert hosted.pairs is (True if predictor.towers else None)
