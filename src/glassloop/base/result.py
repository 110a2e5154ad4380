"""What a command found, as one JSON document for scripts, and its exit status."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TextIO

from glassloop.base.errors import GlassloopError


@dataclass(frozen=True)
class CommandResult:
    """The result of a command for `--json`.

    Args:
        content: Plain values, records and paths by name.
        exit_status: The exit status of the command.
    """

    content: Mapping[str, object]
    exit_status: int = 0

    def __str__(self) -> str:
        return json.dumps(plain(self.content), indent=1, allow_nan=False)  # in ASCII, which every terminal can show


def error_result(error: GlassloopError) -> CommandResult:
    """Return an error as a report."""
    described = {"area": error.area, "problem": error.problem, "remedy": error.remedy, "exit_status": error.exit_code}
    return CommandResult({"error": described}, error.exit_code)


def plain(value: object) -> object:
    """Return a value as JSON can hold it: a record is an object, a path is text, and a number that is not finite is null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


@contextmanager
def output_of(as_json: bool) -> Iterator[TextIO]:
    """Yield standard output. For JSON, everything else that is printed in the meantime goes to standard error."""
    output = sys.stdout
    if not as_json:
        yield output
        return
    with redirect_stdout(sys.stderr):
        yield output


def show_result(found: CommandResult, output: TextIO) -> None:
    """Print a report as JSON. Of several processes, only the main one prints it."""
    if os.environ.get("RANK", "0") == "0":
        output.write(f"{found}\n")
        output.flush()
