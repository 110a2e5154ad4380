"""A process that checks what a study reads and trains its runs, one after the other, and keeps what they share.

Each line on standard input is a check or a task, each line on standard output its result; everything else goes to standard
error.
"""

from __future__ import annotations

import atexit
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
from hashlib import sha256
from pathlib import Path

import torch

from glassloop.backends.choose import choose_backend, choose_device
from glassloop.backends.machine import open_gpu_early
from glassloop.base.errors import GlassloopError, LockedError, ModelError, SettingsError, failure_of, resource_error
from glassloop.base.files import absolute_name, find_path, locked, sha256_of, unsynced, write_text
from glassloop.base.output import Clock, note, show_on
from glassloop.base.records import decoded, freeze_objects, versions
from glassloop.data.examples import Examples
from glassloop.models.loading import declared_by
from glassloop.runs import record as records
from glassloop.runs.study import SeedRecord, StudyRecord, read_rungs
from glassloop.scores.metrics import LOWER_IS_BETTER, chosen_measures, refuse_unknown_metric, short_metrics
from glassloop.settings.defaults import Facts, choose_settings, has_own_settings
from glassloop.settings.file import GivenSettings, RunSettings
from glassloop.settings.study import MODEL, Choices, StudySettings
from glassloop.settings.training import training_arguments
from glassloop.study.run import SharedParts, assemble, check_run, examples_for, facts_for, run_to_end, train_run
from glassloop.study.tasks import Check, Checked, Task, finished_answer, record_of, stored_answer
from glassloop.training.callbacks import PauseAt, Paused, leave_on_signal
from glassloop.training.checkpoints import open_checkpoint
from glassloop.training.progress import choose_display, show_lines
from glassloop.training.session import refuse_other_run

BATCH = "per_device_train_batch_size"
LOCK_SECONDS = 60.0  # a worker of a killed study saves a checkpoint before it ends


# --- before the first run ------------------------------------------------------------------------------------------------
def checked(check: Check, shared: SharedParts) -> Checked:
    """Check what runs read, keep it for them, and return what starting them needs to know, or an error."""
    if torch.cuda.device_count() == 1:  # of several, those with enough free memory are chosen later
        open_gpu_early(str(check.given.training.get("device", "auto")))
    if check.shows:
        choose_display(plain=bool(check.given.training.get("disable_tqdm")))
    try:
        found = checked_study(check.given, check.study, shared) if check.study else checked_seeds(check, shared)
    except Exception as error:
        known = error if isinstance(error, GlassloopError) else resource_error(error)
        kind, words = (type(known).__name__, known.args) if known else ("", (f"{type(error).__name__}: {error}",))
        return Checked(kind=kind, error=words, trace=traceback.format_exc())
    finally:
        show_on(None)
    free_memory()
    device = choose_device(str(found.given.training.get("device", "auto")))
    return replace(found, device=device, num_gpus=torch.cuda.device_count() if device == "cuda" else 0)


def checked_seeds(check: Check, shared: SharedParts) -> Checked:
    settings, reason = settled(check.given, shared) if check.chooses else (check.given.checked(), "")
    seed = settings.training.seed if check.seed is None else check.seed
    need, num_steps = check_run(settings, seed, shared)
    return Checked(settings.given(), reason, need=need, num_steps=num_steps)


def settled(given: GivenSettings, shared: SharedParts) -> tuple[RunSettings, str]:
    """Return the settings that all seeds share, with those that the default rule chooses, and from what it chose them."""
    settings = given.checked()
    if has_own_settings(given.source):
        return settings, ""
    facts = facts_of_model(given, given.model, shared)
    chosen = choose_settings(settings.training, given.training, facts)
    return replace(settings, training=chosen.settings), chosen.reason


def facts_of_model(given: GivenSettings, model: str | None, shared: SharedParts) -> Facts:
    name = absolute_name(model or "quickstart")
    config = shared.config(name)
    declared = shared.kept(("declared", name), lambda: declared_by(name))[0]
    return facts_for(given, examples_for(given, config, shared), config, declared=declared)


def checked_study(given: GivenSettings, settings: StudySettings, shared: SharedParts) -> Checked:
    """Check each model of a study with its largest batch."""
    examples = search_examples(given, settings, shared)
    record = new_record(given, settings, examples)
    base, sizes = record.base, settings.space.get(BATCH)
    largest = max(sizes.values) if isinstance(sizes, Choices) else sizes and int(sizes.high)  # type: ignore[type-var]
    training = base.training if largest is None else {**base.training, BATCH: largest}
    searching = replace(base, training=training, data={**base.data, "selection_fold": settings.folds[0]})
    models = {name: replace(searching, model=name) for name in map(absolute_name, model_names(base.model, settings))}
    found = [check_run(run.checked(), record.seeds[0], shared) for run in models.values()]
    facts = {name: facts_of_model(run, name, shared) for name, run in models.items()}  # a trained model may bring its labels
    rows = max(fact.num_rows for name, fact in examples.facts.items() if name.startswith("validation"))
    need, num_steps = (max(values) for values in zip(*found, strict=True))
    return Checked(base, need=need, num_steps=int(num_steps), study=(record,), facts=facts, validation_rows=rows)


def search_examples(given: GivenSettings, settings: StudySettings, shared: SharedParts | None = None) -> Examples:
    """Return the data as the first runs see it. Raise `GlassloopError` if it cannot be used."""
    searching = replace(given, data={**given.data, "selection_fold": settings.folds[0]})
    shared = shared or SharedParts()
    examples = examples_for(searching, shared.config(absolute_name(model_names(given.model, settings)[0])), shared)
    if not any(name.startswith("validation") for name in examples.rows):
        problem = "a study reports on a validation split, but the data has none"
        raise SettingsError(problem, "add one, or set validation_share above 0")
    return examples


def new_record(given: GivenSettings, settings: StudySettings, examples: Examples) -> StudyRecord:
    run = given.checked()
    args, paths = run.training, run.data.with_absolute_paths()
    names = examples.labels.names if examples.labels else ()
    measures = chosen_measures(examples.measures, examples.task, names, args.positive_label)
    refuse_unknown_metric(args.metric_for_best_model, measures)
    metric = (args.metric_for_best_model or measures.keys[0]).removeprefix("eval_")
    higher = args.greater_is_better if args.greater_is_better is not None else metric not in LOWER_IS_BETTER
    # Runs of a study are short: a killed one starts again. Progress bars of several runs would mix.
    training = {"save_strategy": "no", "save_total_limit": 1, **given.training, "disable_tqdm": True}
    training.pop("output_dir", None)
    data = {name: list(value) if isinstance(value := getattr(paths, name), tuple) else value for name in given.data}
    source, model = (name and absolute_name(name) for name in (given.source, given.model))
    base = GivenSettings(source, model, training, data, given.new_head)
    rows = {name: fact.fingerprint for name, fact in examples.facts.items()}
    models = {name: model_key(name) for name in map(absolute_name, model_names(model, settings))}
    seeds = tuple(range(args.seed, args.seed + settings.seeds))
    return StudyRecord(base, settings, metric, higher, seeds, data=rows, models=models, versions=versions())


def model_names(given: str | None, settings: StudySettings) -> list[str]:
    """Return the models of a study: those that are varied, else the given one or the default."""
    models = settings.space.get(MODEL)
    return [str(name) for name in models.values] if isinstance(models, Choices) else [given or "quickstart"]


def model_key(name: str) -> str:
    """Return the name of a model; for a folder, a hash of its files as well."""
    path = find_path(name)
    files = sorted(part for part in path.rglob("*") if part.is_file()) if path and path.is_dir() else []
    content = "".join(sha256_of(part) for part in files)
    return f"{name} {sha256(content.encode()).hexdigest()[:16]}" if files else name


# --- a run ---------------------------------------------------------------------------------------------------------------
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
    free_memory()
    return answer


def free_memory() -> None:
    """Free the memory of a run that nothing refers to any more, not even its error: it would stay while the next one trains."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
    """Check and train the runs that are asked for until the input ends."""
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
        question = json.loads(line)
        busy.set()
        if "check" in question:
            answers.write('"started"\n')  # all modules are imported
            found = checked(decoded(Check, question["check"]), shared)
            busy.clear()
            answers.write(json.dumps(asdict(found), allow_nan=False) + "\n")
            freeze_objects()
            is_first = False
            continue
        task = decoded(Task, question)
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


def run() -> None:
    """Be a worker, and end without freeing every object, which takes a second or more that the study would wait for."""
    main()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(0)
