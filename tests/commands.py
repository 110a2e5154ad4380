"""Commands in processes of their own: a new interpreter, forked children of a server, and `glassloop ui`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from trials import Ended, Servers, without_stages

__all__ = ["environment", "run_command", "run_forked", "without_stages"]
SHOWN = {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **SHOWN, **more}


def run_command(*arguments: str, folder: Path, launcher: tuple[str, ...] = (), seconds: int = 120, **more: str) -> Ended:
    """One command in a new interpreter (or below a launcher), started in `folder`."""
    command = [sys.executable, *launcher, "-m", "glassloop", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, encoding="utf-8", timeout=seconds, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_forked(servers: Servers, *commands: list[str], folder: Path, **more: str) -> list[Ended]:
    """Several commands, one after the other, each in a forked process, started in `folder`."""
    return [servers.run(*command, folder=folder, timeout=120, **SHOWN, **more) for command in commands]


def write_notebook(path: Path, sources: list[str]) -> None:
    """A notebook with these cells of code."""
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in sources]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


class LiveServer:
    """A server on a free port that shows the runs of a folder. `address` ends with its token and a slash."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "glassloop", "ui", str(folder), "--port", "0"]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment(), **piped)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def memory(self) -> int:
        """Return the memory of the process in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def open_files(self) -> list[str]:
        """Return the files that the process has open."""
        found = []
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except OSError:  # closed meanwhile
                continue
        return found

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C, and return the exit status and what was printed on standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.said = self.process.communicate(timeout=30)[1]
        return self.process.returncode, self.said
