"""`glassloop predict`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import given_for, with_settings
from glassloop.settings import FILE_SETTINGS, DataSettings
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import Device, Json, Precision, Run


@with_settings(DataSettings, only=FILE_SETTINGS)
def predict_command(
    run: Run,
    text: Annotated[str | None, typer.Argument(help="Text to predict.")] = None,
    text_pair: Annotated[str | None, typer.Argument(help="Second text of a pair.")] = None,
    file: Annotated[str | None, typer.Option("--file", help="Data file whose rows to predict.")] = None,
    out: Annotated[str | None, typer.Option("-o", "--out", help="Output file: .csv, .tsv, .jsonl or .parquet.")] = None,
    text_column: Annotated[
        str | None, typer.Option("--text", help="Column with the text. Default: the text column of the run.")
    ] = None,
    pair_column: Annotated[str | None, typer.Option("--text_pair", help="Column with the second text of a pair.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")] = False,
    processes: Annotated[
        int, typer.Option("--processes", help="Number of processes that predict a file, one per GPU or CPU core. Default: 1.")
    ] = 1,
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Predict one text, one pair of texts, or every row of a file."""
    with starting(lines=file is not None):  # one answer needs no log
        from glassloop.commands.predict import predict

    reading = given_for(DataSettings, options)
    return predict(
        run, text, text_pair, file, out, text_column, pair_column, device, reading, processes, precision, overwrite=overwrite
    )
