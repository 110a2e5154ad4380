"""Awkward data files, and what each one gets. `python tests/awkward_files.py` writes docs/reference/awkward-files.md."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from workbooks import ods, xls, xlsx, zipped

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "awkward-files.md"
START, END = "<!-- table: written by tests/awkward_files.py -->", "<!-- /table -->"
ROWS = 12
TEXTS = [f"text number {row}" for row in range(ROWS)]
AB = ("a", "b")


@dataclass(frozen=True)
class Awkward:
    """A file: what is awkward about it, its name and content, the settings that are used, and its labels or its error."""

    what: str
    name: str
    content: bytes
    settings: dict[str, object] = field(default_factory=dict)
    labels: tuple[str, ...] = AB
    rows: int = ROWS
    error: str = ""  # its first sentence after the name of the file; … for what differs between versions of other packages
    fix: str = ""  # a part of the second sentence of the error
    note: str = ""  # a part of a note

    @property
    def options(self) -> str:
        """The settings as options of the command."""
        flags = {("header", True): "--header", ("header", False): "--no-header"}
        shown = [
            flags.get((name, value) if isinstance(value, bool) else ("", False)) or f"--{name} {quoted(value)}"
            for name, value in self.settings.items()
        ]
        return " ".join(shown)


def quoted(value: object) -> str:
    return f'"{value}"' if value in (";", "|", ",") else str(value)


def table_text(labels: tuple[str, ...] = AB, sign: str = ",", header: str = "text,label", end: str = "\n") -> str:
    lines = [header.replace(",", sign)] if header else []
    lines += [f"{text}{sign}{labels[row % len(labels)]}" for row, text in enumerate(TEXTS)]
    return end.join(lines) + end


def plain(labels: tuple[str, ...] = AB, **options: str) -> bytes:
    return table_text(labels, **options).encode()


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def dicts(**columns: object) -> list[dict[str, object]]:
    return [{"text": text, "label": AB[row % 2], **columns} for row, text in enumerate(TEXTS)]


def parquet(**columns: pa.Array | list[object]) -> bytes:
    packed = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS, **columns}), packed)
    return packed.getvalue()


def packed_zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as opened:
        opened.write(content)
    return bytes(sink.getvalue())


def sheet(labels: tuple[object, ...] = AB, *, header: bool = True) -> list[list[object]]:
    found: list[list[object]] = [["text", "label"]] if header else []
    return found + [[text, labels[row % len(labels)]] for row, text in enumerate(TEXTS)]


def with_password(content: bytes) -> bytes:
    """A zip archive whose file is marked as encrypted."""
    changed = bytearray(content)
    changed[6] |= 1
    place = changed.rindex(b"PK\x01\x02")
    changed[place + 8] |= 1
    return bytes(changed)


COMBINED = ("x;y", "x", "y", "y;z", "z", "x;z")
LISTS = ("['x', 'y']", "['x']", "[]", "['z']")
HEADLESS = plain(("1", "0"), header="")
NUMBERED = "".join(f"{row},{text},{AB[row % 2]}\n" for row, text in enumerate(TEXTS)).encode()
THREE = b"title,body,author,label\n" + "".join(f"t {row},b {row},c {row},{AB[row % 2]}\n" for row in range(ROWS)).encode()
CSV = [
    Awkward("a plain file", "plain.csv", plain()),
    Awkward("Windows line ends", "crlf.csv", plain(end="\r\n")),
    Awkward("blank lines at the end", "blank-end.csv", plain() + b"\n\n\n"),
    Awkward("a blank line between rows", "blank.csv", plain().replace(b"number 3", b"\n3", 1).replace(b"text \n3", b"\ntext 3"),
            error=", row 5: the row is blank (text, label)", fix="--bad_rows skip"),
    Awkward("a line break in a quoted text", "newline.csv", plain().replace(b"text number 4", b'"text\nnumber 4"')),
    Awkward("a quote that is not closed", "quote.csv", plain().replace(b"text number 4", b'"text number 4'),
            error=", row 6: a quote is opened and not closed until the end of the file", fix="double the quotes"),
    Awkward("semicolons, as Excel writes them in Europe", "semicolon.csv", plain(sign=";"), {"delimiter": ";"}),
    Awkward("semicolons, not named", "semicolon-2.csv", plain(sign=";"), error=': only one column was found: "text;label"',
            fix='--delimiter ";"'),
    Awkward("tabs in a .csv file", "tabs.csv", plain(sign="\t"), {"delimiter": "tab"}),
    Awkward("tabs in a .csv file, not named", "tabs-2.csv", plain(sign="\t"),
            error=': only one column was found: "text\\tlabel"', fix='--delimiter "tab"'),
    Awkward("decimal commas as labels", "decimal.csv", plain(("0,5", "1,5"), sign=";"), {"delimiter": ";"},
            error=', row 2: label "0,5" is a number with a decimal comma, or two labels', fix="0.5"),
    Awkward("a row with too many fields", "ragged.csv", plain() + b"one,two,a\n",
            error=", row 14: the row has 3 fields, but the header has 2 (text, label)", fix="--bad_rows skip"),
    Awkward("a row with too many fields, skipped", "ragged-2.csv", plain() + b"one,two,a\n", {"bad_rows": "skip"},
            note="skipped 1 row that cannot be read"),
    Awkward("most rows have too many fields", "mostly.csv", plain() + b"one,two,a\n" * 20, {"bad_rows": "skip"},
            error=": 20 of 32 rows cannot be read, for example row 14: the row has 3 fields, but the header has 2 "
            "(text, label)", fix="--delimiter"),
    Awkward("the header again in the middle", "twice.csv", plain() + plain(),
            error=", row 14: the row repeats the header (text, label)", fix="remove the row"),
    Awkward("a NUL byte", "nul.csv", plain().replace(b"number 4", b"number\0 4"), error=', row 6: "text" contains a NUL byte',
            fix="remove the byte"),
    Awkward("a NUL byte, skipped", "nul-2.csv", plain().replace(b"number 4", b"number\0 4"), {"bad_rows": "skip"},
            rows=ROWS - 1),
    Awkward("two columns of the same name", "names.csv", plain().replace(b"text,label", b"text,text"),
            error=': column "text" occurs twice: text, text', fix="--columns"),
    Awkward("two columns of the same name, replaced", "names-2.csv", plain().replace(b"text,label", b"text,text"),
            {"columns": "text,label", "header": True}),
    Awkward("an index column of pandas", "index.csv", b"Unnamed: 0,text,label\n" + NUMBERED),
    Awkward("an index column without a name", "index-2.csv", b",text,label\n" + NUMBERED),
    Awkward("an empty file", "empty.csv", b"", error=": the file is empty", fix="check the path"),
    Awkward("only a header", "header.csv", b"text,label\n", error=": there are no rows", fix="add at least one row"),
    Awkward("quotes in a .tsv file", "quotes.tsv", plain(sign="\t").replace(b"number 4", b'"number" 4')),
    Awkward("a .txt file", "rows.txt", plain(sign="\t"), {"delimiter": "tab"}),
    Awkward("a .txt file without a delimiter", "rows-2.txt", plain(sign="\t"),
            error=": the delimiter of a .txt file is not known", fix="--delimiter tab"),
    Awkward("three text columns", "three.csv", THREE,
            error=": several columns contain text: title, body, author; found title, body, author, label",
            fix="--text title,body,author"),
    Awkward("two of three text columns, joined", "three-2.csv", THREE, {"text": "title,body"}),
]  # fmt: skip
HEADERS = [
    Awkward("no header", "headless.csv", HEADLESS, error=': row 1 looks like data, not like column names: "text number 0", "1"',
            fix="--columns text,label"),
    Awkward("no header, words as labels", "headless-2.csv", plain(header=""),
            error=': row 1 looks like data, not like column names: "text number 0", "a"', fix="--no-header"),
    Awkward("no header, columns named", "headless-3.csv", HEADLESS, {"columns": "text,label"}, labels=("0", "1")),
    Awkward("no header, columns numbered", "headless-4.csv", HEADLESS,
            {"header": False, "text": "column_1", "label": "column_2"}, labels=("0", "1")),
    Awkward("no header, too few names", "headless-5.csv", HEADLESS, {"columns": "text"},
            error=': --columns gives 1 name, but row 1 has 2 fields: "text number 0", "1"', fix="one name for each"),
    Awkward("a header, and names given too", "header-2.csv", plain(), {"columns": "body,answer"},
            error=": row 1 looks like column names (text, label), but --columns is for files without a header", fix="--header"),
    Awkward("a header of numbers, as pandas writes it", "numbers.csv", plain(header="0,1"), {"text": "0", "label": "1"}),
]  # fmt: skip
BROKEN = plain().replace(b"number 4", b"number \x92 4")
ENCODINGS = [
    Awkward("UTF-8 with a byte order mark", "mark.csv", table_text().encode("utf-8-sig")),
    Awkward("UTF-16, as Excel saves Unicode text", "utf16.csv", table_text().encode("utf-16")),
    Awkward("UTF-16, big-endian", "utf16-be.csv", b"\xfe\xff" + table_text().encode("utf-16-be")),
    Awkward("UTF-16 without a byte order mark", "utf16-2.csv", table_text().encode("utf-16-le"),
            error=": the file seems to be UTF-16 without a byte order mark", fix="--encoding utf-16-le"),
    Awkward("UTF-16 without a byte order mark, named", "utf16-3.csv", table_text().encode("utf-16-le"),
            {"encoding": "utf-16-le"}),
    Awkward("UTF-32", "utf32.csv", table_text().encode("utf-32")),
    Awkward("Windows quotes", "windows.csv", BROKEN, error=", row 6: byte 0x92 at position 87 is not UTF-8",
            fix="--encoding cp1252"),
    Awkward("Windows quotes, encoding named", "windows-2.csv", BROKEN, {"encoding": "cp1252"}),
    Awkward("Latin-1 accents", "latin.csv", plain().replace(b"number 4", b"caf\xe9"), {"encoding": "latin-1"}),
    Awkward("one broken byte, row skipped", "byte.csv", BROKEN, {"bad_rows": "skip"}, rows=ROWS - 1,
            note="skipped 1 row that cannot be read"),
    Awkward("an encoding that the byte order mark contradicts", "mark-2.csv", table_text().encode("utf-8-sig"),
            {"encoding": "latin-1"}, error=": the byte order mark says UTF-8, but encoding is latin-1", fix="omit --encoding"),
]  # fmt: skip
COMPRESSION = [
    Awkward("gzip", "rows.csv.gz", gzip.compress(plain())),
    Awkward("Zstandard", "rows.jsonl.zst", packed_zstd(lines(dicts()))),
    Awkward("bzip2", "rows.csv.bz2", bz2.compress(plain())),
    Awkward("xz", "rows.tsv.xz", lzma.compress(plain(sign="\t"))),
    Awkward("a zip archive of one file", "one.zip", zipped({"rows.csv": plain(), "__MACOSX/._rows.csv": b"x"})),
    Awkward("a zip archive of two files", "two.zip", zipped({"a.csv": plain(), "b.csv": plain()}),
            error=": the archive must contain one file; found a.csv, b.csv", fix="extract it"),
    Awkward("a zip archive with a password", "secret.zip", with_password(zipped({"a.csv": plain()})),
            error=": the archive needs a password", fix="extract it"),
    Awkward("gzip called .csv", "gzip.csv", gzip.compress(plain())),
    Awkward("plain text called .csv.gz", "text.csv.gz", plain()),
    Awkward("half of a gzip file", "half.csv.gz", gzip.compress(plain())[:40], error=": the compressed file is damaged: …",
            fix="compress or download it again"),
    Awkward("gzip without another extension", "rows.gz", gzip.compress(plain()), error=": this file format is not supported",
            fix="use one of"),
]  # fmt: skip
EXCEL = [
    Awkward("Excel", "rows.xlsx", xlsx(sheet())),
    Awkward("Excel, numbers as labels", "numbers.xlsx", xlsx(sheet((1, 2.0, 5))), labels=("1", "2", "5")),
    Awkward("Excel, true and false as labels", "bools.xlsx", xlsx(sheet((True, False))), labels=("false", "true")),
    Awkward("Excel, formulas", "formulas.xlsx", xlsx(sheet(("=1+0", 0))), labels=("0", "1")),
    Awkward("Excel, dates beside the texts", "dates.xlsx",
            xlsx([["text", "day", "label"], *([text, date(2024, 1, 2), AB[row % 2]] for row, text in enumerate(TEXTS))]),
            {"text": "text"}),
    Awkward("Excel without a header", "headless.xlsx", xlsx(sheet(header=False)), {"columns": "text,label"}),
    Awkward("Excel with a title above the table", "title.xlsx", xlsx([["Report", None], *sheet()]),
            error=': row 1 contains only "Report", which looks like a title above the table', fix="delete the rows"),
    Awkward("Excel with several sheets", "sheets.xlsx", xlsx(sheet(), sheet()),
            error=": several sheets contain cells: Sheet1, Sheet2", fix='--sheet "Sheet1"'),
    Awkward("Excel with several sheets, one chosen", "sheets-2.xlsx", xlsx(sheet(), sheet(("x", "y"))), {"sheet": "Sheet2"},
            labels=("x", "y")),
    Awkward("Excel with an empty second sheet", "sheets-3.xlsx", xlsx(sheet(), [])),
    Awkward("an empty sheet", "empty.xlsx", xlsx([]), error=": the file is empty", fix="check the path"),
    Awkward("Excel called .csv", "excel.csv", xlsx(sheet()), error=": the file is an Excel file", fix="excel.xlsx"),
    Awkward("old Excel", "old.xls", xls(), labels=("0", "1"), rows=2),
    Awkward("OpenDocument", "rows.ods", ods([["text", "label"], *([text, AB[row % 2]] for row, text in enumerate(TEXTS))])),
    Awkward("a damaged Excel file", "damaged.xlsx", b"PK\x03\x04 damaged", error=": the Excel file cannot be read: …",
            fix="save it again"),
]  # fmt: skip
JSON = [
    Awkward("JSON lines", "rows.jsonl", lines(dicts())),
    Awkward("one JSON array", "array.json", json.dumps(dicts(), indent=1).encode()),
    Awkward("a JSON array called .jsonl", "array.jsonl", json.dumps(dicts(), indent=1).encode()),
    Awkward("JSON columns", "columns.json",
            json.dumps({"text": TEXTS, "label": [AB[row % 2] for row in range(ROWS)]}).encode()),
    Awkward("nested fields", "nested.jsonl",
            lines([{"data": {"body": text, "id": row}, "label": AB[row % 2]} for row, text in enumerate(TEXTS)]),
            {"text": "data.body"}),
    Awkward("a line that is not JSON", "comma.jsonl", lines(dicts()) + b'{"text": "a", "label": "b",}\n',
            error=", row 13: not JSON: …", fix="--bad_rows skip"),
    Awkward("a line that is not JSON, skipped", "comma-2.jsonl", lines(dicts()) + b"{,}\n", {"bad_rows": "skip"},
            note="skipped 1 row that cannot be read"),
    Awkward("a key that the first row does not have", "keys.jsonl", lines(dicts()) + b'{"text": "a", "label": "b", "x": 1}\n',
            error=', row 13: key "x" is not in the first row (text, label)', fix="same keys"),
    Awkward("true and false as labels in JSON", "bools.jsonl",
            lines([{"text": text, "label": row % 2 == 0} for row, text in enumerate(TEXTS)]), labels=("false", "true")),
]  # fmt: skip
CATEGORIES = pa.array([AB[row % 2] for row in range(ROWS)]).dictionary_encode()
PARQUET = [
    Awkward("Parquet, categories", "categories.parquet", parquet(label=CATEGORIES)),
    Awkward("Parquet, numbers with a missing one", "missing.parquet",
            parquet(label=pa.array([None, *(row % 2 for row in range(1, ROWS))], pa.int64())),
            error=", row 1: the label is missing", fix="add the label"),
    Awkward("Parquet, fractions of whole numbers", "floats.parquet", parquet(label=[float(row % 2) for row in range(ROWS)]),
            labels=("0", "1")),
    Awkward("a damaged Parquet file", "damaged.parquet", parquet(label=CATEGORIES)[:50] + b"PAR1",
            error=": the Parquet file cannot be read: …", fix="write the file again"),
]  # fmt: skip
LABELS = [
    Awkward("labels 0 and 1", "binary.csv", plain(("0", "1")), labels=("0", "1")),
    Awkward("labels 1.0 and 0.0, as pandas writes them", "pandas.csv", plain(("1.0", "0.0")), labels=("0", "1")),
    Awkward("labels 1, 2 and 5", "stars.csv", plain(("5", "1", "2")), labels=("1", "2", "5")),
    Awkward("labels -1 and 1", "signs.csv", plain(("-1", "1")), labels=("-1", "1")),
    Awkward("labels -1, 0 and 1", "unknown.csv", plain(("-1", "0", "1")),
            error=", row 2: label -1 is negative, which usually stands for an unknown label",
            fix="--task single_label_classification"),
    Awkward("labels -1, 0 and 1, as classes", "unknown-2.csv", plain(("-1", "0", "1")), {"task": "single_label_classification"},
            labels=("-1", "0", "1")),
    Awkward("labels 0.5, 1.0 and 1.5", "halves.csv", plain(("0.5", "1.0", "1.5")),
            error=', row 2: label "0.5" is not a whole number', fix="--task regression"),
    Awkward("labels yes and no", "yes.csv", plain(("yes", "no")), labels=("no", "yes")),
    Awkward("labels True and False", "true.csv", plain(("True", "False")), labels=("False", "True")),
    Awkward("labels with a space inside", "spaces.csv", plain(("not good", "good")), labels=("good", "not good")),
    Awkward("labels with a space at the end", "stray.csv", plain(("a", "b ", "b")),
            error=', row 3: label "b " has stray spaces or is empty', fix="remove the spaces"),
    Awkward("several labels in a cell", "several.csv", plain(COMBINED),
            error=', row 2: label "x;y" looks like several labels: 3 different cells combine x, y, z',
            fix='--label_separator ";"'),
    Awkward("several labels in a cell, separator named", "several-2.csv", plain(COMBINED), {"label_separator": ";"},
            labels=("x", "y", "z")),
    Awkward("several labels in a cell, as classes", "several-3.csv", plain(("x;y", "x", "y")),
            {"task": "single_label_classification"}, labels=("x", "x;y", "y")),
    Awkward("lists that Python wrote", "lists.csv", plain(tuple(f'"{cell}"' for cell in LISTS)), labels=("x", "y", "z")),
    Awkward("lists that NumPy wrote", "numpy.csv", plain(("['x' 'y']", "['x']")),
            error=', row 2: label "[\'x\' \'y\']" looks like a list, but not all label cells can be read as lists',
            fix="['a', 'b']"),
    Awkward("one label for all rows", "same.csv", plain(("a",)), error=': all rows have the label "a"',
            fix="at least two labels"),
]  # fmt: skip
SECTIONS = {
    "CSV, TSV and text files": CSV,
    "Headers": HEADERS,
    "Encodings": ENCODINGS,
    "Compression": COMPRESSION,
    "Excel and OpenDocument": EXCEL,
    "JSON": JSON,
    "Parquet": PARQUET,
    "Labels": LABELS,
}
FILES = [file for files in SECTIONS.values() for file in files]


def table() -> str:
    """The table of all files in Markdown."""
    parts = []
    for section, files in SECTIONS.items():
        parts += [f"### {section}", "", "| File | Options | Result |", "|---|---|---|"]
        for file in files:
            options = f"`{file.options}`" if file.options else ""
            parts.append(f"| {file.what} | {escaped(options)} | {escaped(result_of(file))} |")
        parts.append("")
    return "\n".join(parts)


def result_of(file: Awkward) -> str:
    if file.error:
        return f"error: `{file.error.removeprefix(':').removeprefix(',').strip()}`"
    note = f"; {file.note}" if file.note else ""
    return f"{file.rows} rows, labels {', '.join(file.labels)}{note}"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def page_with_table(page: str) -> str:
    before, rest = page.split(START)
    return f"{before}{START}\n\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
