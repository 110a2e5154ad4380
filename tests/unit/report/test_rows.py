"""Test the lists of single rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from reported_runs import write_fake_run

from glassloop.report.errors import MOST_CHARACTERS, certainty, row_lists, words
from glassloop.report.source import read_source
from glassloop.settings.fields import SCORE, SEVERAL


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
