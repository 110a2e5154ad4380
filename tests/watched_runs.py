"""Run folders as a training leaves them, written without training, for tests of what watches them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_record import RECORD

from glassloop.runs.history import write_history
from glassloop.runs.layout import HISTORY_NAME, SESSIONS_NAME
from glassloop.runs.record import FINISHED, RUNNING, write_run
from glassloop.runs.status import END, RESUME, START, note_moment

HOSTILE = """<img src=x onerror="document.title='owned'">'&\u202e"""


def write_watched(folder: Path, steps: int = 4, *, finished: bool = False, resumed: int = 0, **more: Any) -> Path:
    """Write a run that has logged some steps. Its process has ended; `lock_as` makes it another one."""
    folder.mkdir(parents=True)
    result: dict[str, Any] = {"evaluation": {"eval_loss": 0.4, "eval_accuracy": 0.75}, "seconds": 75.0} if finished else {}
    record = replace(
        RECORD, status=FINISHED if finished else RUNNING, metrics=("accuracy",), started="2026-11-17T09:00:00+00:00", **result
    )
    write_run(folder, replace(record, **more))
    note_moment(folder, START, 0, 8)
    if resumed:
        note_moment(folder, RESUME, resumed, 8)
    os.utime(folder / SESSIONS_NAME, (1000.0, 1000.0))
    log_steps(folder, steps)
    os.utime(folder / HISTORY_NAME, (1000.0 + 2 * (steps - resumed), 1000.0 + 2 * (steps - resumed)))  # two seconds a step
    if finished:
        note_moment(folder, END, steps, 8)
    return folder


def log_steps(folder: Path, last: int) -> None:
    """Write a history up to a step, with an evaluation after every second one."""
    entries: list[dict[str, Any]] = []
    for step in range(1, last + 1):
        entries.append({"step": step, "epoch": step / 4, "loss": 1 / step, "grad_norm": 2.0, "learning_rate": 1e-4})
        if step % 2 == 0:
            entries.append({"step": step, "epoch": step / 4, "eval_loss": 0.9 / step, "eval_accuracy": step / 8})
    write_history(folder, entries)


def lock_as(folder: Path, process: int, machine: str) -> None:
    """Write the lock file of a process."""
    (folder / ".lock").write_text(json.dumps({"process": process, "machine": machine}))
