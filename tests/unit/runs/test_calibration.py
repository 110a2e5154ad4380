"""calibration.json: written whole, read with every check, and refused for other weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import FOUND

from glassloop.base.errors import ModelError
from glassloop.base.files import sha256_of
from glassloop.runs.record import AGAIN, Gain, Target, read_calibration, weights_of, write_calibration


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_what_was_written_is_read(model: Path) -> None:
    assert read_calibration(model) is None
    found = replace(FOUND, weights=weights_of(model))
    assert write_calibration(model, found) == model / "calibration.json"
    assert read_calibration(model) == found
    assert read_calibration(model, {"model.safetensors": sha256_of(model / "model.safetensors")}) == found
    assert [path.name for path in model.iterdir() if path.name.startswith(".")] == []


def test_other_weights_are_noticed(says, model: Path) -> None:
    write_calibration(model, replace(FOUND, weights=weights_of(model)))
    (model / "model.safetensors").write_bytes(b"others")
    with says(f"{model}/calibration.json: was fitted for other weights than those in {model}", AGAIN, ModelError):
        read_calibration(model)
    (model / "model.safetensors").rename(model / "model-00001.safetensors")
    with pytest.raises(ModelError, match="fitted for other weights"):
        read_calibration(model)
    (model / "model-00001.safetensors").unlink()
    assert read_calibration(model) is not None, "an export has other files"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"temperature": 3.0}, "its checksum differs, so it was edited or damaged"),
        ({"temperature": 0}, "the temperature is 0.0, not a positive number"),
        ({"thresholds": {"a": 1.5}}, "a threshold is 1.5, not a probability"),
        ({"gains": "many"}, 'gains is "many", not a list'),
        ({"format": 9}, "has format 9, but this version of Glassloop reads formats up to 1"),
    ],
)
def test_a_damaged_file_is_refused(model: Path, change: dict[str, object], problem: str) -> None:
    path = write_calibration(model, replace(FOUND, weights=weights_of(model)))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError) as caught:
        read_calibration(model)
    assert problem in caught.value.problem
    path.write_text("{")
    with pytest.raises(ModelError, match="the calibration cannot be read: not JSON"):
        read_calibration(model)


def test_words() -> None:
    assert str(Target("f1")) == "highest F1"
    assert str(Target("precision", 0.9)) == "highest precision at a recall of 0.9 or more"
    assert str(Target("cost", None, 1, 5)) == "least cost (false positive 1, false negative 5)"
    assert Gain("f1", 0.5, 0.75).change == 0.25
