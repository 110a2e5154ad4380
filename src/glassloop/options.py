"""Command-line options made from the fields of settings dataclasses, with their short names and completions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from glassloop.arguments import CHOICES, TrainingArguments
from glassloop.defaults import CHOSEN_SETTINGS
from glassloop.drop_in.settings import TRACKERS
from glassloop.help_page import HelpAll
from glassloop.run_folder.layout import is_run, is_seeds_folder, is_study
from glassloop.settings import TASKS, DataSettings

SettingsClass = type[TrainingArguments] | type[DataSettings]
NAMES = str | tuple[str, ...] | None  # in Python; an option takes the names as one text with commas
METAVARS = {int: "<int>", float: "<float>"}
COMPLETED = {**CHOICES, "task": TASKS, "report_to": TRACKERS}  # the values that a shell completes
# Short names. A dash means the same as an underscore in every name, so --batch-size and --batch_size are one option.
ALIASES = {
    "learning_rate": "--lr",
    "num_train_epochs": "--epochs",
    "per_device_train_batch_size": "--batch_size",
    "output_dir": "-o",
}


def with_settings(*kinds: SettingsClass, only: Sequence[str] = ()) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return a decorator that gives a command one option per field, with the field's name, type, default and help.

    `only` limits the options to some fields. The command receives None for options that were not given, so that a settings
    file can supply them. It also gets `--help-all`.
    """

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        own += [
            option
            for kind in kinds
            for option in options_of(kind, taken=[entry.name for entry in own])
            if not only or option.name in only
        ]
        own += [inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)]
        command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        command.__annotations__ = {entry.name: entry.annotation for entry in own}
        return command

    return decorate


def options_of(kind: SettingsClass, taken: Sequence[str]) -> list[inspect.Parameter]:
    """Return one keyword parameter per field of a settings class, except for names that are taken."""
    parameters = []
    hints: dict[str, Any] = get_type_hints(kind)  # classes and unions of classes
    for entry in fields(kind):
        if entry.name in taken:
            continue
        hint = str | None if hints[entry.name] == NAMES else hints[entry.name]
        number = next((number for number in METAVARS if hint in (number, number | None)), None)
        option = typer.Option(
            *([ALIASES[entry.name]] if entry.name in ALIASES else []),
            f"--{entry.name}" + (f"/--no-{entry.name}" if hint in (bool, bool | None) else ""),
            help=entry.metadata["help"] + default_of(entry.name, entry.default),
            show_default=False,
            parser=number_or_text(number) if number else None,
            metavar=METAVARS[number] if number else None,
            autocompletion=choices_of(entry.name) if entry.name in COMPLETED else None,
        )
        annotation: object = Annotated[(hint | None, option)]
        parameters.append(inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return parameters


def default_of(name: str, value: object) -> str:
    """Return how a help page shows a default. The default of an option that is off is not shown."""
    if name in CHOSEN_SETTINGS:
        return f"  [default: chosen from the data and the model; {value} for GLUE]"
    return "" if value is None or value is False else f"  [default: {value}]"


def number_or_text(kind: type[int] | type[float]) -> Callable[[str], int | float | str]:
    """Return a parser that keeps text that is not a number, so that the settings can report all problems at once."""

    def read(text: str) -> int | float | str:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def given_for(kind: SettingsClass, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that were given and that are fields of `kind`."""
    names = [entry.name for entry in fields(kind)]
    return {name: value for name, value in options.items() if name in names and value is not None}


def with_resume_value(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--resume=newest` for a `--resume` without a value, which typer cannot parse."""
    return [
        "--resume=newest" if argument == "--resume" and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "--"])
    ]


def end_of_own(arguments: Sequence[str]) -> int:
    """Return how many arguments are Glassloop's own. What follows the script of `glassloop run` belongs to the script."""
    if arguments[:1] != ["run"]:
        return len(arguments)
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        if arguments[place] == "--":
            return min(place + 2, len(arguments))
        place += 1 + (arguments[place].replace("-", "_") in ("__model_map", "__keep"))
    return min(place + 1, len(arguments))


# --- completion -------------------------------------------------------------------------------------------------


def choices_of(name: str) -> Callable[[], list[str]]:
    """Return a function that completes the value of an option."""
    return lambda: [*COMPLETED[name]]


def completed_runs(incomplete: str) -> list[str]:
    """Return the run folders whose path begins with `incomplete`, for a shell to complete: those in runs/ and beside it."""
    beside = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found: set[str] = set()
    for folder in {Path("runs"), beside}:
        with suppress(OSError):  # a folder that cannot be read has nothing to complete
            found |= {str(path) for path in folder.iterdir() if is_run(path) or is_seeds_folder(path) or is_study(path)}
    return sorted(path for path in found if path.startswith(incomplete))
