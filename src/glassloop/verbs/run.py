"""`glassloop run`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.verbs.shared_options import Json


def run_command(
    script: Annotated[
        str, typer.Argument(help="Python script or notebook (.py or .ipynb). Options of this command go before it.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    model_map: Annotated[
        list[str] | None,
        typer.Option("--model_map", help="Model to use in place of another: NAME=FOLDER. Repeat for several models."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Name not to substitute, such as Trainer. Repeat for several names."),
    ] = None,
    allow_errors: Annotated[
        bool, typer.Option("--allow_errors", help="Continue a notebook after a cell that fails, and exit with status 1.")
    ] = False,
    as_json: Json = False,
) -> CommandResult:
    """Run an old script or notebook unchanged with current libraries."""
    from glassloop.commands.run import run

    return run(script, arguments or (), model_map=model_map or (), keep=keep or (), allow_errors=allow_errors)
