"""Rewrite the imports of a script or notebook, and the names and arguments that change with them."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import product

from glassloop.base.records import Json
from glassloop.compat.names import MOVED_BY_CALL, PACKAGES, REPLACED_ARGUMENTS
from glassloop.compat.script import Edits, Script, is_magic, is_magic_cell, is_python, read_cells
from glassloop.compat.uses import REMOVED, Finding, Ported, Uses, literal, suggest

OURS = "glassloop"
MODULE = re.compile(r"from(?:\s|\\\r?\n)+([\w.]+)")


def rewritten(text: str) -> tuple[str, list[Finding]]:
    """Return a script that runs on Glassloop, and what a person should know about it. Raises if the script is not Python."""
    uses = Uses(Script(text))
    if uses.imports and uses.is_trained_here:
        suggest(uses)
    return Rewriter(uses).result(), sorted({*uses.findings})


class Rewriter:
    """Replaces imports, names and arguments as `Uses` has decided.

    Args:
        uses: What the script uses.
    """

    def __init__(self, uses: Uses) -> None:
        self.uses, self.script = uses, uses.script
        self.edits = Edits(self.script)
        self.is_imported = False  # whether `import glassloop` stands at the top of the script
        self.replaced: dict[str, int] = {}  # what attributes were replaced on, such as transformers, and how often

    def result(self) -> str:
        """Return the rewritten text."""
        for expression in self.script.of(ast.Attribute, ast.Name):
            self.replace_name(expression)
        for call in self.script.of(ast.Call):
            self.change_call(call)
        for attribute, name in self.uses.renamed_attributes.items():
            end = self.script.span(attribute)[1]
            self.edits.replace(end - len(attribute.attr), end, name)
        for call in self.uses.in_place:  # of a method that once changed a data set: its result is assigned
            start = self.script.span(call)[0]
            end = self.script.span(call.func)[1]
            self.edits.replace(start, start, f"{self.script.code(call.func.value)} = ")  # type: ignore[attr-defined]
            self.edits.replace(end - 1, end)
        for outputs, number in self.uses.unpacked.items():
            end = self.script.span(outputs)[1]
            self.edits.replace(end, end, f"[:{number}]")
        for statement in sorted(self.script.of(ast.Import, ast.ImportFrom), key=lambda one: one.lineno):
            if isinstance(statement, ast.Import):
                self.change_import(statement)
            elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
                self.change_import_from(statement)
        return self.edits.result()

    # --- names ---

    def target(self, node: ast.AST) -> str | None:
        """Return what an expression such as transformers.Trainer becomes; None if it stays."""
        name, today = self.uses.name_of(node), self.uses.moved.get(self.uses.origin(node), "")
        if name in MOVED_BY_CALL:
            return MOVED_BY_CALL[name] if node in self.uses.portable and not (isinstance(node, ast.Name) and today) else None
        return today if today and isinstance(node, ast.Attribute) else None

    def replace_name(self, node: ast.AST) -> None:
        """Replace a name by that of Glassloop, if it is looked up on a module or is one of several uses."""
        if not isinstance(getattr(node, "ctx", None), ast.Load) or (target := self.target(node)) is None:
            return
        base = node
        while isinstance(base, ast.Attribute):
            base = base.value
        package, dot, rest = target.partition(".")
        if package != OURS:  # the script keeps its own name for the package
            if not dot or package == self.uses.name_of(base).partition(".")[0]:
                self.edits.replace_node(node, f"{self.script.code(base)}.{rest}" if dot else target)
            return
        self.edits.replace_node(node, target)
        origin = self.uses.origin(base)
        self.replaced[origin] = self.replaced.get(origin, 0) + 1

    # --- calls ---

    def change_call(self, node: ast.Call) -> None:
        """Remove and rename arguments, and call a tokenizer instead of its former methods."""
        statement = self.script.parents[node]
        if isinstance(statement, ast.Expr) and self.uses.origin(node.func) in self.uses.telemetry:
            self.uses.note(node, self.script.code(node.func), "removed: transformers no longer has it", REMOVED)
            self.remove_statement(statement)
        if node in self.uses.called_instead and isinstance(node.func, ast.Attribute):
            end = self.script.span(node.func)[1]
            start = self.script.span(node.func.value)[1]
            found = re.search(r"[\s\\]*\.[\s\\]*\w+$", self.script.text[start:end])
            self.edits.replace(start + found.start() if found else end, end)
        gone = [one for one in node.keywords if one in self.uses.removed]
        for argument, name in ((one, self.uses.renamed_arguments.get(one)) for one in node.keywords):
            if name is not None and argument.arg is not None:
                start = self.script.span(argument)[0]
                self.edits.replace(start, start + len(argument.arg), name)
        for argument in (one for one in node.keywords if one in self.uses.replaced_arguments):
            if (new := self.replaced_argument(argument)) is None:
                gone.append(argument)
            else:
                self.edits.replace_node(argument, new)
        if not gone:
            return
        items: list[ast.AST] = sorted([*node.args, *node.keywords], key=lambda one: self.script.span(one))
        end = self.script.span(node)[1] - 1
        spans = [self.script.span(one) for one in items]
        if len(gone) == len(items):
            self.edits.replace(spans[0][0], end)
        else:
            self.edits.remove_items(spans, [place for place, one in enumerate(items) if one in gone], end)

    def replaced_argument(self, argument: ast.keyword) -> str | None:
        """Return an argument under its present name; None if it is False, which asks for nothing."""
        name, on, off = REPLACED_ARGUMENTS[str(argument.arg)]
        value = literal(argument.value)
        if value in (False, None):
            return None
        code = self.script.code(argument.value)
        return f"{name}={on}" if value is True else f"{name}={on} if {code} else {off}"

    # --- imports ---

    def change_import_from(self, node: ast.ImportFrom) -> None:
        """Import each name from where it is today."""
        module = node.module or ""
        if node.names[0].name == "*":
            added = self.imported_once(node) if any(one.startswith(f"{module}.") for one in self.replaced) else []
            self.add_lines(node, [*self.uses.names_of_star(module), *added])
            return
        places = [f"{module}.{alias.name}" for alias in node.names]
        todays = [self.uses.moved.get(place, place).rpartition(".") for place in places]
        groups: dict[str, list[int]] = {}
        for number, (today, _, _) in enumerate(todays):
            if places[number] not in self.uses.telemetry:
                groups.setdefault(today, []).append(number)
        if not groups:
            self.remove_statement(node)
            return
        stays = module if module in groups else next(iter(groups))
        if not stays:  # a module that was a part of another, such as sklearn.externals.joblib
            names = ", ".join(with_name(node.names[number], todays[number][2]) for number in groups[stays])
            self.edits.replace_node(node, f"import {names}")
            return
        for number in groups[stays]:
            if (alias := node.names[number]).name != todays[number][2]:
                self.edits.replace_node(alias, with_name(alias, todays[number][2]))
        if stays != module and (found := MODULE.match(self.script.text, self.script.span(node)[0])):
            self.edits.replace(*found.span(1), stays)
        added = []
        moving = [number for number in range(len(places)) if number not in groups[stays]]
        comments: list[str] = []
        if moving:
            end = self.script.span(node)[1]
            end -= self.script.text[end - 1] == ")"
            comments = self.edits.remove_items([self.script.span(alias) for alias in node.names], moving, end)
        for today, numbers in groups.items():
            if today != stays:
                names = ", ".join(with_name(node.names[number], todays[number][2]) for number in numbers)
                what = f"from {today} import {names}" if today else f"import {names}"
                added.append(what + "".join(f"  {one}" for one in comments))
                comments = []
        bound = {alias.asname or alias.name: place for alias, place in zip(node.names, places, strict=True)}
        if any(place in self.replaced for place in bound.values()):
            added += self.imported_once(node)
        self.add_lines(node, added)

    def change_import(self, node: ast.Import) -> None:
        """Import Glassloop in place of, or in addition to, a package whose names were replaced."""
        bases = [alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names]
        for alias in node.names:  # a package that was renamed keeps its name in the script
            if (today := PACKAGES.get(alias.name, alias.name)) != alias.name:
                self.edits.replace_node(alias, f"{today} as {alias.asname or alias.name}")
        if not any(base in self.replaced for base in bases):
            return
        gone = [
            number
            for number, base in enumerate(bases)
            if base in self.replaced and self.uses.used.get(base, 0) <= self.replaced[base]
        ]
        added = self.imported_once(node)
        if len(gone) < len(bases):
            if gone:
                self.edits.remove_items([self.script.span(alias) for alias in node.names], gone, self.script.span(node)[1])
            self.add_lines(node, added)
        elif added or not self.is_alone(node) or self.has_comment(node):
            self.edits.replace_node(node, "; ".join(added or [f"import {OURS}"]))
        else:
            self.remove_statement(node)

    def remove_statement(self, node: ast.AST) -> None:
        """Remove a statement with its lines; in a block of its own, leave `pass`."""
        start, end = self.script.span(node)
        around = self.script.parents[node]
        blocks = [getattr(around, name, []) for name in ("body", "orelse", "finalbody")]
        is_only_one = any(block == [node] for block in blocks) and not isinstance(around, ast.Module)
        if is_only_one or not self.is_alone(node):
            self.edits.replace(start, end, "pass")
        else:
            self.edits.replace(self.script.line_start(start), self.script.next_line(end))

    def imported_once(self, node: ast.AST) -> list[str]:
        """Return `import glassloop`; nothing at the top of a script that has it already."""
        is_top = isinstance(self.script.parents[node], ast.Module)
        if self.is_imported and is_top:
            return []
        self.is_imported = self.is_imported or is_top
        return [f"import {OURS}"]

    def is_alone(self, node: ast.AST) -> bool:
        """Return whether a statement shares its lines with no other one."""
        start, end = self.script.span(node)
        before = self.script.text[self.script.line_start(start) : start].strip()
        after = self.script.text[end : self.script.line_end(end)].strip()
        return not before and (not after or after.startswith("#"))

    def has_comment(self, node: ast.AST) -> bool:
        """Return whether a comment stands behind a statement or above it."""
        start, end = self.script.span(node)
        first = self.script.line_start(start)
        above = self.script.text[self.script.line_start(first - 1) : first].strip() if first else ""
        return above.startswith("#") or "#" in self.script.text[end : self.script.line_end(end)]

    def add_lines(self, node: ast.AST, statements: list[str]) -> None:
        """Add statements behind a statement, each on its own line if the statement has one."""
        if not statements:
            return
        start, end = self.script.span(node)
        if self.is_alone(node):
            end = self.script.line_end(end)
            indent = self.script.text[self.script.line_start(start) : start]
            self.edits.replace(end, end, "".join(f"{self.script.newline}{indent}{one}" for one in statements))
        else:
            self.edits.replace(end, end, "".join(f"; {one}" for one in statements))


def with_name(alias: ast.alias, name: str) -> str:
    """Return an imported name that is called differently now; the script keeps its own name for it."""
    own = alias.asname or alias.name
    return name if own == name else f"{name} as {own}"


Change = tuple[int, int, int, int]  # the lines of the old version that were replaced, and those of the new one
CONTEXT, AGREE = 3, 2  # unchanged lines around a change, and how many lines must agree to end one


def difference(before: str, after: str, name: str) -> str:
    """Return the changes of the code as a unified diff. That of difflib takes seconds for a long script of similar lines."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[str] = []
    for hunk in grouped(changes(old, new)):
        start, end = max(0, hunk[0][0] - CONTEXT), min(len(old), hunk[-1][1] + CONTEXT)
        first, last = hunk[0][2] - (hunk[0][0] - start), hunk[-1][3] + (end - hunk[-1][1])
        lines.append(f"@@ -{counted(start, end)} +{counted(first, last)} @@")
        place = start
        for from_old, to_old, from_new, to_new in hunk:
            lines += [f" {line}" for line in old[place:from_old]]
            lines += [f"-{line}" for line in old[from_old:to_old]]
            lines += [f"+{line}" for line in new[from_new:to_new]]
            place = to_old
        lines += [f" {line}" for line in old[place:end]]
    return "\n".join([f"--- {name}", f"+++ {name} (ported)", *lines]) if lines else ""


def counted(start: int, end: int) -> str:
    """Return the first line and the number of lines as a unified diff writes them."""
    number = end - start
    return f"{start + 1}" if number == 1 else f"{start + (number > 0)},{number}"


def changes(old: list[str], new: list[str]) -> list[Change]:
    """Return which lines were replaced by which."""
    found: list[Change] = []
    place, other = 0, 0
    while place < len(old) or other < len(new):
        if place < len(old) and other < len(new) and old[place] == new[other]:
            place, other = place + 1, other + 1
            continue
        to_old, to_new = next_agreement(old, new, place, other)
        found.append((place, to_old, other, to_new))
        place, other = to_old, to_new
    return found


def next_agreement(old: list[str], new: list[str], place: int, other: int) -> tuple[int, int]:
    """Return where both versions agree again, with the fewest lines between: the ends if they do not."""
    rest = max(len(old) - place, len(new) - other)
    for distance in range(1, 2 * rest + 1):
        for skipped in range(distance + 1):
            left, right = place + distance - skipped, other + skipped
            if left > len(old) or right > len(new):
                continue
            if old[left : left + AGREE] == new[right : right + AGREE]:
                return left, right
    return len(old), len(new)


def grouped(found: list[Change]) -> list[list[Change]]:
    """Return the changes in groups whose unchanged lines would overlap."""
    groups: list[list[Change]] = []
    for change in found:
        if groups and change[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


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
