"""Curves of compared runs: one line per side, of several seeds the mean with its range."""

from __future__ import annotations

from pathlib import Path

from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.report.comparison import compare_runs
from glassloop.report.comparison_page import curves, points_of, series_of


def test_every_recorded_figure_has_a_chart(tmp_path: Path) -> None:
    first = write_drawn_run(tmp_path / "a", drawn_rows(20, 1.0, 1))
    second = write_drawn_seeds(tmp_path / "b", {seed: drawn_rows(20, 1.0, seed) for seed in (1, 2)})
    found = compare_runs([str(first), str(second)])
    charts = curves(found)
    assert [chart.title for chart in charts] == ["Training loss", "Evaluation loss", "accuracy", "f1 (equivalent)"]
    single, several = charts[0].series
    assert (single.name, several.name) == tuple(found.names)
    assert not single.band
    step, low, high = several.band[0]
    assert several.points[0] == (step, (low + high) / 2), "the mean of two seeds"
    assert (low, high) == (1 / 1.2, 1 / 1.1)
    for folder in (first, second / "seed-1", second / "seed-2"):
        (folder / "history.jsonl").unlink()
    assert curves(found) == []


def test_steps_that_not_all_seeds_have_are_omitted() -> None:
    histories = [[{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}], [{"step": 1, "loss": 3.0}]]
    assert series_of("a", histories, "loss").points == [(1.0, 2.0)]  # type: ignore[arg-type]


def test_odd_entries_are_skipped_and_the_last_of_a_step_counts() -> None:
    entries = [
        {"step": 1, "loss": 1.0},
        {"step": 1, "loss": 2.0},
        {"step": "x", "loss": 1.0},
        {"step": 2, "loss": True},
        {"loss": 1},
    ]
    assert points_of(entries, "loss") == {1.0: 2.0}
