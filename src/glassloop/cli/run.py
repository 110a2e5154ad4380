"""`glassloop run`: run a script or a notebook unchanged, with names served that today's libraries no longer have."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import DataError, SettingsError, visible
from glassloop.base.files import near_name, user_path
from glassloop.base.output import CommandResult, TolerantStream, say
from glassloop.cli.options import Json

SCRIPT_HELP = "Python script or notebook (.py or .ipynb). Options of this command go before it."
MODELS_HELP = "Model to use in place of another: NAME=FOLDER. Repeat for several models."
ERRORS_HELP = "Continue a notebook after a cell that fails, and exit with status 1."


def run_script(
    script: Annotated[str, Argument(help=SCRIPT_HELP)],
    arguments: Annotated[list[str] | None, Argument(help="Arguments of the script.")] = None,
    model_map: Annotated[list[str] | None, Option(help=MODELS_HELP)] = None,
    keep: Annotated[list[str] | None, Option(help="Name not to substitute, such as Trainer. Repeat for several names.")] = None,
    allow_errors: Annotated[bool, Option("--allow_errors", help=ERRORS_HELP)] = False,
    as_json: Json = False,
) -> CommandResult:
    """Run an old script or notebook unchanged with current libraries."""
    from glassloop.compat.library_changes import changes
    from glassloop.compat.names import why_their_trainer
    from glassloop.compat.program import main_module, names_in, parts_of, run_part
    from glassloop.compat.substitution import LEDGER, chosen_names, install

    models = dict(map(model_pair, model_map or ()))
    path = user_path(script)
    if not path.is_file():
        raise DataError(f"there is no script {visible(script)}", "check the path")
    parts = parts_of(path)
    install(chosen_names(keep or (), why_their_trainer(names_in(parts))), changes(models))
    if isinstance(sys.stdout, TolerantStream):
        sys.stdout = sys.stdout.stream  # a script sees an error of its output, such as a closed pipe
    sys.excepthook = sys.__excepthook__  # typer has set its own
    sys.argv = [script, *(arguments or ())]
    sys.path[0] = str(path.parent.resolve())
    module = main_module(path)
    statuses: list[int] = []
    for part in parts:
        statuses.append(run_part(part, module))
        if statuses[-1] and not allow_errors:
            break
    sys.stdout.flush()
    if len(parts) > 1:
        say(f"{statuses.count(0)} of {len(parts)} cells ran")
    LEDGER.show()
    content = {
        "script": str(path),
        "substitutions": [asdict(one) for one in LEDGER.substitutions.values()],
        "skipped": [{"place": place, "text": text} for place, text in LEDGER.skipped],
        "failed": [near_name(part.name) for part, status in zip(parts, statuses, strict=False) if status],
    }
    return CommandResult(content, next(filter(None, statuses), 0))


def model_pair(text: str) -> tuple[str, str]:
    """Return the model that is replaced and the one that replaces it. Raises `SettingsError` if the text does not say."""
    name, found, target = text.partition("=")
    if not found or not name or not target:
        raise SettingsError(f"--model_map {visible(text)} is not NAME=FOLDER", "write --model_map bert-base-uncased=FOLDER")
    folder = user_path(target)
    return name, str(folder.resolve()) if folder.is_dir() else target
