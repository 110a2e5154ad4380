"""One command in several processes on this machine, with one error message and one exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from glassloop.base.children import Child, Children
from glassloop.base.errors import GlassloopError, LostProcessError, ResourceError
from glassloop.base.output import messages
from glassloop.training.callbacks import noted_signals

ERROR_FILE = "GLASSLOOP_ERROR_FILE"  # where a process of `launch` writes its error instead of printing it
POLL_SECONDS = 0.05
TERM_SECONDS, KILL_SECONDS = 5.0, 30.0  # after the first process failed: until SIGTERM, and until SIGKILL


class WorkerError(GlassloopError):
    """The error of one of several processes. `followed`: it only followed from the end of another process."""

    def __init__(self, area: str, problem: str, remedy: str, exit_code: int, followed: bool) -> None:
        super().__init__(problem, remedy)
        self.area, self.exit_code, self.followed = area, exit_code, followed


def launch(arguments: Sequence[str], num_processes: int) -> NoReturn:
    """Run `glassloop` with `arguments` in several processes that find each other, and exit as the one that failed first."""
    # torch's launcher answers every failure with a traceback and exit status 1. Here each process writes its error to a
    # file, and the one that caused the others is shown.
    run_together(arguments, ranked_environments(num_processes))
    sys.exit(0)


def run_together(arguments: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
    """Run `glassloop` with `arguments` in several processes, and exit or raise as the one that failed first, if any did."""
    with tempfile.TemporaryDirectory(prefix="glassloop-") as scratch, noted_signals() as received:
        with Children(received) as children:
            for rank, environment in enumerate(environments):
                log = Path(scratch, f"{rank}.log") if rank else None  # the output of the main process goes to the terminal
                children.start(rank, arguments, log, {**environment, ERROR_FILE: str(Path(scratch, f"{rank}.json"))})
            failed = supervise(children)
        if not failed:
            return
        errors = [(worker, error_in(Path(scratch, f"{worker.number}.json"))) for worker in failed]
        # The first that did not follow from another, else the first of all.
        cause, error = min(errors, key=lambda entry: entry[1] is not None and entry[1].followed)
        if error and not received:
            raise error
        log = Path(scratch, f"{cause.number}.log")
        if text := error or (log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""):
            print(text, file=messages())
        code = cause.process.returncode
        if code < 0 and not received:
            who = f"process {cause.process.pid} ({cause.number + 1} of {len(environments)})"
            remedy = "if nobody killed it, the machine may have run out of memory; resume with --resume"
            raise ResourceError(f"{who} was killed by {signal.Signals(-code).name}", remedy)
    sys.exit(128 + received[0] if received else code)


def error_in(path: Path) -> WorkerError | None:
    try:
        return WorkerError(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def ranked_environments(num_processes: int) -> list[dict[str, str]]:
    """Return environments as torch's launcher makes them: each has its rank and the address of the main process."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_processes))
    ranks = [dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(num_processes)]
    return [{"OMP_NUM_THREADS": "1", **os.environ, **address, **sizes, **rank} for rank in ranks]


def supervise(children: Children) -> list[Child]:
    """Wait until all processes have ended, and end the others after one failed. Return the failed ones in that order."""
    failed: list[Child] = []
    first_failure, asked = float("inf"), False
    while children.running:
        for child in children.poll():
            if child.process.returncode:
                failed.append(child)
                first_failure = min(first_failure, time.monotonic())
        waited = time.monotonic() - first_failure
        if waited > TERM_SECONDS and not asked:
            asked = True
            children.terminate()
        if waited > KILL_SECONDS:
            children.kill()
        time.sleep(POLL_SECONDS)
    return failed


def report(error: GlassloopError) -> bool:
    """Print an error on standard error and return True. A process of `launch` leaves it for the launcher: False."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        print(error, file=messages())
        return True
    followed = isinstance(error, LostProcessError)
    content = {"area": error.area, "problem": error.problem, "remedy": error.remedy, "exit_code": error.exit_code}
    Path(path).write_text(json.dumps({**content, "followed": followed}), encoding="utf-8")
    return False
