"""`glassloop push`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import completed_runs
from glassloop.verbs.shared_options import Json


def push_command(
    run: Annotated[str, typer.Argument(help="Folder of a finished run, or of a model.", autocompletion=completed_runs)],
    repository: Annotated[str, typer.Argument(help="Repository on the hub: owner/name. It is created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch to upload to. Default: the main branch.")] = None,
    message: Annotated[str, typer.Option("-m", "--message", help="Message of the commit.")] = "Upload a model of Glassloop",
    with_report: Annotated[
        bool, typer.Option("--with_report", help="Also upload report.html, which contains texts of the validation rows.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry_run", help="List the files, but upload nothing.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Upload the model of a run to the Hugging Face hub, with a card."""
    from glassloop.commands.push import push

    return push(run, repository, message, private=private, revision=revision, with_report=with_report, dry_run=dry_run)
