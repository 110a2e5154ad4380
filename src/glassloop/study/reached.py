"""How far a run of a study has come, from its folder alone: a killed study finds what is done there."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from glassloop.engine.checkpoint import open_checkpoint
from glassloop.errors import GlassloopError, ModelError
from glassloop.files import write_text
from glassloop.measures import short_metrics
from glassloop.run_folder.layout import RUNGS_NAME, checkpoints_in, is_run, step_of
from glassloop.run_folder.record import FINISHED, RunRecord
from glassloop.run_folder.run_json import read_run
from glassloop.run_folder.study_json import PAUSED, read_rungs
from glassloop.study.trials import Done


def found_done(folder: Path, name: str, fraction: float) -> Done | None:
    """Return what a run has reached if that is enough, or None if it has to be trained.

    Args:
        folder: The run folder.
        name: Name of the run.
        fraction: How much of its training is wanted.
    """
    rungs = dict(read_rungs(folder, RUNGS_NAME))
    record = record_of(folder)
    if record and record.finished:
        return finished_done(name, record, rungs)
    if f"{fraction:g}" in rungs:
        return Done(name, PAUSED, rungs)
    return None


def finished_done(name: str, record: RunRecord, rungs: dict[str, dict[str, float]]) -> Done:
    """Return the result of a run that is finished."""
    evaluation, baseline = short_metrics(record.evaluation or {}), dict(record.baseline or {})
    return Done(name, FINISHED, rungs, evaluation, baseline, record.seconds or 0.0)


def record_of(folder: Path) -> RunRecord | None:
    """Return the record of a run, or None if there is none that can be read."""
    try:
        return read_run(folder) if is_run(folder) else None
    except GlassloopError:
        return None


def add_rung(folder: Path, fraction: float, scores: dict[str, float]) -> None:
    """Store the scores of a run that was paused."""
    found = {**read_rungs(folder, RUNGS_NAME), f"{fraction:g}": scores}
    write_text(folder / RUNGS_NAME, json.dumps(found, indent=1, allow_nan=False) + "\n")


def drop_later_checkpoints(folder: Path, step: int) -> None:
    """Remove checkpoints at or after a step whose scores are missing: the run was killed before they were stored."""
    for path in checkpoints_in(folder):
        if step_of(path) >= step:
            shutil.rmtree(path)


def drop_damaged_checkpoints(folder: Path) -> bool:
    """Remove the checkpoints of a run if none is intact, so that it starts again. Return whether there were any.

    Those of a paused run are not synced: after a loss of power they may be incomplete.
    """
    for path in checkpoints_in(folder):
        with suppress(ModelError):
            open_checkpoint(path)
            return False
    found = bool(checkpoints_in(folder))
    drop_checkpoints(folder)
    return found


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run, which cannot be resumed any more."""
    for path in checkpoints_in(folder):
        shutil.rmtree(path, ignore_errors=True)
