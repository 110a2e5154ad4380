"""`glassloop data`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import given_for, with_settings
from glassloop.settings import DataSettings
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import DATA_HELP, Json


@with_settings(DataSettings)
def data_command(
    data: Annotated[str, typer.Argument(help=DATA_HELP.format("show"))] = "quickstart",
    model: Annotated[str, typer.Option("--model", help="Model whose tokenizer to use.")] = "quickstart",
    max_length: Annotated[int | None, typer.Option("--max_length", help="Maximum number of tokens per row.")] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Batch size used to measure padding.")] = 8,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Show the splits, labels, lengths and padding of a data set."""
    with starting():
        from glassloop.commands.data import describe_data

    return describe_data(data, model, max_length, batch_size, given_for(DataSettings, options))
