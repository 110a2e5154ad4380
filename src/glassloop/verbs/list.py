"""`glassloop list`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.verbs.shared_options import Json


def list_command(
    folder: Annotated[str | None, typer.Argument(help="Folder with runs. Default: runs.")] = None, as_json: Json = False
) -> CommandResult:
    """List runs with their status, result, time and size."""
    from glassloop.commands.list import list_runs

    return list_runs(folder)
