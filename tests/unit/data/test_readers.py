"""Files as tables: the same rows from every format, no cell changed on the way, every fault named with its row."""

from __future__ import annotations

import builtins
import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from awkward_files import packed_zstd
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Value
from workbooks import xlsx, zipped

from glassloop.base.errors import DataError, SettingsError
from glassloop.data import readers
from glassloop.data.readers import SKIP, BadRows, cell_text, data_suffix, looks_like_data, read_file, suggested_names
from glassloop.data.sources import load_examples
from glassloop.settings.training import DataSettings

pytestmark = pytest.mark.usefixtures("fresh_cache")
RAGGED = "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter"
TWICE = "rename one of them, or replace all names: --header --columns NAME,NAME"
QUOTES = 'quote a text that contains ", and double the quotes in it ("")'
ONE_A_LINE, ARRAY = f"write one object per line; {SKIP}", "write one object per line, or one array of objects"
OBJECT = f'write {{"text": …, "label": …}}; {SKIP}'
SAME_KEYS = f"give every row the same keys; {SKIP}"
RENAME = f"rename a key, or use fewer levels; {SKIP}"
HALF, WHOLE = "which is half of a surrogate pair", "write the whole character, or remove it"
SAME_LENGTH = "give all columns the same number of rows"
COLUMN = "rename the column"
ONLY = "use text, a number or a list"
EMPTY = "check the path; a header and at least one row are needed"
ENCODINGS = "set the encoding of the file, for example --encoding cp1252 (Windows) or --encoding latin-1"


def rows_in(tables: Any) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def rows_of(path: Path, **settings: Any) -> list[dict[str, Any]]:
    return rows_in(read_file(path, DataSettings(**settings)))


@pytest.fixture
def chunks_of(monkeypatch):
    """`chunks_of(3)`: tables have at most three rows."""
    return lambda number: monkeypatch.setattr(readers, "CHUNK_ROWS", number)


# --- every format --------------------------------------------------------------------------------------------------
TEXTS = [*"plain|NA|null|nan|None|| blanks |007|1.0|👩‍👩‍👧 🇺🇳|שלום, עולם|مرحبا|ein „Satz“".split("|"), "a" * 1_000_000]
ROWS = [{"text": text, "label": str(place % 2)} for place, text in enumerate(TEXTS)]
QUOTED = [*ROWS, {"text": 'says "no", twice', "label": "0"}, {"text": "two\nlines\r\nor three", "label": "1"}]


def write_csv(path: Path, rows: list[dict[str, str]], **options: Any) -> None:
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as opened:
        writer = csv.DictWriter(opened, list(rows[0]), **options)
        writer.writeheader()
        writer.writerows(rows)


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_array(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def write_columns(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text(json.dumps({name: [row[name] for row in rows] for name in rows[0]}), encoding="utf-8")


def write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4)


FORMATS: dict[str, tuple[str, Callable[..., None], dict[str, Any]]] = {
    **{"csv": ("d.csv", write_csv, {}), "csv, line feeds": ("d.csv", write_csv, {"lineterminator": "\n"})},
    "csv, byte order mark": ("d.csv", write_csv, {"encoding": "utf-8-sig"}),
    "csv, all quoted": ("D.CSV", write_csv, {"quoting": csv.QUOTE_ALL}),
    **{
        "jsonl": ("d.jsonl", write_lines, {}),
        "ndjson": ("d.ndjson", write_lines, {}),
        "json lines": ("d.json", write_lines, {}),
    },
    **{"json array": ("d.json", write_array, {}), "json columns": ("d.json", write_columns, {})},
    "parquet": ("d.parquet", write_parquet, {}),
}


@pytest.mark.parametrize("chunk_rows", [3, 10_000])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_rows(form, chunk_rows, tmp_path, chunks_of):
    chunks_of(chunk_rows)
    name, writer, options = FORMATS[form]
    writer(tmp_path / name, QUOTED, **options)
    assert rows_of(tmp_path / name) == QUOTED


def test_tsv_delimiters_and_ends_of_files_give_the_same_rows_and_quotes_of_tsv_are_characters(write):
    for end in ["\n", "\r\n"]:
        rows = [*ROWS, *({"text": text, "label": "0"} for text in ('" unbalanced', 'in"side', '"both"'))]
        path = write("d.tsv", "\ufefftext\tlabel" + end + "".join(f"{row['text']}\t{row['label']}{end}" for row in rows))
        assert rows_of(path) == rows
    for name, sign in [("d.csv", ";"), ("d.csv", "\t"), ("d.tsv", ","), ("d.csv", "|")]:
        assert rows_of(write(name, f"text{sign}label\na b{sign}1\n"), delimiter=sign) == [{"text": "a b", "label": "1"}]
    for end in ["", "\n", "\n\n\n", "\r\n\r\n"]:
        for name, content in [("d.csv", "text,label\na,1"), ("d.jsonl", '{"text": "a", "label": "1"}')]:
            assert rows_of(write(name, content + end)) == [{"text": "a", "label": "1"}]


def test_names_and_values_become_the_text_a_csv_cell_would_hold(write, refused):
    assert rows_of(write("d.csv", " text ,,label\na,b,c\n")) == [{"text": "a", "column_2": "b", "label": "c"}]
    assert rows_of(write("d.csv", "text,label\n")) == rows_of(write("d.csv", "text,label")) == []
    first = {"int": 3, "yes": True, "null": None, "list": ["a", 1, False], "text": "1.0", "a": {"b": 0.5, "c": {"d": [2]}}}
    path = write("d.jsonl", json.dumps(first) + "\n" + json.dumps({"int": -1, "list": []}) + "\n")
    wanted = {"int": "3", "yes": "true", "null": None, "list": ["a", "1", "false"], "text": "1.0", "a.b": "0.5", "a.c.d": ["2"]}
    assert rows_of(path) == [wanted, {**dict.fromkeys(wanted), "int": "-1", "list": []}]
    rows = [{"t": "a", "l": ("x", "y")}, {"t": float("nan"), "l": ()}]
    assert rows_in(readers.tables_of(Path("train"), enumerate(rows, 1))) == [{"t": "a", "l": ["x", "y"]}, {"t": None, "l": []}]
    with refused("train: the name 0 is not text", "rename the column"):
        list(readers.tables_of(Path("train"), [(1, {0: "a"})]))
    assert rows_of(write("d.jsonl", '{"t": "ä"}\n'.encode("utf-16"))) == [{"t": "ä"}]
    assert rows_of(write("d.jsonl", '{"t": "ä"}\n'.encode("latin-1")), encoding="latin-1") == [{"t": "ä"}]


@pytest.mark.parametrize("rows", [999, 1000, 1001, 10_001])
def test_no_row_is_lost_after_the_sample_of_the_header(rows, write):
    path = write("d.csv", "text,label\n" + "".join(f"t{row},{row % 2}\n" for row in range(rows)))
    assert [row["text"] for row in rows_of(path)] == [f"t{row}" for row in range(rows)]


@pytest.mark.parametrize(("content", "rows"), [("t,l\na,1\n", 1), ("t,l\na\n", None), ('t,l\n"a,1\n', None)])
def test_the_field_limit_of_the_csv_module_is_restored(content, rows, write):
    before = csv.field_size_limit(12_345)
    try:
        try:
            assert len(rows_of(write("d.csv", content))) == rows
        except DataError:
            assert rows is None
        assert csv.field_size_limit() == 12_345
        abandoned = read_file(write("d.csv", "t,l\na,1\n"))
        next(abandoned)
        abandoned.close()
        assert csv.field_size_limit() == 12_345
    finally:
        csv.field_size_limit(before)


# --- faults --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk_rows", [1, 10_000])
@pytest.mark.parametrize(
    ("name", "content", "problem", "remedy"),
    [
        ("d.csv", "t,l\na,1\nb\n", "row 3: the row has 1 fields, but the header has 2 (t, l)", f"{RAGGED}; {SKIP}"),
        ("d.csv", 't,l\n"a\n\nb",1\nb,1,2\n', "row 3: the row has 3 fields, but the header has 2 (t, l)", f"{RAGGED}; {SKIP}"),
        ("d.tsv", "t\tl\na\t1\nb\t\t\n", "row 3: the row has 3 fields, but the header has 2 (t, l)", f"{RAGGED}; {SKIP}"),
        ("d.csv", "t,l\na,1\n\n\nb,2\n\n", "row 3: the row is blank (t, l)", f"{RAGGED}; {SKIP}"),
        ("d.csv", "\nt,l\na,1\n", "row 1: the row is blank", "remove the blank line: the header comes first"),
        ("d.csv", 't,l\na,1\n"b,2\n', "row 3: a quote is opened and not closed until the end of the file", QUOTES),
        ("d.csv", 't,l\na,1\n"b"c,2\n', "row 3: ',' expected after '\"'", f"{QUOTES}; {SKIP}"),
        ("d.jsonl", '{"t": "a"}\n{"t": }\n', "row 2: not JSON: Expecting value: line 1 column 7 (char 6)", ONE_A_LINE),
        ("d.jsonl", '{"t": "a"}\n{"t": NaN}\n', "row 2: not JSON: NaN is not allowed in JSON", ONE_A_LINE),
        ("d.jsonl", '{"t": NaN}\n{"t": "a"}\n', "row 1: not JSON: NaN is not allowed in JSON", ONE_A_LINE),
        ("d.json", '{"t": "a"}\n{"t": -Infinity}', "row 2: not JSON: -Infinity is not allowed in JSON", ONE_A_LINE),
        ("d.jsonl", '{"t": "a"}\n{"t": 1, "t": 2}', 'row 2: not JSON: the key "t" occurs twice', ONE_A_LINE),
        ("d.jsonl", '{"a": {"b": 1}, "a.b": 2}\n', 'row 1: the key "a.b" occurs twice', RENAME),
        ("d.jsonl", '{"t": "a"}\n{"t": {"u": 1}}\n', 'row 2: key "t.u" is not in the first row (t)', SAME_KEYS),
        ("d.jsonl", '{"t": "a"}\n\n{"t": "b"}\n', "row 2: the row is blank", f"remove the blank line; {SKIP}"),
        ("d.jsonl", '\n\n{"t": "a"}\n', "row 1: the row is blank", f"remove the blank line; {SKIP}"),
        ("d.jsonl", '{"t": "a"}\n{"t": [{"u": 1}]}\n', 'row 2: "t" is an object', ONLY),
        ("d.jsonl", '{"t": "a"}\n"b"\n', 'row 2: not an object: "b"', OBJECT),
        ("d.jsonl", '{"t": "a"}\n{}\n', 'row 2: not an object: "{}"', OBJECT),
        ("d.json", '[{"t": "a"}, ["b"]]', "row 2: not an object: \"['b']\"", OBJECT),
        ("d.jsonl", '{"t": "a", "l": [["b"]]}\n', 'row 1: "l" is a list of lists', ONLY),
        ("d.jsonl", '{"t": "a"}\n{"t": "\\ud83d"}\n', f"row 2: \"t\" contains '\\ud83d', {HALF}", WHOLE),
    ],
)
def test_faults_are_named_with_their_row(name, content, problem, remedy, chunk_rows, write, refused, chunks_of):
    chunks_of(chunk_rows)
    with refused(f"{name}, {problem}", remedy):
        rows_of(write(name, content))


def test_files_that_cannot_be_read(write, refused, tmp_path):
    for name, content, problem, remedy in [
        ("d.csv", "\n\n", "the file is empty", EMPTY),
        ("d.tsv", "\ufeff", "the file is empty", EMPTY),
        ("d.json", "", "the file is empty", "check the path; at least one row is needed"),
        ("d.jsonl", " \n\n", "the file is empty", "check the path; at least one row is needed"),
        ("d.csv", "t, t\n", 'column "t" occurs twice: t, t', TWICE),
        ("d.csv", '"t\nu",l\n', 'the name "t\\nu" contains a line break or another control character', COLUMN),
        ("d.csv", f"{'t' * 201},l\n", f'the name "{"t" * 39}…" has 201 characters; at most 200 are allowed', COLUMN),
        ("d.json", '[{"t": NaN}]', "not JSON: NaN is not allowed in JSON", ARRAY),
        ("d.json", '{"t": [NaN]}', "not JSON: NaN is not allowed in JSON", ARRAY),
        ("d.json", '[{"t": 1}', "not JSON: Expecting ',' delimiter: line 1 column 10 (char 9)", ARRAY),
        ("d.json", '[{"t": "a", "l": "x", "l": "y"}]', 'not JSON: the key "l" occurs twice', ARRAY),
        ("d.json", '{"t": ["a"], "l": ["x"], "l": ["y"]}', 'not JSON: the key "l" occurs twice', ARRAY),
        ("d.json", "5", "does not contain rows", ARRAY),
        ("d.json", '{"t": ["a", "b"], "l": ["x"]}', "the columns have different lengths (t: 2, l: 1)", SAME_LENGTH),
    ]:
        with refused(f"{name}: {problem}", remedy):
            rows_of(write(name, content))
    for cells in [["cat", ["dog"]], [["dog"], "cat"], [None, "cat", ["dog"]]]:
        with refused(f'd.jsonl, row {len(cells)}: "t" mixes lists and single values', "use only one of them"):
            rows_of(write("d.jsonl", "".join(json.dumps({"id": "1", "t": cell}) + "\n" for cell in cells)))
    for name, sign, word in [
        ("d.csv", ";", "semicolon"),
        ("d.csv", "\t", "tab"),
        ("d.csv", "|", "bar"),
        ("d.tsv", ",", "comma"),
    ]:
        found, option = f"text{sign}label".replace("\t", "\\t"), sign.replace("\t", "tab")
        remedy = f'the columns may be separated by a {word}: --delimiter "{option}"'
        with refused(f'{name}: only one column was found: "{found}"', remedy):
            rows_of(write(name, f"text{sign}label\na{sign}b\n"))
    for name in ["gone.csv", "gone.jsonl"]:
        with refused(f"{tmp_path / name}: No such file or directory", "check the path and its permissions"):
            rows_of(tmp_path / name)
    told = "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
    with refused(f"d.json: not JSON: {told}", ARRAY):
        rows_of(write("d.json", "[" * 100_000))
    with refused(f"d.jsonl, row 2: not JSON: {told}", ONE_A_LINE):
        rows_of(write("d.jsonl", '{"t": "a"}\n' + "[" * 100_000))
    # The csv module refuses cells of more than 131,072 characters unless it is told otherwise.
    path = write("d.csv", b"t,l\n" + b"x" * 200_000 + b",1\na\xff,2\n")
    with pytest.raises(DataError, match=r"d\.csv, row 3: byte 0xff at position 200,008 is not UTF-8"):
        rows_of(path)


# --- rows that are skipped -----------------------------------------------------------------------------------------
def test_everything_that_cannot_be_read_is_skipped(write, refused, chunks_of):
    bad = BadRows(skip=True)
    path = write("d.csv", b't,l\na,1\n\nb"c\xff,2\n"d"e,3\nf,4\ng\0,5\nt,l\nh,6\ni,7\nj,8\nk,9\nl,1\n\n')
    assert [row["t"] for row in rows_in(readers.read_delimited(path, ",", quoted=True, bad=bad))] == [*"afhijkl"]
    assert bad.rows[path] == {
        3: "the row is blank (t, l)",
        4: "the row contains a byte that is not text",
        5: "',' expected after '\"'",
        7: "the row contains a byte that is not text",
        8: "the row repeats the header (t, l)",
    }
    path = write("d.csv", 't,l\na,1\n"b,2\nc,3\n')
    with refused("d.csv, row 3: a quote is opened and not closed until the end of the file", QUOTES):  # all rows belong to it
        [*readers.read_delimited(path, ",", quoted=True, bad=BadRows(skip=True))]
    good = [b'{"t": "%d"}' % row for row in range(6)]
    path = write("d.jsonl", b"\n".join([*good[:2], b"", b"{", b"[1]", b'{"u": 1}', b'{"t": "\xff"}', *good[2:]]) + b"\n\n")
    bad = BadRows(skip=True)
    assert [row["t"] for row in rows_in(readers.read_json(path, None, bad))] == [*"012345"]
    assert [*bad.rows[path]] == [3, 4, 7, 5, 6]
    assert bad.rows[path][7] == "the row contains a byte that is not text"
    for chunk_rows in [1, 2, 10_000]:
        chunks_of(chunk_rows)
        bad, path = BadRows(skip=True), write("d.tsv", "t\tl\nx\na\t1\ny\nb\t2\n\t\t\nc\t3\n")
        assert [row["t"] for row in rows_in(readers.read_delimited(path, "\t", quoted=False, bad=bad))] == ["a", "b", "c"]
        assert [*bad.rows[path]] == [2, 4, 6]


def test_the_first_bad_row_is_an_error_or_skipped_ones_are_counted_listed_and_refused_if_they_are_most(tmp_path, refused):
    bad, path = BadRows(skip=True), Path("a.csv")
    for name, row in [("a.csv", 3), ("a.csv", 2), ("b.csv", 2), ("a.csv", 6)]:
        bad.add(Path(name), row, 'has "quotes"')
    bad.add(path, 6, "reported again")
    assert bad.num_rows == 4
    bad.write(tmp_path / "list.csv")
    quotes = '"has ""quotes"""'
    listed = f"file,row,problem\na.csv,3,{quotes}\na.csv,2,{quotes}\na.csv,6,reported again\nb.csv,2,{quotes}\n"
    assert (tmp_path / "list.csv").read_text() == listed
    assert [bad.number_of(path, row) for row in (1, 2, 3, 4, 5)] == [1, 4, 5, 7, 8]
    assert bad.number_of(Path("c.csv"), 2) == 2
    bad, path = BadRows(skip=True), Path("a.csv")
    for row in (2, 3):
        bad.add(path, row, "broken")
    bad.refuse_most(path, 2)
    bad.refuse_most(Path("b.csv"), 0)
    with pytest.raises(DataError, match=r"a\.csv: 2 of 3 rows cannot be read, for example row 2: broken"):
        bad.refuse_most(path, 1)
    for offer, remedy in [(False, "fix it"), (True, f"fix it; {SKIP}")]:
        with refused("d.csv, row 1,234: wrong", remedy):
            BadRows(offer=offer).add(Path("x/d.csv"), 1234, "wrong", "fix it")


# --- column names: a row of data is never taken for a header, and given names fit the file -------------------------
REVIEWS = [["Great film", "1"], ["Bad film", "0"], ["So so", "1"]]


def test_a_header_is_told_from_data_and_the_user_decides():
    for head, is_data in [
        (REVIEWS, True),  # a number beside a text
        ([["1", "Great film"], ["0", "Bad"]], True),
        ([["Great film", "pos"], ["Bad", "neg"], ["Fine", "pos"]], True),  # a cell that occurs again
        ([["Great film", "pos"], ["Bad", "neg"]], False),  # nothing tells: no column is called label, which is an error later
        ([["text", "1"], ["a", "0"]], False),  # a usual name
        ([["Review Text", "Score"], ["a", "1"], ["b", "1"]], False),
        ([["How do you like it?", "Answer"], ["a", "1"], ["a", "1"]], False),
        ([["0", "1"], ["a", "b"], ["c", "b"]], False),  # written by pandas
        ([["", "content"], ["0", "a"]], False),
        ([["review", "2024"], ["a", "1"]], False),
        ([["Great film", "pos"], ["Great film", "pos"]], False),  # a repeated row alone tells nothing
        ([["a", "3.5"]], True),
        ([["only"]], False),
    ]:
        assert looks_like_data(head, DataSettings()) == is_data
    for settings, names, has_header in [
        ({"columns": "text,label"}, ["text", "label"], False),
        ({"columns": "text,label", "header": False}, ["text", "label"], False),
        ({"columns": "text,label", "header": True}, ["text", "label"], True),
        ({"header": False}, ["column_1", "column_2"], False),
        ({"header": True}, ["Great film", "1"], True),
    ]:
        assert readers.settle_header("d.csv", REVIEWS, DataSettings(**settings)) == (names, has_header)


def test_names_stand_in_for_a_header_and_are_suggested(write, refused):
    assert (suggested_names(REVIEWS), suggested_names([["a"]])) == ("text,label", "text")
    assert suggested_names([["1", "Great film"], ["0", "Bad film"]]) == "label,text"
    four = [["7", "a b c", "d e f", "x"], ["8", "g h i", "j k l", "x"]]
    assert suggested_names(four) == "column_1,text,text_pair,label"
    remedy = "omit --columns, or add --header to replace the names in row 1, or --no-header if row 1 is data"
    with refused("d.csv: row 1 looks like column names (A, B), but --columns is for files without a header", remedy):
        readers.settle_header("d.csv", [["A", "B"], ["c", "d"]], DataSettings(columns="a,b"))
    assert rows_of(write("d.csv", "t,t\na,1\n"), columns="x,y", header=True) == [{"x": "a", "y": "1"}]
    path = write("d.tsv", "a\t1\nb\t2\nc\n")
    assert rows_of(path, columns="t,l", bad_rows="skip") == [{"t": "a", "l": "1"}, {"t": "b", "l": "2"}]
    with refused("d.tsv, row 3: the row has 1 fields, but the header has 2 (t, l)", f"{RAGGED}; {SKIP}"):
        rows_of(path, columns="t,l")
    head = [["what", "2024"], ["a", "1"]]
    assert looks_like_data(head, DataSettings())
    assert not looks_like_data(head, DataSettings(text="what", label="2024"))


def wide_rows(number: int) -> list[dict[str, str]]:
    return [{"text": f"text {row}", "label": "ab"[row], **{f"c{place}": "1" for place in range(number)}} for row in range(2)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_work_grows_with_the_columns_and_not_with_their_square(suffix, tmp_path):
    path = tmp_path / f"wide{suffix}"
    (write_csv if suffix == ".csv" else write_lines)(path, wide_rows(99_998))
    (table,) = read_file(path)
    assert (table.num_columns, table.num_rows) == (100_000, 2)


def test_too_many_columns_are_refused(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(readers, "MOST_COLUMNS", 50)
    remedy = "keep only the columns with texts and labels, or check the delimiter"
    for form in ["csv", "jsonl", "json array", "parquet"]:
        name, writer, _ = FORMATS[form]
        writer(tmp_path / name, wide_rows(49))
        with refused(f"{name}: there are 51 columns; at most 50 are supported", remedy):
            rows_of(tmp_path / name)


# --- Excel: values as the text a person sees, the right sheet, and rows with the numbers that Excel shows ----------
SHEET = [["text", "label"], ["a b", 1], ["c d", 0]]


def test_a_workbook_may_be_compressed_and_its_cells_are_the_text_that_a_person_sees(write, refused):
    for cell, text in [
        *[(1.0, "1"), (-3.0, "-3"), (0.5, "0.5"), (7, "7"), ("007", "007"), ("", ""), (True, "true"), (time(1, 2), "01:02:00")],
        *[(date(2024, 1, 2), "2024-01-02"), (datetime(2024, 1, 2, 3), "2024-01-02T03:00:00")],
    ]:
        assert readers.cell_as_text(cell) == text
    for pack in [None, gzip.compress, lambda content: zipped({"d.xlsx": content})]:
        path = write("d.xlsx", xlsx(SHEET)) if pack is None else write("d.xlsx.zip", pack(xlsx(SHEET)))
        assert rows_of(path) == [{"text": "a b", "label": "1"}, {"text": "c d", "label": "0"}]
    path = write("d.xlsx", xlsx(SHEET, [["text", "label"], ["x", 2]]))
    assert rows_of(path, sheet="Sheet2") == [{"text": "x", "label": "2"}]
    with refused('d.xlsx: there is no sheet "Sheet3"; found Sheet1, Sheet2; did you mean "Sheet2"?', "set --sheet"):
        rows_of(path, sheet="Sheet3")
    with refused("d.xlsx, row 4: the row is blank (text, label)", f"{RAGGED}; {SKIP}"):
        rows_of(write("d.xlsx", xlsx([*SHEET, [], ["e", 1], []])))


def test_without_its_package_the_command_to_install_it_is_named(write, refused, monkeypatch):
    imported = builtins.__import__

    def without(name, *rest):
        if name == "python_calamine":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    problem = "d.xlsx: reading Excel files needs the package python-calamine"
    with refused(problem, "pip install 'glassloop[excel]'", SettingsError):
        rows_of(write("d.xlsx", xlsx(SHEET)))


# --- Parquet and Arrow ---------------------------------------------------------------------------------------------
TWELVE_TEXTS = [f"text {number}" for number in range(12)]
LABELS = ["ab"[number % 2] for number in range(12)]


def test_parquet_keeps_its_types_and_refuses_names_that_are_there_twice(tmp_path: Path, refused) -> None:
    table = pa.table({"t": ["a", None], "n": pa.array([1, None], pa.int8()), "l": [["x"], []]})
    pq.write_table(table, tmp_path / "d.parquet")
    assert pa.concat_tables(read_file(tmp_path / "d.parquet")).equals(table)
    pq.write_table(pa.table([["a"], ["b"]], names=["t", "t"]), tmp_path / "d.parquet")
    with refused('d.parquet: column "t" occurs twice: t, t', "rename one of them"):
        rows_of(tmp_path / "d.parquet")
    keys = pa.array([b"0123456789abcdef"] * 12, pa.binary(16))
    pairs = pa.array([[("a", 1)]] * 12, pa.map_(pa.string(), pa.int64()))
    table = pa.table({"text": TWELVE_TEXTS, "pairs": pairs, "label": LABELS, "key": keys, "id": range(12)})
    pq.write_table(table, tmp_path / "d.parquet")
    found = load_examples(tmp_path / "d.parquet")
    assert {"text", "label", "id"} <= {*found.splits["train"].column_names} <= {"text", "label", "id", "key"}
    (note,) = [note for note in found.notes if note.startswith("dropped columns whose type datasets does not support: ")]
    assert "pairs (map<" in note
    bad = pa.concat_arrays([pa.array(LABELS), strings(b"ab\xff\xfe", [0, 2, 4])])
    pq.write_table(pa.table({"text": [*TWELVE_TEXTS, "x", "y"], "label": bad}), tmp_path / "d.parquet")
    problem = "d.parquet: the rows are damaged: Column 1: In chunk 0: Invalid: Invalid UTF8 sequence at string index 13"
    with refused(problem, "write the data again"):
        load_examples(tmp_path / "d.parquet")


def strings(data: bytes, offsets: list[int]) -> pa.Array:
    """Strings over any bytes, as a damaged file holds them."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def test_damaged_rows_and_a_damaged_saved_data_set_are_one_error(tmp_path: Path) -> None:
    for cells, problem in [
        (strings(b"ab\xff\xfe", [0, 2, 4]), "Invalid UTF8 sequence at string index 1"),
        (strings(b"abcd", [0, 3, 2]), "Offset invariant failure"),
        (strings(b"abcdef", [0, 9, 4]), "Offset"),
    ]:
        with pytest.raises(DataError, match=f": train: the rows are damaged: .*{problem}") as raised:
            readers.sound(pa.table({"text": cells}), "train")
        assert raised.value.remedy == "write the data again"
    for name, content in [(name, content) for name, each in DAMAGES.items() for content in each]:
        Dataset.from_dict({"text": TWELVE_TEXTS, "label": LABELS}).save_to_disk(tmp_path / "saved")
        (tmp_path / "saved" / name).write_text(content)
        with pytest.raises(DataError, match="the saved data set cannot be read: ") as raised:
            load_examples(tmp_path / "saved")
        assert raised.value.remedy == "save it again with save_to_disk"


def test_texts_of_every_kind_are_read_and_labels_of_no_kind_or_name_refused(tmp_path: Path, refused) -> None:
    for kind in [pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())]:
        table = pa.table({"text": pa.array(TWELVE_TEXTS).cast(kind), "label": pa.array(LABELS).cast(kind)})
        assert readers.sound(table, "train").schema.types == [pa.string(), pa.string()]
        pq.write_table(table, tmp_path / "d.parquet")
        assert load_examples(tmp_path / "d.parquet", validation_share=0).splits["train"]["text"][:] == TWELVE_TEXTS
    for cells in [[{"x": 1}] * 12, [[["a"]], [["b"]]] * 6]:
        pq.write_table(pa.table({"text": TWELVE_TEXTS, "label": cells}), tmp_path / "d.parquet")
        kind = pq.read_schema(tmp_path / "d.parquet").field("label").type
        problem = f'd.parquet: column "label" has the type {kind}, which cannot be a label'
        with refused(problem, "name the label column with --label"):
            load_examples(tmp_path / "d.parquet")
    features = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    for number in [2, 5]:
        plain = Dataset.from_dict({"text": TWELVE_TEXTS, "label": [0, 1] * 5 + [0, number]})
        problem = f'train: column "label" contains label {number}, but only 2 labels have names'
        with refused(problem, "give every number a name in the features, or cast the column to numbers"):
            load_examples(Dataset(plain.data, info=DatasetInfo(features=features)))


DAMAGES = {
    "state.json": ["null", "[]", "1", "{}", '{"_data_files": 3}'],
    "dataset_info.json": ["null", "[]", '{"features": 3}', "{"],
}


# --- values as text: what has one keeps it, what is missing is missing, and what has none is refused ---------------
class Colour(Enum):
    RED = "red"


def test_values_with_a_text_keep_it_and_others_are_refused(refused) -> None:
    for cell, text in [
        *[("a", "a"), ("", ""), (3, "3"), (-0.5, "-0.5"), (True, "true"), (None, None), (float("nan"), None)],
        *[(np.int64(3), "3"), (np.float32(0.5), "0.5"), (np.bool_(True), "true"), (np.str_("a"), "a")],
        *[(np.float32("nan"), None), (np.float64("nan"), None), (pd.NA, None), (pd.NaT, None)],
        *[(torch.tensor(3), "3"), (torch.tensor(float("nan")), None)],
        *[(Decimal("1.50"), "1.50"), (date(2026, 1, 2), "2026-01-02"), (time(1, 2), "01:02:00")],
        *[(datetime(2026, 1, 2), "2026-01-02 00:00:00"), (pd.Timestamp(2026, 1, 2), "2026-01-02 00:00:00")],
        *[(("x", 1), ["x", "1"]), (np.array(["x", "y"]), ["x", "y"]), ([None, float("nan")], [None, None]), ([], [])],
    ]:
        assert cell_text(Path("train"), 1, "label", cell) == text
        assert type(cell_text(Path("train"), 1, "label", cell)) is type(text)
    for cell, kind in [
        *[(b"a", "of the type bytes"), ({"a": 1}, "an object"), ({"a"}, "of the type set"), (1j, "of the type complex")],
        *[(Colour.RED, "of the type Colour"), (len, "of the type builtin_function_or_method"), (10**5000, "of the type int")],
        *[([b"a"], "of the type bytes"), ([["a"]], "a list of lists"), (np.array([[1]]), "a list of lists")],
    ]:
        with refused(f'train, row 7: "label" is {kind}', ONLY):
            cell_text(Path("train"), 7, "label", cell)


# --- compression and encodings -------------------------------------------------------------------------------------
TEXT = "text,label\nä,x\n"
PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": packed_zstd,
    ".zip": lambda content: zipped({"a.csv": content}),
}


def text_in(path: Path, encoding: str | None = None) -> str:
    with readers.opened_text(path, encoding) as text:
        return text.read()


def test_the_content_decides_on_the_compression_and_a_file_that_ends_early_is_damaged(write):
    for name in ["d.csv", "d.csv.gz"]:
        for kind in PACKED:
            assert text_in(write(name, PACKED[kind](TEXT.encode()))) == TEXT
            if kind != ".zip":  # several members are one text
                assert text_in(write(name, PACKED[kind](b"a\n") + PACKED[kind](b"b\n"))) == "a\nb\n"
    assert text_in(write("d.csv", b"BZh,label\n")) == "BZh,label\n", "a text that starts like bzip2 is text"
    for kind in PACKED:
        content = PACKED[kind]((TEXT * 1000).encode())
        path = write(f"d.csv{kind}", content[: len(content) // 2])
        problem = f"d.csv{kind}: the compressed file is damaged"
        with pytest.raises(DataError, match=problem) as raised, readers.opened_bytes(path) as opened:
            opened.read()
        assert raised.value.remedy == "compress or download it again"


def test_the_extension_tells_the_format_and_where_rows_are_counted_from(write):
    for name, number in {"d.csv": 2, "d.TSV": 2, "d.json": 1, "d.jsonl": 1, "d.ndjson": 1, "d.parquet": 1}.items():
        assert readers.first_row_number(Path(name)) == number, "as a person counts them"
    suffixes = {"a.csv": ".csv", "a.CSV.GZ": ".csv", "a.jsonl.zst": ".jsonl", "a.gz": "", "a": "", "a.b.parquet": ".parquet"}
    for name, suffix in suffixes.items():
        assert data_suffix(Path(name)) == suffix
    assert data_suffix(write("a.zip", zipped({"folder/b.tsv": b""}))) == ".tsv"
    assert data_suffix(write("b.csv.zip", b"damaged")) == ".csv"
    assert data_suffix(write("c.zip", zipped({"a.csv": b"", "b.csv": b""}))) == ""


def test_the_byte_order_mark_decides_and_a_wrong_encoding_is_named(write, refused):
    for encoding in ["utf-8", "utf-8-sig", "utf-16", "utf-32"]:
        path = write("d.csv", TEXT.encode(encoding))
        assert text_in(path) == text_in(path, encoding) == TEXT
    for encoding in ["utf-16-le", "utf-16-be"]:
        path = write("d.csv", TEXT.encode(encoding))
        with refused("d.csv: the file seems to be UTF-16 without a byte order mark", f"use --encoding {encoding}"):
            text_in(path)
        assert text_in(path, encoding) == TEXT
    for encoding, content, problem in [
        ("cp1252", b"a\n\x81\n", "d.csv, line 2: byte 0x81 at position 2 is not cp1252"),
        ("ascii", b"a\xe4", "d.csv, line 1: byte 0xe4 at position 1 is not ascii"),
        ("utf-16", "ab".encode("utf-16") + b"x", "d.csv: byte 0x78 at position 6 is not UTF-16"),
        ("utf-16-le", b"a\0\0\xd8b\0", "d.csv: byte 0x00 at position 2 is not UTF-16-LE"),
    ]:
        with refused(problem, f"set the encoding of the file, for example --encoding utf-8; {SKIP}"):
            text_in(write("d.csv", content), encoding)


SHORT = ["text,label\n", "\ufefftext,label\nä,x\n", "text,label\r\n👍,x\r\n"]
LONG = 'text,label\n"a\nb",x\n' + "ß,x\n" * 20_000
BROKEN = [*((before, bad) for before in SHORT for bad in (b"\xff", b"\xe4 ", b"\xc3")), (LONG, b"\xff")]


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_invalid_utf8_is_named_with_its_line_and_byte(name, write, refused):
    for before, bad in BROKEN:
        if name == "d.jsonl":
            before = "".join(json.dumps({"t": line}, ensure_ascii=False) + "\n" for line in before.split("\n"))
        start = before.encode() + "ü".encode()
        line, quoted = start.count(b"\n") + 1, before.count('"a')
        where = f"line {line:,}" if name == "d.jsonl" else f"row {line - quoted:,}"
        with refused(f"{name}, {where}: byte 0x{bad[0]:02x} at position {len(start):,} is not UTF-8", f"{ENCODINGS}; {SKIP}"):
            rows_of(write(name, start + bad))


@pytest.mark.parametrize("kind", ["", ".gz"])
def test_one_broken_byte_in_many_rows_is_named_with_its_row_and_position(kind, write, refused):
    content = ('"a\nb",x\n' + "ok,y\n" * 9_998).encode() + b"caf\xe9,x\n" + b"ok,y\n" * 100
    path = write(f"d.csv{kind}", gzip.compress(content) if kind else content)
    with (
        refused(f"d.csv{kind}, row 10,000: byte 0xe9 at position 50,001 is not UTF-8", f"{ENCODINGS}; {SKIP}"),
        readers.opened_text(path, rows_of=csv.reader) as text,
    ):
        text.read()
    assert "café,x" in text_in(path, "latin-1")
    with readers.opened_text(path, lenient=True) as text:
        assert [number for number, row in enumerate(csv.reader(text), 1) if readers.is_broken(row)] == [10_000]
