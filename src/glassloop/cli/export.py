"""`glassloop export`: convert a trained model for other programs, or write its run as a PyTorch script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from glassloop.base.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, RunFolder
from glassloop.runs.export import MODEL_FILES
from glassloop.training.progress import starting

SCRIPT = "script"
TO_HELP = "Format: onnx, onnx-int8 (8-bit weights), torch (torch.export), or script (plain PyTorch code that repeats the run)."
TEXTS_HELP = "Do not store validation rows, with which a server checks the model."


def export(
    run: RunFolder,
    to: Annotated[str, Option(help=TO_HELP)],
    out: Annotated[str | None, Option("-o", "--out", help="New folder to write to. Default: RUN-FORMAT.")] = None,
    no_texts: Annotated[bool, Option("--no_texts", help=TEXTS_HELP)] = False,
    as_json: Json = False,
) -> CommandResult:
    """Export a run to ONNX, torch.export or a plain PyTorch script."""
    with starting():
        from rich.console import Console

        from glassloop.share.eject import refuse_full
        from glassloop.share.export import export_run, show_export

    formats = (*MODEL_FILES, SCRIPT)
    if to not in formats:
        problem = f"--to is {visible(to)}, not {alternatives(formats)}{did_you_mean(to, formats)}"
        raise SettingsError(problem, f"use --to {'|'.join(formats)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else folder.parent / f"{folder.resolve().name}-{to}"
    if to == SCRIPT:
        write_script(folder, target)
        return CommandResult({"run": run, "format": to, "out": target})
    refuse_full(target)
    exported = export_run(folder, to, target, stores_texts=not no_texts)
    show_export(Console(), exported)
    return CommandResult({"run": run, "format": to, "out": target, **vars(exported.check), "flipped": exported.flipped})


def eject(
    run: RunFolder,
    out: Annotated[str | None, Option("-o", "--out", help="New folder to write to. Default: RUN/ejected.")] = None,
) -> None:
    """Export a run as a plain PyTorch script: the former name of `export --to script`."""
    folder = user_path(run)
    write_script(folder, user_path(out) if out is not None else folder / "ejected")


def write_script(folder: Path, target: Path) -> None:
    from glassloop.share.eject import eject_run

    script = eject_run(folder, target)
    show(f"wrote {script}; run it in its folder: python {script.name}")
