"""What the stored calibration of a run changes: scores before and after, reliability, and the chosen threshold."""

from __future__ import annotations

from dataclasses import replace

from glassloop.charts.line import Event, LineChart
from glassloop.errors import GlassloopError, listed
from glassloop.pages.parts import Cell, Number, grid, heading, paragraph, score, table
from glassloop.report.drawn import Drawn
from glassloop.report.source import RunSource
from glassloop.run_folder.calibration_json import Calibration, read_calibration
from glassloop.run_folder.layout import MODEL_NAME
from glassloop.statistics.calibration import confidences, reliability
from glassloop.statistics.scored import ScoredRows

MOST_THRESHOLDS = 100


def calibration_of(source: RunSource) -> tuple[Calibration | None, str]:
    """Return the stored calibration of a run, if it can be read, and otherwise a paragraph that says why not."""
    try:
        return read_calibration(source.folder / MODEL_NAME, source.record.files if source.record else None), ""
    except GlassloopError as error:
        return None, paragraph(f"Could not be read: {error.problem}; {error.remedy}.", "soft")


def at_temperature(rows: ScoredRows, found: Calibration | None) -> ScoredRows:
    """Return rows with calibrated logits; the answers stay those without thresholds."""
    return rows if found is None else replace(rows, logits=rows.logits / found.temperature)


def marked(chart: LineChart, found: Calibration | None, name: str) -> LineChart:
    """Return the chart of thresholds with a vertical line at the stored one, if there is one."""
    if found is None or name not in found.thresholds:
        return chart
    return replace(chart, events=[Event(round(found.thresholds[name], 4), "calibrated")])


def calibrated_part(found: Calibration, rows: ScoredRows, split: str, drawn: Drawn, chart: LineChart) -> str:
    """Return what the calibration is for, what it gains, and the reliability with it.

    Args:
        found: The calibration.
        rows: The rows of the report.
        split: Their split.
        drawn: Where charts are collected.
        chart: The reliability of the calibrated rows.
    """
    errors = [reliability(*confidences(rows, value)).error for value in (1.0, found.temperature)]
    words = f"Predictions divide the logits by the temperature {found.temperature:.4g}"
    if found.target is not None:
        words += f", and use thresholds for the {found.target}"
    words += f". Fitted on {found.num_rows:,} rows of {found.split}."
    words += " The rest of this report, except for the chart of thresholds, describes the model without calibration."
    lead = f"On these rows, the expected calibration error changes from {errors[0]:.3f} to {errors[1]:.3f}."
    note = "" if split != found.split else "The chart shows the rows that the temperature was fitted on; the table does not."
    figure = drawn.figure(
        "reliability-calibrated", replace(chart, title=f"Calibrated {chart.title[0].lower()}{chart.title[1:]}"), note
    )
    return heading("Calibration") + paragraph(words) + paragraph(lead) + grid(figure, gains_table(found), limits_table(found))


def gains_table(found: Calibration) -> str:
    """Return the scores before and after, on rows that were not used for fitting."""
    rows: list[list[Cell]] = [
        [
            gain.name if gain.name != "f1" else "F1",
            score(gain.before),
            score(gain.after),
            Number(gain.change, f"{gain.change:+.4f}"),
            "" if gain.low is None or gain.high is None else f"{gain.low:+.4f} to {gain.high:+.4f}",
        ]
        for gain in found.gains
    ]
    head = [f"not fitted on, {found.folds} folds", "before", "after", "change", "95 % interval"]
    return table(head, rows)


def limits_table(found: Calibration) -> str:
    """Return the threshold of each label; empty without thresholds."""
    shown = [*found.thresholds.items()][:MOST_THRESHOLDS]
    rows: list[list[Cell]] = [[name, score(value)] for name, value in shown]
    if rest := [*found.thresholds][MOST_THRESHOLDS:]:
        rows.append([f"and {listed(rest, 3)}", ""])
    return table(["label", "threshold"], rows) if rows else ""
