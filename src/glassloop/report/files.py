"""Write the charts of a report to files: SVG, PNG or CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glassloop.charts.figure import Chart, csv_of, standalone
from glassloop.errors import SettingsError
from glassloop.files import replacing, write_text

CHART_FORMATS = ("svg", "png", "csv")
PNG_ZOOM = 3.0  # 1,320 pixels wide, enough for print at the width of a column


def write_charts(charts: Mapping[str, Chart], folder: Path, form: str) -> list[Path]:
    """Write each chart to a file of its name, and return the paths.

    Raises `SettingsError` for PNG if the library that draws it is not installed.
    """
    written = []
    for name, chart in charts.items():
        path = folder / f"{name}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "png":
            content = png_of(chart)
            with replacing(path) as writing:
                writing.write_bytes(content)
        else:
            write_text(path, csv_of(chart) if form == "csv" else standalone(chart))
        written.append(path)
    return written


def png_of(chart: Chart) -> bytes:
    """Return a chart as a PNG image. Raises `SettingsError` if resvg-py is not installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise SettingsError("PNG needs the package resvg-py", "pip install 'glassloop[png]', or use --format svg") from error
    return bytes(svg_to_bytes(svg_string=standalone(chart, dark=False), zoom=PNG_ZOOM))
