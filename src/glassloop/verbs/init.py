"""`glassloop init`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.options import given_for, with_settings
from glassloop.settings import DataSettings
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import DATA_HELP, MODEL_HELP


@with_settings(DataSettings)
def init_command(
    data: Annotated[str, typer.Argument(help=DATA_HELP.format("train on"))] = "quickstart",
    model: Annotated[str, typer.Option("--model", help=MODEL_HELP)] = "quickstart",
    out: Annotated[str, typer.Option("-o", "--out", help="File to write.")] = "run.toml",
    **options: object,
) -> None:
    """Write a commented settings file for glassloop train --config."""
    with starting(lines=False):
        from glassloop.commands.init import write_template

    write_template(data, model, out, given_for(DataSettings, options))
