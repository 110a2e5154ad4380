"""Files as bytes and text: compression by content, encodings by mark, and the place of a byte that cannot be decoded."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from pathlib import Path

import pytest
from awkward_files import packed_zstd
from workbooks import zipped

from glassloop.data.faults import SKIP
from glassloop.data.opening import data_suffix, is_broken, opened_bytes, opened_text

TEXT = "text,label\nä,x\n"
PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": packed_zstd,
    ".zip": lambda content: zipped({"a.csv": content}),
}
DAMAGED = "compress or download it again"


@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz"])
@pytest.mark.parametrize("kind", PACKED)
def test_the_content_decides_on_the_compression(kind, name, write):
    with opened_text(write(name, PACKED[kind](TEXT.encode()))) as text:
        assert text.read() == TEXT


@pytest.mark.parametrize("kind", PACKED)
def test_a_file_that_ends_early_is_damaged(kind, write):
    content = PACKED[kind]((TEXT * 1000).encode())
    path = write(f"d.csv{kind}", content[: len(content) // 2])
    with pytest.raises(Exception, match=f"d.csv{kind}: the compressed file is damaged") as raised, opened_bytes(path) as opened:
        opened.read()
    assert raised.value.remedy == DAMAGED


def test_several_members_of_gzip_and_zstd_are_one_text(write):
    for kind in (".gz", ".zst", ".bz2", ".xz"):
        with opened_text(write(f"d.csv{kind}", PACKED[kind](b"a\n") + PACKED[kind](b"b\n"))) as text:
            assert text.read() == "a\nb\n"


def test_a_text_that_starts_like_bzip2_is_text(write):
    with opened_text(write("d.csv", b"BZh,label\n")) as text:
        assert text.read() == "BZh,label\n"


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.csv", ".csv"), ("a.CSV.GZ", ".csv"), ("a.jsonl.zst", ".jsonl"), ("a.gz", ""), ("a", ""), ("a.b.parquet", ".parquet")],
)
def test_the_extension_below_that_of_the_compression(name, suffix):
    assert data_suffix(Path(name)) == suffix


def test_the_extension_in_a_zip_archive(write):
    assert data_suffix(write("a.zip", zipped({"folder/b.tsv": b""}))) == ".tsv"
    assert data_suffix(write("b.csv.zip", b"damaged")) == ".csv"
    assert data_suffix(write("c.zip", zipped({"a.csv": b"", "b.csv": b""}))) == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_the_byte_order_mark_decides(encoding, write):
    path = write("d.csv", TEXT.encode(encoding))
    for chosen in (None, encoding):
        with opened_text(path, chosen) as text:
            assert text.read() == TEXT


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_named(encoding, write, refused):
    path = write("d.csv", TEXT.encode(encoding))
    with (
        refused("d.csv: the file seems to be UTF-16 without a byte order mark", f"use --encoding {encoding}"),
        opened_text(path),
    ):
        pass
    with opened_text(path, encoding) as text:
        assert text.read() == TEXT


@pytest.mark.parametrize("kind", ["", ".gz"])
def test_one_broken_byte_in_many_rows_is_named_with_its_row_and_position(kind, write, refused):
    content = ('"a\nb",x\n' + "ok,y\n" * 9_998).encode() + b"caf\xe9,x\n" + b"ok,y\n" * 100
    path = write(f"d.csv{kind}", gzip.compress(content) if kind else content)
    fixes = "set the encoding of the file, for example --encoding cp1252 (Windows) or --encoding latin-1"
    with (
        refused(f"d.csv{kind}, row 10,000: byte 0xe9 at position 50,001 is not UTF-8", f"{fixes}; {SKIP}"),
        opened_text(path, rows_of=csv.reader) as text,
    ):
        text.read()
    with opened_text(path, "latin-1") as text:
        assert "café,x" in text.read()
    with opened_text(path, lenient=True) as text:
        assert [number for number, row in enumerate(csv.reader(text), 1) if is_broken(row)] == [10_000]


@pytest.mark.parametrize(
    ("encoding", "content", "problem"),
    [
        ("cp1252", b"a\n\x81\n", "d.csv, line 2: byte 0x81 at position 2 is not cp1252"),
        ("ascii", b"a\xe4", "d.csv, line 1: byte 0xe4 at position 1 is not ascii"),
        ("utf-16", "ab".encode("utf-16") + b"x", "d.csv: byte 0x78 at position 6 is not UTF-16"),
        ("utf-16-le", b"a\0\0\xd8b\0", "d.csv: byte 0x00 at position 2 is not UTF-16-LE"),
    ],
)
def test_a_wrong_encoding_is_named(encoding, content, problem, write, refused):
    remedy = f"set the encoding of the file, for example --encoding utf-8; {SKIP}"
    with refused(problem, remedy), opened_text(write("d.csv", content), encoding) as text:
        text.read()
