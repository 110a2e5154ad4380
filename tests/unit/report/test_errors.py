"""The section about errors: its numbers equal those of sklearn, and the rows that deserve a look come first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_fake_run
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from glassloop.report import errors as errors_module
from glassloop.report.errors import MOST_CHARACTERS, by_length, certainty, class_rows, confusion, confusion_chart, errors, words
from glassloop.report.page import Drawn
from glassloop.report.source import RunSource, read_source
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def source_of(folder: Path, task: str = CLASSES, **more: object) -> RunSource:
    write_fake_run(folder, task, **more)  # type: ignore[arg-type]
    return read_source(folder)


def numbers_of(source: RunSource) -> list[int]:
    """Return the numbers of the rows that are listed, in their order."""
    html = "".join(body for _, body in errors_module.row_lists(source, source.results[0]))
    return [int(row) for row in re.findall(r"<span>row (\d+)</span>", html)]


# --- classes
def test_the_confusion_matrix_is_that_of_sklearn_and_of_many_classes_shows_the_most_confused(tmp_path: Path) -> None:
    source = source_of(tmp_path, num_labels=4, signal=0.8)
    rows = source.results[0].rows
    assert np.array_equal(confusion(rows), confusion_matrix(rows.references, rows.predictions, labels=range(4)))
    chart, note = confusion_chart(rows, confusion(rows))
    assert chart.table().rows[0][1:] == tuple(map(float, confusion(rows)[0]))
    assert note == "Color: share of the true class."
    wrong = int((~rows.right).sum())
    assert f"{wrong} of 60 rows of validation are predicted wrongly" in errors(source, Drawn())
    rows = source_of(tmp_path, num_labels=50, num_rows=300, signal=0.5).results[0].rows
    chart, note = confusion_chart(rows, confusion(rows))
    assert len(chart.table().rows) == 20
    assert "20 of 50 classes, those with the most errors between them" in note
    off = np.zeros((100, 100), dtype=int)
    off[np.arange(0, 60), 99 - np.arange(0, 60) // 3] = 1  # sixty classes with one error each
    off[70, 80], off[80, 70] = 3, 2
    kept = errors_module.most_confused(off)
    assert {70, 80} <= {*kept.tolist()}, "a confused pair"
    assert len(kept) == 20
    assert off[np.ix_(kept, kept)].sum() > 5


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_the_scores_of_classes_are_those_of_sklearn(tmp_path: Path, task: str) -> None:
    rows = source_of(tmp_path, task, num_labels=3, signal=0.5).results[0].rows
    wanted = precision_recall_fscore_support(rows.references, rows.predictions, zero_division=0)
    columns = [[row[place] for row in class_rows(rows)] for place in (1, 2, 4, 5)]
    for ours, theirs in zip(columns[:3], wanted[:3], strict=True):
        assert np.allclose([cell.value for cell in ours], theirs)  # type: ignore[union-attr]
    assert columns[3] == wanted[3].tolist()


def test_labels_are_found_missed_or_wrong_and_as_sure_as_their_wrong_one(tmp_path: Path) -> None:
    rows = source_of(tmp_path, SEVERAL, num_labels=3, signal=0.5).results[0].rows
    for name, *counts in errors_module.label_chart(rows).table().rows:
        place = rows.labels.index(str(name))
        given, wanted = rows.predictions[:, place] == 1, rows.references[:, place] == 1
        assert counts == [(given & wanted).sum(), (~given & wanted).sum(), (given & ~wanted).sum()]
    row = int(np.flatnonzero(~rows.right)[0])
    likely = 1 / (1 + np.exp(-rows.logits[row]))
    sure = np.maximum(likely, 1 - likely)[rows.predictions[row] != rows.references[row]].max()
    assert np.isclose(certainty(rows)[row], sure)


def test_the_most_confident_error_and_the_largest_residual_come_first(tmp_path: Path) -> None:
    source = source_of(tmp_path, signal=0.5)
    rows = source.results[0].rows
    sure = np.exp(rows.logits.max(axis=1)) / np.exp(rows.logits).sum(axis=1)
    assert np.allclose(certainty(rows), sure)
    wrong = np.flatnonzero(~rows.right)
    listed = numbers_of(source)
    assert listed[: len(wrong)] == wrong[np.argsort(-sure[wrong], kind="stable")].tolist()
    assert listed[len(wrong)] == int(np.argmin(sure)), "then the least certain row"
    source = source_of(tmp_path / "scores", SCORE)
    rows = source.results[0].rows
    assert numbers_of(source)[0] == int(np.argmax(np.abs(rows.predictions - rows.references)))


def test_what_the_model_did_not_read_is_marked(tmp_path: Path) -> None:
    assert words("one two three", [0, 7]) == ([("", True), ("one two", False), (" three", True)], 0)
    assert words("one two three", [4, 13]) == ([("one ", True), ("two three", False), ("", True)], 0)
    assert words("x" * (MOST_CHARACTERS + 10), None)[1] == 10
    html = errors(source_of(tmp_path, text="x" * MOST_CHARACTERS), Drawn())
    assert re.search(r'<div class="words">x+ <span class="soft">… \d more characters</span></div>', html)
    html = errors(source_of(tmp_path / "short", text="<b>"), Drawn())
    assert re.search(r'<div class="words">&lt;b&gt;, row<span class="lost"> \d</span></div>', html)


@pytest.mark.parametrize(("task", "name"), [(CLASSES, "class"), (SEVERAL, "class"), (SCORE, "true-score")])
def test_parts_cover_all_rows_once(tmp_path: Path, task: str, name: str) -> None:
    source, drawn = source_of(tmp_path, task, num_labels=3), Drawn()
    errors_module.slices(source, source.results[0], drawn)
    assert [*drawn.charts] == ["slices-length", "slices-truncation", f"slices-{name}"]
    for kind in ("slices-length", "slices-truncation", *(["slices-true-score"] if task == SCORE else [])):
        assert sum(int(str(row[-1]).split()[0]) for row in drawn.charts[kind].table().rows) == 60
    assert by_length(np.full(10, 7), "tokens") == [], "rows of one length have no parts"


def test_a_part_has_its_interval_and_lengths_that_are_no_numbers_of_tokens_are_words(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    rows = source.results[0].rows
    mask = rows.references == 0
    value, low, high = errors_module.part_score(rows, mask)
    assert value == rows.right[mask].mean()
    assert low < value < high  # type: ignore[operator]
    for tokens in [True, -1, 2**70, "9", None]:
        entries = [{**entry, "tokens": tokens} for entry in source.results[0].entries]
        lengths, unit = errors_module.lengths_of(source, replace(source.results[0], entries=entries))  # type: ignore[arg-type]
        assert (lengths[0], unit) == (4, "words")
