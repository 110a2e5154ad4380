"""What a report reads from run folders, complete or not, and the sections about curves, data and the run itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn import every_chart
from run_folders import RECORD, write_fake_run

from glassloop.base.errors import ModelError
from glassloop.report import source as answers
from glassloop.report.charts import LineChart
from glassloop.report.page import Drawn
from glassloop.report.source import UNKNOWN, RunSource, about, command, curves, option, read_answers, read_source, wide_entries
from glassloop.runs.history import RESUME, note_moment, write_history
from glassloop.runs.record import RUNNING, predictions_name, read_predictions
from glassloop.settings.training import CLASSES

HARD = 'a text with "logits": [1, 2] and ] in it'


# --- predictions are read the same whether Arrow or JSON reads their logits
def test_many_logits_are_read_bit_for_bit_and_damage_is_reported_with_its_line(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path, CLASSES, num_labels=60, num_rows=20, text=HARD)
    wide, expected = wide_entries(tmp_path / predictions_name("validation")), read_predictions(tmp_path, "validation")
    assert wide is not None
    assert [{**entry, "logits": 0} for entry in wide] == [{**entry, "logits": 0} for entry in expected]
    assert np.array_equal([entry["logits"] for entry in wide], [entry["logits"] for entry in expected])
    rows, entries = read_answers(tmp_path, "validation", record.data)
    assert rows is not None
    assert rows.logits.shape == (20, 60)
    assert HARD in str(entries[0]["first"])
    path = tmp_path / predictions_name("validation")
    sound = path.read_bytes()
    for old, new, message in [
        (b'"logits": [', b'"logits": [x, ', "line 1: Expecting value"),
        (b'{"row": 3', b'{"row": ', "line 4: Expecting value"),
        (b'"logits": [', b'"logits": [0.5, ', "line 1: logits are not 60 finite numbers"),
    ]:
        path.write_bytes(sound.replace(old, new, 1))
        with pytest.raises(ModelError, match=message):
            read_answers(tmp_path, "validation", record.data)


def test_few_logits_are_read_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = write_fake_run(tmp_path)
    assert wide_entries(tmp_path / predictions_name("validation")) is None
    assert wide_entries(tmp_path / "missing") is None
    rows, _ = read_answers(tmp_path, "validation", record.data)
    assert rows is not None
    assert len(rows) == 60
    monkeypatch.setattr(answers.records, "read_predictions", lambda folder, split: [{"row": 0, "prediction": "a"}])
    assert read_answers(tmp_path, "validation", record.data) == (None, [{"row": 0, "prediction": "a"}]), "without labels"


def test_a_finished_run_has_everything(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path)
    note_moment(tmp_path, RESUME, 7, 60)
    for name in ("test", "validation_mismatched"):
        (tmp_path / f"{name}-predictions.jsonl").write_bytes((tmp_path / "validation-predictions.jsonl").read_bytes())
    source = read_source(tmp_path)
    assert (source.record, source.status, [*source.resumes]) == (record, "finished", [7])
    assert [result.split for result in source.results] == ["validation", "validation_mismatched", "test"]
    assert len(source.results[0].rows) == 60
    assert source.text_columns == ("first", "second")


def test_unfinished_damaged_and_foreign_folders(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "stopped", status=RUNNING)
    assert read_source(tmp_path / "stopped").status == "stopped", "no process holds it"
    write_fake_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "validation-predictions.jsonl").write_text("{", encoding="utf-8")
    damaged = read_source(tmp_path / "damaged")
    assert not damaged.results
    assert "validation-predictions.jsonl, line 1" in damaged.problems[0]
    with pytest.raises(ModelError, match="is not a run folder"):
        read_source(tmp_path)
    write_history(tmp_path, [{"step": 1, "loss": 0.5}])
    trainer = read_source(tmp_path)
    assert (trainer.record, trainer.status, len(trainer.history)) == (None, UNKNOWN, 1)


def test_the_curves_are_those_of_the_history_with_resumes_and_the_best_step(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    for step in (10, 30, 30):
        note_moment(tmp_path, RESUME, step, 60)
    source, drawn = read_source(tmp_path), Drawn()
    curves(source, drawn)
    assert [*drawn.charts] == ["loss", "evaluations", "learning-rate", "gradient-norm"]
    assert isinstance(loss := drawn.charts["loss"], LineChart)
    assert loss.table().columns == ("step", "training", "evaluation", "training (raw)")
    assert [row[3] for row in loss.table().rows] == [entry["loss"] for entry in source.history if "loss" in entry]
    assert [(event.x, event.name) for event in loss.events] == [(10, "resumed"), (30, "resumed"), (20, "best")]
    assert drawn.charts["evaluations"].table().rows[-1] == (60, 0.7, 0.7)
    history = [{"step": 1, "eval_loss": 0.5, "eval_own": 0.25, "eval_runtime": 1.0}]
    assert answers.metric_names(RunSource(tmp_path, None, "", history, ())) == {"own": "own"}  # type: ignore[arg-type]
    drawn = Drawn()
    for chart in every_chart()[:2]:
        assert drawn.figure("loss", chart).startswith("<figure")
    assert [*drawn.charts] == ["loss", "loss-2"]


def test_counts_lengths_notes_settings_and_files_are_shown_without_those_of_checkpoints(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_labels=3)
    drawn = Drawn()
    html = answers.data_section(read_source(tmp_path), drawn)
    assert [*drawn.charts] == ["labels-of-the-data", "lengths"]
    assert drawn.charts["labels-of-the-data"].table().rows[1] == ("label 1", round(59 / 60, 5), round(59 / 60, 5))
    assert sum(row[2] for row in drawn.charts["lengths"].table().rows) == 18
    assert "2 rows were cut; the longest had 70." in html
    assert "a note on a text" in html
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "part.safetensors").touch()
    html = about(read_source(tmp_path), drawn)
    for text in ("checkpoint-10", "history.jsonl", ">learning_rate</td>", ">in all</td>", "a machine, 2 cores"):
        assert text in html
    assert "part.safetensors" not in html


def test_the_command_has_every_setting_that_is_not_the_default_and_speeds_are_listed() -> None:
    words = shlex.split(command(RECORD))
    assert words[:5] == ["glassloop", "train", "rows.csv", "--model", "quickstart"]
    assert words[5:] == ["--labels", "a,b, c", "--num_train_epochs", "2", "--learning_rate", "0.0001"]
    assert command(replace(RECORD, model=replace(RECORD.model, new_head=True))).endswith(" --new_head")
    values = {1e-4: "0.0001", 2.0: "2", 0.1 + 0.2: "0.30000000000000004", ("a", "b"): "a,b"}
    assert {value: option(value) for value in values} == values
    assert option({"a": 1}) == '{"a": 1}'
    result = {"train_runtime": 5.0, "train_samples_per_second": 9.0}
    record = replace(RECORD, result=result, evaluation={"eval_runtime": 1.5}, seconds=8.0)
    seconds = {row[0]: row[1] for row in answers.speeds(record)}
    assert seconds == {"training": 5.0, "evaluation": 1.5, "in all": 8.0}


def test_the_stages_of_a_run_are_drawn_in_their_order_and_a_resumed_run_says_whose_they_are(tmp_path: Path) -> None:
    source, drawn = RunSource(tmp_path, RECORD, "finished", (), ()), Drawn()
    assert "Where the time went" not in about(source, drawn), "earlier versions recorded no stages"
    assert drawn.charts == {}
    record = replace(RECORD, stages={"starting": 1.2345, "other steps": 40.0, "everything else": 0.5}, seconds=41.7345)
    html = about(replace(source, record=record), drawn)
    assert "Of 41.7 seconds, other steps took 40.0. Writing this report is not included.</p>" in html
    assert drawn.charts["stages"].table().columns == ("", "seconds")
    assert drawn.charts["stages"].table().rows == (("starting", 1.23), ("other steps", 40.0), ("everything else", 0.5))
    assert '<th scope="col">seconds</th>' in html
    html = about(replace(source, record=replace(record, resumed=True)), drawn)
    assert "The run was resumed: these are the seconds of its last process." in html
