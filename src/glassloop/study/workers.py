"""Worker processes of this machine: several on a GPU where they fit, one group per GPU, threads shared on a CPU."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from glassloop.base.children import GRACE_SECONDS
from glassloop.base.records import decoded
from glassloop.runs.record import FAILED, STOPPED
from glassloop.study.trials import Done, Task

COMMAND = (sys.executable, "-m", "glassloop.study.worker")
WAIT_SECONDS = 0.5
CORES_PER_RUN = 4  # on a CPU: a run of a small model does not use more


@dataclass(frozen=True)
class Place:
    """Where a worker runs: its GPU, if any, and its number of CPU threads, if it is limited."""

    gpu: str | None = None
    threads: int | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of the worker."""
        found = dict(os.environ)
        if self.gpu is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.gpu
        if self.threads is not None:
            found["OMP_NUM_THREADS"] = str(self.threads)
        return found


def places_for(gpus: Mapping[str, int], at_once: int, cores: int) -> list[Place]:
    """Return the place of each worker.

    Args:
        gpus: Number of runs at a time on each GPU, by its name in CUDA_VISIBLE_DEVICES. Empty: there are no GPUs.
        at_once: Number of runs at a time without GPUs.
        cores: Number of CPU cores.
    """
    names = [gpu for turn in range(max(gpus.values(), default=0)) for gpu, runs in gpus.items() if turn < runs]
    number = len(names) or at_once
    threads = max(1, cores // number) if number > 1 else None  # a single run keeps torch's default
    if len(gpus) < 2:
        return [Place(None, threads)] * number
    return [Place(gpu, threads) for gpu in names]


def cpu_runs_at_once(cores: int) -> int:
    """Return how many runs to train at a time on a CPU."""
    return max(1, cores // CORES_PER_RUN)


# Workers stay alive: importing torch and starting CUDA takes longer than a short run.
class Worker:
    """One worker process. A thread reads its answers.

    What it prints before its first task goes to the log of that task, then each task redirects it to a log of its own.
    """

    def __init__(self, place: Place, log: Path, answers: queue.Queue[tuple[Worker, Done]]) -> None:
        self.answers = answers
        self.task: Task | None = None
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=place.environment(),
                start_new_session=True, encoding="utf-8", bufsize=1,
            )  # fmt: skip
        threading.Thread(target=self.read, daemon=True).start()

    def start(self, task: Task, start_of_log: int) -> None:
        """Hand over a task. If the process has died, `read` answers."""
        self.task, self.start_of_log = task, start_of_log
        try:
            if self.process.stdin:
                self.process.stdin.write(json.dumps(asdict(task)) + "\n")
                self.process.stdin.flush()
        except OSError:
            pass

    def read(self) -> None:
        """Pass on every answer. A process that dies has failed its task."""
        for line in self.process.stdout or ():
            done, self.task = decoded(Done, json.loads(line)), None
            self.answers.put((self, done))
        code = self.process.wait()
        if self.task is not None:
            lines = error_lines(self.task.log, self.start_of_log)
            failed = Done(
                self.task.name, FAILED, exit_code=code if code > 0 else 128 - code, error=lines or ("the process ended",)
            )
            self.answers.put((self, failed))

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """Let the process end: it does when its input does."""
        try:
            if self.process.stdin:
                self.process.stdin.close()
        except OSError:
            pass


class LocalWorkers:
    """Trains runs in worker processes of this machine. Leaving the block ends them.

    Args:
        places: The place of each worker.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        # SimpleQueue.get waits forever if a signal comes as its timeout ends (Python 3.11 to 3.13)
        self.answers: queue.Queue[tuple[Worker, Done]] = queue.Queue()
        self.workers: dict[int, Worker] = {}
        self.idle = [*range(len(places))]
        self.stopped = False

    @property
    def slots(self) -> int:
        """Number of runs at a time."""
        return len(self.places)

    def start(self, task: Task) -> None:
        """Hand a task to an idle worker, which is started if it does not run yet."""
        number = self.idle.pop(0)
        worker = self.workers.get(number)
        task.log.touch()
        start_of_log = task.log.stat().st_size
        if worker is None or not worker.alive:
            worker = self.workers[number] = Worker(self.places[number], task.log, self.answers)
        worker.start(task, start_of_log)

    def wait(self) -> list[Done]:
        """Return the tasks that ended, after at most half a second."""
        found: list[Done] = []
        try:
            while True:
                worker, done = self.answers.get(timeout=WAIT_SECONDS if not found else 0.001)
                self.idle.append(next(number for number, one in self.workers.items() if one is worker))
                if done.leaves_doubt:
                    worker.process.kill()  # the next run gets a new process
                    worker.process.wait()
                ended_by_us = self.stopped and done.status == FAILED and (done.exit_code or 0) > 128
                found.append(replace(done, status=STOPPED) if ended_by_us else done)
        except queue.Empty:
            return found

    def stop(self) -> None:
        """Ask all workers to save a checkpoint and end; asked again, they end at once."""
        self.stopped = True
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to all workers that run."""
        for worker in self.workers.values():
            if worker.alive:
                worker.process.send_signal(number)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.signal(signal.SIGTERM)
        for worker in self.workers.values():
            worker.end()
        for worker in self.workers.values():
            try:
                worker.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def visible_gpus(count: int, environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs of this process as CUDA_VISIBLE_DEVICES names them."""
    named = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def error_lines(log: Path, start: int) -> tuple[str, ...]:
    """Return the last lines that a process wrote to a log from byte `start` on."""
    lines = [line for line in log.read_bytes()[start:].decode("utf-8", "replace").splitlines() if line.strip()]
    return tuple(lines[-5:])
