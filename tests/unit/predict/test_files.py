"""The finished parts of a file of predictions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glassloop.base.errors import ResourceError
from glassloop.data.encoding import Counts, Truncation, TypedTokens
from glassloop.predict.files import Parts, content_key

COUNTS = Counts(2, Truncation(1, 1, 0, 5, 0, 30), TypedTokens(1, ("[SEP]",)))
ROWS = [{"text": "a, b", "prediction": "=x"}, {"text": "c\nd", "prediction": "y"}]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_parts_become_one_file(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    parts = Parts(target, ["x"], [*ROWS[0]], pa.schema([("text", pa.string()), ("prediction", pa.string())]))
    parts.open(alone=True)
    for number in (1, 0):
        parts.write(number, [{**row, "text": f"{number}{row['text']}"} for row in ROWS], COUNTS)
    assert parts.has(1)
    assert not parts.has(2)
    assert parts.counts(0) + parts.counts(1) == COUNTS + COUNTS
    parts.join(2)
    assert [*tmp_path.iterdir()] == [target]
    if suffix == ".parquet":
        assert [row["text"] for row in pq.read_table(target).to_pylist()] == ["0a, b", "0c\nd", "1a, b", "1c\nd"]
    elif suffix == ".csv":
        assert target.read_text() == 'text,prediction\n"0a, b",\'=x\n"0c\nd",y\n"1a, b",\'=x\n"1c\nd",y\n'
    else:
        assert len(target.read_text().splitlines()) == 4


def test_parts_of_other_inputs_are_removed_by_a_command_that_is_alone(tmp_path: Path) -> None:
    old, new = Parts(tmp_path / "out.csv", ["old"], []), Parts(tmp_path / "out.csv", ["new"], [])
    other = Parts(tmp_path / "another.csv", ["old"], [])
    for parts in (old, other):
        parts.open(alone=True)
    new.open(alone=False)
    assert old.folder.is_dir()
    new.open(alone=True)
    assert not old.folder.is_dir()
    assert new.folder.is_dir()
    assert other.folder.is_dir()


def test_a_folder_that_cannot_be_written_to(says, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with says(f"{tmp_path / 'file'}: Not a directory", "choose a folder that can be written to", ResourceError):
        Parts(tmp_path / "file" / "out.csv", [], []).open(alone=True)


def test_the_key_of_a_file_changes_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = content_key(tmp_path / "a")
    (tmp_path / "a").write_text("2")
    assert content_key(tmp_path / "a") != before
