"""`glassloop verify`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import given_for, with_settings
from glassloop.settings import DataSettings
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import MODEL_HELP, Json


@with_settings(DataSettings)
def verify_command(
    what: Annotated[str, typer.Argument(help="Run folder, or data to train on.")] = "quickstart",
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Check that backends, processes and resume give equal results."""
    with starting(lines=False):
        from glassloop.commands.verify import verify

    return verify(what, model, given_for(DataSettings, options))
