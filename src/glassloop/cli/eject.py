"""`glassloop eject`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.cli.options import completed_runs


def eject_command(
    run: Annotated[str, typer.Argument(help="Run folder.", autocompletion=completed_runs)],
    out: Annotated[str | None, typer.Option("-o", "--out", help="New folder to write to. Default: RUN/ejected.")] = None,
) -> None:
    """Export a run as a plain PyTorch script with the same result."""
    from glassloop.share.eject import eject

    eject(run, out)
