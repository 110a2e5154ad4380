"""Test `glassloop report`: files, tables and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import write_fake_run

from glassloop.base.errors import SettingsError
from glassloop.cli.report import report
from glassloop.runs.record import RUNNING


def test_the_report_its_tables_and_charts_are_written_or_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_run(tmp_path / "run")
    found = report(str(tmp_path / "run"))
    assert found.content["files"] == [tmp_path / "run" / "report.html"]
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'report.html'}\n"
    assert report(str(tmp_path / "run"), str(tmp_path / "mine.html")).content["files"] == [tmp_path / "mine.html"]
    assert (tmp_path / "mine.html").is_file()
    capsys.readouterr()
    assert report(str(tmp_path / "run"), form="markdown").content["files"] == []
    assert capsys.readouterr().out.startswith("| split | metric | value |")
    report(str(tmp_path / "run"), str(tmp_path / "table.tex"), "latex")
    assert (tmp_path / "table.tex").read_text(encoding="utf-8").startswith(r"\begin{tabular}")
    assert tmp_path / "run" / "charts" / "loss.csv" in report(str(tmp_path / "run"), form="csv").content["files"]


def test_wrong_formats_and_missing_results_are_refused(tmp_path: Path) -> None:
    write_fake_run(tmp_path, status=RUNNING)
    with pytest.raises(SettingsError, match='--format is "markdwn"; did you mean "markdown"'):
        report(str(tmp_path), form="markdwn")
    with pytest.raises(SettingsError, match="has no results yet"):
        report(str(tmp_path), form="latex")
