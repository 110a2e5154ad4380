"""Clean a file: drop rows by finding and correct labels, in a new file, with a log from which every change can be reversed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from glassloop.base.errors import DataError, SettingsError, alternatives, counted, listed, visible
from glassloop.base.files import replacing, restored, scratch_dir, sha256_of
from glassloop.base.records import Json
from glassloop.data.columns import LabelSet
from glassloop.data.sources import FileSplit
from glassloop.data.writers import plain, refuse_existing, refuse_target, row_writer, written_table
from glassloop.diagnosis.codes import CODES
from glassloop.diagnosis.findings import Finding, Row
from glassloop.settings.training import DataSettings

LOG_SUFFIX = ".changes.jsonl"
ROW, SPLIT, LABEL, SUGGESTED, PROBABILITY = "row", "split", "label", "suggested", "probability"
NEW_FILE = "choose another file with --out: a file is never changed in place"
TARGETS = (".csv", ".jsonl")
Cells = dict[str, object]


# --- suggestions ---------------------------------------------------------------------------------------------------------
def refuse_suggestions(path: Path) -> None:
    """Raise `SettingsError` if suggestions cannot be written to a new file of this name."""
    if path.suffix.lower() != ".csv":
        raise SettingsError(f"{path.name}: suggestions are written as .csv", "choose a name that ends in .csv")
    refuse_existing(path)


def write_suggestions(path: Path, suspects: Sequence[Row], text_columns: Sequence[str]) -> None:
    """Write the suspected label errors, the most suspicious one first, for a person to edit. Bars separate several labels."""

    def cell(label: object) -> object:
        return "|".join(map(str, label)) if isinstance(label, list) else label

    names = [f"text {name}" if name in (ROW, SPLIT, LABEL, SUGGESTED, PROBABILITY) else name for name in text_columns]
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as opened:
        write = row_writer(opened, ".csv", [SPLIT, ROW, *names, LABEL, SUGGESTED, PROBABILITY])
        for row in suspects:
            labels = {LABEL: cell(row.label), SUGGESTED: cell(row.suggested), PROBABILITY: row.probability}
            write({SPLIT: row.split, ROW: row.row, **dict(zip(names, row.texts, strict=True)), **labels})


def read_suggestions(path: Path, split: str = "train") -> dict[int, tuple[str, str]]:
    """Return the label before and after, by the number of the row. Rows without a suggestion are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as opened:
            rows = [*csv.DictReader(opened)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {error}", "use a file that glassloop inspect --suggestions wrote") from error
    found: dict[int, tuple[str, str]] = {}
    for number, row in enumerate(rows, 2):
        if missing := [name for name in (ROW, LABEL, SUGGESTED) if row.get(name) is None]:
            raise DataError(f"{path.name}: there is no column {listed(missing)}", "keep the columns row, label and suggested")
        if row.get(SPLIT, split) != split or not row[SUGGESTED].strip():
            continue
        if not row[ROW].isascii() or not row[ROW].isdecimal():
            raise DataError(f"{path.name}, row {number:,}: {visible(row[ROW])} is not a row number", "restore the number")
        found[int(row[ROW])] = (restored(row[LABEL]), restored(row[SUGGESTED]))
    return found


# --- changes -------------------------------------------------------------------------------------------------------------
def refuse_out(path: Path) -> None:
    """Raise `SettingsError` if rows cannot be written to a file of this name."""
    if path.suffix.lower() not in TARGETS:
        problem = f"{path.name}: rows are written as {alternatives(TARGETS)}"
        raise SettingsError(problem, "choose a name with one of these endings")
    refuse_target(path)


@dataclass(frozen=True)
class Changes:
    """What cleaning does to the rows of a file, by their numbers."""

    drop: Mapping[int, str]  # the code of the finding
    relabel: Mapping[int, tuple[str, str]]  # the label before and after


def dropped_rows(codes: Sequence[str], found: Sequence[Finding], split: str = "train") -> dict[int, str]:
    """Return the rows that findings of these codes drop, each with its first code."""
    rows: dict[int, str] = {}
    for finding in (finding for code in codes for finding in found if finding.code == code and finding.split == split):
        rows = {**dict.fromkeys(finding.drop, finding.code), **rows}
    return rows


def droppable(names: Sequence[str]) -> list[str]:
    """Return the codes in a list of codes with commas. Raise `SettingsError` for one whose rows cannot be dropped."""
    codes = [name.strip().upper() for text in names for name in text.split(",") if name.strip()]
    for code in codes:
        if code not in CODES or "--drop" not in CODES[code].remedy:
            known = [code for code, about in CODES.items() if "--drop" in about.remedy]
            remedy = f"use {listed(known, 20)}" + ("; correct labels with --relabel" if code == "GL301" else "")
            raise SettingsError(f"--drop {visible(code)}: there are no rows to drop", remedy)
    return codes


@dataclass(frozen=True)
class Cleaned:
    """What was written."""

    out: Path
    log: Path
    num_rows: int
    num_dropped: int
    num_relabelled: int


@contextmanager
def opened_split(path: Path, settings: DataSettings, beside: Path) -> Iterator[FileSplit]:
    with scratch_dir(beside) as scratch:
        yield FileSplit([path], settings, scratch / "rows")


def rows_of(split: FileSplit) -> Iterator[tuple[int, Cells]]:
    numbers = iter(split.row_numbers().tolist())
    for table in split.tables():
        for row in written_table(table, split.source).to_pylist():
            yield next(numbers), row


def cells_writer(opened: TextIO, suffix: str, columns: Sequence[str]) -> Callable[[Mapping[str, object]], object]:
    """Return a function that writes a row with the cells that it has: the file is data to train on, not a table to read."""
    if suffix == ".jsonl":
        write = row_writer(opened, suffix, columns)
        return lambda row: write({**row})
    writer = csv.writer(opened)
    writer.writerow(columns)
    return lambda row: writer.writerow([exact_cell(row[name]) for name in columns])


def exact_cell(value: object) -> str:
    value = plain(value)
    if isinstance(value, list) and all(isinstance(part, str) and "|" not in part for part in value):
        return "|".join(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def label_cells(split: FileSplit, column: str, labels: LabelSet | None) -> dict[str, object]:
    """Return the cell of a file that means a label, by the label's name and by the cell itself."""
    found: dict[str, object] = {}
    cells = {str(row[column]): row[column] for _, row in rows_of(split) if row.get(column) is not None}
    numbers = labels.numbers_of([*cells]) if labels else {}
    for text, cell in cells.items():
        found.setdefault(text, cell)
        if labels and text in numbers:
            found.setdefault(labels.names[numbers[text]], cell)
    return found


def clean_file(
    path: Path, out: Path, settings: DataSettings, changes: Changes, column: str, labels: LabelSet | None, *,
    scores: bool = False,
) -> Cleaned:  # fmt: skip
    """Write the rows of a file with changes to a new file, and every change to a log beside it.

    Raises:
        DataError: A row to relabel does not exist, has another label than the suggestion says, or would get an unknown one.
        SettingsError: The new file is the old one.
    """
    refuse_out(out)
    if out.exists() and out.samefile(path):
        raise SettingsError(f"{out} is the file to clean", NEW_FILE)
    log = out.with_name(out.name + LOG_SUFFIX)
    with opened_split(path, settings, out) as split, ExitStack() as files:
        known = {} if not changes.relabel else label_cells(split, column, labels)
        temporary, logging = (files.enter_context(replacing(target)) for target in (out, log))
        writing = files.enter_context(temporary.open("w", encoding="utf-8", newline=""))
        lines = files.enter_context(logging.open("w", encoding="utf-8"))
        header: Cells = {"source": path.name, "sha256": sha256_of(path), "out": out.name}
        write_line(lines, header)
        num_rows = num_dropped = num_relabelled = 0
        left = {*changes.relabel} - {*changes.drop}
        columns, write = list[str](), None
        for number, row in rows_of(split):
            if write is None:
                columns = [*row]
                write = cells_writer(writing, out.suffix.lower(), columns)
            if number in changes.drop:
                write_line(lines, {"change": "drop", ROW: number, "code": changes.drop[number], "cells": row})
                num_dropped += 1
                continue
            if number in changes.relabel:
                left.discard(number)
                before, after = changes.relabel[number]
                where, separator = f"{path.name}, row {number:,}", settings.label_separator
                new = relabelled(row[column], before, after, known, labels, where, scores=scores, separator=separator)
                if new != row[column]:
                    write_line(lines, {"change": "relabel", ROW: number, "column": column, "before": row[column], "after": new})
                    row = {**row, column: new}
                    num_relabelled += 1
            write(row)
            num_rows += 1
        if left:
            problem = f"{path.name} has no row {listed(sorted(left), 5)}"
            raise DataError(problem, "use the suggestions for this file, and the options it was inspected with")
    return Cleaned(out, log, num_rows, num_dropped, num_relabelled)


def relabelled(
    cell: object, before: str, after: str, known: Mapping[str, object], labels: LabelSet | None, where: str, *,
    scores: bool, separator: str | None,
) -> object:  # fmt: skip
    """Return the new cell. Raise `DataError` if the old one is not what the suggestion was made for."""
    # After the file has changed, the numbers of rows mean other rows.
    if scores:
        try:
            is_same, new = abs(float(str(cell)) - float(before)) < 1e-5, float(after)
        except ValueError as error:
            raise DataError(f"{where}: {visible(after)} is not a score", "write a number, or empty the cell") from error
        if is_same:
            return type(cell)(after) if isinstance(cell, str) else new
    elif separator is not None or isinstance(cell, list):
        names = labels.names if labels else ()
        parts = [*map(str, cell)] if isinstance(cell, list) else str(cell or "").split(separator)
        wanted = after.split("|")
        if wrong := [name for name in wanted if name not in names]:
            raise DataError(
                f"{where}: there is no label {visible(wrong[0])}", f"use some of {listed(names)}, or empty the cell"
            )
        if {part.strip() for part in parts if part.strip()} == {part for part in before.split("|") if part}:
            return wanted if isinstance(cell, list) else str(separator).join(wanted)
    elif known.get(before, before) == cell or str(cell) == before:
        if after in known:
            return known[after]
        raise DataError(f"{where}: there is no label {visible(after)}", f"use one of {listed(known)}, or empty the cell")
    problem = f"{where}: the label is {visible(cell)}, but the suggestion was made for {visible(before)}"
    raise DataError(problem, "inspect the file again: it has changed since")


def write_line(opened: TextIO, line: Mapping[str, object]) -> None:
    opened.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


def restore_file(path: Path, log: Path, out: Path, settings: DataSettings) -> int:
    """Write the rows of a cleaned file as they were before, and return their number.

    Raises:
        DataError: The log cannot be read, or does not belong to the file.
    """
    refuse_out(out)
    dropped, before = dict[int, Mapping[str, object]](), dict[int, tuple[str, object, object]]()
    for line in logged(log):
        number = int(str(line[ROW]))
        if line["change"] == "drop" and isinstance(line["cells"], dict):
            dropped[number] = line["cells"]
        else:
            before[number] = (str(line["column"]), line["before"], line["after"])
    with opened_split(path, settings, out) as split, replacing(out) as temporary, ExitStack() as files:
        writing = files.enter_context(temporary.open("w", encoding="utf-8", newline=""))
        number, write = 0, None
        rows = (row for _, row in rows_of(split))
        for row in with_dropped(rows, dropped):
            number += 1
            if number in before and number not in dropped:
                column, old, new = before[number]
                if str(row.get(column)) != str(new):
                    raise DataError(f"{log.name} does not belong to {path.name}", "use the log that was written with it")
                row = {**row, column: old}
            write = write or cells_writer(writing, out.suffix.lower(), [*row])
            write(row)
    return number


def with_dropped(
    rows: Iterator[Mapping[str, object]], dropped: Mapping[int, Mapping[str, object]]
) -> Iterator[Mapping[str, object]]:
    """Yield rows with the dropped ones at their places."""
    number = 1
    for row in rows:
        while number in dropped:
            yield dropped[number]
            number += 1
        yield row
        number += 1
    yield from (dropped[place] for place in sorted(dropped) if place >= number)


def logged(log: Path) -> list[dict[str, Json]]:
    try:
        _, *lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        if all(isinstance(line, dict) and {"change", ROW} <= {*line} for line in lines):
            return lines
    except (OSError, ValueError):
        pass
    raise DataError(f"{log} cannot be read as a log of changes", f"use the file that ends in {LOG_SUFFIX}")


def told(cleaned: Cleaned) -> str:
    """Return one sentence on what was done."""
    dropped = counted(cleaned.num_dropped, "row dropped", "rows dropped")
    return f"{dropped}, {counted(cleaned.num_relabelled, 'label', 'labels')} changed, {cleaned.num_rows:,} rows written"
