"""Test values with intervals and points."""

from __future__ import annotations

import pytest
from drawn import marks, places, tree

from glassloop.report.charts import (
    LINEAR,
    PERCENT,
    Axis,
    Cloud,
    DotChart,
    Dots,
    HeatMap,
    ParallelChart,
    ScatterChart,
    Thread,
    axis_places,
    figure,
    interval_text,
    number_or_text,
)


def test_a_value_lies_within_its_interval() -> None:
    drawn = marks(tree(DotChart("Metrics", "", [Dots("accuracy", 0.8, 0.7, 0.9, baseline=0.6)])))
    whisker, baseline = (mark for mark in drawn if mark.get("class") == "whisker")
    (dot,) = (mark for mark in drawn if mark.get("class") == "dot")
    (left, _), (right, _) = places(whisker)
    ((middle, _),) = places(dot)
    assert next(iter(places(baseline)))[0] < left < middle < right


def test_every_seed_is_a_point() -> None:
    chart = DotChart(
        "Seeds", "", [Dots("accuracy", points=[0.5, 0.6, 0.7, 0.8], note="4 seeds"), Dots("f1", 0.6)], Axis("score")
    )
    drawn = marks(tree(chart))
    assert len([mark for mark in drawn if mark.get("class") == "point"]) == 4
    assert drawn[0][0].text == "accuracy\npoints: 0.5, 0.6, 0.7, 0.8\n4 seeds"
    assert chart.table().rows[0] == ("accuracy", None, None, None, 0.5, 0.6, 0.7, 0.8, "4 seeds")


def test_intervals_are_written() -> None:
    assert interval_text(0.7, 0.9, PERCENT) == " (95 % interval 70.0 % to 90.0 %)"
    assert interval_text(None, 0.9, LINEAR) == ""


# --- Test heat maps.


def confusion(size: int) -> HeatMap:
    names = [f"class {number}" for number in range(size)]
    values = [[0.9 if row == column else 0.01 for column in range(size)] for row in range(size)]
    texts = [[[f"{value * 1000:.0f}", f"{value:.0%}"] for value in row] for row in values]
    return HeatMap("Confusion", "", names, names, values, texts, "true", "predicted", True)


def test_errors_have_another_color() -> None:
    cells = marks(tree(confusion(2)))
    assert [cell.get("class") for cell in cells] == ["cell", "cell wrong", "cell wrong", "cell"]
    assert cells[1][0].text == "true class 0, predicted class 1\n10\n1%"
    assert float(cells[0].get("fill-opacity", 0)) > float(cells[1].get("fill-opacity", 0))


def test_small_cells_have_no_text() -> None:
    drawn = tree(confusion(40))
    assert len(marks(drawn)) == 1600
    assert not [text for text in drawn.iter("text") if "through" in text.get("class", "")]


def test_the_table_has_the_counts() -> None:
    assert confusion(2).table().rows[0] == ("class 0", 900.0, 10.0)
    assert number_or_text(["a"]) == "a"
    assert number_or_text([]) == ""


# --- Parallel coordinates: an axis per setting, numbers on a scale and names in steps, the chosen line on top.


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


# --- Test scatter charts.


def chart(**more: object) -> ScatterChart:
    return ScatterChart("Scores", "", Axis("true"), Axis("predicted"), [Cloud("rows", [(1, 2), (3, 3)])], **more)


def test_equal_values_lie_on_the_diagonal() -> None:
    drawn = marks(tree(chart(diagonal=True)))
    (left, low), (right, high) = places(next(mark for mark in drawn if mark.get("class") == "dashed"))
    ((x, y),) = places([mark for mark in drawn if mark.get("class") == "point"][1])
    assert (y - low) / (high - low) == pytest.approx((x - left) / (right - left), abs=0.01)


def test_points_say_their_values_and_are_listed() -> None:
    drawn = marks(tree(chart(level=2.5)))
    assert drawn[1][0].text == "true: 1\npredicted: 2"
    assert chart().table().rows == (("rows", 1, 2), ("rows", 3, 3))
