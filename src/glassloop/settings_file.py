"""Settings from a TOML file, checked together with those of the command line."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from typing import Any

from glassloop.arguments import TrainingArguments, translated
from glassloop.errors import SettingsError, did_you_mean, listed, visible
from glassloop.files import user_path
from glassloop.settings import DataSettings, data_settings

SECTIONS = ("data", "training")


TOP = ("source", "model")


def read_config(path: str | None) -> dict[str, Any]:
    """The settings of a TOML file: source, model, [data] and [training]; all that is wrong at once."""
    empty: dict[str, Any] = {"source": None, "model": None, "data": {}, "training": {}}
    if path is None:
        return empty
    try:
        found = tomllib.loads(user_path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config {path}: {error.strerror}", "glassloop init DATA writes one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config {path}: not TOML: {error}", "glassloop init DATA writes one to start from") from error
    problems = [f"unknown entry {visible(name)}{did_you_mean(name, empty)}" for name in found if name not in empty]
    for section in SECTIONS:
        if not isinstance(found.get(section, {}), dict):
            problems.append(f"{section} is not a section: write [{section}]")
    for name in TOP:
        if not isinstance(found.get(name, ""), str):
            problems.append(f"{name} is not a name")
    data, training = (part if isinstance(part := found.get(section), dict) else {} for section in SECTIONS)
    known = [entry.name for entry in fields(DataSettings)]
    problems += [f"unknown setting {visible(name)} in [data]{did_you_mean(name, known)}" for name in data if name not in known]
    found["training"], unknown = translated(training, TrainingArguments)  # old names become today's: a flag goes before them
    problems += unknown
    if problems:
        problems += value_problems(found["training"], {name: value for name, value in data.items() if name in known})
        raise SettingsError(f"config {path}: " + "; ".join(problems), f"the entries are {listed(empty)}")
    return empty | found


def check_settings(training: dict[str, Any], data: dict[str, Any]) -> None:
    """Raise one error with all that is wrong in both, before anything is loaded or launched."""
    if problems := value_problems(training, data):
        raise SettingsError("; ".join(problems), "glassloop train --help lists every setting")


def value_problems(training: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """All that is wrong with the values of known settings."""
    problems = []
    try:
        TrainingArguments(**training)
    except SettingsError as error:
        problems.append(error.problem)
    try:
        data_settings(data)
    except SettingsError as error:
        problems.append(error.problem)
    return problems
