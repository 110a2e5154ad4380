"""The JSON document of a command: plain values only, and alone on standard output."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from glassloop.base.errors import DataError
from glassloop.base.output import CommandResult, error_result, output_of, show_result


@dataclass(frozen=True)
class Record:
    """Something with fields."""

    name: str
    values: tuple[float, ...]


def test_every_value_becomes_plain_json() -> None:
    content = {
        "record": Record("a", (1.0, float("inf"))),
        "path": Path("runs/run-001"),
        "seeds": {42: {"score": float("nan")}},
        "nothing": None,
        "yes": True,
    }
    assert json.loads(str(CommandResult(content))) == {
        "record": {"name": "a", "values": [1.0, None]},
        "path": "runs/run-001",
        "seeds": {"42": {"score": None}},
        "nothing": None,
        "yes": True,
    }


def test_an_error_has_its_parts_and_its_exit_status() -> None:
    found = error_result(DataError("row 3 is empty", "fill it"))
    assert found.exit_status == 3
    assert found.content["error"] == {"area": "data", "problem": "row 3 is empty", "remedy": "fill it", "exit_status": 3}


def test_everything_else_goes_to_standard_error_only_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        with output_of(as_json) as output:
            print("a table")
            print("a document", file=output)
        print("after")
        found = capsys.readouterr()
        assert found.out == ("a document\nafter\n" if as_json else "a table\na document\nafter\n")
        assert found.err == ("a table\n" if as_json else "")
    assert sys.stdout is not sys.stderr


def test_only_the_main_process_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setenv("RANK", "1")
    show_result(CommandResult({"ok": True}), output)
    assert output.getvalue() == ""
    monkeypatch.setenv("RANK", "0")
    show_result(CommandResult({"ok": True}), output)
    assert json.loads(output.getvalue()) == {"ok": True}
