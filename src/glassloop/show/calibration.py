"""What a calibration gains, as a table in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.errors import printable
from glassloop.run_folder.calibration_json import Gain
from glassloop.statistics.cross_fitting import Fitted

TITLES = {"f1": "F1", "cost": "cost per row"}


def gain_title(gain: Gain, positive: str | None) -> str:
    """Return the name of a score for a person: with the class it refers to, or that it is a mean over labels."""
    title = TITLES.get(gain.name, gain.name)
    if gain.name not in ("f1", "precision", "recall"):
        return title
    return f"{title} ({positive})" if positive else f"{title} (mean over labels)"


def gain_cells(gain: Gain) -> tuple[str, str, str, str]:
    """Return a score before and after, its change, and the interval of the change."""
    span = "" if gain.low is None or gain.high is None else f"{gain.low:+.4f} to {gain.high:+.4f}"
    return f"{gain.before:.4f}", f"{gain.after:.4f}", f"{gain.change:+.4f}", span


def show_fitted(console: Console, fitted: Fitted, title: str, positive: str | None) -> None:
    """Print what a temperature and thresholds change on rows that they were not fitted on."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate((title, "before", "after", "change", "95 % interval")):
        table.add_column(Text(printable(name)), justify="right" if place else "left")
    for gain in (*fitted.temperature_gains, *fitted.target_gains):
        table.add_row(Text(printable(gain_title(gain, positive))), *gain_cells(gain))
    console.print(table)
    if fitted.target is not None:
        console.print(Text(f"thresholds for the {fitted.target}", style="dim"))
