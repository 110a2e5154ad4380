"""`glassloop export`: convert a trained model for other programs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from glassloop.base.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.base.files import user_path
from glassloop.base.result import CommandResult
from glassloop.cli.options import Json, completed_runs
from glassloop.runs.export import MODEL_FILES
from glassloop.training.stage_display import starting


def export(run: str, kind: str, out: str | None, *, stores_texts: bool = True) -> CommandResult:
    """Export a run into `out`, by default a folder beside it, and print the comparison with the run."""
    from rich.console import Console

    from glassloop.share.eject import refuse_full

    if kind not in MODEL_FILES:
        problem = f"--to is {visible(kind)}, not {alternatives(MODEL_FILES)}{did_you_mean(kind, MODEL_FILES)}"
        raise SettingsError(problem, f"use --to {'|'.join(MODEL_FILES)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else folder.parent / f"{folder.resolve().name}-{kind}"
    refuse_full(target)
    from glassloop.share.export import export_run, show_export

    found = export_run(folder, kind, target, stores_texts=stores_texts)
    show_export(Console(), found)
    return CommandResult({"run": run, "format": kind, "out": target, **vars(found.check), "flipped": found.flipped})


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
        import_module("glassloop.share.export")

    return export(run, to, out, stores_texts=not no_texts)
