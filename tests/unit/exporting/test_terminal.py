"""The result of an export in the terminal: every figure, changed rows with their texts, and no control characters."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from sample_record import RECORD

from glassloop.runs.export import ExportCheck, ExportRecord, MetricChange
from glassloop.settings.fields import CLASSES, SCORE
from glassloop.share.export import Exported, FlippedRow, show_export

CHECK = ExportCheck(
    "validation",
    408,
    0.2143,
    7,
    (7, 90),
    {"accuracy": MetricChange(0.85, 0.845, -0.005, -0.0101, 0.002, 0.5, "exact McNemar test")},
    {"exported": 22_900_000, "run": 90_900_000},
    {"exported": 150.0, "glassloop": 120.0, "transformers": 100.0},
    2,
)
ROWS = tuple(FlippedRow(row, "a", "a", "b, c", ("first\x1b[31m text", "second")) for row in (7, 90))


def shown(task: str = CLASSES, flipped: tuple[FlippedRow, ...] = ROWS) -> str:
    record = ExportRecord("onnx-int8", task, ("a", "b, c"), 64, ("input_ids",), "mrpc", RECORD)
    stream = io.StringIO()
    show_export(Console(file=stream, width=120), Exported(Path("runs/mrpc-onnx-int8"), record, CHECK, flipped))
    return stream.getvalue()


def test_every_figure_is_shown() -> None:
    text = shown()
    assert "validation, 408 rows" in text
    assert text.splitlines()[1].split() == ["accuracy", "0.8500", "0.8450", "-0.0050", "-0.0101..+0.0020"]
    assert "largest difference of logits: 0.21 (row 7)" in text
    assert "answers that changed: 2 of 408" in text
    assert "  row 7 [a] a → b, c: first\\x1b[31m text | second" in text
    assert "size: 22.9 MB (25% of the run's 90.9 MB)" in text
    assert "rows per second with 2 threads: 150\n  1.25x Glassloop (120), 1.50x transformers (100)\n" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "row 7" in line)
    assert text.rstrip().endswith("onnx-int8 → runs/mrpc-onnx-int8")


def test_many_changed_rows_are_counted() -> None:
    rows = tuple(replace(ROWS[0], row=row) for row in range(13))
    assert "  and 3 more; --json lists all" in shown(flipped=rows)


def test_scores_have_no_answers_that_change() -> None:
    assert "answers" not in shown(SCORE, ())
