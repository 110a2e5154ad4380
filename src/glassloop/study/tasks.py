"""The runs of a study or of several seeds as tasks: what a worker is asked and answers, and the worker processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from glassloop.backends.machine import may_have_gpu, runs_on_gpus
from glassloop.base import errors
from glassloop.base.children import GRACE_SECONDS
from glassloop.base.errors import DataError, DivergedError, GlassloopError, ModelError, ResourceError, SettingsError, counted
from glassloop.base.output import CHOSEN, note, stage
from glassloop.base.records import decoded
from glassloop.runs.record import FAILED, FINISHED, PAUSED, STOPPED, WAITING, RunRecord, is_run, read_run
from glassloop.runs.study import MeasuresRecord, SeedRecord, StudyRecord, read_rungs
from glassloop.scores.metrics import short_metrics
from glassloop.settings.defaults import Facts
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings

RUNS_NAME = "runs"  # the folder of the runs in that of a study
# What takes long starts first: the process of the regression on words imports scikit-learn while this one imports torch,
# and no garbage is looked for among what is imported.
WORKER = """
import gc
from glassloop.models.words import start_early
gc.disable()
start_early()
from glassloop.study.worker import run
gc.enable()
run()
"""
COMMAND = (sys.executable, "-c", WORKER)
WAIT_SECONDS = 0.5
CORES_PER_RUN = 4  # on a CPU: a run of a small model does not use more
MOST_REPEATS = 2  # of a run whose process was killed, as by a system without memory
KINDS = {kind.exit_code: kind for kind in (SettingsError, DataError, ModelError, DivergedError, ResourceError)}
LEAST_SIGNAL = 128  # exit statuses from here on are those of processes that a signal ended
KILLED = LEAST_SIGNAL + signal.SIGKILL  # as the system does if memory runs out


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do: train a run up to a fraction of its steps. It answers with a `SeedRecord`."""

    name: str
    given: GivenSettings  # their `output_dir` is the run folder
    fraction: float = 1.0
    alone: bool = False  # ends like a run of `glassloop train`: with its checkpoints, a report and a model card
    report: bool = True  # whether such a run writes its report

    @property
    def folder(self) -> Path:
        return Path(str(self.given.training["output_dir"]))

    @property
    def log(self) -> Path:
        """The file with what the run prints, next to its folder."""
        return self.folder.with_name(f"{self.name}.log")


# The process that starts runs stays light: torch is imported, and data and model are loaded, where runs are trained.
@dataclass(frozen=True)
class Check:
    """What the first worker is asked before any run: check settings, data and model, and keep what its runs share."""

    given: GivenSettings
    seed: int | None = None  # of the first run; None for that of the settings
    chooses: bool = False  # whether the default rule chooses settings for all runs
    study: StudySettings | None = None
    shows: bool = field(default_factory=lambda: CHOSEN.display is not None)  # the stages of its work


@dataclass(frozen=True)
class Checked:
    """What a check found out: an error, or what starting runs needs to know."""

    given: GivenSettings = field(default_factory=GivenSettings)  # with the settings that the rule chose
    reason: str = ""  # from what it chose them
    device: str = "cpu"
    num_gpus: int = 0
    need: float = 0.0  # bytes of GPU memory of a run
    num_steps: int = 0  # of a run
    study: tuple[StudyRecord, ...] = ()  # what a new study starts with
    facts: dict[str, Facts] = field(default_factory=dict)  # by model: what the rule chooses the settings of a study from
    validation_rows: int = 0
    kind: str = ""  # the type of an error
    error: tuple[str, ...] = ()  # its problem and remedy, or only what went wrong
    trace: str = ""


# --- what a run has reached ----------------------------------------------------------------------------------------------
def stored_answer(folder: Path, fraction: float) -> SeedRecord | None:
    """Return what a run has reached if that is enough, or None if it has to be trained."""
    rungs = read_rungs(folder)
    if (record := record_of(folder)) and record.finished:
        return finished_answer(record, rungs)
    return SeedRecord(status=PAUSED, rungs=rungs) if f"{fraction:g}" in rungs else None


def finished_answer(record: RunRecord, rungs: dict[str, dict[str, float]]) -> SeedRecord:
    """Return the result of a finished run. `reached` separates its scores by split."""
    return SeedRecord(
        status=FINISHED,
        rungs=rungs,
        validation=short_metrics(record.evaluation or {}),
        baseline=dict(record.baseline or {}),
        seconds=record.seconds or 0.0,
        measures=MeasuresRecord(record.metrics, record.positive_label),
        rows={split: facts.fingerprint for split, facts in record.data.splits.items()},
    )


def record_of(folder: Path) -> RunRecord | None:
    """Return the record of a run, or None if there is none that can be read."""
    try:
        return read_run(folder) if is_run(folder) else None
    except GlassloopError:
        return None


def reached(run: SeedRecord, answer: SeedRecord, fraction: float) -> SeedRecord:
    """Return the record of a run with what a worker answered."""
    run = replace(run, seconds=run.seconds + answer.seconds, preparing=run.preparing + answer.preparing)
    if answer.status in (FAILED, STOPPED):
        status = FAILED if answer.status == FAILED else WAITING
        return replace(run, status=status, exit_code=answer.exit_code, error=answer.error)
    run = replace(run, status=answer.status, fraction=fraction, exit_code=None, error=())
    run = replace(run, rungs={**run.rungs, **answer.rungs}, measures=answer.measures, rows=answer.rows)
    if answer.status == PAUSED:
        return run
    # Metrics of the first split have no prefix: selection if there is one, then validation.
    scores, baseline, prefix = answer.validation, answer.baseline, "validation_"
    selection: dict[str, float] = {}
    if any(name.startswith(prefix) for name in scores):
        selection = {name: value for name, value in scores.items() if not name.startswith(prefix)}
        scores, baseline = (
            {name.removeprefix(prefix): value for name, value in part.items() if name.startswith(prefix)}
            for part in (scores, baseline)
        )
    elif run.fold is not None:
        selection, scores = scores, {}
    return replace(run, fraction=1.0, selection=selection, validation=scores, baseline=baseline)


def no_choice(record: StudyRecord, folder: Path) -> GlassloopError:
    """Return the error of a study without a setting to choose."""
    failed = [*record.failed.values()]
    if not failed:
        return SettingsError("the budget ended before one setting was trained", "raise --budget and start again")
    which = f"all {len(failed):,} runs" if len(failed) > 1 else "the only run"
    problem, *remedy = failed[0].error or (f"exit status {failed[0].exit_code}",)
    out_of_memory = [
        run.exit_code == KILLED or (run.exit_code == ResourceError.exit_code and "memory" in " ".join(run.error).lower())
        for run in failed
    ]
    if all(out_of_memory):
        return ResourceError(
            f"{which} ran out of memory: {problem}",
            "lower per_device_train_batch_size or max_length, or use a smaller model, and start again in another folder; or "
            f"train fewer runs at a time: glassloop study --resume {folder} --at_once 1",
        )
    codes = {run.exit_code for run in failed}
    kind = KINDS.get(codes.pop() or 1, GlassloopError) if len(codes) == 1 else GlassloopError
    return kind(
        f"{which} failed, so there is no setting to choose. First error: {problem}",
        f"{' '.join(remedy) or 'correct it'}; the logs are in {folder}",
    )


# --- running tasks -------------------------------------------------------------------------------------------------------
class Executor(Protocol):
    """Executes tasks somewhere: in worker processes of this machine, or on a cluster."""

    slots: int  # number of tasks to hand over at the same time

    def start(self, task: Task) -> None: ...

    def wait(self) -> list[tuple[str, SeedRecord]]: ...  # tasks that ended, and their answers, perhaps after a moment

    def stop(self) -> None: ...  # asks all running tasks to save a checkpoint and end


class Watcher:
    """Records and shows what becomes of tasks. Each method may be overridden."""

    say: Callable[[str], None]  # shows a line to the user

    def may_start(self) -> bool:
        return True

    def started(self, task: Task) -> None: ...

    def ended(self, task: Task, answer: SeedRecord) -> None: ...  # or a signal stopped it

    def tick(self, num_waiting: int, num_running: int) -> None: ...  # a moment has passed


def run_tasks(tasks: Sequence[Task], executor: Executor, signals: Sequence[int], watcher: Watcher) -> None:
    """Train tasks, as many at a time as the executor takes, until all have ended, none may start, or a signal stops them."""
    waiting = [*tasks]
    by_name = {task.name: task for task in tasks}
    losses = Counter[str]()
    num_running = num_stops = 0
    while num_running or (waiting and not signals):
        while waiting and num_running < executor.slots and not signals and watcher.may_start():
            task = waiting.pop(0)
            executor.start(task)
            num_running += 1
            watcher.started(task)
        while num_stops < len(signals):  # a second signal ends a run without waiting for its checkpoint
            executor.stop()
            num_stops += 1
        if not num_running and not signals:
            return  # none may start
        for name, answer in executor.wait():
            num_running -= 1
            # A killed process says nothing about its run.
            is_lost = answer.status in (FAILED, STOPPED) and (answer.exit_code or 0) >= LEAST_SIGNAL
            losses[name] += is_lost
            if is_lost and signals:  # a scheduler sends its signal to the workers, too
                watcher.ended(by_name[name], SeedRecord(status=STOPPED))
            elif is_lost and losses[name] <= MOST_REPEATS:
                watcher.say(f"the process of {name} was killed (exit status {answer.exit_code}): it is trained again")
                waiting.append(by_name[name])
            else:
                watcher.ended(by_name[name], answer)
        watcher.tick(len(waiting), num_running)


# --- worker processes ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """Where a worker runs: its GPU, if any, and its number of CPU threads, if it is limited."""

    gpu: str | None = None
    threads: int | None = None


def places_for(gpus: Mapping[str, int], at_once: int | None, cores: int) -> list[Place]:
    """Return the place of each worker, from the number of runs at a time on each GPU, or `at_once` without GPUs."""
    names = [gpu for turn in range(max(gpus.values(), default=0)) for gpu, runs in gpus.items() if turn < runs]
    number = len(names) or at_once or max(1, cores // CORES_PER_RUN)
    threads = max(1, cores // number) if number > 1 else None  # a single run keeps torch's default
    return [Place(gpu, threads) for gpu in names] if len(gpus) > 1 else [Place(None, threads)] * number


def first_place(wanted: str, at_once: int | None, threads: int | None) -> Place:
    """Return the place of the worker that checks a study; if another device is found than expected, it is replaced."""
    has_gpu = wanted != "cpu" and may_have_gpu()
    return Place(None, threads or (None if has_gpu else places_for({}, at_once, os.cpu_count() or 1)[0].threads))


def study_places(checked: Checked, num_runs: int, at_once: int | None, threads: int | None) -> list[Place]:
    """Return the places of the runs of a study, `at_once` on each GPU; if the study ran before, with as many threads."""
    gpus = visible_gpus(checked.num_gpus, os.environ)
    each = [at_once or 0] * len(gpus)
    if gpus and not at_once:
        each = runs_on_gpus(len(gpus), checked.need, num_runs, checked.num_steps)
    places = places_for(dict(zip(gpus, each, strict=True)), at_once, os.cpu_count() or 1)
    where = f"{len(gpus)} GPUs ({', '.join(map(str, each))})" if len(gpus) > 1 else f"the {checked.device}"
    note(f"{counted(len(places), 'run', 'runs')} at a time on {where}")
    return [replace(place, threads=threads or place.threads) for place in places]


def seed_places(checked: Checked, num_runs: int, at_once: int | None) -> list[Place]:
    """Return the places of the runs of several seeds, `at_once` in all. Each has the threads of a run alone."""
    gpus = visible_gpus(checked.num_gpus, os.environ)
    if not gpus:
        return [Place()] * (at_once or 1)
    each = [(at_once or 0) // len(gpus) + (place < (at_once or 0) % len(gpus)) for place in range(len(gpus))]
    each = each if at_once else runs_on_gpus(len(gpus), checked.need, num_runs, checked.num_steps)
    return [replace(place, threads=None) for place in places_for(dict(zip(gpus, each, strict=True)), at_once, 1)]


def visible_gpus(count: int, environment: Mapping[str, str]) -> list[str]:
    """Return the `count` GPUs of this process as CUDA_VISIBLE_DEVICES names them."""
    named = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


SPARE: list[subprocess.Popen[str]] = []  # a worker that has no task yet


def start_early() -> None:
    """Start the first worker while this process still imports what it needs itself."""
    SPARE.append(started_process(Place(), None))


def end_spare() -> None:
    """End a worker that nobody has used, because of an error or because nothing was left to train."""
    while SPARE:
        process = SPARE.pop()
        process.kill()
        process.wait()


def started_process(place: Place, log: Path | None) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if place.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = place.gpu
    if place.threads is not None:
        environment["OMP_NUM_THREADS"] = str(place.threads)
    with log.open("ab") if log else nullcontext() as output:
        return subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=environment,
            start_new_session=True, encoding="utf-8", bufsize=1,
        )  # fmt: skip


# Workers stay alive: importing torch and starting CUDA takes longer than a short run.
class Worker:
    """One worker process. A thread reads its answers. Each task redirects what it prints to a log of its own."""

    def __init__(self, place: Place, log: Path | None, answers: queue.Queue[tuple[Worker, str, SeedRecord]]) -> None:
        self.place = place
        self.answers = answers
        self.found: queue.Queue[str | None] = queue.Queue()  # its answers to a check; None at its end
        self.task: Task | None = None
        self.process = SPARE.pop() if SPARE and place == Place() and log is None else started_process(place, log)
        threading.Thread(target=self.read, daemon=True).start()

    def start(self, task: Task, start_of_log: int) -> None:
        """Hand over a task. If the process has died, `read` answers."""
        self.task = task
        self.start_of_log = start_of_log
        self.ask(asdict(task))

    def ask(self, question: Mapping[str, object]) -> None:
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.write(json.dumps(question) + "\n")
                self.process.stdin.flush()

    def read(self) -> None:
        """Pass on every answer. A process that dies has failed its task, with the last lines of its log as the error."""
        for line in self.process.stdout or ():
            task, self.task = self.task, None
            if task is not None:
                self.answers.put((self, task.name, decoded(SeedRecord, json.loads(line))))
            else:
                self.found.put(line)
        code = self.process.wait()
        self.found.put(None)
        if self.task is not None:
            log = self.task.log.read_bytes()[self.start_of_log :].decode("utf-8", "replace")
            lines = [line for line in log.splitlines() if line.strip()][-5:] or ["the process ended"]
            failed = SeedRecord(status=FAILED, exit_code=code if code > 0 else 128 - code, error=tuple(lines))
            self.answers.put((self, self.task.name, failed))

    def checked(self, check: Check) -> Checked:
        """Return what a check finds out. Raise its error: nothing is started then."""
        self.ask({"check": asdict(check)})
        with stage("starting"):
            line = self.next_found()  # it has imported torch
        line = line and self.next_found()
        if line is None:
            code = self.process.wait()
            code = code if code > 0 else LEAST_SIGNAL - code
            problem = f"the process that checks data and model ended with exit status {code}"
            raise ResourceError(problem, "see its last lines above; if memory ran out, use a smaller batch or model")
        found = decoded(Checked, json.loads(line))
        if found.error:
            raise error_of(found)
        return found

    def next_found(self) -> str | None:
        while True:
            with suppress(queue.Empty):
                return self.found.get(timeout=WAIT_SECONDS)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Let the process end, which it does when its input does."""
        with suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()

    def join(self) -> None:
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def error_of(found: Checked) -> Exception:
    """Return the error of a check as it was raised; its traceback shows where."""
    kind = getattr(errors, found.kind, None)
    error: Exception = kind(*found.error) if kind else RuntimeError(*found.error)
    error.add_note(found.trace)
    return error


class LocalWorkers:
    """Trains runs in worker processes of this machine, one in each place. Leaving the block ends them."""

    def __init__(self, places: Sequence[Place] = (Place(),)) -> None:
        # SimpleQueue.get waits forever if a signal comes as its timeout ends (Python 3.11 to 3.13)
        self.answers: queue.Queue[tuple[Worker, str, SeedRecord]] = queue.Queue()
        self.workers: dict[int, Worker] = {}
        self.stopped = False
        self.spread(places)

    def spread(self, places: Sequence[Place]) -> LocalWorkers:
        """Train in these places from now on. A worker that has checked data and model keeps what it has if one fits it."""
        self.places = places
        self.slots = len(places)
        self.threads = places[0].threads if places else None
        self.idle = [*range(len(places))]
        if first := self.workers.pop(0, None):
            # It sees all GPUs and uses the first of them.
            fitting = (first.place, Place(visible_gpus(1, os.environ)[0], first.place.threads))
            number = next((number for number, place in enumerate(places) if place in fitting), None)
            if number is None:
                first.close()
                first.join()
            else:
                self.workers[number] = first
                self.idle.sort(key=lambda place: place != number)
        return self

    def check(self, check: Check) -> Checked:
        """Start the first worker, and let it check settings, data and model."""
        self.workers[0] = Worker(self.places[0], None, self.answers)
        return self.workers[0].checked(check)

    def start(self, task: Task) -> None:
        """Hand a task to an idle worker, which is started if it does not run yet."""
        number = self.idle.pop(0)
        worker = self.workers.get(number)
        task.log.touch()
        start_of_log = task.log.stat().st_size
        if worker is None or not worker.alive:
            worker = self.workers[number] = Worker(self.places[number], task.log, self.answers)
        worker.start(task, start_of_log)

    def wait(self) -> list[tuple[str, SeedRecord]]:
        """Return the tasks that ended, after at most half a second."""
        ended: list[tuple[str, SeedRecord]] = []
        try:
            while True:
                worker, name, answer = self.answers.get(timeout=WAIT_SECONDS if not ended else 0.001)
                self.idle.append(next(number for number, one in self.workers.items() if one is worker))
                failed = answer.status == FAILED
                # A bug, an error of the GPU or no memory may have damaged the process: the next run gets a new one.
                if failed and answer.exit_code in (1, ResourceError.exit_code):
                    worker.process.kill()
                    worker.process.wait()
                if self.stopped and failed and (answer.exit_code or 0) > LEAST_SIGNAL:
                    answer = replace(answer, status=STOPPED)
                ended.append((name, answer))
        except queue.Empty:
            return ended

    def stop(self) -> None:
        """Ask all workers to save a checkpoint and end; asked again, they end at once."""
        self.stopped = True
        for worker in self.workers.values():
            if worker.alive:
                worker.process.send_signal(signal.SIGTERM)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.stop()
        for worker in self.workers.values():
            worker.close()
        for worker in self.workers.values():
            worker.join()
