#!/usr/bin/env python3
"""The floors of the house, and the picture of it in CONTRIBUTING.md.

`python tools/house.py` prints the picture; `--write` updates CONTRIBUTING.md. Both read the imports of every module.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "glassloop"
DOCUMENT = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- house: written by tools/house.py -->", "<!-- /house -->"
WIDTH = 118

# Every module has a floor and imports only from its own floor or below. A name that ends with a dot is a whole package.
FLOORS: dict[str, tuple[str, ...]] = {
    # Errors, files, settings and the run folder: the standard library only.
    "GROUND": ("base.", "settings.", "runs."),
    # What goes into a model, the model, and how its predictions are scored.
    "FLOOR 1": ("scores.", "data.", "models."),
    # The loop and everything around a step, and the parts of pages.
    "FLOOR 2": ("training.", "backends.fast.", "report.charts.", "report.page"),
    # Whole tasks, assembled from parts: the two doors most people use, and a folder per feature.
    "FLOOR 3": (
        "backends.",
        "report.",
        "trainer",
        "predictor",
        "predict.",
        "study.",
        "share.",
        "serve.",
        "compat.",
    ),
    # The entry points.
    "ROOF": ("cli.", "web.", "__main__", "__init__"),
}
LEVELS = {floor: level for level, floor in enumerate(FLOORS)}


def module_name(path: Path) -> str:
    """Return `data.readers` for src/glassloop/data/readers.py, and `data.__init__` for a package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


PATHS = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(PATHS[module].read_text(encoding="utf-8"))


def floor_of(module: str) -> str | None:
    """Return the floor of a module, or None if FLOORS does not name it."""
    for floor, rooms in FLOORS.items():
        if any(module == room or (room.endswith(".") and module.startswith(room)) for room in rooms):
            return floor
    return None


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """Yield every dotted name that a module imports and its line: at the top, in functions, and for type checkers."""
    package = ["glassloop", *module.split(".")[:-1]]
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*near, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


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


def own_imports(module: str) -> set[str]:
    """Return the modules of Glassloop that a module imports."""
    return {other for dotted, _ in imports_of(module) if (other := own_module(dotted)) and other != module}


# --- the picture -------------------------------------------------------------------------------------------------


def room_of(module: str) -> str:
    """Return the folder of a module, such as `speed/packing/`, or the empty string for a module at the top."""
    return "".join(f"{part}/" for part in module.split(".")[:-1])


def floor_lines(floor: str) -> Iterator[str]:
    """Yield the lines of one floor: its single modules first, then each folder with what it imports."""
    rooms: dict[str, list[str]] = {}
    for module in PATHS:
        if floor_of(module) == floor:
            rooms.setdefault(room_of(module), []).append(module)
    label = floor
    for room in sorted(rooms):
        names = [name for name in (module.split(".")[-1] for module in rooms[room]) if not (room and name == "__init__")]
        if not names:
            continue
        used = {room_of(other) for module in rooms[room] for other in own_imports(module)} - {room, ""}
        yield from wrapped(f"{label:<9}{room:<20}" if room else f"{label:<9}", names)
        if used:
            yield from wrapped(" " * 29 + "-> ", sorted(used)) if room else wrapped(" " * 9 + "-> ", sorted(used))
        label = ""


def wrapped(start: str, names: list[str]) -> list[str]:
    """Return names in lines that all begin below the first name."""
    return textwrap.wrap(
        "  ".join(names), WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )


def picture() -> str:
    """Return the house as text, the roof first."""
    floors = ["\n".join(floor_lines(floor)) for floor in reversed(FLOORS)]
    return "\n".join(f"    {line}".rstrip() for line in "\n\n".join(floors).splitlines())


def drawn_document(text: str) -> str:
    """Return the text of a document with the present picture between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{DOCUMENT.name} needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{picture()}\n\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(drawn_document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(picture())
