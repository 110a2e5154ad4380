"""The settings of a run, and the TOML file that can hold them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from glassloop.base.errors import SettingsError, listed
from glassloop.base.files import kind_of_special, user_path, write_text
from glassloop.base.records import KINDS, described, entry
from glassloop.settings import training
from glassloop.settings.training import DataSettings, TrainingArguments, problems_of, refuse

MOST_BYTES = 1_000_000  # settings have a few kilobytes
ENTRIES = {"source": str, "model": str, "new_head": bool, "data": dict, "training": dict, "study": dict}


@described
@dataclass(frozen=True)
class RunSettings:
    """Everything that defines a training run."""

    source: str | None = entry(None, "Data to train on: a file, a folder, `glue/mrpc`, or a hub name. Default: quickstart.")
    model: str | None = entry(None, "Model to start from: a folder or a hub name. Default: the quickstart model.")
    training: TrainingArguments = field(default_factory=TrainingArguments, metadata={"help": "Training settings."})
    data: DataSettings = field(default_factory=DataSettings, metadata={"help": "How to read the data."})
    new_head: bool = entry(False, "Whether to replace the classification head of a model that has one.")

    def given(self) -> GivenSettings:
        """Return all settings that have a value."""
        arguments = {name: value for name, value in self.training.to_dict().items() if value is not None}
        data = {name: value for name, value in asdict(self.data).items() if value is not None}
        return GivenSettings(self.source, self.model, arguments, data, self.new_head)


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
        # An unset variable in a shell does not ask for the default.
        empty = [what for what, name in (("data", self.source), ("model", self.model)) if name is not None and not name.strip()]
        refuse([SettingsError(f"the name of the {what} is empty", "give a name, or omit it") for what in empty])

    def overridden_by(self, other: GivenSettings) -> GivenSettings:
        """Return these settings with those of `other` in place of the same ones."""
        tables = {name: {**getattr(self, name), **getattr(other, name)} for name in ("training", "data", "study")}
        source, model = other.source or self.source, other.model or self.model
        return GivenSettings(source, model, new_head=other.new_head or self.new_head, **tables)

    def checked(self) -> RunSettings:
        """Return the settings with all defaults. Raise one `SettingsError` with everything that is wrong."""
        refuse(problems_of(training.training_arguments, self.training) + problems_of(training.data_settings, self.data))
        arguments, data = training.training_arguments(self.training), training.data_settings(self.data)
        return RunSettings(self.source, self.model, arguments, data, self.new_head)


def read_settings(path: str | None) -> GivenSettings:
    """Return the settings in a TOML file, or none without a file. Raise `SettingsError` with everything that is wrong."""
    if path is None:
        return GivenSettings()
    file = user_path(path)
    problem = None
    try:
        if kind := kind_of_special(file):
            problem = f"{kind}, not a file"  # reading it may never end
        elif file.is_file() and (size := file.stat().st_size) > MOST_BYTES:
            problem = f"{size:,} bytes are too many for settings"
        content = {} if problem else tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problem = str(error.strerror)
    except (ValueError, RecursionError) as error:  # a syntax error, bytes that are not UTF-8, a number with 5,000 digits
        problem = f"not TOML: {error}"
    if problem:
        raise SettingsError(f"config {path}: {problem}", "create one with glassloop config DATA")
    problems = training.unknown_names(content, ENTRIES, f"use only {listed(ENTRIES)}", "entry")
    for name in [name for name, kind in ENTRIES.items() if not isinstance(content.get(name, kind()), kind)]:
        wanted = KINDS.get(ENTRIES[name])
        remedy = f"set {name} to {wanted}" if wanted else f"write [{name}]"
        problems.append(SettingsError(f"{name} is not {wanted or 'a table'}", remedy))
        del content[name]
    data = content.get("data", {})
    known = [entry.name for entry in fields(DataSettings)]
    problems += training.unknown_names(data, known, "glassloop inspect --help lists all data settings", where=" in [data]")
    # under their present names, so that flags override them
    arguments, unknown = training.translated(content.get("training", {}), TrainingArguments)
    problems += unknown
    if problems:
        problems += problems_of(training.training_arguments, arguments)
        problems += problems_of(training.data_settings, {name: value for name, value in data.items() if name in known})
        refuse([SettingsError(f"config {path}: {problems[0].problem}", problems[0].remedy), *problems[1:]])
    return GivenSettings(**{**content, "training": arguments})


def write_settings(path: Path, given: GivenSettings) -> None:
    """Write settings as a TOML file that `read_settings` and `glassloop train --config` read."""
    lines = [f"{name} = {toml(value)}" for name in ("source", "model") if (value := getattr(given, name)) is not None]
    lines += ["new_head = true"] if given.new_head else []
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
