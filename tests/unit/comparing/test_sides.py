"""The sides of a comparison: runs and folders of seeds are read, and different rows are refused with what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.base.errors import ModelError, SettingsError
from glassloop.report.comparison import common_split, read_rows, read_side
from glassloop.runs.seeds import SeedRecord, read_seeds, write_seeds
from glassloop.settings.fields import SCORE


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
