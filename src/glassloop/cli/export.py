"""`glassloop export`: convert a trained model for other programs."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from glassloop.base.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult
from glassloop.cli.options import Json, RunFolder
from glassloop.runs.export import MODEL_FILES
from glassloop.training.progress import starting

TEXTS_HELP = "Do not store validation rows, with which a server checks the model."


def export(
    run: RunFolder,
    to: Annotated[str, Option(help="Format: onnx, onnx-int8 (8-bit weights), or torch (torch.export).")],
    out: Annotated[str | None, Option("-o", "--out", help="New folder to write to. Default: RUN-FORMAT.")] = None,
    no_texts: Annotated[bool, Option("--no_texts", help=TEXTS_HELP)] = False,
    as_json: Json = False,
) -> CommandResult:
    """Export the model to ONNX or torch.export, and check it."""
    with starting():
        from rich.console import Console

        from glassloop.share.eject import refuse_full
        from glassloop.share.export import export_run, show_export

    if to not in MODEL_FILES:
        problem = f"--to is {visible(to)}, not {alternatives(MODEL_FILES)}{did_you_mean(to, MODEL_FILES)}"
        raise SettingsError(problem, f"use --to {'|'.join(MODEL_FILES)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else folder.parent / f"{folder.resolve().name}-{to}"
    refuse_full(target)
    exported = export_run(folder, to, target, stores_texts=not no_texts)
    show_export(Console(), exported)
    return CommandResult({"run": run, "format": to, "out": target, **vars(exported.check), "flipped": exported.flipped})
