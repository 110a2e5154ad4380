"""Runs side by side: results and what differs."""

from __future__ import annotations

from pathlib import Path

from watched_runs import write_watched

from glassloop.web.views import compare_view, comparison, settings, values_of
from glassloop.web.watch import Watcher


def test_results_and_differences(tmp_path: Path) -> None:
    write_watched(tmp_path / "a", steps=8, finished=True)
    write_watched(tmp_path / "b", steps=4, max_length=128)
    watcher = Watcher(tmp_path)
    runs = sorted(watcher.runs(), key=lambda run: run.name)
    sections = {section.name: section.body for section in compare_view(runs, [*map(watcher.curves, runs)], "/t/").sections}
    assert ">0.7500</td><td" in sections["results"], "the final evaluation of the first"
    assert ">0.5000</td></tr>" in sections["results"], "the latest evaluation of the second"
    assert '<td class="long">max_length</td><td class="long">64</td><td class="long">128</td>' in sections["settings"]
    assert "learning_rate" not in sections["settings"]
    assert "when all runs are finished" in sections["test"]


def test_equal_and_unknown_settings(tmp_path: Path) -> None:
    write_watched(tmp_path / "a")
    (run,) = Watcher(tmp_path).runs()
    assert "are the same" in settings([run, run])
    (tmp_path / "a" / "run.json").unlink()
    assert values_of(Watcher(tmp_path).runs()[0]) == {}


def test_finished_runs_are_compared_with_a_test(tmp_path: Path) -> None:
    write_watched(tmp_path / "a & b", finished=True)
    (run,) = Watcher(tmp_path).runs()
    html = comparison([run, run], "/t/")
    assert 'href="/t/comparison?run=a%2520%2526%2520b&amp;run=a%2520%2526%2520b"' in html
    assert "glassloop compare" in html
