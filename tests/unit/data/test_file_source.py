"""Files as a source: which file is which split, rows named by their file, and a key that changes with the content."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.data.files import FileSource, FileSplit, files_by_split
from glassloop.settings.fields import DataSettings


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
