"""Test the first section of a report."""

from __future__ import annotations

from pathlib import Path

from reported_runs import write_fake_run

from glassloop.report.about import Drawn
from glassloop.report.results import Result, headline, progress, reach, results_charts, results_of, small_print
from glassloop.report.source import read_source
from glassloop.runs.record import RUNNING

SHARE = Result("validation", "accuracy", "accuracy", 0.8, 0.7, 0.9, 0.6)
ERROR = Result("validation", "mse", "mse", 2.0, 1.5, 2.5, 3.0)


def test_the_headline_has_values_intervals_and_baseline(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    results = results_of(source)
    html = headline(source, results, Drawn())
    assert html.count('class="card"') == 2
    assert f"{results[0].value:.4f}" in html
    assert results[0].interval in html
    assert small_print(SHARE) == "95 % interval 0.7000 to 0.9000; baseline 0.6000"


def test_errors_have_an_axis_of_their_own() -> None:
    drawn = Drawn()
    assert len(results_charts([SHARE, ERROR], drawn, "mean")) == 2
    assert (reach(SHARE), reach(ERROR)) == (0.9, 3.0)


def test_an_unfinished_run_shows_its_progress(tmp_path: Path) -> None:
    write_fake_run(tmp_path, status=RUNNING)
    html = progress(read_source(tmp_path))
    assert "60 of 8" in html
    assert "0.7000" in html
