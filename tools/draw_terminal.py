#!/usr/bin/env python3
"""Run a command in a terminal and draw what it printed as an SVG picture, without fonts from other hosts.

python tools/draw_terminal.py docs/images/terminal.svg glassloop train quickstart --output_dir runs/first
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 50
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def printed_by(command: list[str], columns: int = COLUMNS, folder: Path | None = None) -> tuple[str, int]:
    """Return what a command prints in a terminal, a progress bar as it was at the end, and its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # the last process has closed the terminal
            pass
    text = b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n").replace(f"{folder or Path.cwd()}/", "")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(re.sub(r"\x1b\[[0-9;?]*[A-HJKhl]", "", line) for line in lines).rstrip(), process.returncode


def picture(shown: Sequence[tuple[list[str], str]], columns: int = COLUMNS) -> str:
    """Return commands and their output as SVG."""
    console = Console(record=True, width=columns, file=io.StringIO())
    for command, text in shown:
        lines = textwrap.wrap(f"$ {shlex.join(command)}", columns - 2, subsequent_indent="    ", break_on_hyphens=False)
        console.print(Text(" \\\n".join(lines), style="bold"))
        console.print(Text.from_ansi(text))
    svg = console.export_svg(title="Glassloop", unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", svg)


def main() -> None:
    """Draw the command given after the name of the picture."""
    target, *command = sys.argv[1:]
    text, status = printed_by(command)
    if status:
        sys.exit(f"{shlex.join(command)} exited with status {status}")
    svg = picture([([Path(command[0]).name, *command[1:]], text)])
    Path(target).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
