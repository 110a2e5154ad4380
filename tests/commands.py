"""Commands in processes of their own: a new interpreter, or forked children of a server that has imported everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from trials import Ended, Servers

SHOWN = {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}


STAGES = re.compile(
    r"^(starting|loading the (model|tokenizer)|checking the model|saving the model|(reading|tokenizing) .*"
    r"|(evaluating|predicting)( \(|: ).*)\n",
    re.MULTILINE,
)


def without_stages(text: str) -> str:
    """Error output without the lines that say what a command is doing."""
    return STAGES.sub("", text)


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
