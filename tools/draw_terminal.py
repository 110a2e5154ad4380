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
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 50
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def printed_by(command: list[str]) -> str:
    """Return what a command prints in a terminal with `COLUMNS` columns; a progress bar as it was at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # the last process has closed the terminal
            pass
    if process.returncode:
        sys.exit(f"{shlex.join(command)} exited with status {process.returncode}")
    text = b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n").replace(f"{Path.cwd()}/", "")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(re.sub(r"\x1b\[[0-9;?]*[A-HJKhl]", "", line) for line in lines).rstrip()


def picture(command: list[str], text: str) -> str:
    """Return the command and its output as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    shown = textwrap.wrap(f"$ {shlex.join(command)}", COLUMNS - 2, subsequent_indent="    ", break_on_hyphens=False)
    console.print(Text(" \\\n".join(shown), style="bold"))
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="Glassloop", unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", svg)


def main() -> None:
    """Draw the command given after the name of the picture."""
    target, *command = sys.argv[1:]
    svg = picture([Path(command[0]).name, *command[1:]], printed_by(command))
    Path(target).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
