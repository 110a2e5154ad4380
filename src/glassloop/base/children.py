"""Child processes: started, signalled and awaited together, and none of them left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "glassloop")  # what a child runs, followed by its arguments
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Child:
    """A child process and the number it is known by: its rank, or its random seed."""

    number: int
    process: subprocess.Popen[bytes]

    @property
    def exit_code(self) -> int:
        """Return the exit status as a shell reports it: 128 + n for signal n."""
        code = self.process.returncode
        return code if code >= 0 else 128 - code


class Children:
    """The running child processes of a block. Leaving the block ends those that still run."""

    def __init__(self, signals: Sequence[int]) -> None:
        self.signals = signals  # that this process receives; `poll` forwards new ones
        self.num_forwarded = 0
        self.running: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()
        for child in self.running:
            try:
                child.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def start(
        self, number: int, arguments: Sequence[str], log: Path | None, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start `glassloop` with these arguments, and append its output to `log` if there is one."""
        with ExitStack() as opened:
            output = opened.enter_context(log.open("ab")) if log else None
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL if log else None,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C in the terminal reaches it once, through this process
            )
        self.running.append(Child(number, process))
        return self.running[-1]

    def poll(self) -> list[Child]:
        """Forward new signals to all running children, and return the children that ended since the last call."""
        for number in self.signals[self.num_forwarded :]:
            self.num_forwarded += 1
            for child in self.running:
                child.process.send_signal(number)
        ended = [child for child in self.running if child.process.poll() is not None]
        self.running = [child for child in self.running if child not in ended]
        return ended

    def terminate(self) -> None:
        for child in self.running:
            child.process.terminate()

    def kill(self) -> None:
        """End all running children at once."""
        for child in self.running:
            child.process.kill()
            child.process.wait()
        self.running = []
