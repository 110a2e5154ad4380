"""Parallel coordinates: an axis per setting, numbers on a scale and names in steps, the chosen line on top."""

from __future__ import annotations

from glassloop.report.charts.figure import figure
from glassloop.report.charts.points import ParallelChart, Thread, axis_places

THREADS = [
    Thread("a", [1e-5, "linear", True, 0.8]),
    Thread("b", [1e-3, "cosine", False, 0.9], strong=True),
    Thread("c", [1e-4, "cosine", None, 0.7]),
]
CHART = ParallelChart("Settings", "lines", ["rate", "schedule", "group", "score"], THREADS)


def test_wide_ranges_are_logarithmic() -> None:
    places, marks = axis_places([1e-5, 1e-4, 1e-3])
    gaps = [places[1e-5] - places[1e-4], places[1e-4] - places[1e-3]]
    assert abs(gaps[0] - gaps[1]) < 1e-6
    assert len(marks) == 3


def test_names_and_missing_values_have_places_too() -> None:
    places, marks = axis_places(["linear", None, True])
    assert len({*places.values()}) == 3
    assert {text for text, _ in marks} == {"linear", "None", "True"}
    assert [*axis_places([3, 3])[0].values()]


def test_every_line_is_drawn_and_listed() -> None:
    html = figure(CHART)
    assert html.count('class="line"') == 1
    assert html.count('class="raw"') == 2
    assert CHART.table().columns == ("setting", "rate", "schedule", "group", "score")
    assert CHART.table().rows[1] == ("b", 1e-3, "cosine", "false", 0.9)
    assert html.index('class="raw"') < html.index('class="line"'), "the chosen line is on top"
