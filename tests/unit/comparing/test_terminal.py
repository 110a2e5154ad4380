"""A comparison in the terminal: at most 80 columns, no control characters, every verdict."""

from __future__ import annotations

import io
from pathlib import Path

from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds
from rich.console import Console

from glassloop.report.comparison import compare_runs
from glassloop.report.comparison_page import SINGLE_SEEDS, listed_names, p_text, short_name, show_comparison
from glassloop.settings.fields import SCORE


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
