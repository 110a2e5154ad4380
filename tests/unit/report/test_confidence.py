"""Test the section about confidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reported_runs import write_fake_run

from glassloop.report.about import Drawn
from glassloop.report.confidence import confidence, histogram, positive_place
from glassloop.report.source import read_source
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize(
    ("task", "labels", "charts"),
    [
        (CLASSES, 2, ["reliability", "confidence", "thresholds", "coverage"]),
        (CLASSES, 5, ["reliability", "confidence", "coverage"]),
        (SEVERAL, 3, ["reliability", "confidence", "coverage"]),
        (SCORE, 1, ["scores", "residuals", "residual-counts"]),
    ],
)
def test_each_task_has_its_own_charts(tmp_path: Path, task: str, labels: int, charts: list[str]) -> None:
    write_fake_run(tmp_path, task, num_labels=labels)
    drawn = Drawn()
    html = confidence(read_source(tmp_path), drawn)
    assert [*drawn.charts] == charts
    assert ("mean absolute error" if task == SCORE else "Expected calibration error (ECE)") in html


def test_every_answer_is_counted_once() -> None:
    random = np.random.default_rng(0)
    sure, right = random.uniform(0.5, 1, 500), random.uniform(size=500) < 0.7
    rows = histogram(sure, right).table().rows
    assert sum(row[2] for row in rows) == right.sum()
    assert sum(row[3] for row in rows) == (~right).sum()


def test_the_threshold_is_that_of_the_class_f1_refers_to(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    assert positive_place(source, source.results[0].rows) == 1


def test_without_predictions_there_is_no_section(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    (tmp_path / "validation-predictions.jsonl").unlink()
    assert confidence(read_source(tmp_path), Drawn()) == ""
