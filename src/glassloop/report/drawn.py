"""Collect the charts of a report while its sections are written, so that each can also become a file."""

from __future__ import annotations

from glassloop.charts.figure import Chart, figure


class Drawn:
    """The charts of a report by name."""

    def __init__(self) -> None:
        self.charts: dict[str, Chart] = {}

    def figure(self, name: str, chart: Chart, note: str = "", *, wide: bool = False, most_rows: int = 60) -> str:
        """Return a chart as HTML and keep it. `name` is that of its file; a second one of this name gets a number."""
        free = name if name not in self.charts else f"{name}-{sum(known.startswith(name) for known in self.charts) + 1}"
        self.charts[free] = chart
        return figure(chart, note=note, wide=wide, most_rows=most_rows)
