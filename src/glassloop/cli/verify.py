"""`glassloop verify`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.base.result import CommandResult
from glassloop.cli.options import MODEL_HELP, Json, given_for, with_settings
from glassloop.settings.fields import DataSettings
from glassloop.training.stage_display import starting


@with_settings(DataSettings)
def verify_command(
    what: Annotated[str, typer.Argument(help="Run folder, or data to train on.")] = "quickstart",
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Check that backends, processes and resume give equal results."""
    with starting(lines=False):
        from glassloop.study.verification import verify

    return verify(what, model, given_for(DataSettings, options))
