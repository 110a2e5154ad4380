"""A script or a notebook as code that runs as `__main__` in this process, with its own traceback."""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from glassloop.base.errors import GlassloopError, visible
from glassloop.compat.former_functions import display, get_ipython
from glassloop.compat.names import instead_of
from glassloop.compat.script import is_magic_cell, parsed, read_cells, without_magics
from glassloop.compat.substitution import LEDGER

HIDDEN = ("<frozen ", str(Path(__file__).parent))  # frames of Python's import system, and of the substitutions


@dataclass(frozen=True)
class Part:
    """A piece of code that runs as a whole: a script, or a cell of a notebook."""

    name: str  # the file, or the cell, as a traceback shows it
    code: str | bytes
    shows: bool = False  # the value of the last expression is printed, as notebooks do


class PartLoader(InspectLoader):
    def __init__(self, code: CodeType) -> None:
        self.code = code

    def get_source(self, fullname: str) -> str | None:
        return None  # linecache has it

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def codes_of(part: Part) -> Iterator[CodeType]:
    """Yield the code of a part; the last expression of a cell comes alone, in the mode that prints its value."""
    if not part.shows:
        yield InspectLoader.source_to_code(part.code, part.name)
        return
    tree = ast.parse(part.code, part.name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        yield compile(tree, part.name, "exec", dont_inherit=True)
    if isinstance(last, ast.Expr):
        hidden = str(part.code).rstrip().endswith(";")
        yield compile(ast.Module([last], []) if hidden else ast.Interactive([last]), part.name, "exec" if hidden else "single")


def parts_of(path: Path) -> list[Part]:
    """Return a script as one part, and a notebook as one part per code cell, without magics, which are noted as skipped."""
    if path.suffix != ".ipynb":
        return [Part(str(path), path.read_bytes())]
    parts = []
    for number, code in read_cells(path.read_text(encoding="utf-8"), visible(path))[2].items():
        name, left = f"{path}, cell {number}", ""
        if is_magic_cell(code):
            magics = [(1, f"{code.split()[0]} and the rest of the cell")]
        else:
            left, magics = without_magics(code, "pass")
        LEDGER.skipped += [(f"{path.name}, cell {number}, line {line}", text) for line, text in magics]
        parts.append(Part(name, left, shows=True))
        linecache.cache[name] = (len(code), None, left.splitlines(keepends=True), name)  # no time stamp: never read from a file
    return parts


def names_in(parts: Iterable[Part]) -> set[str]:
    names: set[str] = set()
    for tree in [parsed(part.code) for part in parts]:
        for node in ast.walk(tree) if tree else ():  # an error is shown when the part runs
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("transformers"):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "transformers":
                names.add(node.attr)
    return names


def main_module(path: Path) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if path.suffix == ".ipynb":
        module.__dict__.update(display=display, get_ipython=get_ipython)
    else:
        module.__file__ = str(path)
    sys.modules["__main__"] = module
    return module


def run_part(part: Part, module: ModuleType) -> int:
    """Run a part in a module and return the exit status of Python for it. A traceback is printed as Python would."""
    try:
        for code in codes_of(part):
            PartLoader(code).exec_module(module)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")  # as Python does
        return 1
    except BaseException as error:
        advise(error)
        error = error.with_traceback(shortened(error.__traceback__))
        if sys.excepthook is not sys.__excepthook__:  # the script has set its own
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            traceback.print_exception(error)  # Python's own hook does not find the lines of a notebook
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def shortened(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that run the script and serve old names."""
    if trace is None:
        return None
    rest = shortened(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HIDDEN):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def advise(error: BaseException) -> None:
    if isinstance(error, GlassloopError) and "transformers.Trainer" in LEDGER.substitutions:
        error.add_note("glassloop: to run the script with transformers' Trainer: glassloop run --keep Trainer SCRIPT")
    if isinstance(error, ImportError):
        wanted = str(error).partition("cannot import name '")[2].partition("'")[0] or error.name or ""
        if todo := instead_of(wanted) or instead_of(wanted.partition(".")[0]):
            error.add_note(f"glassloop: {wanted} is not available: {todo}")
