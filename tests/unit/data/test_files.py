"""The rows of a file to predict. Its errors are tested with the predictor, in test_predictor.py."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from glassloop.data.readers import BadRows, SpooledSplit
from glassloop.data.sources import FileSource, FileSplit, files_by_split
from glassloop.predict.files import FileJob, checked_rows
from glassloop.settings.training import CLASSES, DataSettings


def test_texts_are_joined_and_the_columns_stay(write):
    path = write("d.csv", "title,body\na,b\nc,\n")
    (rows,) = checked_rows(FileJob(path, path, ("title,body",), DataSettings(), CLASSES, (), ()), BadRows())
    assert rows.texts == [["a\nb", "c"]]
    assert (rows.first, rows.table.column_names) == (2, ["title", "body"])


def test_a_missing_part_of_a_joined_text_is_named(write, refused):
    path = write("d.csv", "title,label\na,b\n")
    with refused('d.csv: there is no column "body"; found title, label', "name the columns with --text and --text_pair"):
        [*checked_rows(FileJob(path, path, ("title,body",), DataSettings(), CLASSES, (), ()), BadRows())]


def test_rows_after_skipped_ones_keep_their_numbers(write, refused):
    path = write("d.csv", "text,n\na,1\nb\nc,2\n,3\n")
    with refused("d.csv, row 5: the text is empty", "fill or remove the row"):
        [*checked_rows(FileJob(path, path, ("text",), DataSettings(), CLASSES, (), ()), BadRows(skip=True))]


def test_a_file_without_a_header(write):
    path = write("d.tsv.gz", "good\t5\nbad\t1\n")
    (rows,) = checked_rows(FileJob(path, path, ("text",), DataSettings(columns="text,stars"), CLASSES, (), ()), BadRows())
    assert (rows.first, rows.texts) == (1, [["good", "bad"]])


# --- Files as a source: which file is which split, rows named by their file, and a key that changes with the content.


def test_rows_are_named_by_their_file_and_their_number_there(write, tmp_path: Path) -> None:
    paths = [write("train-0.csv", "text,label\na,x\nb,y\n"), write("train-1.csv", "text,label\nc,x\n")]
    split = FileSplit(paths, DataSettings(), tmp_path / "spool")
    assert [row["text"] for table in split.tables() for row in table.to_pylist()] == ["a", "b", "c"]
    assert [split.row_name(row) for row in range(3)] == ["train-0.csv, row 2", "train-0.csv, row 3", "train-1.csv, row 2"]
    assert (split.source, split.num_rows, split.notes) == ("train-0.csv, train-1.csv", 3, ())


def test_the_key_changes_with_the_content_and_not_with_the_place(write) -> None:
    path, copy = write("a.csv", "text,label\na,x\n"), write("b/a.csv", "text,label\na,x\n")
    keys = [FileSource({"train": [file]}, DataSettings()).key() for file in (path, copy)]
    assert keys[0] == keys[1]
    copy.write_text("text,label\na,y\n")
    assert FileSource({"train": [copy]}, DataSettings()).key() != keys[0]


@pytest.mark.parametrize("name", ["dev", "val", "valid", "eval", "Validation"])
def test_splits_are_known_by_all_their_usual_names(name: str, write) -> None:
    for split in ("test", name, "training"):
        path = write(f"data/{split}.csv", "text,label\na,x\n")
    assert [*files_by_split(path.parent)] == ["train", "validation", "test"]


def test_the_parts_of_a_split_are_read_in_their_order(write) -> None:
    for part in ("00001", "00000"):
        path = write(f"data/train-{part}-of-00002.csv", "text,label\na,x\n")
    names = [path.name for path in files_by_split(path.parent)["train"]]
    assert names == ["train-00000-of-00002.csv", "train-00001-of-00002.csv"]


# --- Rows read once and given as often as asked for; tables that do not fit together are refused.


def spooled(parts: list[pa.Table], path: Path) -> SpooledSplit:
    return SpooledSplit(path, "data.csv", parts)


def test_rows_are_read_once_and_given_as_often_as_asked_for(tmp_path: Path) -> None:
    parts = [pa.table({"text": ["a", "b"], "label": ["x", "y"]}), pa.table({"label": ["z"], "text": ["c"]})]
    split = spooled(parts, tmp_path / "train")
    for _ in range(2):
        assert [row["text"] + row["label"] for table in split.tables() for row in table.to_pylist()] == ["ax", "by", "cz"]


def test_rows_are_counted_and_named(tmp_path: Path) -> None:
    split = spooled([pa.table({"text": ["a", "b"]}), pa.table({"text": ["c"]})], tmp_path / "train")
    assert (split.num_rows, split.row_name(2), split.notes) == (3, "data.csv, row 3", ())


def test_no_rows_are_no_tables(tmp_path: Path) -> None:
    assert [*spooled([], tmp_path / "train").tables()] == []


def test_tables_of_other_columns_are_refused(tmp_path: Path, refused) -> None:
    parts = [pa.table({"text": ["a"], "label": ["x"]}), pa.table({"text": ["b"], "label": [1]})]
    with refused(
        "train: the columns are not the same in all rows: text (string), label (string) and text (string), label (int64)",
        "give all rows the same columns and types of values",
    ):
        spooled(parts, tmp_path / "train")
