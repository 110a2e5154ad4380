"""What a port has changed, what it could not translate, what will run differently, and what it suggests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# The kinds of findings, as `--json` calls them, and what the terminal prints above each list.
REMOVED, NOT_TRANSLATED, DIFFERS, SUGGESTED = "removed", "not_translated", "differs", "suggestions"
TITLES = {
    REMOVED: "removed or replaced:",
    NOT_TRANSLATED: "could not be translated:",
    DIFFERS: "runs differently on Glassloop:",
    SUGGESTED: "suggestions:",
}


@dataclass(frozen=True, order=True)
class Finding:
    """Something in a script that a person should know about.

    Args:
        line: The number of the line, from 1; in a notebook, within the cell.
        problem: What was found.
        remedy: Why it was removed, or what to do instead.
        kind: `REMOVED` if the line was changed, else `NOT_TRANSLATED`, `DIFFERS` or `SUGGESTED`.
        cell: The number of the cell, from 1; None in a script.
    """

    line: int
    problem: str
    remedy: str
    kind: str = NOT_TRANSLATED
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
        findings: What a person should know, in the order of the lines.
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

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of a kind."""
        return [one for one in self.findings if one.kind == kind]
