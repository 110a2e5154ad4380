"""A process that trains the runs of a study, one after the other, and keeps what they share.

Each line on standard input is a task, each line on standard output its result; everything else goes to standard error.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

from glassloop.backends.choose import choose_backend
from glassloop.base.errors import GlassloopError, LockedError, ModelError, failure_of
from glassloop.base.files import locked, unsynced, write_text
from glassloop.base.output import Clock, note
from glassloop.base.records import decoded, freeze_objects
from glassloop.runs import record as records
from glassloop.runs.study import SeedRecord, read_rungs
from glassloop.scores.metrics import short_metrics
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import training_arguments
from glassloop.study.run import SharedParts, assemble, run_to_end, train_run
from glassloop.study.tasks import Task, finished_answer, record_of, stored_answer
from glassloop.training.callbacks import PauseAt, Paused, leave_on_signal
from glassloop.training.checkpoints import open_checkpoint
from glassloop.training.progress import show_lines
from glassloop.training.session import refuse_other_run

LOCK_SECONDS = 60.0  # a worker of a killed study saves a checkpoint before it ends


def train_part(task: Task, shared: SharedParts | None = None) -> SeedRecord:
    """Train a run up to a fraction of its steps and return what it reached. Raises `SystemExit` if a signal stops it."""
    # The runs share what they load and nothing that they change; every run seeds all generators itself.
    if answer := stored_answer(task.folder, task.fraction):
        return answer
    began = time.perf_counter()
    try:
        if task.alone:  # exactly as `glassloop train` does
            resume = str(task.folder) if records.is_run(task.folder) else None
            train_run(GivenSettings() if resume else task.given, resume, shared=shared, with_report=task.report)
            answer = finished_answer(records.read_run(task.folder), {})
        else:
            try:
                answer = trained_part(task, began, shared)
            except ModelError:
                if not drop_damaged_checkpoints(task.folder):
                    raise
            if answer is None:  # here, where the error does not keep the first model in memory
                answer = trained_part(task, began, shared)
    except Exception as error:
        code, lines = failure_of(error)
        if isinstance(error, GlassloopError):
            note(str(error))
        else:
            traceback.print_exc()
        answer = SeedRecord(status=records.FAILED, seconds=time.perf_counter() - began, exit_code=code, error=lines)
    # Nothing refers to the run any more, not even its error: its model would stay in memory while the next run trains.
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return answer


def trained_part(task: Task, began: float, shared: SharedParts | None) -> SeedRecord:
    folder = task.folder
    clock, args = Clock(), training_arguments(task.given.training)
    run = assemble(task.given, args, choose_backend(args), shared)
    prepared = time.perf_counter() - began
    steps = run.parts.plan.max_steps
    until = min(steps, math.ceil(task.fraction * steps))
    with lock_awaited(folder):
        stored = record_of(folder)
        if until < steps:  # those at or after the pause have no scores: the run was killed before they were stored
            for path in records.checkpoints_in(folder):
                if records.step_of(path) >= until:
                    shutil.rmtree(path)
        if stored is None:
            records.write_run(folder, run.record)
        else:
            refuse_other_run(stored, run.record, from_start=not records.has_checkpoint(folder))
            run = replace(run, record=replace(run.record, chosen=stored.chosen))
        try:
            with unsynced() if until < steps else nullcontext():
                run_to_end(run, True if stored else None, clock, callbacks=[PauseAt(until)] if until < steps else ())
        except Paused:
            # Outside the loop, so that the run's own history and best step stay those of a run alone.
            scores = short_metrics(run.trainer.evaluation(run.encoded[records.SELECTION].rows).metrics)
            rungs = {**read_rungs(folder), f"{task.fraction:g}": scores}
            write_text(folder / records.RUNGS_NAME, json.dumps(rungs, indent=1, allow_nan=False) + "\n")
            answer = SeedRecord(status=records.PAUSED, rungs=rungs)
        else:
            for path in records.checkpoints_in(folder):  # a finished run cannot be resumed any more
                shutil.rmtree(path, ignore_errors=True)
            answer = finished_answer(records.read_run(folder), read_rungs(folder))
    return replace(answer, seconds=time.perf_counter() - began, preparing=prepared)


def drop_damaged_checkpoints(folder: Path) -> bool:
    """Remove the checkpoints of a run if none is intact, so that it starts again. Return whether there were any."""
    # Those of a paused run are not synced: after a loss of power they may be incomplete.
    paths = records.checkpoints_in(folder)
    for path in paths:
        with suppress(ModelError):
            open_checkpoint(path)
            return False
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return bool(paths)


@contextmanager
def lock_awaited(folder: Path) -> Iterator[None]:
    """Lock a run folder. Wait while a worker of an earlier, killed study still writes its checkpoint."""
    limit = time.monotonic() + LOCK_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(folder, lambda line: None))
                break
            except LockedError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.2)
        yield


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
    os.dup2(2, 1)
    show_lines()
    leave_on_signal()
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()
    shared = SharedParts(keeps=True)
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
            answer = train_part(task, shared)
        except (SystemExit, KeyboardInterrupt) as leaving:
            code = leaving.code if isinstance(leaving, SystemExit) and isinstance(leaving.code, int) else 130
            answer = SeedRecord(status=records.STOPPED, exit_code=code)
        busy.clear()
        answers.write(json.dumps(asdict(answer), allow_nan=False) + "\n")
        if answer.status == records.STOPPED:
            break
        if is_first:
            freeze_objects()  # imported modules and shared parts stay: later collections need not look at them
            is_first = False


if __name__ == "__main__":
    main()
