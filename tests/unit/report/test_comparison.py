"""The values of a comparison: those of the statistics, the rows that differ, and plain values for scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.output import CommandResult
from glassloop.report.comparison import (
    answer_text,
    common_split,
    compare_runs,
    different_settings,
    in_words,
    read_rows,
    read_side,
)
from glassloop.runs.study import SeedRecord, read_seeds, write_seeds
from glassloop.scores.comparisons import compare, discordant
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


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


# --- The settings in which runs differ: only those, in words.


def test_only_different_settings_are_listed(tmp_path: Path) -> None:
    rows = drawn_rows(10)
    first = write_drawn_run(tmp_path / "a", rows, seed=1, learning_rate=2e-5, weight_decay=0.1)
    second = write_drawn_run(tmp_path / "b", rows, seed=2, learning_rate=5e-5, weight_decay=0.1)
    found = different_settings([read_side(str(first)), read_side(str(second))])
    assert found == {"learning_rate": ["2e-05", "5e-05"], "seed": ["1", "2"]}


def test_folders_of_seeds_differ_in_their_seeds(tmp_path: Path) -> None:
    sides = []
    for name, seeds in {"a": (1, 2), "b": (1, 2, 3)}.items():
        folder = write_drawn_seeds(tmp_path / name, {seed: drawn_rows(10) for seed in seeds}, max_steps=len(seeds))
        sides.append(read_side(str(folder)))
    assert different_settings(sides) == {"max_steps": ["2", "3"], "seeds": ["1, 2", "1, 2, 3"]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (12000, "12,000"),
        (2e-5, "2e-05"),
        ((1, "a"), "1, a"),
        ({"a": 0.5}, "a: 0.5"),
        ({}, "-"),
    ],
)
def test_values_are_written_as_people_do(value: object, words: str) -> None:
    assert in_words(value) == words


# --- The sides of a comparison: runs and folders of seeds are read, and different rows are refused with what differs.


def sides_of(*folders: Path) -> list:
    return [read_side(str(folder)) for folder in folders]


def test_a_run_is_a_side_with_its_own_seed(tmp_path: Path) -> None:
    side = read_side(str(write_drawn_run(tmp_path / "run", drawn_rows(20), seed=7)))
    assert [*side.folders] == [7]
    assert side.record.settings.seed == 7


def test_seeds_are_one_side_and_unfinished_ones_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(20, seed=seed) for seed in (1, 2)})
    stored = read_seeds(folder)
    write_seeds(replace(stored, seeds={**stored.seeds, 3: SeedRecord()}))
    assert [*read_side(str(folder)).folders] == [1, 2]
    assert "omitted, because they are not finished: seed-3" in capsys.readouterr().err
    write_seeds(replace(stored, seeds={3: SeedRecord()}))
    with pytest.raises(ModelError, match="no seed is finished yet"):
        read_side(str(folder))


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a run folder"):
        read_side(str(tmp_path))


def test_the_split_must_be_predicted_by_all(tmp_path: Path) -> None:
    first, second = (write_drawn_run(tmp_path / name, drawn_rows(20)) for name in "ab")
    assert common_split(sides_of(first, second), None) == "validation"
    with pytest.raises(
        SettingsError, match=r'has no predictions for the split "test"\ntry:  use --split with one of validation'
    ):
        common_split(sides_of(first, second), "test")
    for folder in (first, second):
        (folder / "validation-predictions.jsonl").rename(folder / "test-predictions.jsonl")
    assert common_split(sides_of(first, second), None) == "test"


def test_equal_texts_and_labels_are_the_same_rows(tmp_path: Path) -> None:
    first = write_drawn_run(tmp_path / "a", drawn_rows(20, 1.0, 1))
    second = write_drawn_seeds(tmp_path / "b", {seed: drawn_rows(20, 1.0, seed) for seed in (1, 2)})
    one, other = read_rows(sides_of(first, second), "validation")
    assert (len(one.seeds), len(other.seeds)) == (1, 2)


TEXTS = [f"text {row}" for row in range(20)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: write_drawn_run(path, drawn_rows(18)), r"20 rows and 18 \(fingerprints .{8} and .{8}\); "),
        (
            lambda path: write_drawn_run(path, drawn_rows(20), texts=[*TEXTS[:19], "new\x1b[31m"]),
            r'rows 19 differ, row 19 is "text 19" \(\w+\) and "new\\x1b\[31m" \(\w+\); '
            "1 rows are only in the first, 1 in the second",
        ),
        (lambda path: write_drawn_run(path, drawn_rows(20, data_seed=3)), "rows .* differ"),
        (
            lambda path: write_drawn_run(
                path,
                replace(drawn_rows(20), references=drawn_rows(20).references[::-1], logits=drawn_rows(20).logits[::-1]),
                texts=TEXTS[::-1],
            ),
            "the same rows in another order",
        ),
        (
            lambda path: write_drawn_run(path, drawn_rows(20, task=SCORE)),
            "is single_label_classification, but .* is regression",
        ),
        (lambda path: write_drawn_run(path, drawn_rows(20, labels=("no", "yes"))), "has the labels different, equivalent, but"),
    ],
)
def test_different_rows_are_refused_with_what_differs(tmp_path: Path, change: Callable[[Path], Path], message: str) -> None:
    first = write_drawn_run(tmp_path / "first", drawn_rows(20))
    second = change(tmp_path / "second")
    with pytest.raises(SettingsError, match=message):
        read_rows(sides_of(first, second), "validation")


def test_seeds_of_one_side_must_have_the_same_rows_too(tmp_path: Path) -> None:
    first = write_drawn_run(tmp_path / "a", drawn_rows(20))
    mixed = write_drawn_seeds(tmp_path / "b", {1: drawn_rows(20), 2: drawn_rows(20, data_seed=1)})
    with pytest.raises(SettingsError, match="seed-2 were evaluated on different rows"):
        read_rows(sides_of(first, mixed), "validation")
