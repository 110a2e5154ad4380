"""The models of a server: checked at the start, named by their folders, and measured."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from served import CountingModel, make_service
from starlette.testclient import TestClient

from glassloop import Predictor
from glassloop.base.errors import ModelError
from glassloop.cli.predict import predict
from glassloop.runs.record import read_calibration, write_calibration
from glassloop.serve import hosted
from glassloop.serve.app import make_app
from glassloop.serve.hosted import SIZES, check_predictions, load_hosted, measured_budget, warm_up


@pytest.mark.slow
def test_a_run_repeats_its_stored_predictions_or_is_not_served(text_run: Path, tmp_path: Path, says) -> None:
    (hosted,) = load_hosted([str(text_run)], "cpu")
    assert (hosted.name, hosted.checked) == ("run", 11)
    assert check_predictions(text_run / "model", hosted.predictor) == 0, "a bare model has none"
    shutil.copytree(text_run, tmp_path / "run")
    path = tmp_path / "run" / "validation-predictions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["logits"][0] += 0.1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ModelError) as caught:
        load_hosted([str(tmp_path / "run")], "cpu")
    assert "the model does not repeat its own predictions for validation (rows 3)" in caught.value.problem
    with says('two runs have the name "run"', "rename one of the folders"):
        load_hosted([str(text_run), str(tmp_path / "run")], "cpu")


class Machine(CountingModel):
    """A forward pass takes some time to start, and then the same time for every token, on a clock of its own."""

    def __init__(self, start: float, most: int = 10**9) -> None:
        super().__init__()
        self.now, self.start_seconds, self.most = 0.0, start, most

    def forward(self, rows):
        tokens = sum(row.num_tokens for row in rows)
        if tokens > self.most:
            raise MemoryError("out of memory")
        self.now += self.start_seconds + tokens * 1e-5
        return super().forward(rows)


def test_the_smallest_batch_that_is_fast_and_fits_is_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "MEASURED_SECONDS", 1e9)
    starts = {256: Machine(0.0), 2_048: Machine(1e-3), 16_384: Machine(5e-3), 4_096: Machine(1.0, most=4_096)}
    for wanted, machine in starts.items():
        assert measured_budget(machine, clock=lambda machine=machine: machine.now) == wanted
    machine, failing = Machine(1.0), CountingModel()
    monkeypatch.setattr(hosted, "MEASURED_SECONDS", 5.0)
    assert measured_budget(machine, clock=lambda: machine.now) < SIZES[-1]
    failing.failing = True
    with pytest.raises(RuntimeError):
        measured_budget(failing)
    model = CountingModel()
    model.max_length = 40
    warm_up(model, 512)
    assert [sum(batch) for batch in model.batches] == [*range(16, 129, 16), *range(192, 513, 64)]


@pytest.mark.slow
def test_a_model_folder_alone_has_the_warning_about_its_probabilities(text_run: Path, tmp_path: Path, capsys) -> None:
    model = shutil.copytree(text_run / "model", tmp_path / "model")
    stored = read_calibration(model)
    warning = "the predicted probabilities are worse than the class frequencies"
    write_calibration(model, replace(stored, warning=""))
    assert Predictor(model, device="cpu").warnings == []
    write_calibration(model, replace(stored, warning=warning))
    assert Predictor(model, device="cpu").warnings == [warning]
    predict(str(model), "a good film", device="cpu")
    assert capsys.readouterr().err.count(warning) == 1
    with ExitStack() as stack:
        service = make_service(stack, [model])
        assert TestClient(make_app(service), base_url="http://localhost:8000").get("/info").json()["warnings"] == [warning]
