"""`glassloop eject`: write a run as a plain PyTorch script."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from glassloop.base.files import user_path
from glassloop.base.output import show
from glassloop.cli.options import RunFolder


def eject(
    run: RunFolder,
    out: Annotated[str | None, Option("-o", "--out", help="New folder to write to. Default: RUN/ejected.")] = None,
) -> None:
    """Export a run as a plain PyTorch script with the same result."""
    from glassloop.share.eject import eject_run

    folder = user_path(run)
    script = eject_run(folder, user_path(out) if out is not None else folder / "ejected")
    show(f"wrote {script}; run it in its folder: python {script.name}")
