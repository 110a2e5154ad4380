"""Check the floors, the docstrings of modules, and dangerous calls: one test per rule."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest
from house import FLOORS, LEVELS, PATHS, floor_of, imports_of, own_imports, own_module, room_of, tree_of

NAMES_OF_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
CODE_FROM_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


# --- floors ------------------------------------------------------------------------------------------------------


def test_every_module_has_its_floor() -> None:
    homeless = [module for module in PATHS if floor_of(module) is None]
    assert not homeless, "add them to FLOORS in tools/house.py"


def test_the_table_of_floors_names_what_is_there() -> None:
    rooms = [room for floor in FLOORS.values() for room in floor]
    assert len(rooms) == len({*rooms}), "a module is on two floors"
    known = {*PATHS, *(f"{name.partition('.')[0]}." for name in PATHS if "." in name)}
    assert {*rooms} - known <= {"backends.fast.", "report.charts."}, "the table names modules that are gone"


def test_imports_only_go_down() -> None:
    """At the top of a module, in its functions, and for type checkers."""
    upward = {
        f"{module}, line {line}: {floor_of(module)} imports {other} from {floor_of(other)}"
        for module in PATHS
        for dotted, line in imports_of(module)
        if (other := own_module(dotted)) and LEVELS[floor_of(other) or "ROOF"] > LEVELS[floor_of(module) or "ROOF"]
    }
    assert not upward, "\n".join(sorted(upward))


def test_every_own_import_names_a_module() -> None:
    lost = [
        f"{module}: {dotted}"
        for module in PATHS
        for dotted, _ in imports_of(module)
        if dotted.startswith("glassloop.") and own_module(dotted) is None
    ]
    assert not lost


def test_the_ground_needs_only_the_standard_library() -> None:
    foreign = [
        f"{module}: {dotted}"
        for module in PATHS
        for dotted, _ in imports_of(module)
        if floor_of(module) == "GROUND"
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


def test_no_two_modules_need_each_other() -> None:
    """No circle of imports, not even through functions or for type checkers only."""
    assert not circles_in({module: own_imports(module) for module in PATHS})


def test_no_two_folders_need_each_other() -> None:
    needs: dict[str, set[str]] = {}
    for module in PATHS:
        needs.setdefault(room_of(module), set()).update(room_of(other) for other in own_imports(module))
    folders = {folder: {other for other in found if other and other != folder} for folder, found in needs.items() if folder}
    assert not circles_in(folders)


def test_circles_are_found() -> None:
    assert circles_in({"a": {"b"}, "b": {"c"}, "c": {"b"}})[0] == "b -> c -> b"
    assert not circles_in({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize(
    ("dotted", "module"),
    [
        ("glassloop.base.errors.DataError", "base.errors"),
        ("glassloop.data.quickstart", "data.quickstart"),
        ("glassloop.data.labels.LabelSet", "data.labels"),
        ("glassloop.data.nothing", "data.__init__"),
        ("glassloop.__version__", "__init__"),
        ("glassloop", "__init__"),
        ("glassloopy.errors", None),
        ("torch.nn", None),
    ],
)
def test_names_are_understood(dotted: str, module: str | None) -> None:
    """The tests above are worth what this is worth."""
    assert own_module(dotted) == module


def test_imports_are_found_wherever_they_stand() -> None:
    found = {own_module(dotted) for dotted, _ in imports_of("cli.train")}
    assert {"settings.training", "cli.options", "study.run", "settings.file"} <= found, "at the top and in functions"
    assert "data.examples" in {own_module(dotted) for dotted, _ in imports_of("__init__")}, "under TYPE_CHECKING"


# --- rooms -------------------------------------------------------------------------------------------------------


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


def test_every_module_says_what_it_is_for() -> None:
    faults = {module: fault for module in PATHS if (fault := docstring_fault(module))}
    assert not faults


def test_no_module_has_a_name_that_says_nothing() -> None:
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


SHOWS_ERRORS = ("base.errors", "training.processes")  # errors are printable when they are made


def test_what_is_printed_cannot_control_the_terminal() -> None:
    """Label, column and file names come from users' data: `errors.say` and `errors.show` escape them."""
    prints = [
        f"{module}, line {node.lineno}"
        for module in PATHS
        if module not in SHOWS_ERRORS
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, "use errors.say or errors.show"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "exec('1')",
        "__import__('x')",
        "assert True",
        "load(trust_remote_code=True)",
        "np.load('x', allow_pickle=True)",
        "run('ls', shell=True)",
        "import os\nos.system('ls')",
        "try: pass\nexcept: pass",
    ],
)
def test_dangers_are_seen(code: str) -> None:
    assert [*dangers_of(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["model.eval()", "load(trust_remote_code=False)", "json.load(f)", "torch.loads", "x = 'eval(1)'"]
)
def test_what_is_fine_is_not_taken_for_a_danger(code: str) -> None:
    assert not [*dangers_of(ast.parse(code))]
