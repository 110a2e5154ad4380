"""The section about the run itself: how to repeat it, settings, model, machine, speed, checkpoints and files."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path

from glassloop.arguments import TrainingArguments
from glassloop.files import home_name
from glassloop.pages.parts import Cell, code_block, details, fact_list, heading, paragraph, table
from glassloop.report.source import RunSource
from glassloop.run_folder.layout import KEPT_CHECKPOINTS_NAME, checkpoints_in, is_checkpoint_name
from glassloop.run_folder.record import RunRecord
from glassloop.settings import DataSettings

MOST_FILES = 60


def about(source: RunSource) -> str:
    """Return how the run was made and what it left behind."""
    record = source.record
    if record is None:
        return files_part(source)
    facts: dict[str, Cell] = {
        "status": source.status + (f", {record.stop_reason}" if record.stop_reason else ""),
        "started": record.started,
        "model": f"{home_name(record.model.name)} ({record.model.type}, {record.model.parameters / 1e6:.1f} M parameters)",
        "device": f"{record.device}, {record.precision}" + (f", {record.processes} processes" if record.processes > 1 else ""),
        "machine": record.machine,
        "backend": record.backend,
        "savings in use": ", ".join(record.savings),
        "checked": str(record.difference) if record.difference else None,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "resumed after step": ", ".join(f"{step:,}" for step in source.resumes),
    }
    again = [heading("Repeat it"), code_block(command(record))]
    if source.by_trainer:
        again = [paragraph("A Trainer trained this model in Python: to repeat it, run the script again with these settings.")]
    parts = [*again, fact_list(facts), settings_part(record), speed_part(record)]
    return "".join(parts) + files_part(source)


def command(record: RunRecord) -> str:
    """Return the command that trains the same model: data, model and every setting that is not the default."""
    words = ["glassloop", "train", home_name(record.data.source), "--model", home_name(record.model.name)]
    for name, value in {**changed_data(record), **changed_settings(record)}.items():
        words += [f"--{name}"] if value is True else [f"--{name}", option(value)]
    return " ".join(map(shlex.quote, words + (["--new_head"] if record.model.new_head else [])))


def option(value: object) -> str:
    """Return the value of a setting as the command takes it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return ",".join(home_name(str(part)) for part in value)
    return json.dumps(value) if isinstance(value, dict) else home_name(str(value))


def changed_settings(record: RunRecord) -> dict[str, object]:
    """Return the training settings that differ from the defaults, without the folder of the run."""
    now, usual = record.settings.to_dict(), TrainingArguments().to_dict()
    return {name: value for name, value in now.items() if value != usual.get(name) and name != "output_dir"}


def changed_data(record: RunRecord) -> dict[str, object]:
    """Return the settings for reading the data that differ from the defaults."""
    now, usual = record.data.settings, DataSettings()
    names = [entry.name for entry in fields(DataSettings)]
    return {name: getattr(now, name) for name in names if getattr(now, name) != getattr(usual, name)}


def settings_part(record: RunRecord) -> str:
    """Return the settings that differ from the defaults, and the plan."""
    usual = TrainingArguments().to_dict()
    rows: list[list[Cell]] = [
        [name, option(value), option(usual.get(name)), "default rule" if name in record.chosen else ""]
        for name, value in changed_settings(record).items()
    ]
    rows += [[name, option(value), "", ""] for name, value in changed_data(record).items()]
    every: list[list[Cell]] = [[name, option(value)] for name, value in record.settings.to_dict().items()]
    plan: list[list[Cell]] = [[entry.name, option(getattr(record.plan, entry.name))] for entry in fields(record.plan)]
    listed = table(["setting", "value", "default", "chosen by"], rows) or paragraph("All settings are the defaults.")
    return (
        heading("Settings that differ from the defaults")
        + listed
        + details("All settings", table(["setting", "value"], every))
        + details("The plan in numbers", table(["plan", "value"], plan))
    )


def speed_part(record: RunRecord) -> str:
    """Return how long each stage took, and how fast it was."""
    result, evaluation, total = record.result or {}, record.evaluation or {}, record.seconds
    rows: list[list[Cell]] = []
    train, speed = result.get("train_runtime"), result.get("train_samples_per_second")
    if train is not None:
        rows.append(["training", train, speed, result.get("train_steps_per_second")])
    for name in (name for name in evaluation if name.endswith("runtime")):
        stage = "evaluation" if name == "eval_runtime" else name.removesuffix("_runtime").replace("eval_", "evaluation of ")
        rows.append([stage, evaluation[name], evaluation.get(name.replace("runtime", "samples_per_second")), None])
    if total is not None:
        known = sum(row[1] for row in rows if isinstance(row[1], float))
        rows.append(["loading, saving and the rest", max(total - known, 0.0), None, None])
        rows.append(["in all", total, None, None])
    return heading("Speed") + table(["stage", "seconds", "rows per second", "steps per second"], rows) if rows else ""


def files_part(source: RunSource) -> str:
    """Return the checkpoints and the files of the run with their sizes and checksums."""
    folder, sums = source.folder, source.record.files if source.record else {}
    saved = [path.name for path in checkpoints_in(folder)]
    facts: dict[str, Cell] = {"folder": home_name(str(folder.absolute())), "checkpoints": ", ".join(reversed(saved)) or "none"}
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    visible = [path for path in found if not in_checkpoint(path.relative_to(folder)) and path.suffix != ".html"]
    rows: list[list[Cell]] = [
        [name, size_of(path), sums.get(name.removeprefix("model/"), "")[:16] if name.startswith("model/") else ""]
        for path in visible[:MOST_FILES]
        if (name := path.relative_to(folder).as_posix())
    ]
    return heading("Files") + fact_list(facts) + table(["file", "bytes", "SHA-256"], rows)


def in_checkpoint(path: Path) -> bool:
    """Return whether a file of a run folder belongs to a checkpoint, or to checkpoints that were moved aside."""
    first = path.parts[0]
    return is_checkpoint_name(first) or first.startswith(f"{KEPT_CHECKPOINTS_NAME}.")


def size_of(path: Path) -> int | None:
    """Return the size of a file; None if it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return None
