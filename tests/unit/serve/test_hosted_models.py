"""The models of a server: checked at the start, named by their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from glassloop.base.errors import ModelError
from glassloop.serve.hosted import check_predictions, load_hosted

pytestmark = pytest.mark.slow  # trains


def test_a_run_repeats_its_stored_predictions(text_run: Path) -> None:
    (found,) = load_hosted([str(text_run)], "cpu")
    assert (found.name, found.checked) == ("run", 11)
    assert check_predictions(text_run / "model", found.predictor) == 0, "a bare model has none"


def test_a_run_whose_answers_differ_is_not_served(text_run: Path, tmp_path: Path) -> None:
    shutil.copytree(text_run, tmp_path / "run")
    path = tmp_path / "run" / "validation-predictions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["logits"][0] += 0.1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ModelError) as caught:
        load_hosted([str(tmp_path / "run")], "cpu")
    assert "the model does not repeat its own predictions for validation (rows 3)" in caught.value.problem


def test_two_runs_of_one_name(says, text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with says('two runs have the name "run"', "rename one of the folders"):
        load_hosted([str(text_run), str(tmp_path / "run")], "cpu")
