"""The report of a calibrated run: before and after, the threshold on its curve, and a file that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from calibrated_runs import FOUND, write_run_with_model
from reported_runs import HOSTILE

from glassloop.report.build import report_of
from glassloop.report.charts.line import LineChart
from glassloop.runs.calibration import weights_of, write_calibration
from glassloop.settings.fields import CLASSES, SEVERAL


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
