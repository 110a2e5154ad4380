"""Test bar charts."""

from __future__ import annotations

import pytest
from drawn import marks, places, tree

from glassloop.report.charts import Axis, BarChart, Bars, Histogram, counts_in, even_edges


def test_bars_start_at_zero_and_are_proportional() -> None:
    drawn = tree(BarChart("Rows", "", ["a", "b"], [Bars("rows", [50, 100])]))
    spans = [[x for x, _ in places(mark)] for mark in marks(drawn)]
    lengths = [right - left for left, right in spans]
    assert spans[0][0] == spans[1][0]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.2)
    assert [mark[0].text for mark in marks(drawn)] == ["a\nrows: 50", "b\nrows: 100"]


def test_long_labels_are_cut() -> None:
    name = "a class with a name that is much too long to be shown beside a bar of this chart"
    drawn = tree(BarChart("Rows", "", [name], [Bars("rows", [1])]))
    assert [text[0].text for text in drawn.iter("text") if len(text)] == [name]


def test_a_missing_value_has_no_bar() -> None:
    chart = BarChart("F1", "", ["a"], [Bars("precision", [0.5]), Bars("recall", [None])], Axis("score", high=1))
    assert len(marks(tree(chart))) == 1
    assert chart.table().rows == (("a", 0.5, None),)


def test_labels_may_have_their_own_colors() -> None:
    drawn = tree(BarChart("Speed", "", ["a", "b"], [Bars("ms", [1, 2])], colors=[3, 7]))
    assert {"s3", "s7"} <= {group.get("class") for group in drawn.iter("g")}


# --- Test histograms.


def test_values_are_counted() -> None:
    edges = even_edges(0, 1, 4)
    assert edges == [0, 0.25, 0.5, 0.75, 1]
    assert counts_in([0, 0.1, 0.25, 0.99, 1, 2], edges) == [2, 1, 0, 2]


def test_series_lie_on_top_of_each_other() -> None:
    chart = Histogram("Scores", "", [0, 1, 2], [Bars("right", [4, 1]), Bars("wrong", [2, 0])], Axis("score"))
    right, alone, wrong = ([*places(mark)] for mark in marks(tree(chart)))
    assert wrong[1][1] == right[0][1], "the second series starts where the first one ends"
    heights = [low - high for (_, high), (_, low) in (right, alone, wrong)]
    assert heights[0] == pytest.approx(4 * heights[1], abs=0.5)
    assert chart.table().rows == ((0, 1, 4, 2), (1, 2, 1, 0))
