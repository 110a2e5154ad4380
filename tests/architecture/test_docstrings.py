"""Check the docstrings of public names: each one exists and documents every parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from house import tree_of

from glassloop import PUBLIC

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters_of(function: Function) -> list[str]:
    """Return the names of the parameters, without self, cls and those that begin with an underscore."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = [argument.arg for argument in every if not argument.arg.startswith("_")]
    return [name for name in names if name not in ("self", "cls")]


def needs_docstring(function: Function) -> bool:
    """Return whether a method is public and neither a setter nor an overload, which share the docstring of another one."""
    shared = any(ast.unparse(decorator).endswith((".setter", "overload")) for decorator in function.decorator_list)
    return not function.name.startswith("_") and not shared


def undocumented(doc: str, names: list[str]) -> list[str]:
    """Return the parameters without an entry `name:` or `*name:` in the docstring."""
    return [name for name in names if not re.search(rf"^\s*\*{{0,2}}{name}(?: \([^)]*\))?:", doc, re.MULTILINE)]


def faults_of(node: ast.stmt, name: str) -> Iterator[str]:
    """Yield what is missing: docstrings, also of public methods, and parameters of functions and constructors."""
    if isinstance(node, Function | ast.ClassDef):
        doc, parameters = ast.get_docstring(node) or "", []
        if not doc:
            yield f"{name} has no docstring"
        if isinstance(node, Function):
            parameters = parameters_of(node)
        for method in (inner for inner in node.body if isinstance(node, ast.ClassDef) and isinstance(inner, Function)):
            if method.name == "__init__":
                doc, parameters = f"{doc}\n{ast.get_docstring(method) or ''}", parameters_of(method)
            elif needs_docstring(method) and not ast.get_docstring(method):
                yield f"{name}.{method.name} has no docstring"
        yield from (f"{name} does not document {parameter}" for parameter in undocumented(doc, parameters))


def test_public_names_document_every_parameter() -> None:
    found = [
        f"{module}: {fault}"
        for name, module in PUBLIC.items()
        for node in tree_of(module).body
        if getattr(node, "name", None) == name
        for fault in faults_of(node, name)
    ]
    assert not found, f"{len(found)} gaps:\n" + "\n".join(found)


def test_gaps_are_found() -> None:
    code = '''
def good(a: int, *, b: int) -> None:
    """Do it.

    Args:
        a: The first.
        b (int): The second.
    """
def bad(a: int) -> None:
    """Do it with a."""
class Good:
    """A thing.

    Args:
        a: The first.
    """
    def __init__(self, a: int) -> None: ...
    def silent(self) -> None: ...
'''
    found = [fault for node in ast.parse(code).body for fault in faults_of(node, node.name)]
    assert found == ["bad does not document a", "Good.silent has no docstring"]
