"""A process that trains the runs of a study, one after the other, and keeps what they share.

Each line on standard input is a task, each line on standard output its result; everything else goes to standard error.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from glassloop.backends.choose import choose_backend
from glassloop.base.errors import GlassloopError, LockedError, ModelError, failure_of
from glassloop.base.files import locked, unsynced
from glassloop.base.output import note
from glassloop.base.records import decoded, freeze_objects
from glassloop.runs.record import FAILED, PAUSED, SELECTION, STOPPED, has_checkpoint, is_run, read_run, write_run
from glassloop.runs.study import read_rungs
from glassloop.scores.metrics import short_metrics
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import training_arguments
from glassloop.study.run import SharedParts, assemble, run_to_end, train_run
from glassloop.study.trials import (
    Done,
    Task,
    add_rung,
    drop_checkpoints,
    drop_damaged_checkpoints,
    drop_later_checkpoints,
    finished_done,
    found_done,
    record_of,
)
from glassloop.training.callbacks import PauseAt, Paused, leave_on_signal
from glassloop.training.progress import show_lines
from glassloop.training.session import refuse_other_run

LOCK_SECONDS = 60.0  # a worker of a killed study saves a checkpoint before it ends


def train_part(task: Task, shared: SharedParts | None = None) -> Done:
    """Train a run up to a fraction of its steps and return what it reached. Raises `SystemExit` if a signal stops it."""
    # The runs share what they load and nothing that they change; every run seeds all generators itself.
    if done := found_done(task.folder, task.name, task.fraction):
        return done
    try:
        return attempted_part(task, shared)
    finally:
        release_memory()


def attempted_part(task: Task, shared: SharedParts | None) -> Done:
    """Train a run to the wanted fraction, and return what it reached or what was wrong.

    Nothing of a run that failed stays referenced: its model would stay in memory while the next run trains.
    """
    began = time.perf_counter()
    try:
        if task.alone:
            return trained_alone(task, shared)
        try:
            return trained_part(task, began, shared)
        except ModelError:
            if not drop_damaged_checkpoints(task.folder):
                raise
        return trained_part(task, began, shared)
    except Exception as error:
        code, lines = failure_of(error)
        if isinstance(error, GlassloopError):
            note(str(error))
        else:
            traceback.print_exc()
    return Done(task.name, FAILED, seconds=time.perf_counter() - began, exit_code=code, error=lines)


def trained_alone(task: Task, shared: SharedParts | None) -> Done:
    """Train or resume a run exactly as `glassloop train` does; raises if it cannot."""
    if is_run(task.folder):
        train_run(GivenSettings(), str(task.folder), shared=shared, with_report=task.report)
    else:
        train_run(task.given, shared=shared, with_report=task.report)
    return finished_done(task.name, read_run(task.folder), {})


def trained_part(task: Task, began: float, shared: SharedParts | None) -> Done:
    """Train a run to the wanted fraction; raises if it cannot."""
    # The scores at a pause are computed outside the loop, so that the run's own history and best step stay those of a
    # run alone.
    folder, args = task.folder, training_arguments(task.given.training)
    run = assemble(task.given, args, choose_backend(args), shared)
    prepared = time.perf_counter() - began
    steps = run.parts.plan.max_steps
    until = min(steps, math.ceil(task.fraction * steps))
    with lock_awaited(folder):
        stored = record_of(folder)
        if until < steps:
            drop_later_checkpoints(folder, until)
        if stored is None:
            write_run(folder, run.record)
        else:
            refuse_other_run(stored, run.record, from_start=not has_checkpoint(folder))
            run = replace(run, record=replace(run.record, chosen=stored.chosen))
        try:
            with unsynced() if until < steps else nullcontext():
                run_to_end(run, True if stored else None, began, callbacks=[PauseAt(until)] if until < steps else ())
        except Paused:
            scores = short_metrics(run.trainer.evaluation(run.encoded[SELECTION].rows).metrics)  # leaves no trace in the run
            add_rung(folder, task.fraction, scores)
            rungs = read_rungs(folder)
            return Done(task.name, PAUSED, rungs, seconds=time.perf_counter() - began, preparing=prepared)
        drop_checkpoints(folder)
    record = record_of(folder)
    if record is None:
        raise RuntimeError(f"{folder}: the record of a finished run cannot be read")
    done = finished_done(task.name, record, read_rungs(folder))
    return replace(done, seconds=time.perf_counter() - began, preparing=prepared)


class lock_awaited:  # noqa: N801 - a context manager that reads like `locked`
    """Locks a run folder. Waits while a worker of an earlier, killed study still writes its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        limit = time.monotonic() + LOCK_SECONDS
        while True:
            self.held = locked(self.folder, lambda line: None)
            try:
                return self.held.__enter__()
            except LockedError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.2)

    def __exit__(self, *raised: object) -> None:
        self.held.__exit__(*raised)  # type: ignore[arg-type]


def release_memory() -> None:
    """Free the model of the last run, on the GPU too."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def read_tasks(tasks: queue.SimpleQueue[str | None], busy: threading.Event) -> None:
    """Read tasks in a thread. At the end of the input the study is gone: a run that is training saves a checkpoint."""
    for line in sys.stdin:
        tasks.put(line)
    tasks.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Train the runs that are asked for until the input ends."""
    # When the input ends, the study is gone: save a checkpoint and stop.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    show_lines()
    leave_on_signal()
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy, shared = threading.Event(), SharedParts(keeps=True)
    threading.Thread(target=read_tasks, args=(tasks, busy), daemon=True).start()
    is_first = True
    while (line := tasks.get()) is not None:
        task = decoded(Task, json.loads(line))
        busy.set()
        log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)  # what libraries print is no answer
        os.dup2(log, 2)
        os.close(log)
        try:
            done = train_part(task, shared)
        except (SystemExit, KeyboardInterrupt) as leaving:
            code = leaving.code if isinstance(leaving, SystemExit) and isinstance(leaving.code, int) else 130
            done = Done(task.name, STOPPED, exit_code=code)
        busy.clear()
        answers.write(json.dumps(asdict(done), allow_nan=False) + "\n")
        if done.status == STOPPED:
            break
        if is_first:
            freeze_objects()  # imported modules and shared parts stay: later collections need not look at them
            is_first = False


if __name__ == "__main__":
    main()
