"""The section about the data: splits, balance, lengths, padding, truncation, duplicates and overlap."""

from __future__ import annotations

from glassloop.charts.bars import BarChart, Bars
from glassloop.charts.histogram import Histogram, even_edges
from glassloop.charts.scales import COUNT, PERCENT, Axis
from glassloop.files import home_name
from glassloop.markup import escaped
from glassloop.pages.parts import Cell, fact_list, grid, heading, table
from glassloop.report.drawn import Drawn
from glassloop.report.source import RunSource
from glassloop.run_folder.record import DataRecord, LengthFacts, RunRecord, SplitFacts

SHOWN_LABELS = 20
TRAIN, HELD_OUT = "train", "validation"


def data_section(source: RunSource, drawn: Drawn) -> str:
    """Return what is known about the data of a run; empty without a record."""
    record = source.record
    if record is None:
        return ""
    data = record.data
    facts: dict[str, Cell] = {
        "source": home_name(data.source),
        "task": data.task.replace("_", " "),
        "texts": ", ".join(data.columns.texts),
        "label": ", ".join(data.columns.label),
        "labels": f"{len(data.labels):,}" if data.labels else "a score",
        "padding": f"{record.padding:.1%} of the tokens of a padded batch" if record.padding else None,
        "maximum length": f"{record.max_length:,} tokens" if record.max_length and not source.by_trainer else None,
    }
    charts = [balance_chart(data, drawn), *length_charts(record, drawn)]
    notes = "".join(f"<li>{escaped(note)}</li>" for note in data.notes)
    found = heading("Found in the data") + f"<ul>{notes}</ul>" if notes else ""
    return fact_list(facts) + splits_table(record) + found + grid(*charts)


def splits_table(record: RunRecord) -> str:
    """Return the counts of each split."""
    head = [
        "split",
        "rows",
        "duplicates",
        "conflicts",
        "also in train",
        "empty",
        "skipped",
        "mean tokens",
        "truncated",
        "fingerprint",
    ]
    rows = [split_cells(name, facts, record.lengths.get(name)) for name, facts in record.data.splits.items()]
    return heading("Splits") + table(head, rows)


def split_cells(name: str, facts: SplitFacts, lengths: LengthFacts | None) -> list[Cell]:
    """Return the line of a split."""
    counts: tuple[int | None, ...] = (
        facts.num_rows,
        facts.num_duplicates,
        facts.num_conflicts,
        facts.num_in_train,
        facts.num_empty,
        facts.num_skipped,
    )
    if not facts.fingerprint:  # the rows were not read
        counts = (facts.num_rows, *[None] * 5)
    mean, cut = (lengths.mean, lengths.num_truncated) if lengths else (None, None)
    return [name, *counts, mean, cut, facts.fingerprint[:12]]


def balance_chart(data: DataRecord, drawn: Drawn) -> str:
    """Return the share of each label in the splits with labels; of many labels, of the most frequent ones."""
    splits = {name: facts for name, facts in data.splits.items() if facts.label_counts and not facts.unlabelled}
    shown = {name: splits[name] for name in (TRAIN, HELD_OUT) if name in splits}
    if not shown or not data.labels:
        return ""
    first = next(iter(shown.values())).label_counts
    ordered = sorted(data.labels, key=lambda label: -first.get(label, 0))
    names = ordered[:SHOWN_LABELS]
    bars = [
        Bars(name, [round(facts.label_counts.get(label, 0) / max(facts.num_rows, 1), 5) for label in names])
        for name, facts in shown.items()
    ]
    rest = len(ordered) - len(names)
    note = f"{rest:,} less frequent labels are not shown." if rest > 0 else ""
    most, least = first.get(ordered[0], 0), first.get(ordered[-1], 0)
    told = f"The most frequent label, {ordered[0]}, has {most:,} rows; the least frequent, {ordered[-1]}, {least:,}."
    return drawn.figure(
        "labels-of-the-data", BarChart("Share of each label", told, names, bars, Axis("share of rows", PERCENT)), note
    )


def length_charts(record: RunRecord, drawn: Drawn) -> list[str]:
    """Return how long the training rows are, in tokens; empty for runs that did not record it."""
    facts = record.lengths.get(TRAIN)
    if facts is None or not facts.counts:
        return []
    edges = even_edges(0, facts.longest, len(facts.counts))
    told = f"Half of the rows have at most {facts.median:g} tokens; the longest has {facts.longest:,}."
    told += f" {facts.num_truncated:,} rows were cut; the longest had {facts.longest_before:,}." if facts.num_truncated else ""
    series = [Bars("rows", facts.counts)]
    chart = Histogram("Length of the training rows", told, edges, series, Axis("tokens"), Axis("rows", COUNT))
    return [drawn.figure("lengths", chart, told)]
