"""The settings in which runs differ: only those, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.report.comparison import different_settings, in_words, read_side


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
