"""Load a .pt2 file of torch.export only if nothing in it can run code: torch unpickles parts of it and evaluates texts."""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from glassloop.errors import ModelError, visible
from glassloop.records import Json
from glassloop.run_folder.export_json import RESTORE

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# What torch calls when the model runs. It would look up any other name and call that, too.
FUNCTIONS = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|torch\.sym_\w+|math\.(ceil|floor|trunc)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
# Sizes, and conditions on them, are Python expressions that torch evaluates. These are the names and syntax it writes.
NAMES = {
    *("L", "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Eq", "Ne", "Not", "And", "Or"),
    *("LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan", "Equality", "Unequality", "Piecewise", "Where"),
    *("FloorDiv", "PythonMod", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "CeilToInt", "FloorToInt", "ToFloat", "true", "false"),
    *("min", "max"),
}
SYNTAX = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.keyword, ast.Attribute, ast.Subscript),
    *(ast.Compare, ast.cmpop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop),
)
CODE_SUFFIXES = (".pt", ".so", ".py", ".pyc", ".cpp", ".o")


def load_pt2(path: Path) -> ExportedProgram:
    """Return the program in a .pt2 file. Raises `ModelError` if it is damaged, or if it contains more than a model."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            problem = next(problems(archive), None)
        if problem:
            raise ModelError(f"{path}: {problem}, which Glassloop does not load", "export the run again where you trust it")
        return torch.export.load(path)
    except ModelError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{path}: the exported model cannot be loaded: {reason}", RESTORE) from error


def problems(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what in a .pt2 archive could run code when it is loaded or used."""
    for entry in archive.infolist():
        place = PurePosixPath(entry.filename)
        if (place.suffix in CODE_SUFFIXES and entry.file_size) or "aotinductor" in place.parts:
            yield f"it contains {visible(place.name)}, a file that can run code"
        elif place.suffix == ".json":
            yield from json_problems(json.loads(archive.read(entry)))


def json_problems(content: Json) -> Iterator[str]:
    """Yield what in a JSON file of the archive could run code."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            target, guards, name = value.get("target"), value.get("guards_code") or [], str(value.get("path_name"))
            if value.get("use_pickle") or name.startswith(("custom_obj", "opaque_obj")):
                yield "it contains a pickled object"
            if isinstance(target, str) and "inputs" in value and not FUNCTIONS.fullmatch(target):
                yield f"it calls {visible(target)}"
            expressions = [*(guards if isinstance(guards, list) else [guards]), value.get("expr_str", "0")]
            yield from (f"it evaluates {visible(text)}" for text in expressions if not is_size(text))


def is_size(text: Json) -> bool:
    """Return whether a text is an expression of sizes, which has no effect when it is evaluated."""
    try:
        nodes = [*ast.walk(ast.parse(str(text), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in nodes:
        known = isinstance(node, SYNTAX)
        if isinstance(node, ast.Name):
            known = node.id in NAMES
        elif isinstance(node, ast.Attribute):
            known = node.attr == "size"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            known = re.fullmatch(r"\w+", node.value) is not None
        if not known:
            return False
    return True
