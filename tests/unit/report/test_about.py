"""Test the section about the run itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from drawn import every_chart
from run_folders import RECORD, write_fake_run

from glassloop.report.source import (
    Drawn,
    RunSource,
    about,
    changed_settings,
    command,
    curves,
    data_section,
    events_of,
    metric_names,
    option,
    read_source,
    speed_part,
)
from glassloop.runs.history import RESUME, note_moment


def test_the_command_has_every_setting_that_is_not_the_default() -> None:
    words = shlex.split(command(RECORD))
    assert words[:5] == ["glassloop", "train", "rows.csv", "--model", "quickstart"]
    assert words[5:] == ["--labels", "a,b, c", "--num_train_epochs", "2", "--learning_rate", "0.0001"]
    assert {*changed_settings(RECORD)} == {"num_train_epochs", "learning_rate"}
    assert command(replace(RECORD, model=replace(RECORD.model, new_head=True))).endswith(" --new_head")


def test_values_are_written_as_the_command_takes_them() -> None:
    assert [option(value) for value in (1e-4, 2.0, 0.1 + 0.2, ("a", "b"), {"a": 1})] == [
        *("0.0001", "2", "0.30000000000000004", "a,b"),
        '{"a": 1}',
    ]


def test_stages_add_up(tmp_path: Path) -> None:
    record = replace(
        RECORD, result={"train_runtime": 5.0, "train_samples_per_second": 9.0}, evaluation={"eval_runtime": 1.5}, seconds=8.0
    )
    html = speed_part(record)
    for text in ("training", "loading, saving and the rest", ">1.5<", ">8<"):
        assert text in html


def test_files_are_listed_without_checkpoints(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    saved = tmp_path / "checkpoint-10"
    saved.mkdir(parents=True)
    (saved / "part.safetensors").touch()
    html = about(read_source(tmp_path))
    assert "checkpoint-10" in html
    assert "part.safetensors" not in html
    assert "history.jsonl" in html


# --- Test the learning curves of a report.


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


# --- Test the section about the data.


def test_counts_lengths_and_notes_are_shown(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_labels=3)
    drawn = Drawn()
    html = data_section(read_source(tmp_path), drawn)
    assert [*drawn.charts] == ["labels-of-the-data", "lengths"]
    assert drawn.charts["labels-of-the-data"].table().rows[1] == ("label 1", round(59 / 60, 5), round(59 / 60, 5))
    assert sum(row[2] for row in drawn.charts["lengths"].table().rows) == 18
    assert "2 rows were cut; the longest had 70." in html
    assert "a note on a text" in html


# --- Test the collection of charts.


def test_charts_of_one_name_are_numbered() -> None:
    drawn = Drawn()
    for chart in every_chart()[:2]:
        assert drawn.figure("loss", chart).startswith("<figure")
    assert [*drawn.charts] == ["loss", "loss-2"]
