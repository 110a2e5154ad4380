"""`glassloop config`: write a settings file."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, counted
from glassloop.base.files import user_path, write_text
from glassloop.base.output import show
from glassloop.cli.options import DATA_HELP, MODEL_HELP, given_for, with_settings
from glassloop.settings.defaults import CHOSEN_SETTINGS
from glassloop.settings.file import toml
from glassloop.settings.training import DataSettings, TrainingArguments, data_settings
from glassloop.training.progress import starting


@with_settings(DataSettings)
def config(
    data: Annotated[str, Argument(help=DATA_HELP.format("train on"))] = "quickstart",
    model: Annotated[str, Option(help=MODEL_HELP)] = "quickstart",
    out: Annotated[str, Option("-o", "--out", help="File to write.")] = "run.toml",
    **options: object,
) -> None:
    """Write a commented settings file for glassloop train --config."""
    with starting(lines=False):
        from glassloop.data.sources import load_examples

    given = given_for(DataSettings, options)
    path = user_path(out)
    if path.exists():
        raise SettingsError(f"{path} already exists", "choose another name with --out")
    examples = load_examples(data, **asdict(data_settings(given)))
    known = given
    if data != "quickstart" and not data.startswith("glue"):
        columns = examples.columns
        inspected = {"text": columns.text, "text_pair": columns.text_pair, "label": ",".join(columns.label)}
        known = {**given, **{name: value for name, value in inspected.items() if value}, "task": examples.task}
    lines = [
        "# Settings for glassloop train --config " + path.name,
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
            chooses = "  # if omitted: chosen from the data and the model, except for GLUE"
            note = chooses if entry.name in CHOSEN_SETTINGS else ""
            lines.append(f"{entry.name} = {toml(chosen)}" if chosen is not None else f"# {entry.name} = {toml(default)}{note}")
    write_text(path, "\n".join(lines) + "\n")
    show(f"wrote {path}; use it with: glassloop train --config {path}")
