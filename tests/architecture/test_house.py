"""The house: floors that only look down, small rooms, a sign on every door, and nothing dangerous in any of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "glassloop"
UNIT = ROOT / "tests" / "unit"

# Every module has a floor and imports only from its own floor or below. A name with a dot at its end is a whole package.
FLOORS: dict[str, tuple[str, ...]] = {
    # Words and files: the standard library only.
    "GROUND": (
        *("errors", "settings", "arguments", "settings_file", "files", "cache"),
        *("hub", "lock", "claim", "records", "run_folder"),
    ),
    # What goes into a model, the model, and how its answers are judged.
    "FLOOR 1": ("data.", "models.", "metrics", "measures", "seeding", "machine"),
    # The loop, how to make it fast, and what a person is shown.
    "FLOOR 2": ("engine.", "speed.", "outcomes", "show."),
    # Whole tasks put together.
    "FLOOR 3": ("backends.", "training.", "compatibility", "trainer", "predictor", "assembly", "processes", "seeds"),
    # What a person asks for.
    "FLOOR 4": ("commands.",),
    # The doors.
    "ROOF": ("cli", "__main__", "__init__"),
}
LEVELS = {floor: level for level, floor in enumerate(FLOORS)}

MOST_LINES = 300
LONGER_MODULES: dict[str, str] = {}  # module -> the reason why it may be longer
MOST_LINES_IN_ALL = 15_000
MOST_MODULES = 140
NAMES_OF_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
CODE_FROM_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

# What has no test file of its own, and where it is tested instead.
TESTED_ELSEWHERE = {
    "__main__": "e2e/test_commands.py",
    "assembly": "unit/commands/test_train.py",
    "show.banner": "unit/commands/test_train.py",
    "outcomes": "unit/show/test_results.py",
    "commands.predict": "unit/commands/test_evaluate.py",
    "settings_file": "unit/commands/test_init.py",
    "backends.accelerate": "unit/backends/test_plain.py",
    "backends.graphs": "unit/backends/test_packed.py",
    "data.row_labels": "unit/training/test_planning.py",
    "engine.plan": "unit/training/test_planning.py",
    **dict.fromkeys(
        (
            "speed.operations.triton_kernels",
            "speed.operations.triton_operations",
            "speed.optimizer.triton_adamw",
        ),
        "gpu/test_speed.py",
    ),
}


def module_name(path: Path) -> str:
    """`data.readers` for src/glassloop/data/readers.py; `data.__init__` for a package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


PATHS = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = pytest.mark.parametrize("module", PATHS)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


def floor_of(module: str) -> str | None:
    for floor, rooms in FLOORS.items():
        if any(module == room or (room.endswith(".") and module.startswith(room)) for room in rooms):
            return floor
    return None


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """Every dotted name that a module imports and its line: at the top, in functions, and for type checkers."""
    package = ["glassloop", *module.split(".")[:-1]]
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*near, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def own_module(dotted: str) -> str | None:
    """The module of ours that a dotted name means; None where it is foreign."""
    first, *rest = dotted.split(".")
    if first != "glassloop":
        return None
    for length in range(len(rest), -1, -1):
        name = ".".join(rest[:length])
        for candidate in (name, f"{name}.__init__" if name else "__init__"):
            if candidate in PATHS:
                return candidate
    return None


# --- floors ------------------------------------------------------------------------------------------------------


@MODULES
def test_every_module_has_its_floor(module: str) -> None:
    assert floor_of(module), f"put {module} into FLOORS, in {Path(__file__).name}"


def test_the_table_of_floors_names_what_is_there() -> None:
    rooms = [room for floor in FLOORS.values() for room in floor]
    assert len(rooms) == len({*rooms}), "a module is on two floors"
    known = {*PATHS, *(f"{name.partition('.')[0]}." for name in PATHS if "." in name)}
    assert {*rooms} - known <= {"speed."}, "the table names modules that are gone"


@MODULES
def test_imports_only_go_down(module: str) -> None:
    mine = LEVELS[floor_of(module) or "ROOF"]
    upward = {
        f"line {line}: {module} ({floor_of(module)}) imports {other} ({floor_of(other)})"
        for dotted, line in imports_of(module)
        if (other := own_module(dotted)) and LEVELS[floor_of(other) or "ROOF"] > mine
    }
    assert not upward, "\n".join(sorted(upward))


@MODULES
def test_every_import_of_ours_means_a_module(module: str) -> None:
    lost = [dotted for dotted, _ in imports_of(module) if dotted.startswith("glassloop.") and own_module(dotted) is None]
    assert not lost


@pytest.mark.parametrize("module", [module for module in PATHS if floor_of(module) == "GROUND"])
def test_the_ground_stands_on_the_standard_library_alone(module: str) -> None:
    foreign = {dotted for dotted, _ in imports_of(module) if own_module(dotted) is None}
    assert {name.partition(".")[0] for name in foreign} <= {*sys.stdlib_module_names}


def test_no_two_modules_need_each_other() -> None:
    """No circle of imports, not even through functions; what only type checkers see does not count."""
    needs: dict[str, set[str]] = {}
    for module in PATHS:
        unseen = {
            node.lineno
            for branch in ast.walk(tree_of(module))
            if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
            for node in ast.walk(branch)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        found = {own_module(dotted) for dotted, line in imports_of(module) if line not in unseen}
        needs[module] = {other for other in found if other and other != module}

    def circle_from(path: tuple[str, ...]) -> tuple[str, ...] | None:
        for other in sorted(needs[path[-1]]):
            if other in path:
                return (*path[path.index(other) :], other)
            if other not in seen and (circle := circle_from((*path, other))):
                return circle
        seen.add(path[-1])
        return None

    seen: set[str] = set()
    circles = [circle for module in PATHS if module not in seen and (circle := circle_from((module,)))]
    assert not circles, [" -> ".join(circle) for circle in circles]


@pytest.mark.parametrize(
    ("dotted", "module"),
    [
        ("glassloop.errors.DataError", "errors"),
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
    found = {own_module(dotted) for dotted, _ in imports_of("cli")}
    assert {"errors", "show.data_overview", "machine", "models.loading", "data.sources", "__init__"} <= found, (
        "at the top and in functions"
    )
    assert "data.examples" in {own_module(dotted) for dotted, _ in imports_of("__init__")}, "under TYPE_CHECKING"


# --- rooms -------------------------------------------------------------------------------------------------------


def lines_of(module: str) -> int:
    return len(PATHS[module].read_text(encoding="utf-8").splitlines())


@MODULES
def test_no_module_is_long(module: str) -> None:
    if module not in LONGER_MODULES:
        assert lines_of(module) <= MOST_LINES, f"{module} has {lines_of(module)} lines"


def test_an_exception_is_needed_and_has_a_reason() -> None:
    for module, reason in LONGER_MODULES.items():
        assert lines_of(module) > MOST_LINES, f"{module} needs no exception any more"
        assert len(reason.split()) >= 5, f"why may {module} be longer?"


def test_the_house_is_small() -> None:
    lines = sum(map(lines_of, PATHS))
    assert lines < MOST_LINES_IN_ALL, f"{lines:,} lines"
    assert len(PATHS) < MOST_MODULES, f"{len(PATHS)} modules"


@MODULES
def test_every_module_says_what_it_is_for(module: str) -> None:
    doc = ast.get_docstring(tree_of(module), clean=False)
    assert doc, f"{module} has no docstring"
    first, *rest = doc.splitlines()
    assert first.strip() == first != "", "the docstring begins on its first line"
    assert first.endswith((".", "?", "!")), "the first line is a sentence"
    assert not rest or rest[0] == "", "the first line stands alone"


@MODULES
def test_no_module_has_a_name_that_says_nothing(module: str) -> None:
    assert not NAMES_OF_NOTHING & {*module.split(".")}


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


@MODULES
def test_nothing_dangerous(module: str) -> None:
    assert not [*dangers_of(tree_of(module))]


SHOWS_ERRORS = ("errors", "processes")  # errors are printable when they are made


@MODULES
def test_what_is_printed_cannot_control_the_terminal(module: str) -> None:
    """Names of labels, columns and files are foreign: `errors.say` and `errors.show` escape them."""
    prints = [
        f"line {node.lineno}"
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert module in SHOWS_ERRORS or not prints, f"{module} prints without errors.say or errors.show: {prints}"


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


# --- the tests ---------------------------------------------------------------------------------------------------


def is_empty_package(module: str) -> bool:
    return module.endswith("__init__") and len(tree_of(module).body) == 1


def unit_test_of(module: str) -> Path:
    *packages, name = module.split(".")
    return UNIT.joinpath(*packages, f"test_{name.strip('_')}.py")


@MODULES
def test_every_module_has_its_test_file(module: str) -> None:
    if module in TESTED_ELSEWHERE:
        assert (ROOT / "tests" / TESTED_ELSEWHERE[module]).is_file()
    elif not is_empty_package(module):
        assert unit_test_of(module).is_file(), f"write {unit_test_of(module).relative_to(ROOT)}"


def test_every_test_file_has_its_module() -> None:
    wanted = {unit_test_of(module) for module in PATHS}
    strays = [
        str(path.relative_to(ROOT))
        for path in UNIT.rglob("test_*.py")
        if path not in wanted and path.name != "test_planning.py"
    ]
    assert not strays, "these test no module of that name"
