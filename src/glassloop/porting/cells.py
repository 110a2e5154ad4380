"""The code cells of a notebook, and which of their lines are Python."""

from __future__ import annotations

import ast
import json

from glassloop.errors import DataError
from glassloop.records import Json

PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")


def read_cells(text: str, name: str) -> tuple[Json, list[tuple[int, dict[str, Json]]], dict[int, str]]:
    """Return a notebook, its code cells with their numbers from 1, and their code. Raises `DataError` if it is not one."""
    try:
        notebook = json.loads(text)
        cells = [(number, cell) for number, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code"]
        return notebook, cells, {number: "".join(cell["source"]) for number, cell in cells}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{name} is not a notebook: it has no cells", "open it in Jupyter, and save it again") from error


def is_magic_cell(code: str) -> bool:
    """Return whether a whole cell is for a magic, such as %%bash."""
    return code.lstrip().startswith("%%") and code.split()[0] not in PYTHON_MAGICS


def is_magic(line: str) -> bool:
    """Return whether a line of a cell that is not Python is a magic, a shell command or a question."""
    bare = line.lstrip()
    return bare.startswith(("%", "!", "?")) or bare.endswith("?")


def is_python(code: str) -> bool:
    """Return whether code is valid Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
