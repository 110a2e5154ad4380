"""Files as tables: the same rows from every format, no cell changed on the way, every fault named with its row."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glassloop.data import readers
from glassloop.data import readers as delimited
from glassloop.data import readers as headers
from glassloop.data import readers as json_rows
from glassloop.data.faults import SKIP, BadRows
from glassloop.data.readers import first_row_number, read_delimited, read_file, tables_of
from glassloop.settings.fields import DataSettings

RAGGED = "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter"
TWICE = "rename one of them, or replace all names: --header --columns NAME,NAME"
RAGGED_REMEDY = f"{RAGGED}; {SKIP}"
QUOTE_REMEDY = 'quote a text that contains ", and double the quotes in it ("")'
ONE_A_LINE, ARRAY = f"write one object per line; {SKIP}", "write one object per line, or one array of objects"
OBJECT = f'write {{"text": …, "label": …}}; {SKIP}'
TEXTS = [
    "plain",
    "NA",
    "null",
    "nan",
    "None",
    "",
    " blanks ",
    "007",
    "1.0",
    "👩‍👩‍👧 🇺🇳",
    "שלום, עולם",
    "مرحبا",
    "ein „Satz“",
    "a" * 1_000_000,
]
ROWS = [{"text": text, "label": str(place % 2)} for place, text in enumerate(TEXTS)]
QUOTED = [*ROWS, {"text": 'says "no", twice', "label": "0"}, {"text": "two\nlines\r\nor three", "label": "1"}]


def rows_of(path: Path, **settings: Any) -> list[dict[str, Any]]:
    return [row for table in read_file(path, DataSettings(**settings)) for row in table.to_pylist()]


@pytest.fixture
def chunks_of(monkeypatch):
    """`chunks_of(3)`: tables have at most three rows."""

    def change(number: int) -> None:
        for module in (delimited, json_rows, readers):
            monkeypatch.setattr(module, "CHUNK_ROWS", number)

    return change


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
    "csv": ("d.csv", write_csv, {}),
    "csv, line feeds": ("d.csv", write_csv, {"lineterminator": "\n"}),
    "csv, byte order mark": ("d.csv", write_csv, {"encoding": "utf-8-sig"}),
    "csv, all quoted": ("D.CSV", write_csv, {"quoting": csv.QUOTE_ALL}),
    "jsonl": ("d.jsonl", write_lines, {}),
    "ndjson": ("d.ndjson", write_lines, {}),
    "json lines": ("d.json", write_lines, {}),
    "json array": ("d.json", write_array, {}),
    "json columns": ("d.json", write_columns, {}),
    "parquet": ("d.parquet", write_parquet, {}),
}


@pytest.mark.parametrize("chunk_rows", [3, 10_000])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_rows(form, chunk_rows, tmp_path, chunks_of):
    chunks_of(chunk_rows)
    name, writer, options = FORMATS[form]
    writer(tmp_path / name, QUOTED, **options)
    assert rows_of(tmp_path / name) == QUOTED


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tsv_gives_the_same_rows_and_keeps_quotes_as_characters(end, write):
    rows = [*ROWS, {"text": '" unbalanced', "label": "0"}, {"text": 'in"side', "label": "1"}, {"text": '"both"', "label": "0"}]
    path = write("d.tsv", "\ufefftext\tlabel" + end + "".join(f"{row['text']}\t{row['label']}{end}" for row in rows))
    assert rows_of(path) == rows


@pytest.mark.parametrize(
    ("name", "sign", "delimiter"), [("d.csv", ";", ";"), ("d.csv", "\t", "\t"), ("d.tsv", ",", ","), ("d.csv", "|", "|")]
)
def test_delimiter_may_be_named(name, sign, delimiter, write):
    assert rows_of(write(name, f"text{sign}label\na b{sign}1\n"), delimiter=delimiter) == [{"text": "a b", "label": "1"}]


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", "\r\n\r\n"])
@pytest.mark.parametrize(("name", "content"), [("d.csv", "text,label\na,1"), ("d.jsonl", '{"text": "a", "label": "1"}')])
def test_blank_lines_at_the_end_are_no_rows(name, content, end, write):
    assert rows_of(write(name, content + end)) == [{"text": "a", "label": "1"}]


def test_names_of_columns_are_trimmed_and_empty_ones_get_a_name(write):
    assert rows_of(write("d.csv", " text ,,label\na,b,c\n")) == [{"text": "a", "column_2": "b", "label": "c"}]


@pytest.mark.parametrize("content", ["text,label\n", "text,label"])
def test_header_alone_gives_no_rows(content, write):
    assert rows_of(write("d.csv", content)) == []


@pytest.mark.parametrize("chunk_rows", [1, 2, 10_000])
@pytest.mark.parametrize(
    ("name", "content", "problem", "remedy"),
    [
        ("d.csv", "t,l\na,1\nb\n", "row 3: the row has 1 fields, but the header has 2 (t, l)", RAGGED_REMEDY),
        ("d.csv", 't,l\n"a\n\nb",1\nb,1,2\n', "row 3: the row has 3 fields, but the header has 2 (t, l)", RAGGED_REMEDY),
        ("d.tsv", "t\tl\na\t1\nb\t\t\n", "row 3: the row has 3 fields, but the header has 2 (t, l)", RAGGED_REMEDY),
        ("d.csv", "t,l\na,1\n\nb,2\n", "row 3: the row is blank (t, l)", RAGGED_REMEDY),
        ("d.csv", "t,l\na,1\n\n\nb,2\n\n", "row 3: the row is blank (t, l)", RAGGED_REMEDY),
        ("d.csv", "\nt,l\na,1\n", "row 1: the row is blank", "remove the blank line: the header comes first"),
        ("d.csv", 't,l\na,1\n"b,2\n', "row 3: a quote is opened and not closed until the end of the file", QUOTE_REMEDY),
        ("d.csv", 't,l\na,1\n"b"c,2\n', "row 3: ',' expected after '\"'", f"{QUOTE_REMEDY}; {SKIP}"),
        ("d.jsonl", '{"t": "a"}\n{"t": }\n', "row 2: not JSON: Expecting value: line 1 column 7 (char 6)", ONE_A_LINE),
        ("d.jsonl", '{"t": "a"}\n{"t": NaN}\n', "row 2: not JSON: NaN is not allowed in JSON", ONE_A_LINE),
        ("d.jsonl", '{"t": NaN}\n{"t": "a"}\n', "row 1: not JSON: NaN is not allowed in JSON", ONE_A_LINE),
        ("d.json", '{"t": "a"}\n{"t": -Infinity}', "row 2: not JSON: -Infinity is not allowed in JSON", ONE_A_LINE),
        (
            "d.jsonl",
            '{"t": "a"}\n{"u": "b"}\n',
            'row 2: key "u" is not in the first row (t)',
            f"give every row the same keys; {SKIP}",
        ),
        ("d.jsonl", '{"t": "a"}\n\n{"t": "b"}\n', "row 2: the row is blank", f"remove the blank line; {SKIP}"),
        ("d.jsonl", '\n\n{"t": "a"}\n', "row 1: the row is blank", f"remove the blank line; {SKIP}"),
        ("d.jsonl", '{"t": "a"}\n{"t": [{"u": 1}]}\n', 'row 2: "t" is an object', "use text, a number or a list"),
        (
            "d.jsonl",
            '{"t": "a"}\n{"t": {"u": 1}}\n',
            'row 2: key "t.u" is not in the first row (t)',
            f"give every row the same keys; {SKIP}",
        ),
        ("d.csv", "t,l\na,1\nt,l\nb,2\n", "row 3: the row repeats the header (t, l)", f"remove the row; {SKIP}"),
        ("d.jsonl", '{"t": "a"}\n"b"\n', 'row 2: not an object: "b"', OBJECT),
        ("d.jsonl", '{"t": "a"}\n{}\n', 'row 2: not an object: "{}"', OBJECT),
        ("d.json", '[{"t": "a"}, ["b"]]', "row 2: not an object: \"['b']\"", OBJECT),
        ("d.jsonl", '{"t": "a", "l": [["b"]]}\n', 'row 1: "l" is a list of lists', "use text, a number or a list"),
        (
            "d.jsonl",
            '{"t": "a"}\n{"t": "\\ud83d"}\n',
            "row 2: \"t\" contains '\\ud83d', which is half of a surrogate pair",
            "write the whole character, or remove it",
        ),
    ],
)
def test_faults_are_named_with_their_row(name, content, problem, remedy, chunk_rows, write, refused, chunks_of):
    chunks_of(chunk_rows)
    with refused(f"{name}, {problem}", remedy):
        rows_of(write(name, content))


@pytest.mark.parametrize("cells", [["cat", ["dog"]], [["dog"], "cat"], [None, "cat", ["dog"]]])
def test_lists_and_single_values_are_not_mixed(cells, write, refused):
    with refused(f'd.jsonl, row {len(cells)}: "t" mixes lists and single values', "use only one of them"):
        rows_of(write("d.jsonl", "".join(json.dumps({"id": "1", "t": cell}) + "\n" for cell in cells)))


def test_deeply_nested_json_is_refused_like_any_other(write, refused):
    told = "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
    with refused(f"d.json: not JSON: {told}", ARRAY):
        rows_of(write("d.json", "[" * 100_000))
    with refused(f"d.jsonl, row 2: not JSON: {told}", ONE_A_LINE):
        rows_of(write("d.jsonl", '{"t": "a"}\n' + "[" * 100_000))


@pytest.mark.parametrize(
    ("name", "content", "problem", "remedy"),
    [
        ("d.csv", "", "the file is empty", "check the path; a header and at least one row are needed"),
        ("d.csv", "\n\n", "the file is empty", "check the path; a header and at least one row are needed"),
        ("d.tsv", "\ufeff", "the file is empty", "check the path; a header and at least one row are needed"),
        ("d.json", "", "the file is empty", "check the path; at least one row is needed"),
        ("d.jsonl", " \n\n", "the file is empty", "check the path; at least one row is needed"),
        ("d.csv", "t,l,t\n", 'column "t" occurs twice: t, l, t', TWICE),
        ("d.csv", "t, t\n", 'column "t" occurs twice: t, t', TWICE),
        ("d.csv", '"t\nu",l\n', 'the name "t\\nu" contains a line break or another control character', "rename the column"),
        (
            "d.csv",
            "t" * 201 + ",l\n",
            f'the name "{"t" * 39}…" has 201 characters; at most 200 are allowed',
            "rename the column",
        ),
        ("d.json", '[{"t": NaN}]', "not JSON: NaN is not allowed in JSON", ARRAY),
        ("d.json", '{"t": [NaN]}', "not JSON: NaN is not allowed in JSON", ARRAY),
        ("d.json", '[{"t": 1}', "not JSON: Expecting ',' delimiter: line 1 column 10 (char 9)", ARRAY),
        ("d.json", "5", "does not contain rows", ARRAY),
        (
            "d.json",
            '{"t": ["a", "b"], "l": ["x"]}',
            "the columns have different lengths (t: 2, l: 1)",
            "give all columns the same number of rows",
        ),
    ],
)
def test_files_that_cannot_be_read(name, content, problem, remedy, write, refused):
    with refused(f"{name}: {problem}", remedy):
        rows_of(write(name, content))


@pytest.mark.parametrize(
    ("name", "sign", "word", "option"),
    [("d.csv", ";", "semicolon", ";"), ("d.csv", "\t", "tab", "tab"), ("d.csv", "|", "bar", "|"), ("d.tsv", ",", "comma", ",")],
)
def test_a_foreign_delimiter_is_named(name, sign, word, option, write, refused):
    found = f"text{sign}label".replace("\t", "\\t")
    remedy = f'the columns may be separated by a {word}: --delimiter "{option}"'
    with refused(f'{name}: only one column was found: "{found}"', remedy):
        rows_of(write(name, f"text{sign}label\na{sign}b\n"))


@pytest.mark.parametrize("bad", [b"\xff", b"\xe4 ", b"\xc3"])
@pytest.mark.parametrize(
    "before",
    ["text,label\n", "\ufefftext,label\nä,x\n", "text,label\r\n👍,x\r\n", 'text,label\n"a\nb",x\n' + "ß,x\n" * 20_000],
)
@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_invalid_utf8_is_named_with_its_line_and_byte(name, before, bad, write, refused):
    if name == "d.jsonl":
        before = "".join(json.dumps({"t": line}, ensure_ascii=False) + "\n" for line in before.split("\n"))
    start = before.encode() + "ü".encode()
    line, offset = start.count(b"\n") + 1, len(start)
    row = line - before.count('"a')
    where = f"line {line:,}" if name == "d.jsonl" else f"row {row:,}"
    fixes = "set the encoding of the file, for example --encoding cp1252 (Windows) or --encoding latin-1"
    with refused(f"{name}, {where}: byte 0x{bad[0]:02x} at position {offset:,} is not UTF-8", f"{fixes}; {SKIP}"):
        rows_of(write(name, start + bad))


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_a_file_that_is_not_there(name, tmp_path, refused):
    with refused(f"{tmp_path / name}: No such file or directory", "check the path and its permissions"):
        rows_of(tmp_path / name)


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_unreadable_parquet(cut, tmp_path):
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"t": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(readers.DataError) as caught:
        rows_of(path)
    assert caught.value.problem.startswith("d.parquet: the Parquet file cannot be read: ")
    assert caught.value.remedy == "write the file again"


def test_parquet_keeps_its_types_and_refuses_names_that_are_there_twice(tmp_path, refused):
    table = pa.table({"t": ["a", None], "n": pa.array([1, None], pa.int8()), "l": [["x"], []]})
    pq.write_table(table, tmp_path / "d.parquet")
    assert pa.concat_tables(read_file(tmp_path / "d.parquet")).equals(table)
    pq.write_table(pa.table([["a"], ["b"]], names=["t", "t"]), tmp_path / "d.parquet")
    with refused('d.parquet: column "t" occurs twice: t, t', "rename one of them"):
        rows_of(tmp_path / "d.parquet")


def test_json_values_become_the_text_a_csv_cell_would_hold(write):
    first = {"int": 3, "float": 0.5, "yes": True, "no": False, "null": None, "list": ["a", 1, False], "text": "1.0"}
    path = write("d.jsonl", json.dumps(first) + "\n" + json.dumps({"int": -1, "list": []}) + "\n")
    wanted = {
        "int": "3",
        "float": "0.5",
        "yes": "true",
        "no": "false",
        "null": None,
        "list": ["a", "1", "false"],
        "text": "1.0",
    }
    assert rows_of(path) == [wanted, {**dict.fromkeys(wanted), "int": "-1", "list": []}]


def test_rows_from_python_may_hold_tuples_and_nan(refused):
    rows = [{"t": "a", "l": ("x", "y")}, {"t": float("nan"), "l": ()}]
    tables = tables_of(Path("train"), enumerate(rows, 1))
    assert [row for table in tables for row in table.to_pylist()] == [{"t": "a", "l": ["x", "y"]}, {"t": None, "l": []}]
    with refused("train: the name 0 is not text", "rename the column"):
        list(tables_of(Path("train"), [(1, {0: "a"})]))


@pytest.mark.parametrize("chunk_rows", [1, 2, 10_000])
def test_ragged_rows_may_be_left_out_and_are_then_numbered(chunk_rows, write, chunks_of):
    chunks_of(chunk_rows)
    bad, path = BadRows(skip=True), write("d.tsv", "t\tl\nx\na\t1\ny\nb\t2\n\t\t\nc\t3\n")
    tables = read_delimited(path, "\t", quoted=False, bad=bad)
    assert [row["t"] for table in tables for row in table.to_pylist()] == ["a", "b", "c"]
    assert [*bad.rows[path]] == [2, 4, 6]


def test_names_stand_in_for_a_header(write, refused):
    path = write("d.tsv", "a\t1\nb\t2\nc\n")
    settings = DataSettings(columns="t,l")
    tables = read_delimited(path, "\t", quoted=False, settings=settings, bad=BadRows(skip=True))
    assert [row for table in tables for row in table.to_pylist()] == [{"t": "a", "l": "1"}, {"t": "b", "l": "2"}]
    with refused("d.tsv, row 3: the row has 1 fields, but the header has 2 (t, l)", RAGGED):
        list(read_delimited(path, "\t", quoted=False, settings=settings))


@pytest.mark.parametrize(("content", "rows"), [("t,l\na,1\n", 1), ("t,l\na\n", None), ('t,l\n"a,1\n', None)])
def test_the_field_limit_of_the_csv_module_is_restored(content, rows, write):
    before = csv.field_size_limit(12_345)
    try:
        try:
            assert len(rows_of(write("d.csv", content))) == rows
        except readers.DataError:
            assert rows is None
        assert csv.field_size_limit() == 12_345
        abandoned = read_file(write("d.csv", "t,l\na,1\n"))
        next(abandoned)
        abandoned.close()
        assert csv.field_size_limit() == 12_345
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("name", "number"), [("d.csv", 2), ("d.TSV", 2), ("d.json", 1), ("d.jsonl", 1), ("d.ndjson", 1), ("d.parquet", 1)]
)
def test_rows_are_counted_as_a_person_counts_them(name, number):
    assert first_row_number(Path(name)) == number


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("d.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y", "label": "z"}\n', "d.jsonl, row 2"),
        ("d.json", '[{"text": "a", "label": "x", "label": "y"}]', "d.json"),
        ("d.json", '{"text": ["a"], "label": ["x"], "label": ["y"]}', "d.json"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(name, content, where, write, refused):
    remedy = ONE_A_LINE if name == "d.jsonl" else ARRAY
    with refused(f'{where}: not JSON: the key "label" occurs twice', remedy):
        [*read_file(write(name, content))]


# --- many columns ------------------------------------------------------------------------------------------------


def wide_rows(number: int, size: int = 2) -> list[dict[str, str]]:
    return [
        {"text": f"text {row}", "label": "ab"[row % 2], **{f"c{place}": "1" for place in range(number)}} for row in range(size)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_work_grows_with_the_columns_and_not_with_their_square(suffix, write):
    rows = wide_rows(99_998)
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)] if suffix == ".csv" else map(json.dumps, rows)
    (table,) = read_file(write(f"wide{suffix}", "\n".join(lines) + "\n"))
    assert (table.num_columns, table.num_rows) == (100_000, 2)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_too_many_columns_are_refused(suffix, write, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(headers, "MOST_COLUMNS", 50)
    rows = wide_rows(49)
    path = tmp_path / f"wide{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix in (".csv", ".tsv"):
        sign = "," if suffix == ".csv" else "\t"
        path.write_text("\n".join([sign.join(rows[0]), *(sign.join(row.values()) for row in rows)]))
    else:
        path.write_text("\n".join(map(json.dumps, rows)) if suffix == ".jsonl" else json.dumps(rows))
    with refused(
        f"wide{suffix}: there are 51 columns; at most 50 are supported",
        "keep only the columns with texts and labels, or check the delimiter",
    ):
        [*read_file(path)]
