"""Test the section about errors: its numbers equal those of sklearn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reported_runs import write_fake_run
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from glassloop.report.about import Drawn
from glassloop.report.errors import (
    class_table,
    confusion,
    confusion_chart,
    counts_by_class,
    errors,
    label_chart,
    most_confused,
)
from glassloop.report.source import read_source
from glassloop.settings.fields import CLASSES, SEVERAL


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
    hits, given, wanted = counts_by_class(rows)
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
