"""`glassloop export`: write the model of a run for other runtimes, and print how it compares with the run."""

from __future__ import annotations

from rich.console import Console

from glassloop.command_result import CommandResult
from glassloop.commands.eject import refuse_full
from glassloop.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.files import user_path
from glassloop.run_folder.export_json import MODEL_FILES


def export(run: str, kind: str, out: str | None, *, stores_texts: bool = True) -> CommandResult:
    """Export a run into `out`, by default a folder beside it, and print the comparison with the run."""
    if kind not in MODEL_FILES:
        problem = f"--to is {visible(kind)}, not {alternatives(MODEL_FILES)}{did_you_mean(kind, MODEL_FILES)}"
        raise SettingsError(problem, f"use --to {'|'.join(MODEL_FILES)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else folder.parent / f"{folder.resolve().name}-{kind}"
    refuse_full(target)
    from glassloop.exporting.folder import export_run
    from glassloop.exporting.terminal import show_export

    found = export_run(folder, kind, target, stores_texts=stores_texts)
    show_export(Console(), found)
    return CommandResult({"run": run, "format": kind, "out": target, **vars(found.check), "flipped": found.flipped})
