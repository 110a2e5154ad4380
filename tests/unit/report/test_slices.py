"""Test the scores of parts of the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reported_runs import write_fake_run

from glassloop.report.about import Drawn
from glassloop.report.errors import by_length, lengths_of, part_score, slices
from glassloop.report.source import read_source
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize(("task", "name"), [(CLASSES, "class"), (SEVERAL, "class"), (SCORE, "true-score")])
def test_parts_cover_all_rows_once(tmp_path: Path, task: str, name: str) -> None:
    write_fake_run(tmp_path, task, num_labels=3)
    source, drawn = read_source(tmp_path), Drawn()
    slices(source, source.results[0], drawn)
    assert [*drawn.charts] == ["slices-length", "slices-truncation", f"slices-{name}"]
    for kind in ("slices-length", "slices-truncation"):
        numbers = [int(row[-1].split()[0]) for row in drawn.charts[kind].table().rows]
        assert sum(numbers) == 60


def test_the_score_of_a_part_has_its_interval(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    rows = read_source(tmp_path).results[0].rows
    mask = rows.references == 0
    value, low, high = part_score(rows, mask)
    assert value == rows.right[mask].mean()
    assert low < value < high


def test_lengths_are_words_if_tokens_were_not_recorded(tmp_path: Path) -> None:
    write_fake_run(tmp_path, tokens=False)
    source = read_source(tmp_path)
    lengths, unit = lengths_of(source, source.results[0])
    assert (lengths[0], unit) == (4, "words")


def test_rows_of_one_length_have_no_parts() -> None:
    assert by_length(np.full(10, 7), "tokens") == []


@pytest.mark.parametrize("tokens", [True, -1, 2**70, "9", None])
def test_lengths_that_are_no_numbers_of_tokens_are_counted_in_words(tmp_path: Path, tokens: object) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    result = replace(source.results[0], entries=[{**entry, "tokens": tokens} for entry in source.results[0].entries])
    assert lengths_of(source, result)[1] == "words"
