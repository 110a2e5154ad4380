"""`glassloop evaluate`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import given_for, with_settings
from glassloop.settings import DataSettings
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import Device, Json, Run


@with_settings(DataSettings)
def evaluate_command(
    run: Run,
    data: Annotated[str | None, typer.Argument(help="Data to evaluate on. Default: the data of the run.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split to evaluate. Default: every validation split.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="<str>", help="Metrics to compute, separated by commas. Default: those of the run."),
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option("--positive_label", help="Class whose F1 is reported. Default: the class chosen for the run.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="File for the predictions of the rows: .csv, .tsv or .jsonl.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")] = False,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, metavar="<int>", help="Batch size.")] = 64,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Evaluate a trained model and compare it with a baseline."""
    with starting():
        from glassloop.commands.evaluate import evaluate
        from glassloop.evaluation import Wanted

    given = given_for(DataSettings, options)
    wanted = Wanted(data, split, given, tuple(metric or ()), positive_label, device, batch_size)
    return evaluate(run, wanted, out, overwrite=overwrite)
