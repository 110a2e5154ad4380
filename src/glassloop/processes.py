"""Several processes of one command on this machine: started, signalled and ended together, with one error and one exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from glassloop.engine.signals import noted_signals
from glassloop.errors import GlassloopError, LostProcessError, ResourceError

PROGRAM = [sys.executable, "-m", "glassloop"]
ERROR_FILE = "GLASSLOOP_ERROR_FILE"  # where a process of `launch` leaves its error instead of printing it
POLL_SECONDS = 0.05
PATIENCE_SECONDS, LAST_SECONDS = 5.0, 30.0  # after the first process failed: until SIGTERM, and until SIGKILL


@dataclass(frozen=True)
class Worker:
    """One process of several."""

    rank: int
    process: subprocess.Popen[bytes]
    error_path: Path
    log_path: Path | None  # None for the main process, which people watch

    def error(self) -> tuple[str, bool]:
        """Return what the process said about its end, and whether it only followed another one."""
        try:
            found = json.loads(self.error_path.read_text(encoding="utf-8"))
            return str(found["error"]), bool(found["followed"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", False

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace").strip() if self.log_path else ""


def launch(num_processes: int) -> None:
    """Run this very command in `num_processes` processes, and exit with the code of the one that failed first."""
    kept = sys.argv[1:]
    if "--processes" in kept:
        place = kept.index("--processes")
        kept = kept[:place] + kept[place + 2 :]
    kept = [argument for argument in kept if not argument.startswith("--processes=")]
    with tempfile.TemporaryDirectory(prefix="glassloop-") as scratch, noted_signals() as got:
        workers = start(kept, num_processes, Path(scratch))
        failed = supervise(workers, got)
        if not failed:
            sys.exit(0)
        cause = next((worker for worker in failed if not worker.error()[1]), failed[0])
        code = cause.process.returncode
        if text := cause.error()[0] or cause.log():
            print(text, file=sys.stderr)
        if code < 0 and not got:
            who = f"process {cause.process.pid} ({cause.rank + 1} of {num_processes})"
            raise ResourceError(
                f"{who} was ended by {signal.Signals(-code).name}",
                "if nobody ended it, the machine may have run out of memory; resume with --resume",
            )
    sys.exit(128 + got[0] if got else code)


def start(arguments: list[str], num_processes: int, scratch: Path) -> list[Worker]:
    """Start the processes as torch's launcher would: each knows its rank and where the main process listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    workers = []
    for rank in range(num_processes):
        error_path, log_path = scratch / f"error-{rank}.json", scratch / f"{rank}.log" if rank else None
        environment = {
            **{"OMP_NUM_THREADS": "1", **os.environ},
            **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
            **{"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, ERROR_FILE: str(error_path)},
        }
        output = log_path.open("wb") if log_path else None
        # In sessions of their own: a Ctrl-C reaches each once, through us, and not a second time from the terminal.
        process = subprocess.Popen(
            [*PROGRAM, *arguments], env=environment, stdout=output, stderr=output, start_new_session=True
        )
        if output:
            output.close()
        workers.append(Worker(rank, process, error_path, log_path))
    return workers


def supervise(workers: list[Worker], got: list[int]) -> list[Worker]:
    """Wait until all have ended, passing signals on; end the others where one failed. Return those that failed, in order."""
    running, failed, num_sent = [*workers], list[Worker](), 0
    first_failure, asked = float("inf"), False
    try:
        while running:
            for number in got[num_sent:]:
                num_sent += 1
                for worker in running:
                    worker.process.send_signal(number)
            for worker in [worker for worker in running if worker.process.poll() is not None]:
                running.remove(worker)
                if worker.process.returncode:
                    failed.append(worker)
                    first_failure = min(first_failure, time.monotonic())
            waited = time.monotonic() - first_failure
            if running and waited > PATIENCE_SECONDS and not asked:
                asked = True
                for worker in running:
                    worker.process.terminate()
            if running and waited > LAST_SECONDS:
                break
            time.sleep(POLL_SECONDS)
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.wait()
    return failed


def report(error: GlassloopError) -> None:
    """Print an error on standard error; in one process of several, leave it for the launcher, which prints one."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        print(error, file=sys.stderr)
        return
    followed = isinstance(error, LostProcessError)
    Path(path).write_text(json.dumps({"error": str(error), "followed": followed}), encoding="utf-8")
