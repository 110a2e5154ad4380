"""`glassloop run`: run a script or a notebook unchanged, with names served that today's libraries no longer have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from glassloop.base.errors import DataError, SettingsError, say, visible
from glassloop.base.files import near_name, user_path
from glassloop.base.output import TolerantStream
from glassloop.base.result import CommandResult
from glassloop.cli.options import Json


def run(
    script: str,
    arguments: Sequence[str] = (),
    *,
    model_map: Sequence[str] = (),
    keep: Sequence[str] = (),
    allow_errors: bool = False,
) -> CommandResult:
    """Run a script or notebook as Python would, then print what was substituted.

    Args:
        script: The script or notebook.
        arguments: Its arguments.
        model_map: Models to use in place of others, as NAME=FOLDER.
        keep: Names that are not substituted.
        allow_errors: Whether to run the cells of a notebook that follow one that failed.

    Raises:
        DataError: If there is no such script, or it is not a notebook.
        SettingsError: If an entry of `model_map` is not NAME=FOLDER.
    """
    from glassloop.compat.library_changes import changes
    from glassloop.compat.names import why_their_trainer
    from glassloop.compat.program import main_module, names_in, parts_of, run_part
    from glassloop.compat.substitution import LEDGER, chosen_names, install

    models = dict(map(model_pair, model_map))
    path = user_path(script)
    if not path.is_file():
        raise DataError(f"there is no script {visible(script)}", "check the path")
    parts = parts_of(path)
    install(chosen_names(keep, why_their_trainer(names_in(parts))), changes(models))
    if isinstance(sys.stdout, TolerantStream):
        sys.stdout = sys.stdout.stream  # a script sees an error of its output, such as a closed pipe
    sys.excepthook = sys.__excepthook__  # typer has set its own
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.parent.resolve())
    module, statuses = main_module(path), []
    for part in parts:
        statuses.append(run_part(part, module))
        if statuses[-1] and not allow_errors:
            break
    sys.stdout.flush()
    if len(parts) > 1:
        say(f"{statuses.count(0)} of {len(parts)} cells ran")
    LEDGER.show()
    failed = [near_name(part.name) for part, status in zip(parts, statuses, strict=False) if status]
    content = {
        "script": str(path),
        "substitutions": [asdict(one) for one in LEDGER.found.values()],
        "skipped": [{"place": place, "text": text} for place, text in LEDGER.skipped],
        "failed": failed,
    }
    return CommandResult(content, next(filter(None, statuses), 0))


def model_pair(text: str) -> tuple[str, str]:
    """Return the model that is replaced and the one that replaces it. Raises `SettingsError` if the text does not say."""
    name, found, target = text.partition("=")
    if not found or not name or not target:
        raise SettingsError(f"--model_map {visible(text)} is not NAME=FOLDER", "write --model_map bert-base-uncased=FOLDER")
    folder = user_path(target)
    return name, str(folder.resolve()) if folder.is_dir() else target


def run_command(
    script: Annotated[
        str, typer.Argument(help="Python script or notebook (.py or .ipynb). Options of this command go before it.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    model_map: Annotated[
        list[str] | None,
        typer.Option("--model_map", help="Model to use in place of another: NAME=FOLDER. Repeat for several models."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Name not to substitute, such as Trainer. Repeat for several names."),
    ] = None,
    allow_errors: Annotated[
        bool, typer.Option("--allow_errors", help="Continue a notebook after a cell that fails, and exit with status 1.")
    ] = False,
    as_json: Json = False,
) -> CommandResult:
    """Run an old script or notebook unchanged with current libraries."""
    return run(script, arguments or (), model_map=model_map or (), keep=keep or (), allow_errors=allow_errors)
