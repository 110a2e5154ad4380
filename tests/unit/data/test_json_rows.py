"""JSON: nested fields become columns, and broken lines are skipped. The formats are tested in test_readers.py."""

from __future__ import annotations

from glassloop.data.faults import BadRows
from glassloop.data.readers import flat, read_json


def test_nested_fields_are_columns():
    row = {"a": {"b": 1, "c": {"d": [2]}}, "e": "f", "g": {}}
    assert flat(row) == {"a.b": 1, "a.c.d": [2], "e": "f"}


def test_a_nested_field_never_replaces_another(write, refused):
    path = write("d.jsonl", '{"a": {"b": 1}, "a.b": 2}\n')
    with refused('d.jsonl, row 1: the key "a.b" occurs twice', "rename a key, or use fewer levels"):
        [*read_json(path)]


def test_everything_that_cannot_be_read_is_skipped(write):
    good = [b'{"t": "%d"}' % row for row in range(6)]
    path = write("d.jsonl", b"\n".join([*good[:2], b"", b"{", b"[1]", b'{"u": 1}', b'{"t": "\xff"}', *good[2:]]) + b"\n\n")
    bad = BadRows(skip=True)
    assert [row["t"] for table in read_json(path, None, bad) for row in table.to_pylist()] == [*"012345"]
    assert [*bad.rows[path]] == [3, 4, 7, 5, 6]
    assert bad.rows[path][7] == "the row contains a byte that is not text"


def test_other_encodings(write):
    path = write("d.jsonl", '{"t": "ä"}\n'.encode("utf-16"))
    assert [table.to_pylist() for table in read_json(path)] == [[{"t": "ä"}]]
    path = write("e.jsonl", '{"t": "ä"}\n'.encode("latin-1"))
    assert [table.to_pylist() for table in read_json(path, "latin-1")] == [[{"t": "ä"}]]
