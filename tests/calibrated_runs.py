"""Finished run folders with stored predictions and a model of a few bytes, for tests of what is done after a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reported_runs import write_fake_run

from glassloop.runs.calibration import Calibration, Gain, Target
from glassloop.settings.fields import CLASSES

WEIGHTS = b"weights"
FOUND = Calibration(
    temperature=2.0,
    thresholds={"label 1": 0.25},
    target=Target("f1"),
    positive_label="label 1",
    split="validation",
    num_rows=60,
    fingerprint="abc",
    predictions="",
    folds=10,
    gains=(Gain("loss", 0.5, 0.4, -0.2, -0.05), Gain("calibration error", 0.1, 0.05), Gain("f1", 0.8, 0.85, -0.01, 0.1)),
    written="2026-01-01T00:00:00+00:00",
)


def write_run_with_model(folder: Path, task: str = CLASSES, **given: Any) -> Path:
    """Write a run folder with a model of a few bytes and return it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model" / "model.safetensors").write_bytes(WEIGHTS)
    write_fake_run(folder, task, **{"num_rows": 120, "signal": 0.7, **given})
    return folder
