"""Check that the names of Glassloop which tests quote, to patch or to hook them, still exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from house import PATHS, ROOT, own_module, tree_of

QUOTED = re.compile(r"""["'](glassloop(?:\.\w+)+)(?::(\w+)(?:\.(\w+))?)?""")


def names_in(module: str) -> set[str]:
    """Return the names that a module defines or imports, at its top or under a condition."""
    found: set[str] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def methods_in(module: str, name: str) -> set[str] | None:
    """Return the methods of a class that a module defines without a base class, else None."""
    for node in tree_of(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name and not node.bases:
            return {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    return None


def quoted_names(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield the line, module, name and attribute of each quoted `glassloop.module.name` or `glassloop.module:name`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for dotted, name, attribute in QUOTED.findall(line):
            module = own_module(dotted) or ""
            rest = dotted.split(".")[1 + len([part for part in module.split(".") if part != "__init__"]) :]
            first, second, *_ = [name, attribute] if name else [*rest, "", ""]
            yield number, module, first, second


def is_there(module: str, name: str, attribute: str) -> bool:
    """Return whether a module has a name, and its class the attribute."""
    if not name or f"{module.removesuffix('__init__')}{name}" in PATHS:
        return True
    methods = methods_in(module, name)
    return name in names_in(module) and (not attribute or methods is None or attribute in methods)


def test_every_quoted_name_exists() -> None:
    lost = [
        f"{path.relative_to(ROOT)}:{number}: {module} has no {name}.{attribute}".removesuffix(".")
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name != "architecture"
        for number, module, name, attribute in quoted_names(path)
        if not is_there(module, name, attribute)
    ]
    assert not lost, "\n".join(lost)


def test_names_are_understood(tmp_path: Path) -> None:
    names = ("training.loop:fit", "predictor:Predictor.x", "base.files.shutil.disk_usage", "y")
    code = "".join(f'"glassloop.{name}"\n' for name in names)
    (tmp_path / "x.py").write_text(code, encoding="utf-8")
    assert [found[1:] for found in quoted_names(tmp_path / "x.py")] == [
        ("training.loop", "fit", ""),
        ("predictor", "Predictor", "x"),
        ("base.files", "shutil", "disk_usage"),
        ("__init__", "y", ""),
    ]
    assert [is_there(*found[1:]) for found in quoted_names(tmp_path / "x.py")] == [True, False, True, False]
