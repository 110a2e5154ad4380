"""How a run is started: settings from a TOML file, a commented file to start from, what is looked at first."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from glassloop.arguments import TrainingArguments
from glassloop.errors import SettingsError, counted, show
from glassloop.files import user_path, write_text
from glassloop.settings import DataSettings, data_settings


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
