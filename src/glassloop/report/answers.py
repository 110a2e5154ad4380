"""Read the predictions of a split as rows and arrays: fast, also for a thousand classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from glassloop.records import Json
from glassloop.run_folder.layout import predictions_name
from glassloop.run_folder.predictions import objects_in, read_predictions
from glassloop.run_folder.record import DataRecord
from glassloop.statistics.scored import ScoredRows, scored_rows

LOGITS = b'"logits": ['  # quotation marks within a text are escaped, so that this is always the key
MANY = 500  # bytes of the logits of a row, beyond which Arrow reads them: JSON needs several times as long


def read_answers(folder: Path, split: str, data: DataRecord) -> tuple[ScoredRows | None, Sequence[Mapping[str, Json]]]:
    """Return the predictions of a split as arrays, None without labels, and its lines with the texts.

    Raises:
        ModelError: If the file is damaged, or does not fit the labels of the run.
        SettingsError: If there are no predictions for the split.
    """
    path = folder / predictions_name(split)
    entries = wide_entries(path) or read_predictions(folder, split)
    labelled = bool(entries) and "label" in entries[0]
    return scored_rows(entries, data.task, data.labels, path) if labelled else None, entries


def wide_entries(path: Path) -> list[dict[str, Json]] | None:
    """Return the lines of a file in which rows have very many logits; None if they have few, or if a line is unusual."""
    try:
        with path.open("rb") as opened:
            first = opened.readline()
            if len(first.partition(LOGITS)[2].partition(b"]")[0]) < MANY:
                return None
            lines = (first + opened.read()).removesuffix(b"\n").split(b"\n")
    except OSError:
        return None
    parts = [line.partition(LOGITS) for line in lines]
    numbers, rest = zip(*((behind.partition(b"]")[0], behind.partition(b"]")[2]) for _, _, behind in parts), strict=True)
    logits = numbers_in(b",".join(numbers))
    width = numbers[0].count(b",") + 1
    if logits is None or len(logits) != width * len(lines) or any(number.count(b",") + 1 != width for number in numbers):
        return None
    entries = objects_in([before + b'"logits": 0' + behind for (before, _, _), behind in zip(parts, rest, strict=True)], path)
    for entry, row in zip(entries, logits.reshape(len(lines), width), strict=True):
        entry["logits"] = row  # type: ignore[assignment]  # an array instead of a list
    return entries


def numbers_in(text: bytes) -> np.ndarray | None:
    """Return the numbers between commas; None if one is not a number. Arrow reads them several times faster than Python."""
    import pyarrow as pa
    from pyarrow import csv

    column = pa.BufferReader(text.replace(b",", b"\n"))
    reading = csv.ReadOptions(column_names=["x"], block_size=1 << 24)
    try:
        found = csv.read_csv(
            column, reading, convert_options=csv.ConvertOptions(column_types={"x": pa.float64()}, null_values=[])
        )
    except pa.ArrowInvalid:
        return None
    return np.asarray(found["x"].to_numpy())
