"""The rooms of the house in their order, and the imports of every module. tests/architecture checks both."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "glassloop"

# Imports only go down this list. A room is a folder, or a module at the top.
CORE = (
    "base",
    "settings",
    # Below data and scores: what they find out about rows and metrics is written into the record of a run,
    # whose types are defined once, where they can be read without torch and numpy.
    "runs",
    "markup",  # below training, whose results show themselves in notebooks
    "scores",
    "data",
    "models",
    "training",
    "backends",
    "report",
    "predict",  # below the predictor, which is made of its parts
)
DOORS = ("trainer", "predictor")
# A slice uses the core and the doors, never another slice.
SLICES = ("study", "diagnosis", "serve", "share", "compat", "web")
ENTRIES = ("cli", "__init__", "__main__")  # what Python imports is above the commands, which `train` is one of
LEVELS = {room: level for level, room in enumerate((*CORE, *DOORS, *SLICES, *ENTRIES))}


def module_name(path: Path) -> str:
    """Return `data.readers` for src/glassloop/data/readers.py, and `data.__init__` for a package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


PATHS = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    """Return the room of a module: its first folder, or the module itself at the top."""
    return module.partition(".")[0]


def imports_in(node: ast.AST, package: list[str], whole: bool) -> Iterator[tuple[str, int]]:
    """Yield what the statements below a node import, with the line; only `whole` enters functions and TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            near = package[: len(package) - child.level + 1] if child.level else []
            base = ".".join([*near, *([child.module] if child.module else [])])
            yield from ((f"{base}.{alias.name}", child.lineno) for alias in child.names)
        elif whole or not (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"))
        ):
            yield from imports_in(child, package, whole)


def imports_of(module: str, whole: bool = True) -> list[tuple[str, int]]:
    """Return every dotted name that a module imports and its line.

    Args:
        module: The module.
        whole: Also count imports in functions and for type checkers, not only those that run when the module is loaded.
    """
    return [*imports_in(tree_of(module), ["glassloop", *module.split(".")[:-1]], whole)]


def own_module(dotted: str) -> str | None:
    """Return the module of Glassloop that a dotted name belongs to, or None for any other package."""
    first, *rest = dotted.split(".")
    if first != "glassloop":
        return None
    for length in range(len(rest), -1, -1):
        name = ".".join(rest[:length])
        for candidate in (name, f"{name}.__init__" if name else "__init__"):
            if candidate in PATHS:
                return candidate
    return None


@cache
def own_imports(module: str, whole: bool = True) -> set[str]:
    """Return the modules of Glassloop that a module imports."""
    return {other for dotted, _ in imports_of(module, whole) if (other := own_module(dotted)) and other != module}


@cache
def longest_chain(module: str) -> tuple[str, ...]:
    """Return the longest chain of modules, each of which loads the next one when it is loaded."""
    return (module, *max((longest_chain(other) for other in own_imports(module, whole=False)), key=len, default=()))
