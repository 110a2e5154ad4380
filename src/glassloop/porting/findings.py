"""What a port has removed, and what it could not translate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, order=True)
class Finding:
    """Something in a script that a person should know about.

    Args:
        line: The number of the line, from 1; in a notebook, within the cell.
        problem: What was found.
        remedy: Why it was removed, or what to do instead.
        removed: Whether the line was changed; else it is as it was.
        cell: The number of the cell, from 1; None in a script.
    """

    line: int
    problem: str
    remedy: str
    removed: bool = False
    cell: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        return f"{where}: {self.problem}: {self.remedy}"

    def within(self, cell: int, first_line: int) -> Finding:
        """Return the finding with its place in a cell, whose first line has the number `first_line`."""
        return replace(self, cell=cell, line=self.line - first_line + 1)


@dataclass(frozen=True)
class Ported:
    """A rewritten script or notebook.

    Args:
        text: The new text; the old one if nothing had to change.
        findings: What was removed or could not be translated, in the order of the lines.
        before, after: The code alone, for the diff.
    """

    text: str
    findings: list[Finding] = field(default_factory=list)
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten."""
        return self.before != self.after
