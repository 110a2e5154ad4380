"""Rows as their user formatted them: chosen columns, transforms, and what stays fast; and rows of Arrow files."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from glassloop.base.errors import DataError, SettingsError
from glassloop.data import rows as row_reading
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.rows import (
    ArrowRows,
    Repeats,
    RowReader,
    arrow_array,
    arrow_rows,
    content_of,
    global_states,
    labels_in,
    lengths_of,
    numbers_of,
    refuse_labels,
    repeats_of,
)
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


# --- The rows of an Arrow file are those that `datasets` reads from it, whatever they hold and however they are asked for.
TEXTS = ["a", "", "é 😀", "x" * 300, "\n", "b", "c", "d", "e"]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "classes": (pa.int64(), [0, 1, 2, 1, 0, -1, 1, 2, 0]),
    "several labels": (pa.list_(pa.int64()), [[0], [], [1, 2], [0, 1, 2], [], [], [2], [1], [0]]),
    "scores": (pa.float32(), [0.5, -1.0, 3.25, 0.0, 1e30, 2.0, 1.0, 0.1, 0.2]),
    "missing labels": (pa.int64(), [0, None, 1, 1, None, 0, 0, 1, 1]),
    "nothing": (pa.int64(), [None] * 9),
}


def arrow_file(path: Path, columns: dict[str, pa.Array], batch: int = 4) -> Path:
    table = pa.table(columns)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


@pytest.fixture(params=KINDS)
def pairs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ArrowRows, Dataset]:
    kind, labels = KINDS[request.param]
    ids = pa.array([[number] * number for number in range(9)], pa.list_(pa.int32()))
    when = pa.array([None, *range(8)], pa.timestamp("us"))
    pair = pa.array([None, *TEXTS[1:]])
    path = arrow_file(
        tmp_path / "rows.arrow",
        {"text": pa.array(TEXTS), "pair": pair, "ids": ids, "when": when, "label": pa.array(labels, kind)},
    )
    return ArrowRows(path), Dataset.from_file(str(path))


def views(rows: Any) -> list[Any]:
    """The same rows in other ways: chosen, in another order, twice, without columns."""
    chosen = rows.select([8, 0, 0, 5, 6, 7, 3])
    columns = rows.select_columns(["label", "text"])
    return [
        rows,
        chosen,
        chosen.select(range(1, 5)),
        columns,
        columns.select(np.array([4, 2])),
        chosen.remove_columns("ids"),
        rows.select([]),
    ]


SLICES = [slice(*part) for part in [(None,), (1, 4), (-3, None), (5, 1, -2), (None, None, 3), (3, 99), (2, 2)]]
NUMBERS = [0, 1, -1, np.int64(1), np.int32(-2)]
KEYS: list[Any] = [*NUMBERS, *SLICES, [1, 0, 1], [-1, 0], range(2), np.array([1, 0]), [], "text", "label"]


def test_rows_of_a_file_are_those_of_datasets(pairs: tuple[ArrowRows, Dataset]) -> None:
    for found, wanted in zip(*map(views, pairs), strict=True):
        assert len(found) == len(wanted)
        assert found.column_names == wanted.column_names
        assert [*found] == wanted.to_list()
        assert [*found.iter(2)] == [*wanted.iter(2)]
        for key in KEYS if len(wanted) else SLICES:
            known = (
                [number % len(wanted) for number in key] if isinstance(key, list) else key
            )  # datasets confuses negative ones
            answer = wanted[key][:] if isinstance(key, str) else wanted[known]
            assert found[key] == answer, key
            in_arrow, table = found.with_format("arrow")[key], wanted.with_format("arrow")[known]
            assert in_arrow.to_pylist() == (answer if isinstance(key, str) else table.to_pylist()), key
            assert isinstance(key, str) or in_arrow.schema.types == table.schema.types
        converted = found.to_dataset("train")
        assert (converted.to_list(), converted.features, converted.split) == (wanted.to_list(), wanted.features, "train")
        assert found.map(lambda row: {"text": row["text"] * 2}).to_list() == [{**row, "text": row["text"] * 2} for row in found]
        assert [*copy.deepcopy(found)] == [*found], "a process of a DataLoader gets a copy"
        assert arrow_rows(found)[:].equals(arrow_rows(wanted)[:])


def test_wrong_numbers_and_names_of_rows_of_a_file(pairs: tuple[ArrowRows, Dataset]) -> None:
    for found, wanted in zip(*map(views, pairs), strict=True):
        for number in (len(wanted), -len(wanted) - 1):
            for key in (number, [0, number], np.int64(number)):
                for rows in (found, wanted):
                    with pytest.raises(IndexError):
                        rows[key]
        with pytest.raises(IndexError, match=f"there is no row {len(wanted)}, only {len(wanted)} rows"):
            found.select([len(wanted)])
        with pytest.raises(KeyError, match="there is no column"):
            found["absent"]
        assert found.with_format("torch", columns=["label"]).format["columns"] == ["label"]
    with pytest.raises(AttributeError, match="absent"):
        _ = pairs[0].absent


def test_a_file_without_rows(tmp_path: Path) -> None:
    for batch in (4, 1):
        rows = ArrowRows(arrow_file(tmp_path / f"{batch}.arrow", {"input_ids": pa.array([], pa.list_(pa.int32()))}, batch))
        assert (len(rows), [*rows], rows[:], rows["input_ids"], lengths_of(rows).tolist()) == (0, [], {"input_ids": []}, [], [])
        with pytest.raises(IndexError):
            rows[0]


def test_rows_of_a_file_are_not_read_whole(tmp_path: Path) -> None:
    numbers = pa.array(np.arange(1_000_000))
    rows = ArrowRows(arrow_file(tmp_path / "rows.arrow", {"number": numbers}, 10_000))
    before = pa.total_allocated_bytes()
    assert rows.select([999_999, 5, 500_000])["number"] == [999_999, 5, 500_000]
    assert rows[123_456] == {"number": 123_456}
    assert pa.total_allocated_bytes() - before < 100_000


# --- Arrow arrays made without pandas are those of pyarrow.
ARRAYS: list[tuple[Any, pa.DataType]] = [
    (TEXTS, pa.string()),
    (["a", None, "é"], pa.string()),
    ([None], pa.string()),
    ([["a", None, "é"], None, []], pa.list_(pa.string())),
    ([[1, 2], None, []], pa.list_(pa.int64())),
    ([[]], pa.list_(pa.int64())),
    ([1, None, -(2**62)], pa.int64()),
    ([0.1, None, 3e38], pa.float32()),
    (np.array([True, False, True] * 5), pa.bool_()),
    ([True, None, False], pa.bool_()),
    (np.arange(9, dtype=np.int32)[::2], pa.int32()),
    *([([], kind) for kind in (pa.string(), pa.list_(pa.string()), pa.int64(), pa.bool_())]),
]


@pytest.mark.parametrize(("cells", "kind"), ARRAYS, ids=str)
def test_an_array_and_its_numbers_are_those_of_pyarrow(cells: Any, kind: pa.DataType) -> None:
    found, wanted = arrow_array(cells, kind), pa.array(cells, kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.equals(wanted)
    for part in (found, found[1:], found[len(found) :]):
        numbers, expected = numbers_of(part), part.to_numpy(zero_copy_only=False)
        assert numbers.dtype == expected.dtype
        assert str(numbers.tolist()) == str(expected.tolist())


def test_texts_too_long_for_one_array_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "iinfo", lambda kind: SimpleNamespace(max=3))
    monkeypatch.setattr(pa, "array", lambda cells, kind: ("by pyarrow", cells, kind))
    assert arrow_array(["ab", "é"], pa.string()) == ("by pyarrow", ["ab", "é"], pa.string())
