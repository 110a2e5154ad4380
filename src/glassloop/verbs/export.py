"""`glassloop export`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import completed_runs
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import Json


def export_command(
    run: Annotated[str, typer.Argument(help="Run folder.", autocompletion=completed_runs)],
    to: Annotated[str, typer.Option("--to", help="Format: onnx, onnx-int8 (8-bit weights), or torch (torch.export).")],
    out: Annotated[str | None, typer.Option("-o", "--out", help="New folder to write to. Default: RUN-FORMAT.")] = None,
    no_texts: Annotated[
        bool, typer.Option("--no_texts", help="Do not store validation rows, with which a server checks the model.")
    ] = False,
    as_json: Json = False,
) -> CommandResult:
    """Export the model to ONNX or torch.export, and check it."""
    with starting():
        from glassloop.commands.export import export

    return export(run, to, out, stores_texts=not no_texts)
