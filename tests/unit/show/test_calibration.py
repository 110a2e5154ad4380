"""The table of a calibration: scores before and after, with the interval of the change."""

from __future__ import annotations

import io

from drawn_runs import drawn_rows
from rich.console import Console

from glassloop.report.card import gain_cells, gain_title, show_fitted
from glassloop.runs.calibration import Gain, Target
from glassloop.scores.calibration import fitted_calibration


def test_the_table() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)
    show_fitted(
        console, fitted_calibration(drawn_rows(80), Target("f1"), "equivalent"), "validation [b](80 rows)", "equivalent"
    )
    lines = output.getvalue().splitlines()
    assert lines[0].split() == ["validation", "[b](80", "rows)", "before", "after", "change", "95", "%", "interval"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["loss", "calibration error", "F1 (equivalent)"]
    assert lines[-1] == "thresholds for the highest F1"


def test_names_and_numbers() -> None:
    assert gain_title(Gain("f1", 0, 0), None) == "F1 (mean over labels)"
    assert gain_title(Gain("cost", 0, 0), "yes") == "cost per row"
    assert gain_cells(Gain("f1", 0.5, 0.75, -0.1, 0.6)) == ("0.5000", "0.7500", "+0.2500", "-0.1000 to +0.6000")
    assert gain_cells(Gain("calibration error", 0.5, 0.25))[2:] == ("-0.2500", "")
