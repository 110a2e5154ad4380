"""The settings of a run, and the TOML file that can hold them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from glassloop.base.errors import SettingsError, did_you_mean, listed, visible
from glassloop.base.files import kind_of_special, user_path, write_text
from glassloop.settings.training import (
    DataSettings,
    Problem,
    TrainingArguments,
    data_settings,
    refuse,
    training_arguments,
    translated,
)

MOST_BYTES = 1_000_000  # settings have a few kilobytes


SECTIONS = ("data", "training", "study")


ENTRIES = ("source", "model", "new_head", *SECTIONS)


@dataclass(frozen=True)
class RunSettings:
    """Everything that defines a training run.

    Args:
        source: Data to train on: a file, a folder, `glue/mrpc`, or a hub name. Default: the quickstart data.
        model: Model to start from: a folder or a hub name. Default: the quickstart model.
        training: Training settings.
        data: How to read the data.
        new_head: Whether to replace the classification head of a model that has one.
    """

    source: str | None = None
    model: str | None = None
    training: TrainingArguments = field(default_factory=TrainingArguments)
    data: DataSettings = field(default_factory=DataSettings)
    new_head: bool = False

    def given(self) -> GivenSettings:
        """Return all settings that have a value."""
        training = {name: value for name, value in self.training.to_dict().items() if value is not None}
        data = {name: value for name, value in asdict(self.data).items() if value is not None}
        return GivenSettings(self.source, self.model, training, data, self.new_head)


@dataclass(frozen=True)
class GivenSettings:
    """The settings a user gave for a run. None, False and absent settings keep their defaults, or those of a resumed run."""

    source: str | None = None
    model: str | None = None
    training: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, object] = field(default_factory=dict)
    new_head: bool = False
    study: Mapping[str, object] = field(default_factory=dict)  # the settings of `StudySettings`

    def __post_init__(self) -> None:
        """Raise `SettingsError` for an empty name: an unset variable in a shell does not ask for the default."""
        names = {"data": self.source, "model": self.model}
        refuse(
            [
                Problem(f"the name of the {what} is empty", "give a name, or omit it")
                for what, name in names.items()
                if name is not None and not name.strip()
            ]
        )

    def overridden_by(self, other: GivenSettings) -> GivenSettings:
        """Return these settings with those of `other` in place of the same ones."""
        return GivenSettings(
            other.source or self.source,
            other.model or self.model,
            {**self.training, **other.training},
            {**self.data, **other.data},
            other.new_head or self.new_head,
            {**self.study, **other.study},
        )

    def checked(self) -> RunSettings:
        """Return the settings with all defaults. Raise one `SettingsError` with everything that is wrong."""
        refuse(value_problems(self.training, self.data))
        return RunSettings(self.source, self.model, training_arguments(self.training), data_settings(self.data), self.new_head)


def read_settings(path: str | None) -> GivenSettings:
    """Return the settings in a TOML file, or none without a file. Raise `SettingsError` with everything that is wrong."""
    if path is None:
        return GivenSettings()
    try:
        found = tomllib.loads(text_of(user_path(path)))
    except OSError as error:
        raise SettingsError(f"config {path}: {error.strerror}", "create one with glassloop init DATA") from error
    except SettingsError:
        raise
    except (ValueError, RecursionError) as error:  # a syntax error, bytes that are not UTF-8, a number with 5,000 digits
        raise SettingsError(f"config {path}: not TOML: {error}", "create a valid one with glassloop init DATA") from error
    problems = [
        Problem(f"unknown entry {visible(name)}{did_you_mean(name, ENTRIES)}", f"use only {listed(ENTRIES)}")
        for name in found
        if name not in ENTRIES
    ]
    for section in SECTIONS:
        if not isinstance(found.get(section, {}), dict):
            problems.append(Problem(f"{section} is not a table", f"write [{section}]"))
    for name, kind, wanted in (("source", str, "text"), ("model", str, "text"), ("new_head", bool, "true or false")):
        if not isinstance(found.get(name, kind()), kind):
            problems.append(Problem(f"{name} is not {wanted}", f"set {name} to {wanted}"))
    data, training, study = (part if isinstance(part := found.get(section), dict) else {} for section in SECTIONS)
    known = [entry.name for entry in fields(DataSettings)]
    for name in data:
        if name not in known:
            text = f"unknown setting {visible(name)} in [data]{did_you_mean(name, known)}"
            problems.append(Problem(text, "glassloop data --help lists all data settings"))
    present, unknown = translated(training, TrainingArguments)  # under their present names, so that flags override them
    problems += unknown
    if problems:
        problems += value_problems(present, {name: value for name, value in data.items() if name in known})
        refuse([Problem(f"config {path}: {problems[0].text}", problems[0].remedy), *problems[1:]])
    return GivenSettings(found.get("source"), found.get("model"), present, data, found.get("new_head", False), study)


def text_of(path: Path) -> str:
    """Return the text of a settings file. Raise `SettingsError` for a pipe or device, and for a file that is far too large."""
    problem = None
    if kind := kind_of_special(path):
        problem = f"{kind}, not a file"  # reading it may never end
    elif path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
        problem = f"{size:,} bytes are too many for settings"
    if problem:
        raise SettingsError(f"config {path}: {problem}", "create one with glassloop init DATA")
    return path.read_text(encoding="utf-8")


def value_problems(training: Mapping[str, object], data: Mapping[str, object]) -> list[Problem]:
    """Return what is wrong with the values of known settings."""
    problems = []
    for check, values in ((training_arguments, training), (data_settings, data)):
        try:
            check(values)
        except SettingsError as error:
            problems.append(Problem(error.problem, error.remedy))
    return problems


def write_settings(path: Path, given: GivenSettings) -> None:
    """Write settings as a TOML file that `read_settings` and `glassloop train --config` read."""
    lines = [f"{name} = {toml(value)}" for name in ("source", "model") if (value := getattr(given, name)) is not None]
    lines += [f"new_head = {toml(True)}"] if given.new_head else []
    for section, values in (("data", given.data), ("training", given.training)):
        lines += ["", f"[{section}]", *(f"{name} = {toml(value)}" for name, value in values.items() if value is not None)]
    write_text(path, "\n".join(lines) + "\n")


def toml(value: object) -> str:
    """Return a plain value, or a list of them, as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in escaped) + '"'
