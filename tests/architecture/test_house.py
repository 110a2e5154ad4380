"""Check the rooms, the docstrings of modules, and dangerous calls: one test per rule."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

import house
import pytest
from house import LEVELS, PATHS, SLICES, imports_of, own_imports, own_module, room_of, tree_of

NAMES_OF_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
CODE_FROM_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

# Limits that may only shrink: lower them when the code allows it.
MOST_IMPORTS_IN_A_CHAIN = 15
MOST_MODULES_AT_THE_TOP = 4
MOST_MODULES_IN_A_FOLDER = 22
MOST_CLASSES_IN_A_CHAIN = 2

# What does not follow the rules yet. A test fails if one of these entries is no longer needed, so the lists only shrink.
SLICES_THAT_USE_A_SLICE = {("compat", "share"), ("compat", "study"), ("share", "serve")}


# --- rooms and their order -----------------------------------------------------------------------------------------
def test_every_module_is_in_a_room_of_the_list_and_every_room_is_there() -> None:
    assert {room_of(module) for module in PATHS} == {*LEVELS}, "change CORE, DOORS, SLICES or ENTRIES in tools/house.py"


def room_imports() -> Iterator[tuple[str, str, str]]:
    """Yield the rooms of every import that leaves a room, and its place."""
    for module in PATHS:
        for dotted, line in imports_of(module):
            other = own_module(dotted)
            if other and room_of(other) != room_of(module):
                yield room_of(module), room_of(other), f"{module}, line {line}: imports {other}"


def test_imports_only_go_down() -> None:
    """At the top of a module, in its functions, and for type checkers."""
    upward = {
        place
        for room, other, place in room_imports()
        if LEVELS[other] > LEVELS[room] and not (room in SLICES and other in SLICES)
    }
    assert not upward, "\n".join(sorted(upward))


def test_a_slice_uses_the_core_and_the_doors_and_no_other_slice() -> None:
    pairs = {(room, other): place for room, other, place in room_imports() if room in SLICES and other in SLICES}
    assert not (new := {*pairs} - SLICES_THAT_USE_A_SLICE), "\n".join(sorted(pairs[pair] for pair in new))
    assert not SLICES_THAT_USE_A_SLICE - {*pairs}, "delete these entries: the imports are gone"


def test_every_own_import_names_a_module() -> None:
    lost = [
        f"{module}: {dotted}"
        for module in PATHS
        for dotted, _ in imports_of(module)
        if dotted.startswith("glassloop.") and own_module(dotted) is None
    ]
    assert not lost


def test_the_lowest_rooms_need_only_the_standard_library() -> None:
    foreign = [
        f"{module}: {dotted}"
        for module in PATHS
        for dotted, _ in imports_of(module)
        if room_of(module) in ("base", "settings", "runs")
        and own_module(dotted) is None
        and dotted.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not foreign


def circles_in(needs: dict[str, set[str]]) -> list[str]:
    """Return circles of needs, each as one line."""

    def circle_from(path: tuple[str, ...]) -> tuple[str, ...] | None:
        for other in sorted(needs[path[-1]]):
            if other in path:
                return (*path[path.index(other) :], other)
            if other not in seen and (circle := circle_from((*path, other))):
                return circle
        seen.add(path[-1])
        return None

    seen: set[str] = set()
    found = [circle for name in needs if name not in seen and (circle := circle_from((name,)))]
    return [" -> ".join(circle) for circle in found]


def test_no_two_modules_or_rooms_need_each_other() -> None:
    """No circle of imports, not even through functions or for type checkers only. A module at the top is a room, too."""
    assert not circles_in({module: own_imports(module) for module in PATHS})
    needs: dict[str, set[str]] = {room: set() for room in LEVELS}
    for room, other, _ in room_imports():
        needs[room].add(other)
    assert not circles_in(needs)
    assert circles_in({"a": {"b"}, "b": {"c"}, "c": {"b"}})[0] == "b -> c -> b"
    assert not circles_in({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_names_and_imports_are_understood_wherever_they_stand() -> None:
    """The tests above are worth what this is worth."""
    found = {"glassloop.base.errors.DataError": "base.errors", "glassloop.data.quickstart": "data.quickstart",
             "glassloop.data.columns.LabelSet": "data.columns", "glassloop.data.nothing": "data.__init__",
             "glassloop.__version__": "__init__", "glassloop": "__init__", "glassloopy.errors": None,
             "torch.nn": None}  # fmt: skip
    assert {dotted: own_module(dotted) for dotted in found} == found
    assert {"settings.training", "cli.options"} <= own_imports("cli.train"), "at the top and in functions"
    assert "data.examples" in own_imports("__init__"), "under TYPE_CHECKING"
    assert not own_imports("__init__", whole=False), "what runs when the package is imported"


def test_few_modules_are_loaded_one_because_of_the_other() -> None:
    """Whoever reads a module needs those below it: imports in functions and for type checkers do not count."""
    chain = max(map(house.longest_chain, PATHS), key=len)
    assert len(chain) <= MOST_IMPORTS_IN_A_CHAIN, f"{len(chain)} modules: {' -> '.join(chain)}"


# --- classes -------------------------------------------------------------------------------------------------------
@cache
def class_names(module: str) -> dict[str, ast.ClassDef | str]:
    """Return the classes that a module defines, and the dotted names of what it imports, by their names there."""
    names: dict[str, ast.ClassDef | str] = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            names[node.name] = node
    return names


def class_defined(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the own class that a name means in a module, and the module that defines it."""
    meaning = class_names(module).get(name)
    if isinstance(meaning, ast.ClassDef):
        return module, meaning
    other = own_module(meaning) if meaning else None
    return class_defined(other, meaning.rpartition(".")[2]) if meaning and other and other != module else None


def chain_of(module: str, node: ast.ClassDef) -> tuple[str, ...]:
    """Return the longest chain of own classes from a class to its bases. Protocols hold no code and do not count."""
    names = [ast.unparse(base).partition("[")[0] for base in node.bases]
    if "Protocol" in names:
        return ()
    bases = [class_defined(module, name.rpartition(".")[2]) for name in names]
    chains = (chain_of(*base) for base in bases if base and base != (module, node))
    return (f"{module}.{node.name}", *max(chains, key=len, default=()))


def test_at_most_two_own_classes_form_a_chain() -> None:
    """Inheritance does not share code. Errors form a tree of kinds, by which users catch them."""
    chains = {
        chain[0]: chain
        for module in PATHS
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ClassDef)
        if (chain := chain_of(module, node))
        and len(chain) > MOST_CLASSES_IN_A_CHAIN
        and chain[-1] != "base.errors.GlassloopError"
    }
    assert not chains
    module, node = class_defined("data.readers", "DataError") or pytest.fail("follow the import")
    assert chain_of(module, node) == ("base.errors.DataError", "base.errors.GlassloopError")


# --- folders -------------------------------------------------------------------------------------------------------
def test_no_folder_is_crowded() -> None:
    folders = Counter(module.rpartition(".")[0] for module in PATHS if not module.endswith(".__init__"))
    assert folders.pop("") <= MOST_MODULES_AT_THE_TOP
    assert not {folder: number for folder, number in folders.items() if number > MOST_MODULES_IN_A_FOLDER}


def test_the_contributing_guide_names_every_room() -> None:
    guide = (house.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = [f"{room}/" for room in (*house.CORE, *SLICES, "cli")] + [f"{door}.py" for door in house.DOORS]
    assert not [room for room in rooms if not re.search(rf"^ *{re.escape(room)} ", guide, re.MULTILINE)]


def docstring_fault(module: str) -> str | None:
    """Return what is wrong with the docstring of a module."""
    doc = ast.get_docstring(tree_of(module), clean=False)
    if not doc:
        return "has no docstring"
    first, *rest = doc.splitlines()
    if first.strip() != first or not first:
        return "the docstring begins on its first line"
    if not first.endswith((".", "?", "!")):
        return "the first line is a sentence"
    return "the first line stands alone" if rest and rest[0] else None


def test_every_module_says_what_it_is_for_also_by_its_name() -> None:
    assert not {module: fault for module in PATHS if (fault := docstring_fault(module))}
    assert not [module for module in PATHS if NAMES_OF_NOTHING & {*module.split(".")}]


# --- dangers -----------------------------------------------------------------------------------------------------
def dangers_of(tree: ast.AST) -> Iterator[str]:
    """What would run code that came with data, or vanish under `python -O`."""
    forbidden_values = {"trust_remote_code": True, "allow_pickle": True, "shell": True, "weights_only": False}
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', '?')}"
        if isinstance(node, ast.Import):
            yield from (f"{where}: import {name.name}" for name in node.names if name.name.partition(".")[0] in CODE_FROM_DATA)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in CODE_FROM_DATA:
            yield f"{where}: from {node.module} import"
        elif isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in [name.name for name in node.names]:
            yield f"{where}: from torch import load"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "os.system", "os.popen", "torch.hub"):
            yield f"{where}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "__import__"):
            yield f"{where}: {node.func.id}("
        elif isinstance(node, ast.Assert):
            yield f"{where}: assert"
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            if node.arg in forbidden_values and node.value.value is forbidden_values[node.arg]:
                yield f"{where}: {node.arg}={node.value.value}"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{where}: except without a kind"


def test_nothing_dangerous() -> None:
    found = [f"{module}, {danger}" for module in PATHS for danger in dangers_of(tree_of(module))]
    assert not found, "\n".join(found)


SHOWS_ERRORS = ("base.output", "training.processes")  # errors are printable when they are made


def test_what_is_printed_cannot_control_the_terminal() -> None:
    """Label, column and file names come from users' data: `output.say` and `output.show` escape them."""
    prints = [
        f"{module}, line {node.lineno}"
        for module in PATHS
        if module not in SHOWS_ERRORS
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, "use output.say or output.show"


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "import pickle as p", "from pickle import loads", "import torch\ntorch.load('x')"),
        *("from torch import load", "eval('1')", "exec('1')", "__import__('x')", "assert True", "load(trust_remote_code=True)"),
        *("np.load('x', allow_pickle=True)", "run('ls', shell=True)", "import os\nos.system('ls')", "try: pass\nexcept: pass"),
    ],
)
def test_dangers_are_seen(code: str) -> None:
    assert [*dangers_of(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["model.eval()", "load(trust_remote_code=False)", "json.load(f)", "torch.loads", "x = 'eval(1)'"]
)
def test_what_is_fine_is_not_taken_for_a_danger(code: str) -> None:
    assert not [*dangers_of(ast.parse(code))]
