"""Test histograms."""

from __future__ import annotations

import pytest
from drawn import marks, places, tree

from glassloop.report.charts.bars import Bars, Histogram, counts_in, even_edges
from glassloop.report.charts.figure import Axis


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
