"""The table of transformers' Trainer tests: each one passes, is refused or differs with its reason, or does not apply."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers_bridge.rules import DIFFERENT, NO_GLASSLOOP, NOT_APPLICABLE, NOT_HERE, found_in

PASSES, REFUSED, DIFFERS, UNEXPLAINED, OTHER = "passes", "refused", "differs", "unexplained", "does not apply"


@dataclass(frozen=True)
class Row:
    """A test, how it ends, and why."""

    test: str
    outcome: str
    reason: str = ""


def read_record(path: Path) -> dict[str, dict[str, object]]:
    """Return what happened to each test. Of a test with several reports, the first that is not a pass counts."""
    found: dict[str, dict[str, object]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["test"] not in found or found[row["test"]]["outcome"] == "passed":
            found[row["test"]] = row
    return found


def judged(test: str, ours: dict[str, object], theirs: dict[str, object] | None) -> Row:
    """Return how a test ended, with Glassloop (`ours`) and with transformers (`theirs`)."""
    if reason := found_in(NOT_APPLICABLE, test):
        return Row(test, OTHER, reason)
    if theirs is None or theirs["outcome"] != "passed":
        return Row(test, OTHER, NOT_HERE)
    is_refused = str(ours["error"]).startswith("glassloop.")
    if not ours["made"] and not is_refused:  # a subclass that is a dataclass may be refused before anything is made
        return Row(test, OTHER, NO_GLASSLOOP)
    if ours["outcome"] == "passed":
        return Row(test, PASSES)
    text = " ".join(re.sub(r"/\S*/tmp\w*/", "", str(ours["text"])).split())
    if reason := found_in(DIFFERENT, test):
        return Row(test, DIFFERS, reason)
    if is_refused:
        return Row(test, REFUSED, text.removeprefix("settings: ").replace(" try: ", "; "))
    return Row(test, UNEXPLAINED, f"{ours['error']}: {text[:200]}")


def table_of(ours: Path, theirs: Path) -> list[Row]:
    """Return a row for each test, in the order they ran."""
    controls = read_record(theirs)
    return [judged(test, row, controls.get(test)) for test, row in read_record(ours).items()]


def page(rows: Sequence[Row], facts: Sequence[str], bridged: Sequence[str]) -> str:
    """Return the table as a document."""
    number = Counter(row.outcome for row in rows)
    applicable = len(rows) - number[OTHER]
    lines = [
        "# Tests of transformers' Trainer",
        "",
        "<!-- written by benchmarks/transformers_tests.py -->",
        "",
        f"These are transformers' own tests of its Trainer, run against Glassloop with names bridged. {' '.join(facts)}",
        "",
        f"Of {len(rows)} tests, {applicable} apply to a classifier on one machine and run there with transformers itself.",
        "",
        "| Outcome | Tests |",
        "|---|---|",
        *(f"| {name} | {number[name]} |" for name in (PASSES, REFUSED, DIFFERS, UNEXPLAINED) if number[name]),
        "",
        "The bridge changes these names and facts:",
        "",
        *(f"- {line}" for line in bridged),
        "",
    ]
    for title, outcome in (("Refused", REFUSED), ("Different", DIFFERS), ("Unexplained", UNEXPLAINED)):
        if number[outcome]:
            lines += [f"## {title}", "", "| Test | Reason |", "|---|---|"]
            lines += [f"| {short(row.test)} | {cell(row.reason)} |" for row in rows if row.outcome == outcome]
            lines += [""]
    lines += ["## Passing", ""]
    lines += [f"- {name}: {', '.join(tests)}" for name, tests in by_class(rows, PASSES).items()]
    lines += [
        "",
        "## Not applicable",
        "",
        "The rules are in benchmarks/transformers_bridge/rules.py.",
        "",
        "| Reason | Tests |",
    ]
    lines += ["|---|---|", *(f"| {cell(why)} | {count} |" for why, count in reasons(rows).most_common())]
    return "\n".join(lines) + "\n"


def short(test: str) -> str:
    """Return class and name of a test."""
    return "`" + test.partition("::")[2].replace("::", ".") + "`"


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|")


def by_class(rows: Sequence[Row], outcome: str) -> dict[str, list[str]]:
    """Return the names of the tests with an outcome, by class."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.outcome == outcome:
            _, kind, name = row.test.split("::")
            found.setdefault(f"`{kind}`", []).append(name.removeprefix("test_"))
    return found


def reasons(rows: Sequence[Row]) -> Counter[str]:
    """Return how many tests do not apply for each reason."""
    return Counter(row.reason for row in rows if row.outcome == OTHER)
