"""Curves of compared runs: one line per side, of several seeds the mean with its range."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.report.comparison import (
    MOST_TEXT,
    SINGLE_SEEDS,
    compare_runs,
    comparison_page,
    curves,
    cut,
    listed_names,
    p_text,
    points_of,
    series_of,
    short_name,
    show_comparison,
)
from glassloop.settings.training import SCORE, SEVERAL


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


# --- A comparison in the terminal: at most 80 columns, no control characters, every verdict.


def shown(*folders: Path) -> str:
    console = Console(file=io.StringIO(), width=80)
    show_comparison(console, compare_runs([str(folder) for folder in folders]))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_two_runs_with_hostile_texts_and_long_names(tmp_path: Path) -> None:
    texts = [f"[red]text\x1b[31m {row} " * 20 for row in range(60)]
    first = write_drawn_run(tmp_path / ("long" * 20), drawn_rows(60, 0.8, 1), texts=texts, learning_rate=1e-5)
    second = write_drawn_run(tmp_path / ("name" * 20), drawn_rows(60, 3.0, 2), texts=texts, learning_rate=2e-5)
    found = shown(first, second)
    assert "\x1b" not in found
    assert "[red]text\\x1b" in found, "texts are shown as they are"
    assert max(map(len, found.splitlines())) <= 80
    for part in (
        "learning_rate 1e-05",
        "accuracy",
        "f1 (equivalent)",
        "exact McNemar test",
        "paired jackknife",
        ": better",
        "<0.001",
    ):
        assert part in " ".join(found.split())
    assert SINGLE_SEEDS.split(":")[0] in found


def test_several_seeds_state_their_correction(tmp_path: Path) -> None:
    folders = [
        write_drawn_seeds(tmp_path / name, {seed: drawn_rows(60, skill, seed + 10 * skill) for seed in (1, 2, 3)})  # type: ignore[arg-type]
        for name, skill in (("a", 1), ("b", 1), ("c", 3))
    ]
    found = shown(*folders)
    words = " ".join(found.split())
    assert "test: seeds and rows; intervals of differences and p-values corrected for 2 comparisons, 95 % for all" in words
    assert any(line.split()[-3:] == ["difference", "corrected", "p"] for line in found.splitlines())
    assert "of seeds right" in found
    assert "One seed each" not in found
    assert max(map(len, found.splitlines())) <= 80


def test_a_metric_with_too_few_rows_has_no_interval(tmp_path: Path) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(8, 1.0, seed)) for seed, name in enumerate("ab")]
    lines = [line for line in shown(*folders).splitlines() if "too few rows" in line]
    assert len(lines) == 2, "F1 of both runs; accuracy has an interval for any number of rows"


def test_scores_show_both_predictions(tmp_path: Path) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(40, skill, skill, SCORE)) for name, skill in (("a", 1), ("b", 3))]  # type: ignore[arg-type]
    found = shown(*folders)
    assert "closer on" in found
    assert "mse" in found


def test_short_texts() -> None:
    assert short_name("runs/" + "x" * 40).plain == "…" + "x" * 19
    assert listed_names(["a", "b"]) == "a, b"
    assert listed_names(["x" * 30] * 2) == "2 runs"
    assert (p_text(0.0002), p_text(0.04), p_text(1.0)) == ("<0.001", "0.040", "1.000")


def test_equal_runs_are_undecided(tmp_path: Path) -> None:
    rows = drawn_rows(60, 1.0, 1)
    found = shown(*(write_drawn_run(tmp_path / str(name), rows, seed=name) for name in range(3)))
    assert " ".join(found.split()).count(": undecided") == 4, "two comparisons in two metrics"


# --- The page of a comparison: all parts, and every text escaped.


def test_the_page_has_all_parts_and_escapes_texts(tmp_path: Path) -> None:
    texts = [f"<script>alert({row})</script>" for row in range(60)]
    labels = ("<i>no</i>", "yes</script>")
    folders = [
        write_drawn_run(tmp_path / name, drawn_rows(60, skill, 1, labels=labels), texts=texts, learning_rate=skill / 1e5)
        for name, skill in (("<b>a</b>".replace("/", ""), 0.8), ("b", 3.0))
    ]
    found = comparison_page(compare_runs([str(folder) for folder in folders]))
    assert "&lt;script&gt;alert(" in found
    for hostile in ("<script>alert(", "<i>no", "yes</script>", "<b>a"):
        assert hostile not in found
    for part in ("exact McNemar test", "learning_rate", "Training loss", "Rows that differ", "One seed each", "p (Holm)"):
        assert part in found


@pytest.mark.parametrize("task", [SCORE, SEVERAL])
def test_other_tasks_have_a_page(tmp_path: Path, task: str) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(40, skill, 1, task)) for name, skill in (("a", 0.5), ("b", 3.0))]
    found = comparison_page(compare_runs([str(folder) for folder in folders]))
    assert ("off by" in found) == (task == SCORE)
    assert "All recorded settings are the same." in found


def test_seeds_show_all_points_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    folders = [
        write_drawn_seeds(tmp_path / name, {seed: drawn_rows(80, skill, seed) for seed in (1, 2, 3)})
        for name, skill in (("a", 0.5), ("b", 3.0))
    ]
    compared = compare_runs([str(folder) for folder in folders], most_rows=2)
    found = comparison_page(compared)
    hidden = (
        compared.rows[0].num_better + compared.rows[0].num_worse - len(compared.rows[0].better) - len(compared.rows[0].worse)
    )
    assert f"{hidden} more are omitted" in found
    assert found.count('class="point"') == 12, "three seeds, two sides, two metrics"


def test_long_texts_are_cut() -> None:
    assert len(cut("x" * 10_000)) == MOST_TEXT + 1
