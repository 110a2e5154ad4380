"""`glassloop compare`: prints, writes HTML, gives JSON, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import drawn_rows, write_drawn_run

from glassloop.base.errors import SettingsError
from glassloop.cli.compare import compare


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(write_drawn_run(tmp_path / name, drawn_rows(40, 1.0, number))) for number, name in enumerate("ab")]


def test_it_prints_writes_and_returns_and_only_html_is_written(folders: list[str], tmp_path: Path, capsys) -> None:
    target = tmp_path / "new" / "compare.html"
    found = compare(folders, out=str(target))
    assert "exact McNemar test" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert found.content["out"] == target
    assert found.content["rows"] == 40
    with pytest.raises(SettingsError, match="is not an HTML file"):
        compare(folders, out=str(tmp_path / "compare.pdf"))


def test_no_heavy_package_is_loaded(folders: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom glassloop.cli.compare import compare\n"
        f"compare({folders!r}, out={str(tmp_path / 'out.html')!r})\n"
        "sys.exit(str([name for name in ('torch', 'transformers', 'datasets', 'sklearn', 'pandas') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
