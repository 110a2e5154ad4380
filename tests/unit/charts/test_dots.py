"""Test values with intervals and points."""

from __future__ import annotations

from drawn import marks, places, tree

from glassloop.report.charts.figure import LINEAR, PERCENT, Axis
from glassloop.report.charts.points import DotChart, Dots, interval_text


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
