"""The labels of rows that a Trainer gets: found under their usual names in any form, and refused if they do not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from glassloop.base.errors import SettingsError
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.rows import infer_task, labels_among, labels_in, refuse_labels, without_missing_labels
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

IDS = [[1, 2], [3], [4, 5], [6]]


@pytest.mark.parametrize("key", ["labels", "label", "label_ids"])
@pytest.mark.parametrize("cells", [[0, 2, 1, 0], [0.5, 2.0, -1.0, 0.0], [[1, 0], [0, 1], [1, 1], [0, 0]]], ids=str)
def test_labels_are_found_in_every_form_of_rows(key: str, cells: list[Any]) -> None:
    rows = Dataset.from_dict({"input_ids": IDS, key: cells})
    for form in (rows, rows.with_format("torch"), rows.to_list()):
        found = labels_in(form)
        assert found.tolist() == cells
        assert found.dtype == (np.float32 if isinstance(cells[0], float) else np.int64)


def test_rows_without_labels_have_none() -> None:
    assert labels_in(None) is None
    assert labels_in(Dataset.from_dict({"input_ids": IDS})) is None
    assert labels_in([{"input_ids": [1]}]) is None
    assert labels_in([(1, 2)]) is None, "rows of another kind are left to the collator"


def test_two_label_columns_must_agree(refused) -> None:
    columns = {"label": [0, 1, 1], "labels": [0, 1, 0]}
    assert labels_among({"label": [0, 1], "labels": [0, 1]}).tolist() == [0, 1]
    with refused('"labels" and "label" have different values (0 and 1)', "remove the column that is not the label"):
        labels_among(columns)


def test_labels_must_be_numbers(refused) -> None:
    with refused("the labels have the type <U3, which is not a number", "use whole numbers, or set problem_type"):
        labels_among({"labels": ["yes", "no"]})


# --- the task of a model -----------------------------------------------------------------------------------------


def config_with(num_labels: int, problem_type: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(num_labels=num_labels, problem_type=problem_type)


def batches_with(cells: list[Any], tokenizer: Any) -> Batches:
    return Batches(Dataset.from_dict({"input_ids": IDS[: len(cells)], "labels": cells}), PaddingCollator(tokenizer), 2)


def test_one_number_for_each_label_means_several_labels(tiny_tokenizer) -> None:
    config, said = config_with(3), []
    infer_task(config, batches_with([[0.0, 1.0, 1.0]] * 2, tiny_tokenizer).first_labels, said.append)
    assert config.problem_type == SEVERAL
    assert said == [f"each row has one number for each of the 3 labels: training as {SEVERAL}"]


@pytest.mark.parametrize(("num_labels", "task"), [(2, None), (2, CLASSES), (1, None), (1, SCORE), (2, SEVERAL)])
def test_a_task_that_fits_is_left_as_it_is(num_labels: int, task: str | None, tiny_tokenizer) -> None:
    config, cells = config_with(num_labels, task), [1, 0] if num_labels > 1 else [0.5, 1.5]
    infer_task(config, batches_with(cells, tiny_tokenizer).first_labels, pytest.fail)
    assert config.problem_type == task


@pytest.mark.parametrize(
    ("num_labels", "task", "cells", "problem"),
    [
        (1, None, [[0.5]], "the score of a row is a list of length 1"),
        (2, SCORE, [[0.5, 1.0]], "the score of a row is a list of length 2"),
        (2, None, [0.5], "the labels have the type float32, but classes are whole numbers"),
        (2, None, [[0, 1, 1]], "the label of a row has 3 numbers, but the model has 2 labels"),
        (3, CLASSES, [[0, 1, 1]], f"the label of a row has 3 numbers, but problem_type is {CLASSES}"),
    ],
)
def test_labels_that_do_not_fit_the_model_are_refused(num_labels, task, cells, problem, tiny_tokenizer, says) -> None:
    from glassloop.base.errors import DataError

    with says(problem, None, DataError):
        infer_task(config_with(num_labels, task), batches_with(cells, tiny_tokenizer).first_labels, pytest.fail)


def test_a_class_that_the_model_does_not_have_is_named_with_its_row(refused) -> None:
    rows = Dataset.from_dict({"input_ids": IDS, "labels": [0, 1, 2, 1]})
    refuse_labels(rows, CLASSES, 3, needed=True)
    remedy = "fix the labels, or remove the label column if the labels are unknown"
    with refused("row 2 (from 0) has the label 2; the model has 0 to 1", remedy):
        refuse_labels(rows, CLASSES, 2, needed=True)
    fractions = Dataset.from_dict({"input_ids": IDS, "labels": [0.0, None, 1.0, 1.0]})
    with refused("the labels have the type float32, but classes are whole numbers", "use whole numbers, or set problem_type"):
        refuse_labels(fractions, CLASSES, 2, needed=True)


def test_training_rows_need_labels(refused) -> None:
    rows = Dataset.from_dict({"input_ids": IDS})
    refuse_labels(rows, CLASSES, 2, needed=False)
    with refused("the training rows have no labels", "name their column one of labels, label, label_ids", SettingsError):
        refuse_labels(rows, CLASSES, 2, needed=True)


def test_a_column_in_which_every_label_is_missing_is_no_column() -> None:
    """`load_dataset` gives all splits the columns of the first one."""
    unknown = Dataset.from_dict({"input_ids": IDS, "label": [None] * 4})
    assert without_missing_labels(unknown).column_names == ["input_ids"]
    partly = Dataset.from_dict({"input_ids": IDS, "label": [None, 1, 0, 1]})
    assert without_missing_labels(partly) is partly
