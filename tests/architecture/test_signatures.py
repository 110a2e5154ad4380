"""Check signatures: few mention `Any`, and none of the public ones do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from house import PATHS, tree_of

from glassloop import PUBLIC

MOST_SIGNATURES_WITH_ANY = 3  # lower this number whenever a change makes it possible
MOST_ALIASES_WITH_ANY = 6  # an alias must not hide what a signature may not say

Function = ast.FunctionDef | ast.AsyncFunctionDef


def contains_any(annotation: ast.expr) -> bool:
    """Return whether an annotation contains `Any`, also inside quotes."""
    return any(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bAny\b", node.value) is not None)
        for node in ast.walk(annotation)
    )


def mentions_any(function: Function) -> bool:
    """Return whether an annotation of a signature contains `Any`."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [argument.annotation for argument in every if argument is not None]
    return any(contains_any(annotation) for annotation in [*annotations, function.returns] if annotation)


def aliases_in(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the values that a module assigns at its top, where type aliases stand."""
    yield from (node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)


def functions_in(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def public_functions(tree: ast.Module, name: str) -> Iterator[Function]:
    """Yield a public function, or the constructor and the public methods of a public class."""
    for node in tree.body:
        if isinstance(node, Function) and node.name == name:
            yield node
        if isinstance(node, ast.ClassDef) and node.name == name:
            methods = (method for method in node.body if isinstance(method, Function))
            yield from (method for method in methods if not method.name.startswith("_") or method.name == "__init__")


def test_few_signatures_and_type_aliases_and_no_public_signature_mention_any() -> None:
    trees = {module: tree_of(module) for module in PATHS}
    found = [f"{module}.{f.name}, line {f.lineno}" for module in PATHS for f in functions_in(trees[module]) if mentions_any(f)]
    assert len(found) <= MOST_SIGNATURES_WITH_ANY, f"{len(found)} signatures mention Any:\n" + "\n".join(found)
    aliases = [
        f"{module}: {ast.unparse(value)}" for module in PATHS for value in aliases_in(trees[module]) if contains_any(value)
    ]
    assert len(aliases) <= MOST_ALIASES_WITH_ANY, "\n".join(aliases)
    public = {
        f"{module}.{name}.{function.name}"
        for name, module in PUBLIC.items()
        for function in public_functions(tree_of(module), name)
        if mentions_any(function)
    }
    assert not public, "use a type of an interfaces.py, or object:\n" + "\n".join(sorted(public))


def test_a_mention_of_any_is_found() -> None:
    """A body and a similar name do not count."""
    starts = ("x: Any", "*, x: list[typing.Any]", "**x: Any", "x: 'Any'")
    codes = [*(f"def f({start}) -> None: ..." for start in starts), "def f(x: int) -> dict[str, Any]: ..."]
    assert all(mentions_any(function) for code in codes for function in functions_in(ast.parse(code)))
    tree = ast.parse("def f(x: AnyStr) -> None:\n    y: Any = 1\n    def g(z: Any) -> None: ...")
    assert [*map(mentions_any, functions_in(tree))] == [False, True]


def test_every_public_name_is_found() -> None:
    """Classes without functions of their own, such as errors, still stand in the module that PUBLIC names."""
    for name, module in PUBLIC.items():
        defined = {node.name for node in tree_of(module).body if isinstance(node, Function | ast.ClassDef)}
        assert name in defined, f"{name} is not defined in {module}"
