"""Command-line options made from the fields of settings dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer

from glassloop.arguments import TrainingArguments
from glassloop.settings import DataSettings

SettingsClass = type[TrainingArguments] | type[DataSettings]
NAMES = str | tuple[str, ...] | None  # in Python; an option takes the names as one text with commas
METAVARS = {int: "<int>", float: "<float>"}


def with_settings(*kinds: SettingsClass, only: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command one option per field, with the field's name, type, default and help.

    `only` limits the options to some fields. The command receives None for options that were not given, so that a settings
    file can supply them.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        own += [
            option
            for kind in kinds
            for option in options_of(kind, taken=[entry.name for entry in own])
            if not only or option.name in only
        ]
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
            f"--{entry.name}" + (f"/--no-{entry.name}" if hint in (bool, bool | None) else ""),
            help=entry.metadata["help"] + ("" if entry.default is None else f"  [default: {entry.default}]"),
            show_default=False,
            parser=number_or_text(number) if number else None,
            metavar=METAVARS[number] if number else None,
        )
        annotation: object = Annotated[(hint | None, option)]
        parameters.append(inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return parameters


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
        "--resume=newest" if argument == "--resume" and after.startswith("--") else argument
        for argument, after in pairwise([*arguments, "--"])
    ]
