"""Arrow tables of others: wrong bytes and offsets are refused, texts become plain strings, strange kinds are recognised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Value

from glassloop.base.errors import DataError
from glassloop.data.faults import sound, storable
from glassloop.data.sources import load_examples

TEXTS = [f"text {number}" for number in range(12)]
LABELS = ["ab"[number % 2] for number in range(12)]


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path_factory.mktemp("cache")))


def strings(data: bytes, offsets: list[int]) -> pa.Array:
    """Strings over any bytes, as a damaged file holds them."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (strings(b"ab\xff\xfe", [0, 2, 4]), "Invalid UTF8 sequence at string index 1"),
        (strings(b"abcd", [0, 3, 2]), "Offset invariant failure"),
        (strings(b"abcdef", [0, 9, 4]), "Offset"),
    ],
    ids=["bytes", "order", "beyond the end"],
)
def test_damage_is_refused(cells: pa.Array, problem: str) -> None:
    with pytest.raises(DataError) as raised:
        sound(pa.table({"text": cells}), "train")
    assert raised.value.problem.startswith("train: the rows are damaged: ")
    assert problem in raised.value.problem
    assert raised.value.remedy == "write the data again"


@pytest.mark.parametrize(
    "kind",
    [pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())],
    ids=str,
)
def test_texts_of_every_kind_are_read(kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(TEXTS).cast(kind), "label": pa.array(LABELS).cast(kind)})
    assert sound(table, "train").schema.types == [pa.string(), pa.string()]
    pq.write_table(table, tmp_path / "d.parquet")
    assert load_examples(tmp_path / "d.parquet", validation_share=0).splits["train"]["text"][:] == TEXTS


def test_a_damaged_parquet_column_is_refused(tmp_path: Path, refused) -> None:
    bad = pa.concat_arrays([pa.array(LABELS), strings(b"ab\xff\xfe", [0, 2, 4])])
    pq.write_table(pa.table({"text": [*TEXTS, "x", "y"], "label": bad}), tmp_path / "d.parquet")
    problem = "d.parquet: the rows are damaged: Column 1: In chunk 0: Invalid: Invalid UTF8 sequence at string index 13"
    with refused(problem, "write the data again"):
        load_examples(tmp_path / "d.parquet")


def test_columns_that_datasets_does_not_know_are_dropped_with_a_note(tmp_path: Path) -> None:
    keys = pa.array([b"0123456789abcdef"] * 12, pa.binary(16))
    pairs = pa.array([[("a", 1)]] * 12, pa.map_(pa.string(), pa.int64()))
    table = pa.table({"text": TEXTS, "pairs": pairs, "label": LABELS, "key": keys, "id": range(12)})
    pq.write_table(table, tmp_path / "d.parquet")
    found = load_examples(tmp_path / "d.parquet")
    assert {"text", "label", "id"} <= {*found.splits["train"].column_names} <= {"text", "label", "id", "key"}
    (note,) = [note for note in found.notes if note.startswith("dropped columns whose type datasets does not support: ")]
    assert "pairs (map<" in note
    assert storable(pa.string())
    assert not storable(pairs.type)


@pytest.mark.parametrize("cells", [[{"x": 1}] * 12, [[["a"]], [["b"]]] * 6], ids=["objects", "lists of lists"])
def test_labels_of_a_kind_that_cannot_be_labels(cells: list, tmp_path: Path, refused) -> None:
    table = pa.table({"text": TEXTS, "label": cells})
    pq.write_table(table, tmp_path / "d.parquet")
    kind = pq.read_schema(tmp_path / "d.parquet").field("label").type
    with refused(
        f'd.parquet: column "label" has the type {kind}, which cannot be a label', "name the label column with --label"
    ):
        load_examples(tmp_path / "d.parquet")


@pytest.mark.parametrize("number", [2, 5])
def test_a_label_number_without_a_name_is_refused(number: int, refused) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    plain = Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 5 + [0, number]})
    data = Dataset(plain.data, info=DatasetInfo(features=features))
    with refused(
        f'train: column "label" contains label {number}, but only 2 labels have names',
        "give every number a name in the features, or cast the column to numbers",
    ):
        load_examples(data)


DAMAGES = {
    "state.json": ["null", "[]", "1", "{}", '{"_data_files": 3}'],
    "dataset_info.json": ["null", "[]", '{"features": 3}', "{"],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, each in DAMAGES.items() for content in each])
def test_a_damaged_saved_data_set_is_one_error(name: str, content: str, tmp_path: Path) -> None:
    Dataset.from_dict({"text": TEXTS, "label": LABELS}).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / name).write_text(content)
    with pytest.raises(DataError, match="the saved data set cannot be read: ") as raised:
        load_examples(tmp_path / "saved")
    assert raised.value.remedy == "save it again with save_to_disk"
