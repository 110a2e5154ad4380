"""A process that trains the runs of a study, one after the other: it imports torch once and keeps the GPU warm.

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
from dataclasses import asdict, replace
from pathlib import Path

from glassloop.arguments import training_arguments
from glassloop.assembly import AssembledRun, assemble
from glassloop.backends.choose import choose_backend
from glassloop.commands.train import run_to_end
from glassloop.engine.pause import PauseAt
from glassloop.engine.signals import Paused
from glassloop.errors import GlassloopError, LockedError, resource_error
from glassloop.lock import locked
from glassloop.measures import short_metrics
from glassloop.run_folder.layout import RUNGS_NAME, has_checkpoint
from glassloop.run_folder.record import SELECTION
from glassloop.run_folder.run_json import write_run
from glassloop.run_folder.seeds_json import FAILED, STOPPED
from glassloop.run_folder.study_json import PAUSED, read_rungs
from glassloop.show.stages import show_lines
from glassloop.study.reached import add_rung, drop_checkpoints, drop_later_checkpoints, finished_done, found_done, record_of
from glassloop.study.trials import Done, Task
from glassloop.training.resuming import refuse_other_run

LOCK_SECONDS = 60.0  # a worker of a killed study saves a checkpoint before it ends


def train_part(task: Task) -> Done:
    """Train a run up to a fraction of its steps and return what it reached. Raises `SystemExit` if a signal stops it."""
    folder, began = Path(task.folder), time.perf_counter()
    if done := found_done(folder, task.name, task.fraction):
        return done
    try:
        return trained_part(task, folder, began)
    except GlassloopError as error:
        found: GlassloopError | None = error
        lines: tuple[str, ...] = (error.problem, error.remedy)
    except Exception as error:
        found = resource_error(error)
        lines = (found.problem, found.remedy) if found else (f"{type(error).__name__}: {error}",)
        traceback.print_exc()
    finally:
        release_memory()
    seconds = time.perf_counter() - began
    return Done(task.name, FAILED, seconds=seconds, exit_code=found.exit_code if found else 1, error=lines)


def trained_part(task: Task, folder: Path, began: float) -> Done:
    """Train a run to the wanted fraction; raises if it cannot."""
    given = task.given()
    args = training_arguments(given.training)
    run = assemble(given, args, choose_backend(args))
    steps = run.parts.plan.max_steps
    until = min(steps, math.ceil(task.fraction * steps))
    with lock_awaited(folder):
        stored = record_of(folder)
        if until < steps:
            drop_later_checkpoints(folder, until)
            run = replace(run, parts=replace(run.parts, callbacks=[*run.parts.callbacks, PauseAt(until)]))
        if stored is None:
            write_run(folder, run.record)
        else:
            refuse_other_run(stored, run.record, from_start=not has_checkpoint(folder))
            run = replace(run, record=replace(run.record, chosen=stored.chosen))
        try:
            run_to_end(run, True if stored else None, False, began)
        except Paused:
            add_rung(folder, task.fraction, selection_scores(run))
            return Done(task.name, PAUSED, dict(read_rungs(folder, RUNGS_NAME)), seconds=time.perf_counter() - began)
        drop_checkpoints(folder)
    record = record_of(folder)
    if record is None:
        raise RuntimeError(f"{folder}: the record of a finished run cannot be read")
    return finished_done(task.name, record, dict(read_rungs(folder, RUNGS_NAME)))


def selection_scores(run: AssembledRun) -> dict[str, float]:
    """Return the scores of a paused run on the selection split, without a trace in the run."""
    return short_metrics(run.trainer.evaluation(run.encoded[SELECTION].rows).metrics)


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
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    show_lines()
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=read_tasks, args=(tasks, busy), daemon=True).start()
    while (line := tasks.get()) is not None:
        task = Task(**json.loads(line))
        busy.set()
        try:
            done = train_part(task)
        except (SystemExit, KeyboardInterrupt) as leaving:
            code = leaving.code if isinstance(leaving, SystemExit) and isinstance(leaving.code, int) else 130
            done = Done(task.name, STOPPED, exit_code=code)
        busy.clear()
        answers.write(json.dumps(asdict(done), allow_nan=False) + "\n")
        if done.status == STOPPED:
            break


if __name__ == "__main__":
    main()
