"""The curves of compared runs over each other: training loss and evaluations by step, of several seeds their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.charts.line import LineChart, Series
from glassloop.charts.scales import Axis
from glassloop.comparing.results import ComparedRuns
from glassloop.run_folder.history import Entry, read_history


def curves(found: ComparedRuns) -> list[LineChart]:
    """Return a chart of the training loss, of the evaluation loss, and of each metric, if the runs recorded them."""
    histories = {side.name: [read_history(path) for path in side.side.folders.values()] for side in found.sides}
    wanted = {"loss": "Training loss", "eval_loss": "Evaluation loss"}
    wanted |= {f"eval_{key}": found.measures.title(key) for key in found.measures.keys}
    charts = []
    for key, title in wanted.items():
        lines = [series_of(name, several, key) for name, several in histories.items()]
        shown = [line for line in lines if line.points]
        if shown:
            seeds = " Lines are means over seeds, areas reach from the lowest to the highest." * any(
                line.band for line in shown
            )
            charts.append(LineChart(title, f"{title} by step.{seeds}", Axis("step"), Axis(title), shown))
    return charts


def series_of(name: str, histories: Sequence[Sequence[Entry]], key: str) -> Series:
    """Return the values of one side by step: of several seeds the mean, with the lowest and highest as an area."""
    values: dict[float, list[float]] = {}
    for history in histories:
        for step, value in points_of(history, key).items():
            values.setdefault(step, []).append(value)
    steps = sorted(step for step, several in values.items() if len(several) == len(histories)) or sorted(values)
    points = [(step, sum(values[step]) / len(values[step])) for step in steps]
    band = [(step, min(values[step]), max(values[step])) for step in steps] if len(histories) > 1 else []
    return Series(name, points, band=band, dots=key != "loss")


def points_of(history: Sequence[Mapping[str, object]], key: str) -> dict[float, float]:
    """Return a figure of a history by step; of repeated steps, the last."""
    found: dict[float, float] = {}
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and not isinstance(value, bool):
            found[float(step)] = float(value)
    return found
