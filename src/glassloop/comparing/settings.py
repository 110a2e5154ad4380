"""The settings in which compared runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from glassloop.arguments import TrainingArguments
from glassloop.comparing.sides import Side
from glassloop.files import home_name
from glassloop.run_folder.record import RunRecord

OMITTED = ("output_dir", "seed", "disable_tqdm")


def facts_of(record: RunRecord) -> dict[str, object]:
    """Return everything about a run that may explain a difference: model, data, settings, machine, versions."""
    facts: dict[str, object] = {"model": home_name(record.model.name), "parameters": record.model.parameters}
    facts |= {"data": home_name(record.data.source), **record.data.given()}
    facts["training rows"] = record.data.splits["train"].num_rows if "train" in record.data.splits else None
    facts["training rows fingerprint"] = record.data.splits["train"].fingerprint[:8] if "train" in record.data.splits else None
    settings = {entry.name: getattr(record.settings, entry.name) for entry in fields(TrainingArguments)}
    facts |= {name: value for name, value in settings.items() if name not in OMITTED}
    facts |= {"steps": record.plan.max_steps, "warmup_steps": record.plan.warmup_steps, "max_length": record.max_length}
    facts |= {"class_weights": record.class_weights, "device": record.device, "precision": record.precision}
    facts |= {"backend": record.backend, "processes": record.processes, "best_step": record.best_step}
    return facts | {f"{name} version": version for name, version in record.versions.items()}


def different_settings(sides: Sequence[Side]) -> dict[str, list[str]]:
    """Return the settings that differ between sides, with the value of each side; of several seeds, that of the first."""
    facts = [facts_of(side.record) for side in sides]
    if all(len(side.folders) == 1 for side in sides):
        facts = [{**found, "seed": side.record.settings.seed} for found, side in zip(facts, sides, strict=True)]
    else:
        facts = [
            {**found, "seeds": ", ".join(map(str, sorted(side.folders)))} for found, side in zip(facts, sides, strict=True)
        ]
        facts = [{name: value for name, value in found.items() if name != "best_step"} for found in facts]
    names = dict.fromkeys(name for found in facts for name in found)
    values = {name: [in_words(found.get(name)) for found in facts] for name in names}
    return {name: found for name, found in values.items() if len({*found}) > 1}


def in_words(value: object) -> str:
    """Return a value as people write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {in_words(part)}" for name, part in value.items()) or "-"
    return ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else str(value)
