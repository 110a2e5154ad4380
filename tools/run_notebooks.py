#!/usr/bin/env python3
"""Run the code cells of notebooks and store what they print and return. Jupyter is not needed.

`python tools/run_notebooks.py` runs every notebook of examples/notebooks again; `python tools/run_notebooks.py 04` only those
whose names begin with 04. Standard error is not stored: it holds progress bars, which differ from run to run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
MACHINE = re.compile(r"(?<![\w.~:/<-])/(?:[\w.-]+/)+[\w.-]+|\b[A-Z]:\\|\bat 0x[0-9a-f]+")  # a path, or an address in memory
Cell = dict[str, object]


def notebooks(begin: str = "") -> list[Path]:
    """Return the notebooks of the examples whose names begin with `begin`."""
    return sorted(FOLDER.glob(f"{begin}*.ipynb"))


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a notebook."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def source_of(cell: Mapping[str, object]) -> str:
    """Return the text of a cell, which a notebook stores as a list of lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)  # type: ignore[arg-type]


def is_code(cell: Mapping[str, object]) -> bool:
    """Return whether a cell holds code."""
    return cell["cell_type"] == "code"


def run_cell(source: str, names: dict[str, object], title: str) -> list[Cell]:
    """Run one cell with the names of the cells before it; return what it prints, and the value of its last line."""
    if source.startswith("%pip"):  # of Jupyter: here everything is installed
        return []
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out, value = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, title, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)  # noqa: S307 - our own notebook
    outputs: list[Cell] = []
    if printed := out.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        outputs.append({"data": shown(value), "metadata": {}, "output_type": "execute_result"})
    return outputs


def shown(value: object) -> dict[str, list[str]]:
    """Return a value as plain text and, if it has such a view, as HTML."""
    forms = {"text/plain": repr(value)}
    if view := getattr(value, "_repr_html_", None):
        forms["text/html"] = view()
    return {kind: text.splitlines(keepends=True) for kind, text in sorted(forms.items())}


def run_cells(cells: list[Cell], changes: Mapping[str, str] | None = None) -> Iterator[list[Cell]]:
    """Run the code cells in the current folder, with some of their text replaced; yield the outputs of each."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if is_code(cell):
            source = source_of(cell)
            for old, new in (changes or {}).items():
                source = source.replace(old, new)
            yield run_cell(source, names, f"cell {number}")


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Work in an empty folder, which is removed at the end."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def refresh(path: Path) -> None:
    """Run a notebook and write it with its outputs. Exit if an output contains a path of this machine."""
    cells = read_cells(path)
    with empty_folder():
        outputs = iter([*run_cells(cells)])
    count = 0
    for number, cell in enumerate(cells, 1):
        cell |= {"id": f"cell-{number:02}", "metadata": {}, "source": source_of(cell).strip().splitlines(keepends=True)}
        if is_code(cell):
            count += 1
            cell |= {"execution_count": count, "outputs": next(outputs)}
            for output in cell["outputs"]:  # type: ignore[attr-defined]
                output |= {"execution_count": count} if output["output_type"] == "execute_result" else {}
    if found := MACHINE.search(json.dumps([cell.get("outputs") for cell in cells], ensure_ascii=False)):
        sys.exit(f"{path.name}: an output depends on this machine: {found[0]}")
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for notebook in [path for begin in sys.argv[1:] or [""] for path in notebooks(begin)]:
        print(f"==> {notebook.name}", flush=True)
        refresh(notebook)
