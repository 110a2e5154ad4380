"""The HTML views of runs and Trainers: what is recorded is shown, and names from the data stay text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from sample_record import RECORD

from glassloop.data.facts import SHOWN_LABELS
from glassloop.run_folder.record import FINISHED, ClassRecord
from glassloop.show import html

EVALUATED = replace(
    RECORD,
    status=FINISHED,
    metrics=("accuracy", "f1"),
    positive_label="b, c",
    evaluation={"eval_loss": 0.4, "eval_accuracy": 0.8, "eval_f1": 0.75, "eval_runtime": 1.25},
    baseline={"accuracy": 0.7},
    classes={"a": ClassRecord(0.9, 0.8, 0.85, 1200), "b, c": ClassRecord(None, 0.0, None, 3)},
)
HISTORY = [
    {"step": 1, "loss": 0.9, "learning_rate": 1e-4},
    {"step": 2, "loss": 0.5, "learning_rate": 5e-5},
    {"step": 2, "epoch": 0.5, "eval_loss": 0.6, "eval_accuracy": 0.75},
    {"step": 4, "epoch": 1.0, "eval_loss": 0.4, "eval_accuracy": 0.8},
]


def rows_of(view: str) -> list[tuple[str, ...]]:
    return [tuple(cell.text or "" for cell in row) for row in ElementTree.fromstring(view).iter("tr")]


def test_a_run_is_shown_with_results_baseline_classes_and_curve() -> None:
    view = html.run_view("Run runs/x", "finished", EVALUATED, HISTORY)
    rows = rows_of(view)
    assert ("status", "finished") in rows
    assert ("metric", "this run", "majority baseline") in rows
    assert ("accuracy", "0.8000", "0.7000") in rows
    assert ("f1 (b, c)", "0.7500", "-") in rows
    assert ("a", "0.9000", "0.8000", "0.8500", "1,200") in rows
    assert ("b, c", "-", "0.0000", "-", "3") in rows
    assert "runtime" not in view
    assert view.count("<polyline") == 2
    assert len(view) < 10_000


def test_a_run_without_results_is_shown_by_its_settings() -> None:
    view = html.run_view("Run runs/x", "running", RECORD, [])
    assert ("data", "rows.csv: 27 train") in rows_of(view)
    assert ("steps", "8, learning rate 0.0001, seed 42") in rows_of(view)
    assert "this run" not in view
    assert "<svg" not in view


def test_hostile_names_stay_text() -> None:
    script = "<script>alert(1)</script>"
    data = replace(RECORD.data, labels=(script, "b"), source=script)
    record = replace(EVALUATED, data=data, positive_label=script, classes={script: ClassRecord(1.0, 1.0, 1.0, 1)})
    view = html.run_view(script, script, record, [{script: script, "step": 1}])
    assert "<script" not in view
    assert (script, "1.0000", "1.0000", "1.0000", "1") in rows_of(view)


def test_of_many_classes_the_largest_are_shown() -> None:
    classes = {f"class {number}": ClassRecord(0.5, 0.5, 0.5, number) for number in range(1000)}
    rows = rows_of(f"<div>{html.class_table(classes)}</div>")
    assert len(rows) == SHOWN_LABELS + 2
    assert rows[1][0] == "class 999"
    assert rows[-1][0] == "and 985 more"


def test_a_trainer_is_shown_with_its_evaluations() -> None:
    view = html.trainer_view({"model": "bert"}, HISTORY)
    assert rows_of(view)[:4] == [
        ("model", "bert"),
        ("step", "eval_loss", "eval_accuracy"),
        ("2", "0.6000", "0.7500"),
        ("4", "0.4000", "0.8000"),
    ]
    assert view.count("<polyline") == 2
    assert rows_of(html.trainer_view({"model": "bert"}, [])) == [("model", "bert")]


def test_entries_that_are_not_numbers_are_left_out_of_the_curve() -> None:
    assert html.numbers_by_step([{"step": 1, "loss": "x"}, {"loss": 1.0}, {"step": 2, "loss": 0.5}], "loss") == [(2, 0.5)]
