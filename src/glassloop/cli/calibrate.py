"""`glassloop calibrate`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.base.result import CommandResult
from glassloop.cli.options import Json, completed_runs


def calibrate(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.", autocompletion=completed_runs)],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="<str>",
            help="What thresholds are chosen for: f1, precision (with --recall), recall (with --precision), "
            "cost (with --cost), or none for a temperature only. Default: f1 for two classes and for several labels, none for "
            "more classes.",
        ),
    ] = None,
    recall: Annotated[float | None, typer.Option(metavar="<float>", help="Lowest recall, for the highest precision.")] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="<float>", help="Lowest precision, for the highest recall.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(metavar="<str>", help="Costs of wrong labels, such as false_positive=1,false_negative=5."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split with stored predictions to fit on. Default: the first for validation.")
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option("--positive_label", help="Class of two that has the threshold. Default: that of the run.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="<int>",
            help="Number of folds that the gain is measured with. Default: 10, or the number of rows of the rarer class.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Store the calibration even if it gains nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the stored calibration.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Fit a temperature and thresholds on the validation rows."""
    from glassloop.predict.calibration import Request, calibrate, remove_calibration

    if remove:
        return remove_calibration(run)
    return calibrate(run, Request(target, recall, precision, cost, split, positive_label, folds, force))
