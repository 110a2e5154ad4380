"""Test charts as files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from drawn import every_chart

from glassloop.base.errors import SettingsError
from glassloop.report.build import png_of, write_charts

CHARTS = {f"chart-{number}": chart for number, chart in enumerate(every_chart())}


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<svg"), ("csv", b""), ("png", b"\x89PNG")])
def test_every_chart_becomes_a_file(tmp_path: Path, form: str, begins: bytes) -> None:
    if form == "png":
        pytest.importorskip("resvg_py")
    written = write_charts(CHARTS, tmp_path / "charts", form)
    assert [path.name for path in written] == [f"{name}.{form}" for name in CHARTS]
    assert all(path.read_bytes().startswith(begins) and path.stat().st_size > 20 for path in written)


def test_png_without_its_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(SettingsError, match=r"pip install 'glassloop\[png\]', or use --format svg"):
        png_of(CHARTS["chart-0"])
