"""The real command in processes of its own: one command in one, or several in one after the other, to save the imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DRIVER = """
import contextlib, io, json, sys
from glassloop import cli

ended = []
for arguments in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["glassloop", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    ended.append([code, out.getvalue(), err.getvalue()])
json.dump(ended, sys.__stdout__)
"""


@dataclass(frozen=True)
class Ended:
    """What a command left with, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on standard error."""
        return [line.rstrip() for line in self.err.splitlines()]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8", **more}


def run_command(*arguments: str, folder: Path, launcher: tuple[str, ...] = (), seconds: int = 120, **more: str) -> Ended:
    """One command in a process of its own (or below a launcher's), started in `folder`."""
    command = [sys.executable, *launcher, "-m", "glassloop", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, encoding="utf-8", timeout=seconds, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_commands(*commands: list[str], folder: Path, seconds: int = 120, **more: str) -> list[Ended]:
    """Several commands, one after the other in one process, started in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(commands),
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*entry) for entry in json.loads(done.stdout)]
