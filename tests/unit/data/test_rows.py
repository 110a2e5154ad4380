"""Rows as their user formatted them: chosen columns, transforms, and what stays fast."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from glassloop.base.errors import DataError, SettingsError
from glassloop.data import rows as row_reading
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.rows import Repeats, RowReader, content_of, global_states, labels_in, refuse_labels, repeats_of
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

ROWS = Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [0, 1], "text": ["a", "b"]})


def shouted(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"input_ids": [[number + 10 for number in ids] for ids in batch["input_ids"]]}


def test_a_format_that_changes_no_value_is_read_as_arrow_and_others_row_by_row() -> None:
    for rows, columns in [
        (ROWS, ["input_ids", "labels", "text"]),
        (ROWS.with_format("torch"), ["input_ids", "labels", "text"]),
        (ROWS.with_format("numpy", columns=["input_ids"]), ["input_ids"]),
        (ROWS.with_format(columns=["labels", "input_ids"]), ["labels", "input_ids"]),
        (ROWS.with_format("torch", columns=["input_ids"], output_all_columns=True), ["input_ids", "labels", "text"]),
    ]:
        assert {*row_reading.chosen_columns(rows)} == {*columns}
        table = row_reading.arrow_rows(rows)[:]
        assert {*table.column_names} == {*columns}
        assert table["input_ids"].to_pylist() == [[1, 2], [3]]
    for rows in [ROWS.to_list(), ROWS.with_transform(shouted), ROWS.with_format("torch", dtype="float16")]:
        assert row_reading.arrow_rows(rows) is None


def test_columns_that_are_not_taken_are_dropped_unless_a_transform_reads_them(says) -> None:
    taken = {"input_ids", "labels"}
    rows, unused = row_reading.known_columns(ROWS, taken)
    assert (rows.column_names, unused) == (["input_ids", "labels"], ["text"])
    rows, unused = row_reading.known_columns(ROWS.with_format("torch", columns=["input_ids"]), taken)
    assert ([*rows[0]], unused) == (["input_ids"], [])
    transformed = ROWS.with_transform(shouted)
    assert row_reading.known_columns(transformed, taken) == (transformed, [])
    assert row_reading.known_columns([{"a": 1}], taken) == ([{"a": 1}], [])
    with says("the Trainer has no train_dataset", "pass train_dataset="):
        row_reading.refuse_unreadable(None, "train_dataset")
    with says("the data set has no rows"):
        row_reading.refuse_unreadable([], "train_dataset")
    with says("a list_iterator does not support len() and [number], so its order cannot be repeated"):
        row_reading.refuse_unreadable(iter([]), "train_dataset")


# --- The labels of rows that a Trainer gets: found under their usual names in any form, and refused if they do not fit.
IDS = [[1, 2], [3], [4, 5], [6]]


@pytest.mark.parametrize("key", ["labels", "label", "label_ids"])
@pytest.mark.parametrize("cells", [[0, 2, 1, 0], [0.5, 2.0, -1.0, 0.0], [[1, 0], [0, 1], [1, 1], [0, 0]]], ids=str)
def test_labels_are_found_in_every_form_of_rows(key: str, cells: list[Any]) -> None:
    rows = Dataset.from_dict({"input_ids": IDS, key: cells})
    for form in (rows, rows.with_format("torch"), rows.to_list()):
        found = labels_in(form)
        assert found.tolist() == cells
        assert found.dtype == (np.float32 if isinstance(cells[0], float) else np.int64)


def test_labels_may_be_missing_and_must_agree_and_be_numbers(refused) -> None:
    assert labels_in(None) is None
    assert labels_in(Dataset.from_dict({"input_ids": IDS})) is None
    assert labels_in([{"input_ids": [1]}]) is None
    assert labels_in([(1, 2)]) is None, "rows of another kind are left to the collator"
    columns = {"label": [0, 1, 1], "labels": [0, 1, 0]}
    assert row_reading.labels_among({"label": [0, 1], "labels": [0, 1]}).tolist() == [0, 1]
    with refused('"labels" and "label" have different values (0 and 1)', "remove the column that is not the label"):
        row_reading.labels_among(columns)
    with refused("the labels have the type <U3, which is not a number", "use whole numbers, or set problem_type"):
        row_reading.labels_among({"labels": ["yes", "no"]})
    # `load_dataset` gives all splits the columns of the first one.
    unknown = Dataset.from_dict({"input_ids": IDS, "label": [None] * 4})
    assert row_reading.without_missing_labels(unknown).column_names == ["input_ids"]
    partly = Dataset.from_dict({"input_ids": IDS, "label": [None, 1, 0, 1]})
    assert row_reading.without_missing_labels(partly) is partly


# --- the task of a model -----------------------------------------------------------------------------------------
def config_with(num_labels: int, problem_type: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(num_labels=num_labels, problem_type=problem_type)


def batches_with(cells: list[Any], tokenizer: Any) -> Batches:
    return Batches(Dataset.from_dict({"input_ids": IDS[: len(cells)], "labels": cells}), PaddingCollator(tokenizer), 2)


def test_a_task_is_inferred_left_as_it_is_or_does_not_fit_the_labels(tiny_tokenizer, says) -> None:
    config, said = config_with(3), []
    row_reading.infer_task(config, batches_with([[0.0, 1.0, 1.0]] * 2, tiny_tokenizer).first_labels, said.append)
    assert config.problem_type == SEVERAL
    assert said == [f"each row has one number for each of the 3 labels: training as {SEVERAL}"]
    for num_labels, task in [(2, None), (2, CLASSES), (1, None), (1, SCORE), (2, SEVERAL)]:
        config, cells = config_with(num_labels, task), [1, 0] if num_labels > 1 else [0.5, 1.5]
        row_reading.infer_task(config, batches_with(cells, tiny_tokenizer).first_labels, pytest.fail)
        assert config.problem_type == task
    for num_labels, task, cells, problem in [
        (1, None, [[0.5]], "the score of a row is a list of length 1"),
        (2, SCORE, [[0.5, 1.0]], "the score of a row is a list of length 2"),
        (2, None, [0.5], "the labels have the type float32, but classes are whole numbers"),
        (2, None, [[0, 1, 1]], "the label of a row has 3 numbers, but the model has 2 labels"),
        (3, CLASSES, [[0, 1, 1]], f"the label of a row has 3 numbers, but problem_type is {CLASSES}"),
    ]:
        with says(problem, None, DataError):
            row_reading.infer_task(config_with(num_labels, task), batches_with(cells, tiny_tokenizer).first_labels, pytest.fail)


def test_labels_of_training_rows_are_needed_and_must_be_classes(refused) -> None:
    rows = Dataset.from_dict({"input_ids": IDS, "labels": [0, 1, 2, 1]})
    refuse_labels(rows, CLASSES, 3, needed=True)
    remedy = "fix the labels, or remove the label column if the labels are unknown"
    with refused("row 2 (from 0) has the label 2; the model has 0 to 1", remedy):
        refuse_labels(rows, CLASSES, 2, needed=True)
    fractions = Dataset.from_dict({"input_ids": IDS, "labels": [0.0, None, 1.0, 1.0]})
    with refused("the labels have the type float32, but classes are whole numbers", "use whole numbers, or set problem_type"):
        refuse_labels(fractions, CLASSES, 2, needed=True)
    rows = Dataset.from_dict({"input_ids": IDS})
    refuse_labels(rows, CLASSES, 2, needed=False)
    with refused("the training rows have no labels", "name their column one of labels, label, label_ids", SettingsError):
        refuse_labels(rows, CLASSES, 2, needed=True)


# --- Rows that differ between reads are found out, and whose random numbers they draw; nothing is drawn by finding out.
FIXED = [{"input_ids": [1, 2, number], "labels": 0} for number in range(50)]
generators = random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)
counter = iter(range(10**6))


class Rows:
    """Rows that a function makes, and the numbers of those that were read."""

    def __init__(self, make: Callable[[int], Any], number: int = 6) -> None:
        self.make, self.number, self.read = make, number, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return self.make(row)


CASES: dict[str, tuple[Any, Repeats]] = {
    "fixed": (lambda number: number, Repeats.SAME),
    "python's": (lambda number: random.random(), Repeats.GLOBAL),
    "numpy's": (lambda number: np.random.rand(), Repeats.GLOBAL),
    "torch's": (lambda number: torch.rand(()).item(), Repeats.GLOBAL),
    "drawn, and rarely used": (lambda number: int(random.random() < 1e-9), Repeats.GLOBAL),
    "python's own": (lambda number: generators[0].random(), Repeats.OWN),
    "numpy's own": (lambda number: generators[1].random(), Repeats.OWN),
    "torch's own": (lambda number: torch.rand((), generator=generators[2]).item(), Repeats.OWN),
    "both": (lambda number: random.random() + generators[0].random(), Repeats.OWN),
    "counted": (lambda number: next(counter), Repeats.OWN),
    "rarely another": (lambda number: int(generators[0].random() < 0.1), Repeats.OWN),
}


@pytest.mark.parametrize("case", CASES)
def test_whose_random_numbers_rows_draw(case: str) -> None:
    make, expected = CASES[case]
    before = global_states()
    rows = Rows(lambda number: {"input_ids": np.array([1, 2, make(number)]), "labels": torch.tensor(0)}, 50)
    assert repeats_of(rows) is expected
    assert global_states() == before


def test_rows_in_memory_and_in_files_are_not_read() -> None:
    class Unread(list[Any]):
        def __getitem__(self, number: Any) -> Any:
            pytest.fail("read")

    assert repeats_of(Unread(FIXED)) is Repeats.SAME
    table = Dataset.from_list(FIXED)
    assert repeats_of(table) is repeats_of(table.with_format("torch", columns=["input_ids"])) is Repeats.SAME
    drawn = table.with_transform(lambda batch: {"input_ids": [[random.random()] for _ in batch["input_ids"]]})
    assert repeats_of(drawn) is Repeats.GLOBAL
    assert repeats_of(table.with_transform(lambda batch: batch)) is Repeats.SAME


def test_a_collator_is_called_on_the_same_rows() -> None:
    def emptied(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {"labels": torch.tensor([row.pop("labels") for row in rows])}

    rows = [dict(row) for row in FIXED[:4]]
    assert row_reading.collator_repeats(emptied, rows) is Repeats.SAME
    assert rows == FIXED[:4]
    assert row_reading.collator_repeats(lambda rows: {"x": torch.rand(3)}, rows) is Repeats.GLOBAL
    assert row_reading.collator_repeats(lambda rows: {"x": torch.rand(3, generator=generators[2])}, rows) is Repeats.OWN
    kinds = ([1, 2], np.array([1, 2], dtype=np.int8), torch.tensor([1, 2]))
    assert len({content_of({"b": 1, "a": cells}) for cells in kinds}) == 1
    assert content_of({"a": [1, 2]}) != content_of({"a": [1, 3]})
    assert content_of((torch.tensor([1]), 2)) == content_of(([1], 2))
    before = global_states()
    with pytest.raises(ZeroDivisionError):
        row_reading.repeats(lambda: random.random() / 0)
    assert global_states() == before


def tokens(row: int) -> dict[str, Any]:
    ones = [1] * (1 + row)
    return {"input_ids": ones, "attention_mask": [*ones], "labels": row % 2, "idx": row, "text": f"row {row}"}


def test_columns_that_are_not_taken_are_dropped_and_named_and_rows_of_any_kind_have_hashes() -> None:
    said: list[list[str]] = []
    reader = RowReader(Rows(tokens), {"input_ids", "labels"}, said.append)
    assert [*reader[0]] == [*reader.look(1)] == ["input_ids", "labels"]
    assert said[0] == ["attention_mask", "idx", "text"]
    assert [*RowReader([tokens(0)], None)[0]] == [*tokens(0)]
    assert RowReader(Rows(lambda row: (row, row)), {"input_ids"})[2] == (2, 2), "rows of another kind stay as they are"
    kinds = [
        lambda row: (row, [1]),
        lambda row: SimpleNamespace(ids=[row]),
        lambda row: row,
        lambda row: {"a": [[row], [1, 2]]},
    ]
    for make in kinds:
        hashes = RowReader(Rows(make)).row_hashes()
        assert len({*hashes.tolist()}) == 6
        assert 0 not in hashes
        assert np.array_equal(hashes, RowReader(Rows(make)).row_hashes())


def test_a_row_that_was_read_ahead_is_not_read_again_and_only_as_many_are_kept_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(tokens)
    reader = RowReader(rows)
    assert reader.repeats is Repeats.SAME
    rows.read.clear()
    assert reader.lengths(seed=3).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(reader.row_hashes(), RowReader([tokens(row) for row in range(6)]).row_hashes())
    assert [reader[row]["idx"] for row in (4, 2)] == [4, 2]
    assert rows.read == [0, 1, 2, 3, 4, 5]
    reader[4]
    assert rows.read[6:] == [4], "a row is kept for one batch"
    reader.release()
    reader[0]
    assert rows.read[7:] == [0]
    reader = RowReader(Rows(lambda row: {"input_ids": [row, 9], "attention_mask": [row > 0, 1], "text": "a b", "other": 1}))
    reader[1]
    assert (reader.words, reader.hides_inside, [*reader.noted]) == ({1, 9}, False, [1])
    assert [*reader.noted[1]] == ["input_ids", "attention_mask", "text"]
    reader[0]
    assert reader.hides_inside
    monkeypatch.setattr(row_reading, "MOST_AHEAD", 0)
    rows = Rows(tokens)
    reader = RowReader(rows)
    repeats_of(reader)
    rows.read.clear()
    reader.survey()
    reader.survey()
    assert [reader[row]["idx"] for row in range(6)] == [*range(6)]
    assert rows.read == [*range(6)] * 2


def test_random_rows_are_kept_for_an_evaluation_only() -> None:
    rows = Rows(lambda row: {"input_ids": torch.randint(9, (3,))})
    reader = RowReader(rows)
    assert reader.repeats is Repeats.GLOBAL
    rows.read.clear()
    assert reader.lengths(seed=1).tolist() == [3] * 6
    assert not torch.equal(reader.look(2)["input_ids"], reader[2]["input_ids"])
    assert rows.read == [0, 1, 2, 3, 4, 5, 2, 2]
    rows = Rows(lambda row: {"input_ids": torch.randint(9, (3 + row,))})
    reader = RowReader(rows)
    for _ in range(2):
        rows.read.clear()
        assert reader.lengths(None).tolist() == [3, 4, 5, 6, 7, 8]
        assert [len(reader[row]["input_ids"]) for row in (5, 0, 1, 2, 3, 4)] == [8, 3, 4, 5, 6, 7]
        assert rows.read == [*range(6)]
