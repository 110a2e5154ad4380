"""Rows that are written: every cell comes back through our reader, and no spreadsheet runs one."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from glassloop.base.errors import DataError, SettingsError
from glassloop.data.readers import read_file
from glassloop.data.writers import plain, refuse_for_tsv, refuse_target, row_writer, table_cell, written_table

TRICKY = [
    *('a "quoted" word', '"', '""', '"open', "it's", "'", "''", "a,b;c|d", "\\t and \\n written out", "back\\slash\\"),
    *("=1+1", "+1", "-1", "@sum", "'=1+1", "''=1", "'text", "#N/A", "NA", "null", "nan", "true", "007", "1e5"),
    *(" blanks around ", "Ü 漢 😀", "\u200f\u202eright to left", "\x0b\x0c\x1c\x85\u2028\u2029", "\ufeffmark", "<script>"),
    "\x1b[31m",
]
ONLY_QUOTED = ["tab\there", "line\nend", "line\r\nend", "\r", "\n", "\tfirst", "last\n"]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as opened:
        write = row_writer(opened, path.suffix, [*rows[0]])
        for row in rows:
            write(row)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [row for table in read_file(path) for row in table.to_pylist()]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_every_cell_comes_back_through_our_reader(suffix: str, tmp_path: Path) -> None:
    cells = TRICKY if suffix == ".tsv" else TRICKY + ONLY_QUOTED
    for last in ("prediction", "score_a"):
        rows = [{"id": str(n), "text": cell, "=name": cell, "prediction": cell, last: cell} for n, cell in enumerate(cells)]
        assert read_rows(write_rows(tmp_path / f"out{suffix}", rows)) == rows


def test_a_cell_of_a_table_a_date_and_what_json_cannot_hold() -> None:
    for cell, written in [
        *[(cell, cell) for cell in ("+1", "-1", "-5 degrees", "- 5 degrees, it's cold", "+49 170 1234567", "-1,234.50 %")],
        *[(cell, cell) for cell in ("-.5e-3", "'-5 degrees", "'quoted'", "good = bad", "")],
        *[(cell, f"'{cell}") for cell in ("=cmd()", "-5+2", "-5 +cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "+A1")],
        *[(cell, f"'{cell}") for cell in ("-sum(1)", "-5 sum(1)", "- bad", "--", "@sum", "\t=1", "\r=1", "'=1")],
        *[(None, ""), (-0.5, "-0.5"), (True, "true"), (float("nan"), ""), (float("inf"), "inf")],
        *[(["a", "b"], "a|b"), (["=a", "b"], "'=a|b"), (["-1", "+1"], "'-1|+1"), ([], ""), (["a|b", "c"], '["a|b", "c"]')],
        *[({"a": [1, None]}, '{"a": [1, null]}'), (datetime.date(2026, 2, 3), "2026-02-03"), (decimal.Decimal("1.10"), "1.10")],
    ]:
        assert table_cell(cell) == written
    columns = {
        "date": ([datetime.date(2026, 2, 3), None], pa.date32(), "2026-02-03"),
        "stamp": ([1, None], pa.timestamp("ns"), "1970-01-01 00:00:00.000000001"),
        "zone": ([0, 1], pa.timestamp("s", "UTC"), "1970-01-01 00:00:00Z"),
        "time": ([3661, None], pa.time32("s"), "01:01:01"),
        "long": ([5, None], pa.duration("s"), "0:00:05"),
        "number": ([1.5, float("nan")], pa.float64(), 1.5),
    }
    table = pa.table({name: pa.array(cells, kind) for name, (cells, kind, _) in columns.items()})
    first, second = (plain(row) for row in written_table(table, "rows.parquet").to_pylist())
    assert first == {name: text for name, (_, _, text) in columns.items()}
    assert second == dict.fromkeys(columns) | {"zone": "1970-01-01 00:00:01Z"}
    value = {"a": float("nan"), "b": [float("-inf"), 1.5], "c": datetime.datetime(2026, 2, 3, 4, 5), "d": True}
    assert plain(value) == {"a": None, "b": ["-inf", 1.5], "c": "2026-02-03 04:05:00", "d": True}
    assert json.loads(json.dumps(plain(value), allow_nan=False))


KINDS = [pa.array([b"ab"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(2))]
INSIDE = [pa.array([cell]) for cell in ([b"ab"], {"bytes": b"ab", "path": "a.png"}, [{"parts": [b"ab"]}])]


@pytest.mark.parametrize("sign", ["\t", "\n", "\r"], ids=ascii)
@pytest.mark.parametrize("kind", ["text", "large", "dictionary", "list", "struct"])
def test_a_tsv_file_cannot_hold_tabs_and_line_ends(says, sign: str, kind: str) -> None:
    cell = f"a{sign}b"
    columns = {
        "text": pa.array(["x", cell]),
        "large": pa.array(["x", cell], pa.large_string()),
        "dictionary": pa.array(["x", cell]).dictionary_encode(),
        "list": pa.array([["x"], [cell]]),
        "struct": pa.array([{"k": "x"}, {"k": cell}]),
    }
    table = pa.table({"id": [1, 2], "other": columns[kind]})
    if kind == "struct":  # written as JSON, where they are escaped
        return refuse_for_tsv(table, 2, "rows.csv", [])
    problem = 'rows.csv, row 3: "other" contains a tab or a line end, which a .tsv file cannot contain'
    with says(problem, "write a .csv or .jsonl file instead: --out", DataError):
        refuse_for_tsv(table, 2, "rows.csv", [])
    refuse_for_tsv(table.slice(0, 1), 2, "rows.csv", [])
    with pytest.raises(DataError, match=re.escape(r'the column name "score_a\tb" contains a tab or a line end')):
        refuse_for_tsv(table.slice(0, 1), 2, "rows.csv", ["score_a\tb"])


def test_where_rows_may_be_written_and_that_bytes_are_no_text(says, tmp_path: Path) -> None:
    (tmp_path / "there.csv").touch()
    (tmp_path / "folder.csv").mkdir()
    for name in ("new.csv", "new.tsv", "NEW.JSONL", "there.csv", "new/folder/x.csv"):
        refuse_target(tmp_path / name)
    folder = tmp_path / "folder.csv"
    with says(f"{folder} is a folder", f"choose a file, for example {folder / 'predictions.csv'}"):
        refuse_target(folder)
    with says("out.xlsx: predictions are written as .csv, .tsv or .jsonl", "choose a name with one of these endings"):
        refuse_target(tmp_path / "out.xlsx")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(SettingsError, match="is not a file"):
        refuse_target(tmp_path / "pipe.csv")
    path = tmp_path / "tweets.csv"
    path.write_text("""text,prediction,note\n'@you wrote this',a,'=1\n""")
    assert read_rows(path) == [{"text": "'@you wrote this'", "prediction": "a", "note": "'=1"}]
    problem = 'rows.parquet: column "image" contains bytes, which cannot be written as text'
    for cells in [*KINDS, *INSIDE]:
        with says(problem, "remove the column", DataError):
            written_table(pa.table({"text": ["a"], "image": cells}), "rows.parquet")
