"""How the answers of a model are chosen: as its calibration says, unless the caller says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from glassloop.answers import Answering
from glassloop.run_folder.calibration_json import Calibration, read_calibration
from glassloop.run_folder.record import RunRecord


def answering_of(
    model: Path,
    run: RunRecord | None,
    task: str,
    names: Sequence[str],
    temperature: float | None,
    thresholds: Mapping[str, float] | None,
) -> tuple[Answering, Calibration | None]:
    """Return how logits become answers, and the calibration that is used; None if there is none.

    A given temperature replaces the whole calibration: its thresholds are probabilities at another temperature. Given
    thresholds replace its thresholds only.

    Args:
        model: The folder of the model.
        run: The record of its run, whose checksums of the model were just checked.
        task: The task of the model.
        names: The names of its outputs.
        temperature: The temperature of the caller.
        thresholds: The thresholds of the caller.

    Raises:
        ModelError: If the calibration is damaged, or was fitted for other weights.
        SettingsError: If a threshold is not a probability of a label.
    """
    found = read_calibration(model, run.files if run else None) if temperature is None else None
    if found is None:
        return Answering(task, tuple(names), 1.0 if temperature is None else temperature, thresholds or {}), None
    chosen = found.thresholds if thresholds is None else thresholds
    return Answering(task, tuple(names), found.temperature, chosen), found


def calibration_note(found: Calibration, answering: Answering) -> str:
    """Return one line that says which temperature and thresholds are used."""
    limits = [f"threshold {value:.4f} for {name}" for name, value in answering.thresholds.items()]
    more = f" and {len(limits) - 3:,} more" if len(limits) > 3 else ""
    parts = [f"temperature {answering.temperature:.4g}", *limits[:3]]
    return f"calibrated on {found.num_rows:,} rows of {found.split}: {', '.join(parts)}{more}"
