"""The values of a comparison: those of the statistics, the rows that differ, and plain values for scripts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.base.errors import SettingsError
from glassloop.base.result import CommandResult
from glassloop.report.comparison import answer_text, compare_runs
from glassloop.scores.comparisons import compare, discordant
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_runs_of_every_task_are_compared(tmp_path: Path, task: str) -> None:
    rows = [drawn_rows(80, skill, seed, task) for seed, skill in enumerate((0.8, 2.5))]
    folders = [write_drawn_run(tmp_path / name, found) for name, found in zip("ab", rows, strict=True)]
    found = compare_runs([str(folder) for folder in folders])
    keys = {CLASSES: ["accuracy", "f1"], SEVERAL: ["f1_micro", "exact_match"], SCORE: ["pearson", "mse"]}[task]
    assert [*found.conclusions] == keys
    key = keys[0]
    positive = "equivalent" if task == CLASSES else None
    wanted = compare({1: rows[0]}, {1: rows[1]}, key, positive)
    assert found.conclusions[key].comparisons[0].difference == wanted
    content = found.content()
    assert content["rows"] == 80
    assert str(CommandResult(content)), "it can be written as JSON"


def test_the_rows_that_only_one_gets_right_are_listed(tmp_path: Path) -> None:
    first, second = drawn_rows(100, 0.8, 1), drawn_rows(100, 1.5, 2)
    folders = [write_drawn_run(tmp_path / name, rows) for name, rows in (("a", first), ("b", second))]
    (found,) = compare_runs([str(folder) for folder in folders], most_rows=4).rows
    lost, won = discordant(first, second)
    assert (found.num_better, found.num_worse, found.num_equal) == (won, lost, 100 - won - lost)
    assert len(found.better) == min(won, 4)
    row = found.better[0]
    assert (row.first, row.second) == (0.0, 1.0)
    assert row.entry == {"text": f"text {row.row}", "label": row.second_answer}
    assert row.first_answer != row.second_answer


def test_rows_of_seeds_are_ordered_by_the_share_that_is_right(tmp_path: Path) -> None:
    sides = [{seed: drawn_rows(60, skill, seed + start) for seed in (1, 2, 3)} for start, skill in ((0, 0.6), (10, 2.0))]
    folders = [write_drawn_seeds(tmp_path / name, side) for name, side in zip("ab", sides, strict=True)]
    found = compare_runs([str(folder) for folder in folders])
    assert found.has_several_seeds
    shares = [np.mean([rows.right for rows in side.values()], axis=0) for side in sides]
    gains = [row.second - row.first for row in found.rows[0].better]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx((shares[1] - shares[0]).max())


@pytest.mark.parametrize("margin", [math.nan, math.inf, -0.1])
def test_a_margin_that_is_no_share(says, margin: float) -> None:
    with says(f"margin is {margin}, not a number of 0 or more", "use a share such as 0.01"):
        compare_runs(["a", "b"], margin=margin)


def test_all_are_compared_with_the_first_and_corrected(tmp_path: Path) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(80, 1.0, number)) for number, name in enumerate("abc")]
    found = compare_runs([str(folder) for folder in folders], margin=0.2)
    conclusion = found.conclusions["accuracy"]
    assert [one.reference for one in conclusion.comparisons] == [found.names[0]] * 2
    assert all(one.difference.corrected >= one.difference.p_value for one in conclusion.comparisons)
    assert all(one.verdict.margin == 0.2 for one in conclusion.comparisons)
    assert len(found.rows) == 2


def test_one_run_or_the_same_twice_is_refused(tmp_path: Path) -> None:
    folder = str(write_drawn_run(tmp_path / "a", drawn_rows(20)))
    with pytest.raises(SettingsError, match="a comparison needs two runs"):
        compare_runs([folder])
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(SettingsError, match="is compared with itself"):
        compare_runs([folder, str(tmp_path / "link")])


@pytest.mark.parametrize(("value", "text"), [(["a", "b"], "a, b"), ([], "no label"), (0.123456, "0.1235"), ("a", "a")])
def test_answers_are_short_texts(value: object, text: str) -> None:
    assert answer_text(value) == text
