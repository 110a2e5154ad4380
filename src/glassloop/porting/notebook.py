"""Rewrite the code cells of a notebook. Magics, outputs and everything else stay as they are."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import product

from glassloop.porting.cells import is_magic, is_magic_cell, is_python, read_cells
from glassloop.porting.findings import Finding, Ported
from glassloop.porting.rewrite import rewritten
from glassloop.records import Json

MARK = "# glassloop port: cell {}"
MAGIC = "pass  # glassloop port: magic {}"
STYLES = tuple(product((1, 2, 4, None), (False, True), (None, (",", ":"))))


def ported_notebook(text: str, name: str) -> Ported:
    """Return a notebook whose code runs on Glassloop. Raises `DataError` if it is not a notebook."""
    notebook, cells, codes = read_cells(text, name)
    findings: list[Finding] = []
    hidden: dict[int, list[str]] = {}
    masked: dict[int, str] = {}
    for number, code in codes.items():
        found = without_magics(code)
        if found is None:
            findings += [] if is_magic_cell(code) else [Finding(1, "the cell is not Python", "it stays as it is", cell=number)]
            continue
        masked[number], hidden[number] = found
    joined = "".join(f"{MARK.format(number)}\n{code}\n" for number, code in masked.items())
    new, found_in_code = rewritten(joined)
    after = split_cells(new, masked)
    starts = first_lines(masked)
    numbers, lines = [*starts], [*starts.values()]
    for finding in found_in_code:
        number = numbers[bisect_right(lines, finding.line) - 1]
        findings.append(finding.within(number, starts[number]))
    changed = {number: with_magics(code, hidden[number]) for number, code in after.items() if code != masked[number]}
    for number, code in codes.items() if changed else []:
        findings += installs(code, number)
    for number, cell in cells:
        if number in changed:
            kept: list[Json] = [*changed[number].splitlines(keepends=True)]
            cell["source"] = kept if isinstance(cell["source"], list) else changed[number]
    shown = [numbered(codes), numbered(codes | changed)]
    made = style_of(text)(notebook) if changed else text
    return Ported(made, sorted(findings, key=lambda one: (one.cell or 0, one)), *shown)


def numbered(codes: dict[int, str]) -> str:
    """Return the code of all cells, one after the other, for a diff."""
    return "".join(f"# cell {number}\n{code.rstrip()}\n\n" for number, code in codes.items())


def installs(code: str, number: int) -> list[Finding]:
    """Return the lines of a cell that install transformers."""
    lines = [line.split() for line in code.splitlines()]
    return [
        Finding(place, " ".join(words), "install glassloop, too: pip install glassloop", cell=number)
        for place, words in enumerate(lines, 1)
        if words and words[0][0] in "!%" and "install" in words and any(word.startswith("transformers") for word in words)
    ]


def without_magics(code: str) -> tuple[str, list[str]] | None:
    """Return the Python code of a cell with a statement in place of each magic, and the magics; None if it is not Python."""
    if is_magic_cell(code):
        return None
    if is_python(code):
        return code, []
    magics: list[str] = []
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        if is_magic(line):
            lines.append(line[: len(line) - len(bare)] + MAGIC.format(len(magics)))
            magics.append(bare)
        else:
            lines.append(line)
    masked = "\n".join(lines)
    return (masked, magics) if is_python(masked) else None


def with_magics(code: str, magics: list[str]) -> str:
    """Return the code of a cell with its magics."""
    for place, magic in enumerate(magics):
        code = code.replace(MAGIC.format(place), magic, 1)
    return code


def first_lines(codes: dict[int, str]) -> dict[int, int]:
    """Return the number of the first line of each cell in the joined code."""
    starts, line = {}, 1
    for number, code in codes.items():
        starts[number] = line + 1
        line += 2 + code.count("\n")
    return starts


def split_cells(joined: str, codes: dict[int, str]) -> dict[int, str]:
    """Return the code of each cell, cut from the joined code at the marks."""
    marks = "|".join(re.escape(MARK.format(number)) for number in codes)
    parts = re.split(rf"^(?:{marks})\n", joined, flags=re.MULTILINE)[1:] if codes else []
    return {number: part.removesuffix("\n") for number, part in zip(codes, parts, strict=True)}


def style_of(text: str) -> Callable[[object], str]:
    """Return the function that writes a notebook as it was written: the same indentation, characters and last line."""
    content = json.loads(text)
    end = "\n" if text.endswith("\n") else ""

    def write(value: object, style: tuple[int | None, bool, tuple[str, str] | None]) -> str:
        return json.dumps(value, indent=style[0], ensure_ascii=style[1], separators=style[2]) + end

    found = next((style for style in STYLES if write(content, style) == text), STYLES[0])
    return lambda value: write(value, found)
