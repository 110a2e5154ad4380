"""Write the reference as Markdown, from the code: settings, commands and the public Python names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable

import typer

import glassloop
from glassloop.cli.main import app
from glassloop.cli.options import ALIASES
from glassloop.diagnosis.codes import CODES
from glassloop.models.families import FAMILIES
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.settings.transformers_names import SETTINGS as THEIR_SETTINGS

SETTINGS = {"TrainingArguments": TrainingArguments, "DataSettings": DataSettings}
PACKING = {
    "layers": "packed, with rewritten layers",
    "modules": "packed, in its own modules",
    "none": "padded (`plain` on a CPU)",
}
# The public names by what a reader looks for; a public name that is missing here is listed under "Other".
GROUPS = {
    "One call": "train Run",
    "Train and evaluate": "Trainer TrainingArguments EvalPrediction Callback",
    "Several random seeds": "train_seeds resume_seeds RunSettings SeedsRecord SeedRecord",
    "Compare configurations": "Study StudyRecord",
    "Predict": "Predictor decide",
    "Data": "load_examples load_dataset DataSettings Examples LabelSet encode Encoding",
    "Batches": "Batches Batch PaddingCollator epoch_order padding_waste",
    "Models": "load_model load_tokenizer quickstart_model",
    "Metrics": "load_metric metrics_for",
    "The loop": "fit train_step Plan State make_loss run_over Evaluation AdamW make_optimizer make_scheduler seed_all",
    "Backends": "PlainBackend AccelerateBackend",
    "Errors": "GlassloopError",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [[*head]]
    lines += [["---"] * len(lines[0]), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "{.stacked}\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def default_of(value: object) -> str:
    """Return a default value as code, or an empty cell for None."""
    return "" if value is None else f"`{value}`"


def settings(name: str) -> str:
    """Return a table of every field of a settings class: type, default and help."""
    rows = [
        (f"`{entry.name}`", f"`{type_of(entry)}`", default_of(entry.default), described(entry))
        for entry in dataclasses.fields(SETTINGS[name])
    ]
    return table(("Setting", "Type", "Default", "Description"), rows)


def settings_of_transformers() -> str:
    """Return the settings of transformers' `TrainingArguments` that are not Glassloop's own, by outcome and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, one in sorted(THEIR_SETTINGS.items()):
        grouped.setdefault((one.outcome, one.text), []).append(f"`{name}`")
    rows = [(", ".join(names), outcome, with_code(text)) for (outcome, text), names in sorted(grouped.items())]
    return table(("Settings", "Outcome", "Description"), rows)


def described(entry: dataclasses.Field[object]) -> str:
    """Return the help of a setting, with its short option."""
    short = f" Short option: `{ALIASES[entry.name]}`." if entry.name in ALIASES else ""
    return with_code(entry.metadata["help"]) + short


def with_code(text: str) -> str:
    """Return a help text with its options as code."""
    return re.sub(r"(?<![\w`-])(--[a-z_-]+)", r"`\1`", text)


def type_of(entry: dataclasses.Field[object]) -> str:
    """Return the type of a field. None is not part of it: the default of such a setting is empty."""
    return str(entry.type).removesuffix(" | None")


def commands() -> str:
    """Return a section for each verb: usage, description, arguments and options."""
    parts = []
    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if command.hidden:  # the former name of another one
            continue
        arguments = [entry for entry in command.params if entry.param_type_name == "argument"]
        options = [entry for entry in command.params if entry.param_type_name == "option"]
        kinds = [kind for kind, of in SETTINGS.items() if settings_of(of) <= {entry.name for entry in options}]
        from_settings = {name for kind in kinds for name in settings_of(SETTINGS[kind])}
        words = [f"[{entry.name.upper()}]" if not entry.required else entry.name.upper() for entry in arguments]
        words += ["[OPTIONS]"] if options else []
        usage, text = " ".join(["glassloop", verb, *words]), with_code(inspect.cleandoc(command.help or ""))
        parts.append(f"## {verb}\n\n```text\n{usage}\n```\n\n{text}\n")
        own = [entry for entry in options if entry.name not in from_settings]
        rows = [(f"`{entry.name.upper()}`", default_of(entry.default), with_code(entry.help or "")) for entry in arguments]
        rows += [(f"`{', '.join(entry.opts)}`", option_default(entry), with_code(entry.help or "")) for entry in own]
        if rows:
            parts.append(table(("Argument or option", "Default", "Description"), rows))
        if kinds:
            links = " and ".join(f"[{kind}](settings.md#{kind.lower()})" for kind in kinds)
            parts.append(f"`{verb}` also accepts every setting of {links} as an option with the same name.\n")
    return "\n".join(parts)


def short_names() -> str:
    """Return a table of the options that have a short name, and the commands that have them."""
    found: dict[tuple[str, str], list[str]] = {}
    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for entry in command.params:
            if len(entry.opts) > 1:
                found.setdefault((entry.opts[0], entry.opts[-1]), []).append(verb)
    rows = [(f"`{short}`", f"`{option}`", ", ".join(verbs)) for (short, option), verbs in found.items()]
    return table(("Short", "Option", "Commands"), rows)


def option_default(entry: object) -> str:
    """Return the default of an option, or an empty cell for an option that is off."""
    default = entry.default  # type: ignore[attr-defined]
    return "" if default is False else default_of(default)


def settings_of(kind: type) -> set[str]:
    """Return the names of the settings of a class."""
    return {entry.name for entry in dataclasses.fields(kind)}


def families() -> str:
    """Return a table of the model families and how the fast backends run them."""
    rows = [(family.title, f"`{name}`", PACKING[family.packing]) for name, family in FAMILIES.items()]
    return table(("Family", "`model_type`", "Fast backends"), rows)


def python_names() -> str:
    """Return a section for each group of public names, which autodoc fills from the docstrings."""
    rest = set(glassloop.PUBLIC)
    parts = []
    for title, names in [*GROUPS.items(), ("Other", " ".join(sorted(rest - set(" ".join(GROUPS.values()).split()))))]:
        known = [name for name in names.split() if name in rest]
        if known:
            parts.append(f"## {title}\n\n```{{eval-rst}}\n.. currentmodule:: glassloop\n")
            parts += [directive(name) for name in known]
            parts.append("```\n")
    return "\n".join(parts)


def directive(name: str) -> str:
    """Return the autodoc directive for one public name. Settings are listed on a page of their own."""
    if not inspect.isclass(getattr(glassloop, name)):
        return f".. autofunction:: glassloop.{name}\n"
    members = "" if name in SETTINGS else "   :members:\n"
    members += "   :inherited-members:\n" if name in ("Run", "Trainer") else ""  # whose methods come from the core
    return f".. autoclass:: glassloop.{name}\n{members}"


def findings() -> str:
    """Return a table of every code of a finding."""
    rows = [
        (f"`{code.code}`", code.title, code.severity, with_code(code.why), with_code(code.remedy)) for code in CODES.values()
    ]
    return table(("Code", "Finding", "Severity", "Why it matters", "What to do"), rows)


GENERATED: dict[str, Callable[..., str]] = {
    "settings_of_transformers": settings_of_transformers,
    "settings": settings,
    "commands": commands,
    "short_names": short_names,
    "families": families,
    "findings": findings,
    "python": python_names,
}
