"""How a run is started: settings from a TOML file, a commented file to start from, what is looked at first."""

from __future__ import annotations

import signal
import sys
import threading
import tomllib
from dataclasses import asdict, fields
from typing import Any

from glassloop.arguments import TrainingArguments, translated
from glassloop.config import DataSettings, data_settings
from glassloop.errors import SettingsError, counted, did_you_mean, listed, show, visible
from glassloop.files import user_path, write_text

SECTIONS = ("data", "training")
TOP = ("source", "model")


def leave_on_signal() -> None:
    """Outside of training, which saves first, SIGTERM and SIGHUP exit at once but in order: nothing half-written stays."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda number, frame: sys.exit(128 + number))


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


def look_first(data: str, model: str, settings: dict[str, Any]) -> None:
    """Check model and data before processes start, so that an error is reported once, with its exit code."""
    from glassloop.data.sources import load_examples
    from glassloop.modeling import load_config

    load_config(model)
    load_examples(data, **settings)


def write_config(data: str, model: str, out: str, given: dict[str, Any]) -> None:
    """Look at the data, then write every setting with its sentence; only what differs from the default is in force."""
    from glassloop.data.sources import load_examples

    path = user_path(out)
    if path.exists():
        raise SettingsError(f"{path} is there already", "choose another name with --out")
    settings = data_settings(given)
    examples = load_examples(data, **asdict(settings))
    found = {"text": examples.columns.text, "text_pair": examples.columns.text_pair, "label": ",".join(examples.columns.label)}
    known = {**given, **{name: value for name, value in found.items() if value}, "task": examples.task}
    if data == "quickstart" or data.startswith("glue"):
        known = given
    lines = [
        "# Settings of a run: glassloop train --config " + path.name,
        *(f"# {name}: {counted(fact.num_rows, 'row', 'rows')}" for name, fact in examples.facts.items()),
        *(f"# {note}" for note in examples.notes),
        "",
        f"source = {toml(data)}",
        f"model = {toml(model)}",
    ]
    for section, kind, values in (("data", DataSettings, known), ("training", TrainingArguments, {})):
        lines += ["", f"[{section}]"]
        for entry in fields(kind):
            lines.append(f"# {entry.metadata['help']}")
            chosen = values.get(entry.name)
            default = entry.default if entry.default is not None else ""
            lines.append(f"{entry.name} = {toml(chosen)}" if chosen is not None else f"# {entry.name} = {toml(default)}")
    write_text(path, "\n".join(lines) + "\n")
    show(f"wrote {path}: glassloop train --config {path}")


def toml(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in escaped) + '"'
