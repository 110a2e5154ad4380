"""What scripts write for the model hub: the model card of a Trainer, and the repository its settings name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from glassloop.arguments import TrainingArguments
from glassloop.measures import short_metrics
from glassloop.run_folder.history import Entry
from glassloop.sharing.card import Card, DataName, Score, markdown_table, scores_table

ENTRIES = {"language": "language", "license": "license", "finetuned_from": "base_model", "dataset_tags": "datasets"}
SHOWN = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
         "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "seed")  # fmt: skip


def trainer_card(
    title: str, args: TrainingArguments, history: Sequence[Entry], facts: Mapping[str, str | list[str] | None]
) -> Card:
    """Return the card of a Trainer: facts a script gives, the settings, and the metrics of the latest evaluation."""
    head: dict[str, str | list[str]] = {name: value for key, name in ENTRIES.items() if (value := facts.get(key))}
    tags = facts.get("tags") or []
    head["tags"] = ["glassloop", "generated_from_trainer", *([tags] if isinstance(tags, str) else tags)]
    latest = next((entry for entry in reversed(history) if any(name.startswith("eval_") for name in entry)), {})
    numbers = {name: value for name, value in latest.items() if name.startswith("eval_") and isinstance(value, float)}
    scores = [Score(name, name, value) for name, value in short_metrics(numbers).items()]
    named, tagged = facts.get("dataset"), head.get("datasets")
    first = next((value if isinstance(value, str) else value[0] for value in (named, tagged) if value), None)
    data = DataName(first, tagged if isinstance(tagged, str) else first) if first else None
    rows = [[name, getattr(args, name)] for name in SHOWN]
    sections = [("Results", scores_table(scores)), ("Training", markdown_table(["setting", "value"], rows))]
    return Card(str(facts.get("model_name") or title), data, scores, head, sections)


def repository_of(folder: Path, args: TrainingArguments) -> str:
    """Return the name of the repository to upload to: that of the settings, or the name of the folder."""
    name = getattr(args, "hub_model_id", None) or getattr(args, "push_to_hub_model_id", None) or folder.name
    owner = getattr(args, "push_to_hub_organization", None)
    return f"{owner}/{name}" if owner and "/" not in name else str(name)


def token_of(args: TrainingArguments) -> str | None:
    """Return the access token of the settings, if there is one."""
    return getattr(args, "hub_token", None) or getattr(args, "push_to_hub_token", None)
