"""Which rows become which split: unknown labels are refused or skipped, and validation is held out fairly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from given_split import GivenSplit

from glassloop.data.examples import Part, hold_out_fold, hold_out_validation, rows_with_known_labels, survey_split
from glassloop.data.labels import LabelSet
from glassloop.runs.record import Columns
from glassloop.settings.fields import CLASSES, SCORE, DataSettings

LABELS = LabelSet(("x", "y"))


def part_of(texts: list[str], labels: list[str | None]) -> Part:
    table = pa.table({"text": texts, "label": pa.array(labels, pa.string())})
    return survey_split("train", GivenSplit("d.csv", [table]), table, Columns("text", None, ("label",)), DataSettings())


def test_rows_with_a_missing_or_unknown_label_are_refused_or_skipped(refused) -> None:
    part = part_of(["a", "b", "c", "d"], ["x", None, "z", "y"])
    assert rows_with_known_labels(part, LABELS, "the model", skip=True).rows.tolist() == [True, False, False, True]
    with refused("d.csv, row 3: the label is missing", "add the label, or remove the row"):
        rows_with_known_labels(part, LABELS, "the model", skip=False)
    with refused("d.csv: no row has one of the labels x, y", "fix the labels, or omit the split"):
        rows_with_known_labels(part_of(["a"], ["z"]), LABELS, "the model", skip=True)


def test_rows_without_any_label_are_left_alone() -> None:
    part = part_of(["a", "b"], ["-1", "-1"])
    assert rows_with_known_labels(part, LABELS, "the model", skip=False) is part


@pytest.mark.parametrize("task", [CLASSES, SCORE])
def test_validation_is_a_share_of_each_class_and_equal_texts_stay_together(task: str) -> None:
    texts = [f"text {number % 80}" for number in range(120)]  # 40 texts are there twice
    labels = ["x" if number % 80 < 60 else "y" for number in range(120)]
    notes: list[str] = []
    parts = hold_out_validation({"train": part_of(texts, labels)}, task, DataSettings(validation_share=0.25), notes)
    train, validation = parts["train"], parts["validation"]
    assert (train.rows ^ validation.rows).all(), "every row is in one of them"
    assert not {*train.keys.tolist()} & {*validation.keys.tolist()}
    assert len(np.unique(validation.keys)) == 20
    if task == CLASSES:
        assert len({text for text, cut, label in zip(texts, validation.rows, labels, strict=True) if cut and label == "y"}) == 5
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("classes", "rows", "held_out"),
    [(2, 20, 2), (2, 10, 2), (10, 20, 10), (50, 150, 30), (2000, 6000, 1200), (2000, 20_000, 2000), (2, 1000, 100)],
)
def test_small_classes_do_not_empty_the_training_rows(classes: int, rows: int, held_out: int) -> None:
    """One row of each class is held out, unless that is more than twice the share."""
    part = part_of([f"text {row}" for row in range(rows)], [f"c{row % classes}" for row in range(rows)])
    found = hold_out_validation({"train": part}, CLASSES, DataSettings(), [])
    assert int(found["validation"].rows.sum()) == held_out
    assert len(np.unique(part.survey.found.codes[found["train"].rows])) == classes, "each class can be learned"


def test_one_text_cannot_be_divided(refused) -> None:
    problem = "d.csv: too few different texts to hold out a validation split (equal texts stay on the same side)"
    with refused(problem, "add rows, add a validation split, or use --validation_share 0 for none"):
        hold_out_validation({"train": part_of(["a"] * 9, ["x"] * 9)}, CLASSES, DataSettings(), [])


@pytest.mark.parametrize("task", [CLASSES, SCORE])
def test_folds_are_disjoint_and_complete_and_equal_texts_stay_together(task: str) -> None:
    texts = [f"text {number % 80}" for number in range(120)]
    labels = ["x" if number % 80 < 60 else "y" for number in range(120)]
    found, notes = [], list[str]()
    for number in range(1, 5):
        parts = hold_out_fold({"train": part_of(texts, labels)}, task, DataSettings(selection_fold=f"{number}/4"), notes)
        assert [*parts] == ["train", "selection"]
        assert (parts["train"].rows ^ parts["selection"].rows).all()
        assert not {*parts["train"].keys.tolist()} & {*parts["selection"].keys.tolist()}
        found.append(parts["selection"])
        if task == CLASSES:
            assert (
                len({text for text, cut, label in zip(texts, found[-1].rows, labels, strict=True) if cut and label == "y"}) == 5
            )
    assert np.sum([part.rows for part in found], axis=0).tolist() == [1] * 120, "every row is in one fold"
    assert notes[1] == f"selection: fold 2 of 4, {found[1].rows.sum()} of 120 training rows (split_seed 42)"


def test_a_fold_keeps_rows_that_were_held_out_before_apart() -> None:
    parts = hold_out_validation(
        {"train": part_of([f"t {row}" for row in range(50)], ["x", "y"] * 25)}, CLASSES, DataSettings(), []
    )
    found = hold_out_fold(parts, CLASSES, DataSettings(selection_fold="1/5"), [])
    assert [*found] == ["train", "selection", "validation"]
    assert sum(part.rows.astype(int) for part in found.values()).tolist() == [1] * 50


def test_too_few_texts_for_the_folds(refused) -> None:
    part = part_of(["a", "b", "c", "a"], ["x", "y", "x", "x"])
    with refused("d.csv: 3 different training texts are too few for 5 folds", "add rows, or use fewer folds"):
        hold_out_fold({"train": part}, CLASSES, DataSettings(selection_fold="2/5"), [])
