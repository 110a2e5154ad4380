"""Test the section about errors: its numbers equal those of sklearn."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_fake_run
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from glassloop.report.errors import (
    MOST_CHARACTERS,
    by_length,
    certainty,
    class_table,
    confusion,
    confusion_chart,
    errors,
    label_chart,
    lengths_of,
    most_confused,
    part_score,
    row_lists,
    slices,
    words,
)
from glassloop.report.source import Drawn, read_source
from glassloop.scores.intervals import class_counts
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def test_the_confusion_matrix_is_that_of_sklearn(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_labels=4, signal=0.8)
    rows = read_source(tmp_path).results[0].rows
    assert np.array_equal(confusion(rows), confusion_matrix(rows.references, rows.predictions, labels=range(4)))
    chart, note = confusion_chart(rows, confusion(rows))
    assert chart.table().rows[0][1:] == tuple(map(float, confusion(rows)[0]))
    assert note == "Color: share of the true class."


def test_of_many_classes_the_most_confused_are_shown(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_labels=50, num_rows=300, signal=0.5)
    rows = read_source(tmp_path).results[0].rows
    chart, note = confusion_chart(rows, confusion(rows))
    assert len(chart.table().rows) == 20
    assert "20 of 50 classes, those with the most errors between them" in note


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_the_scores_of_classes_are_those_of_sklearn(tmp_path: Path, task: str) -> None:
    write_fake_run(tmp_path, task, num_labels=3, signal=0.5)
    rows = read_source(tmp_path).results[0].rows
    hits, given, wanted = class_counts(rows.predictions, rows.references)
    precision, recall, _, support = precision_recall_fscore_support(rows.references, rows.predictions, zero_division=0)
    assert np.allclose(hits / given, precision)
    assert np.allclose(hits / wanted, recall)
    assert wanted.tolist() == support.tolist()
    assert f">{precision[0]:.3f}<" in class_table(rows)


def test_labels_are_found_missed_or_wrong(tmp_path: Path) -> None:
    write_fake_run(tmp_path, SEVERAL, num_labels=3, signal=0.5)
    rows = read_source(tmp_path).results[0].rows
    for name, found, missed, wrong in label_chart(rows).table().rows:
        place = rows.labels.index(name)
        given, wanted = rows.predictions[:, place] == 1, rows.references[:, place] == 1
        assert (found, missed, wrong) == ((given & wanted).sum(), (~given & wanted).sum(), (given & ~wanted).sum())


def test_the_section_counts_the_errors(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    wrong = int((~source.results[0].rows.right).sum())
    assert f"{wrong} of 60 rows of validation are predicted wrongly" in errors(source, Drawn())


def test_of_very_many_classes_those_of_confused_pairs_are_shown() -> None:
    off = np.zeros((100, 100), dtype=int)
    off[np.arange(0, 60), 99 - np.arange(0, 60) // 3] = 1  # sixty classes with one error each
    off[70, 80], off[80, 70] = 3, 2
    kept = most_confused(off)
    assert {70, 80} <= {*kept.tolist()}
    assert len(kept) == 20
    assert off[np.ix_(kept, kept)].sum() > 5


# --- Test the lists of single rows.


def test_the_most_confident_error_comes_first(tmp_path: Path) -> None:
    write_fake_run(tmp_path, signal=0.5)
    source = read_source(tmp_path)
    rows = source.results[0].rows
    sure = np.exp(rows.logits.max(axis=1)) / np.exp(rows.logits).sum(axis=1)
    assert np.allclose(certainty(rows), sure)
    wrong = np.flatnonzero(~rows.right)
    html = row_lists(source, source.results[0])
    listed = [int(row) for row in re.findall(r"<span>row (\d+)</span>", html)]
    assert listed[: len(wrong)] == wrong[np.argsort(-sure[wrong], kind="stable")].tolist()
    assert listed[len(wrong)] == int(np.argmin(sure)), "then the least certain row"


def test_largest_residuals_come_first(tmp_path: Path) -> None:
    write_fake_run(tmp_path, SCORE)
    source = read_source(tmp_path)
    rows = source.results[0].rows
    first = int(np.argmax(np.abs(rows.predictions - rows.references)))
    assert re.findall(r"<span>row (\d+)</span>", row_lists(source, source.results[0]))[0] == str(first)


def test_several_labels_are_as_sure_as_their_wrong_one(tmp_path: Path) -> None:
    write_fake_run(tmp_path, SEVERAL, num_labels=3, signal=0.5)
    rows = read_source(tmp_path).results[0].rows
    row = int(np.flatnonzero(~rows.right)[0])
    likely = 1 / (1 + np.exp(-rows.logits[row]))
    sure = np.maximum(likely, 1 - likely)[rows.predictions[row] != rows.references[row]].max()
    assert np.isclose(certainty(rows)[row], sure)


def test_what_the_model_did_not_read_is_marked() -> None:
    assert words("one two three", [0, 7]) == 'one two<span class="lost"> three</span>'
    assert words("one two three", [4, 13]) == '<span class="lost">one </span>two three'
    assert words("<b>", None) == "&lt;b&gt;"
    assert "10 more characters" in words("x" * (MOST_CHARACTERS + 10), None)


# --- Test the scores of parts of the rows.


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
