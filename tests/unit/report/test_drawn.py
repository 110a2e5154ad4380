"""Test the collection of charts."""

from __future__ import annotations

from drawn import every_chart

from glassloop.report.about import Drawn


def test_charts_of_one_name_are_numbered() -> None:
    drawn = Drawn()
    for chart in every_chart()[:2]:
        assert drawn.figure("loss", chart).startswith("<figure")
    assert [*drawn.charts] == ["loss", "loss-2"]
