"""Test the learning curves of a report."""

from __future__ import annotations

from pathlib import Path

from reported_runs import write_fake_run

from glassloop.report.about import Drawn, curves, events_of, metric_names
from glassloop.report.source import RunSource, read_source
from glassloop.runs.status import RESUME, note_moment


def test_the_curves_are_those_of_the_history(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source, drawn = read_source(tmp_path), Drawn()
    curves(source, drawn)
    assert [*drawn.charts] == ["loss", "evaluations", "learning-rate", "gradient-norm"]
    table = drawn.charts["loss"].table()
    assert table.columns == ("step", "training", "evaluation", "training (raw)")
    assert [row[3] for row in table.rows] == [entry["loss"] for entry in source.history if "loss" in entry]
    assert drawn.charts["evaluations"].table().rows[-1] == (60, 0.7, 0.7)


def test_resumes_and_the_best_step_are_marked(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    for step in (10, 30, 30):
        note_moment(tmp_path, RESUME, step, 60)
    assert [(event.x, event.name) for event in events_of(read_source(tmp_path))] == [
        (10, "resumed"),
        (30, "resumed"),
        (20, "best"),
    ]


def test_a_trainer_names_its_own_metrics(tmp_path: Path) -> None:
    history = [{"step": 1, "eval_loss": 0.5, "eval_own": 0.25, "eval_runtime": 1.0}]
    assert metric_names(RunSource(tmp_path, None, "", history, ())) == {"own": "own"}
