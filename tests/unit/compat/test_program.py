"""Scripts and notebooks as parts that run: magics are skipped and named, statuses and tracebacks are Python's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from glassloop.base.errors import DataError, SettingsError
from glassloop.cli.options import end_of_own
from glassloop.cli.run import model_pair
from glassloop.compat.program import Part, names_in, parts_of, run_part
from glassloop.compat.substitution import LEDGER

pytestmark = pytest.mark.usefixtures("ledger")


def test_a_notebook_has_a_part_for_each_code_cell_without_its_magics_which_are_named(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    for code, left, skipped in (
        ("x = 1", "x = 1", []),
        ("!pip install x\nx = 1", "pass\nx = 1", ["!pip install x"]),
        ("if x:\n    %time f()", "if x:\n    pass", ["%time f()"]),
        ("files = !ls\nx", "pass\nx", ["files = !ls"]),
        ("x?\ny", "pass\ny", ["x?"]),
        ("%%bash\nls", "", ["%%bash and the rest of the cell"]),
        ("%%time\nx = 1", "pass\nx = 1", ["%%time"]),
        ("x = 5 %3", "x = 5 %3", []),
        ("s = '''\n!not a command\n'''", "s = '''\n!not a command\n'''", []),
    ):
        LEDGER.skipped.clear()
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": code}]}))
        assert [part.code for part in parts_of(path)] == [left]
        assert [text for _, text in LEDGER.skipped] == skipped
        assert all(place.startswith("n.ipynb, cell 1, line ") for place, _ in LEDGER.skipped)
    cells = [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": ["a = 1\n", "a"]}]
    path.write_text(json.dumps({"cells": cells}))
    (part,) = parts_of(path)
    assert part == Part(f"{path}, cell 2", "a = 1\na", shows=True)
    path.write_text("{}")
    with pytest.raises(DataError, match="not a notebook"):
        parts_of(path)


def test_the_status_of_a_part_and_a_hook_for_errors_that_a_script_sets(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for code, status, out, err in (
        ("print(1)", 0, "1\n", ""),
        ("1 + 1", 0, "2\n", ""),
        ("1 + 1;", 0, "", ""),
        ("raise SystemExit", 0, "", ""),
        ("raise SystemExit(3)", 3, "", ""),
        ("raise SystemExit('bye')", 1, "", "bye\n"),
        ("x = ", 1, "", "SyntaxError"),
        ("raise KeyboardInterrupt", 130, "", "KeyboardInterrupt"),
        ("def f():\n    raise ValueError('no')\nf()", 1, "", 'File "part", line 2, in f'),
    ):
        assert run_part(Part("part", code, shows=True), ModuleType("__main__")) == status
        captured = capsys.readouterr()
        assert captured.out == out
        assert err in captured.err
        assert "program.py" not in captured.err
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append((kind, trace.tb_frame.f_code.co_filename)))
    assert run_part(Part("script.py", b"1 / 0"), ModuleType("__main__")) == 1
    assert seen == [(ZeroDivisionError, "script.py")]


def test_names_of_transformers_that_parts_use() -> None:
    code = "from transformers import Trainer, BertModel as B\nimport transformers\ntransformers.AdamW\nother.Z\n"
    code += "class XForY: pass"
    assert names_in([Part("x", code), Part("y", "not python")]) == {"Trainer", "BertModel", "AdamW"}


def test_where_the_arguments_of_a_script_begin_and_a_model_map_needs_two_names(tmp_path: Path) -> None:
    for arguments, end in (
        (["train", "x.csv", "--json"], 3),
        (["run", "x.py", "--json"], 2),
        (["run", "--json", "--model_map", "a=b", "x.py", "--debug"], 5),
        (["run", "--model-map=a=b", "--keep", "Trainer", "x.py", "-h"], 5),
        (["run", "--", "-x.py", "--json"], 3),
        (["run", "--help"], 2),
        (["run"], 1),
        ([], 0),
    ):
        assert end_of_own(arguments) == end
    assert model_pair(f"bert={tmp_path}") == ("bert", str(tmp_path))
    assert model_pair("bert=owner/name") == ("bert", "owner/name")
    for text in ("bert", "=x", "bert="):
        with pytest.raises(SettingsError, match="NAME=FOLDER"):
            model_pair(text)
