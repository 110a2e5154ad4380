"""The report of a calibrated run: before and after, the threshold on its curve, and a file that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import FOUND, HOSTILE, write_fake_run, write_run_with_model

from glassloop.report.build import report_of
from glassloop.report.charts import LineChart
from glassloop.report.results import confidence, histogram, positive_place
from glassloop.report.source import Drawn, read_source
from glassloop.runs.record import weights_of, write_calibration
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def test_a_calibrated_run_shows_both_reliabilities_and_the_threshold(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run")
    before = report_of(run)
    assert "reliability-calibrated" not in before.charts
    write_calibration(run / "model", replace(FOUND, weights=weights_of(run / "model")))
    found = report_of(run)
    assert isinstance(chart := found.charts["thresholds"], LineChart)
    assert [(event.x, event.name) for event in chart.events] == [(0.25, "calibrated")]
    assert found.charts["reliability-calibrated"].title.startswith("Calibrated reliability (ECE ")
    assert found.charts["reliability"].title == before.charts["reliability"].title
    assert "temperature 2, and use thresholds for the highest F1" in found.html
    assert "-0.2000 to -0.0500" in found.html


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_labels_of_users_stay_text(task: str, tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run", task, label=HOSTILE)
    thresholds = {f"{HOSTILE} {number}": 0.3 for number in range(200)}
    write_calibration(run / "model", replace(FOUND, thresholds=thresholds, weights=weights_of(run / "model")))
    html = report_of(run).html
    assert "<img src=x" not in html
    assert "and 97 more" in html


def test_a_damaged_calibration_does_not_stop_the_report(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run")
    (run / "model" / "calibration.json").write_text("{")
    assert "the calibration cannot be read" in report_of(run).html


# --- Test the section about confidence.


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
