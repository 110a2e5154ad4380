"""`glassloop list`: a table and plain values, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from drawn_runs import drawn_rows, write_drawn_run

from glassloop.base.errors import SettingsError
from glassloop.base.result import CommandResult
from glassloop.cli.list import list_runs


def test_it_prints_and_returns_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_drawn_run(tmp_path / "one", drawn_rows(10))
    found = list_runs(str(tmp_path))
    assert "accuracy 0.7500" in capsys.readouterr().out
    assert isinstance(found, CommandResult)
    assert '"status": "finished"' in str(found)


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="runs is not a folder"):
        list_runs(None)


def test_no_heavy_package_is_loaded(tmp_path: Path) -> None:
    write_drawn_run(tmp_path / "one", drawn_rows(10))
    code = (
        f"import sys\nfrom glassloop.cli.list import list_runs\nlist_runs({str(tmp_path)!r})\n"
        "sys.exit(str([name for name in ('torch', 'transformers', 'datasets', 'scipy', 'pandas') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
