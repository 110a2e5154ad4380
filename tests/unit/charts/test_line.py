"""Test line charts: thinning, smoothing, tables, events."""

from __future__ import annotations

import pytest
from drawn import marks, places, tree

from glassloop.report.charts import LINE_POINTS, MOST_HITS, Axis, Event, LineChart, Series, smoothed, thinned

LONG = [(float(step), float(step % 7)) for step in range(10_000)]


def chart(*series: Series, **more: object) -> LineChart:
    return LineChart("Loss", "Loss by step.", Axis("step"), Axis("loss"), series, **more)


def test_long_lines_are_thinned_and_keep_their_peaks() -> None:
    peaked = [*LONG[:5_000], (5_000.0, 99.0), *LONG[5_001:]]
    kept = thinned(peaked)
    assert len(kept) <= LINE_POINTS
    assert (5_000.0, 99.0) in kept
    assert (kept[0], kept[-1]) == (peaked[0], peaked[-1])
    assert [*kept] == sorted(kept)
    assert thinned(LONG[:10]) == LONG[:10]


def test_long_charts_stay_small() -> None:
    drawn = tree(chart(Series("loss", LONG, raw=LONG)))
    assert len([mark for mark in marks(drawn) if mark.get("class") == "hit"]) <= MOST_HITS


def test_smoothing_is_the_mean_of_a_window() -> None:
    line = [(float(x), 2.0 * x) for x in range(100)]
    found = smoothed(line, 0.2)
    assert [value for _, value in found[10:90]] == pytest.approx([value for _, value in line[10:90]])
    assert found[0] == (0.0, 10.0), "the mean of the first eleven values"
    assert smoothed(line[:5], 0.1) == line[:5], "few points stay as they are"


def test_the_table_has_raw_values_and_intervals() -> None:
    found = chart(
        Series("loss", [(1, 2.0)], raw=[(1, 3.0)], band=[(1, 1.0, 4.0)]), Series("ideal", [(9, 9)], quiet=True)
    ).table()
    assert found.columns == ("step", "loss", "loss (raw)", "loss, low", "loss, high")
    assert found.rows == ((1, 2.0, 3.0, 1.0, 4.0),)


def test_events_and_references_are_drawn() -> None:
    drawn = tree(chart(Series("loss", [(1, 1.0), (9, 2.0)]), events=[Event(4, "resumed")], references=[("majority", 1.5)]))
    texts = [text.text for text in drawn.iter("text")]
    assert {"resumed", "majority"} <= {*texts}
    (event,) = [mark for mark in marks(drawn) if mark.get("class") == "event"]
    (line,) = [mark for mark in marks(drawn) if mark.get("class") == "line"]
    (left, _), (right, _) = places(line)
    assert next(iter(places(event)))[0] == pytest.approx(left + (right - left) * 3 / 8, abs=0.2)


def test_one_point_is_a_dot() -> None:
    drawn = tree(chart(Series("loss", [(5, 1.0)])))
    assert [mark.tag for mark in marks(drawn) if mark.get("class") == "dot"] == ["circle"]


def test_hover_names_every_series_at_a_place() -> None:
    drawn = tree(chart(Series("a", [(1, 0.5), (2, 0.25)]), Series("b", [(2, 0.75)])))
    names = [mark[0].text for mark in marks(drawn) if mark.get("class") == "hit"]
    assert names == ["step 1\na: 0.5", "step 2\na: 0.25\nb: 0.75"]


def test_a_chart_without_data_is_drawn() -> None:
    assert tree(chart()).tag == "svg"
    assert tree(chart(Series("loss", []))).tag == "svg"
