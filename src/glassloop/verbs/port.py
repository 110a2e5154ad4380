"""`glassloop port`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import Json


def port_command(
    file: Annotated[str, typer.Argument(help="Python script or notebook (.py or .ipynb).")],
    out: Annotated[str | None, typer.Option("-o", "--out", help="New file to write. Default: show the changes only.")] = None,
    in_place: Annotated[bool, typer.Option("--in_place", help="Write the changes to FILE itself.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Rewrite a script for transformers' Trainer to run on Glassloop."""
    with starting():
        from glassloop.commands.port import port

    return port(file, out, in_place=in_place)
