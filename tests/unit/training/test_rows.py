"""Rows that a user gives to a Trainer: columns the model does not accept are dropped, and batches fit the settings."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model

from glassloop import PaddingCollator, PlainBackend, TrainingArguments
from glassloop.base.errors import DataError, SettingsError
from glassloop.trainer import RowUse, accepted_columns, columns_taken_by, make_batches

ROWS = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 5, "labels": [0, 1, 0, 1, 0], "id": [*range(5)]})


def test_columns_the_model_does_not_accept_are_dropped_and_reported() -> None:
    lines: list[str] = []
    taken = columns_taken_by(tiny_model())
    assert accepted_columns(ROWS, taken, lines.append).column_names == ["input_ids", "labels"]  # type: ignore[attr-defined]
    assert lines == ["columns the model does not accept are dropped: id"]
    assert [*accepted_columns(ROWS.to_list(), taken, lines.append)[0]] == ["input_ids", "labels"]
    assert lines[1:] == lines[:1]
    assert accepted_columns(ROWS, None, lines.append) is ROWS
    assert [*accepted_columns(ROWS.to_list(), None, lines.append)[0]] == ["input_ids", "labels", "id"]


@pytest.mark.parametrize(("training", "sizes"), [(True, [2, 2, 1]), (False, [4, 1])])
def test_batches_have_the_size_of_the_settings(tiny_tokenizer: Any, training: bool, sizes: list[int]) -> None:
    args = TrainingArguments("x", per_device_train_batch_size=2, per_device_eval_batch_size=4)
    collate, backend = PaddingCollator(tiny_tokenizer), PlainBackend()
    batches = make_batches(ROWS, collate, args, backend, tiny_model(), print, RowUse(training, {"input_ids", "labels"}))
    assert [batch.size for batch in batches.epoch()] == sizes


def test_rows_that_do_not_fit_are_refused(tiny_tokenizer: Any) -> None:
    def attempt(rows: Any) -> None:
        collate, args = PaddingCollator(tiny_tokenizer), TrainingArguments("x")
        make_batches(rows, collate, args, PlainBackend(), tiny_model(), print, RowUse(True, {"input_ids", "labels"}))

    with pytest.raises(SettingsError, match="the Trainer has no train_dataset"):
        attempt(None)
    with pytest.raises(SettingsError, match="the training rows have no labels"):
        attempt(ROWS.remove_columns("labels"))
    with pytest.raises(DataError, match="has the label 7"):
        attempt(ROWS.remove_columns("labels").add_column("labels", [0, 1, 7, 0, 1]))
