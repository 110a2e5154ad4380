"""Predictions are read the same whether Arrow or JSON reads their logits, and damage is reported with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_folders import write_fake_run

from glassloop.base.errors import ModelError
from glassloop.report import source as answers
from glassloop.report.source import UNKNOWN, numbers_in, ordered_splits, read_answers, read_source, wide_entries
from glassloop.runs.history import RESUME, note_moment, write_history
from glassloop.runs.record import RUNNING, predictions_name, read_predictions
from glassloop.settings.training import CLASSES

HARD = 'a text with "logits": [1, 2] and ] in it'


def test_many_logits_are_read_bit_for_bit(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path, CLASSES, num_labels=60, num_rows=20, text=HARD)
    path = tmp_path / predictions_name("validation")
    found, expected = wide_entries(path), read_predictions(tmp_path, "validation")
    assert found is not None
    assert [{**entry, "logits": 0} for entry in found] == [{**entry, "logits": 0} for entry in expected]
    assert np.array_equal([entry["logits"] for entry in found], [entry["logits"] for entry in expected])
    rows, entries = read_answers(tmp_path, "validation", record.data)
    assert rows is not None
    assert rows.logits.shape == (20, 60)
    assert HARD in str(entries[0]["first"])


def test_few_logits_are_read_with_the_rest(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path)
    assert wide_entries(tmp_path / predictions_name("validation")) is None
    rows, _ = read_answers(tmp_path, "validation", record.data)
    assert rows is not None
    assert len(rows) == 60
    assert wide_entries(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"logits": [', b'"logits": [x, ', "line 1: Expecting value"),
        (b'{"row": 3', b'{"row": ', "line 4: Expecting value"),
        (b'"logits": [', b'"logits": [0.5, ', "line 1: logits are not 60 finite numbers"),
    ],
)
def test_damage_is_reported(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    record = write_fake_run(tmp_path, CLASSES, num_labels=60, num_rows=20)
    path = tmp_path / predictions_name("validation")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(ModelError, match=message):
        read_answers(tmp_path, "validation", record.data)


def test_a_split_without_labels_has_no_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = write_fake_run(tmp_path)
    monkeypatch.setattr(answers, "read_predictions", lambda folder, split: [{"row": 0, "prediction": "a"}])
    assert read_answers(tmp_path, "validation", record.data) == (None, [{"row": 0, "prediction": "a"}])


def test_texts_that_are_no_numbers() -> None:
    assert numbers_in(b"1, 2.5,-3e-05").tolist() == [1.0, 2.5, -3e-05]  # type: ignore[union-attr]
    assert numbers_in(b"1, two") is None


# --- Test what a report reads from run folders, complete or not.


def test_a_finished_run_has_everything(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path)
    note_moment(tmp_path, RESUME, 7, 60)
    found = read_source(tmp_path)
    assert (found.record, found.status, [*found.resumes]) == (record, "finished", [7])
    assert [result.split for result in found.results] == ["validation"]
    assert len(found.results[0].rows) == 60
    assert found.text_columns == ("first", "second")


def test_an_unfinished_run_is_stopped_unless_a_process_holds_it(tmp_path: Path) -> None:
    write_fake_run(tmp_path, status=RUNNING)
    assert read_source(tmp_path).status == "stopped"


def test_damaged_predictions_become_a_problem(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    (tmp_path / "validation-predictions.jsonl").write_text("{", encoding="utf-8")
    found = read_source(tmp_path)
    assert not found.results
    assert "validation-predictions.jsonl, line 1" in found.problems[0]


def test_the_folder_of_a_trainer_has_only_a_history(tmp_path: Path) -> None:
    write_history(tmp_path, [{"step": 1, "loss": 0.5}])
    found = read_source(tmp_path)
    assert (found.record, found.status, len(found.history)) == (None, UNKNOWN, 1)


def test_any_other_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a run folder"):
        read_source(tmp_path)


def test_the_split_of_the_training_comes_first(tmp_path: Path) -> None:
    for name in ("test", "validation_mismatched", "validation"):
        (tmp_path / f"{name}-predictions.jsonl").touch()
    assert ordered_splits(tmp_path) == ["validation", "validation_mismatched", "test"]
