"""Which temperature and thresholds answer: those of the calibration, unless the caller gives others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from calibrated_runs import FOUND

from glassloop.calibrated import answering_of, calibration_note
from glassloop.errors import ModelError
from glassloop.run_folder.calibration_json import write_calibration
from glassloop.settings import CLASSES

NAMES = ("label 0", "label 1")


def test_a_calibration_is_used_unless_others_are_given(tmp_path: Path) -> None:
    found, used = answering_of(tmp_path, None, CLASSES, NAMES, None, None)
    assert (found.temperature, found.thresholds, used) == (1.0, {}, None)
    write_calibration(tmp_path, FOUND)
    found, used = answering_of(tmp_path, None, CLASSES, NAMES, None, None)
    assert (found.temperature, found.thresholds, used) == (2.0, {"label 1": 0.25}, FOUND)
    assert calibration_note(FOUND, found) == (
        "calibrated on 60 rows of validation: temperature 2, threshold 0.2500 for label 1"
    )
    found, used = answering_of(tmp_path, None, CLASSES, NAMES, None, {"label 0": 0.9})
    assert (found.temperature, found.thresholds, used) == (2.0, {"label 0": 0.9}, FOUND)
    found, used = answering_of(tmp_path, None, CLASSES, NAMES, 1.0, None)
    assert (found.temperature, found.thresholds, used) == (1.0, {}, None)


def test_many_thresholds_are_not_all_told() -> None:
    limits = {f"label {number}": 0.5 for number in range(9)}
    found, _ = answering_of(Path("none"), None, "multi_label_classification", [*limits], 1.5, limits)
    assert calibration_note(FOUND, found).endswith("threshold 0.5000 for label 2 and 6 more")


def test_a_damaged_calibration_is_refused_unless_a_temperature_is_given(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(ModelError, match="the calibration cannot be read"):
        answering_of(tmp_path, None, CLASSES, NAMES, None, None)
    answering_of(tmp_path, None, CLASSES, NAMES, 1.0, None)
    write_calibration(tmp_path, replace(FOUND, weights={"model.safetensors": "abc"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="fitted for other weights"):
        answering_of(tmp_path, None, CLASSES, NAMES, None, None)
