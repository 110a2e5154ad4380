"""Test scatter charts."""

from __future__ import annotations

import pytest
from drawn import marks, places, tree

from glassloop.report.charts.figure import Axis
from glassloop.report.charts.points import Cloud, ScatterChart


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
