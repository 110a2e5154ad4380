"""What scripts write for the model hub: a model card, and an upload of the output folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from glassloop.arguments import TrainingArguments
from glassloop.errors import ResourceError
from glassloop.files import write_text
from glassloop.hub import hub_unreachable
from glassloop.run_folder.history import Entry

ENTRIES = {"language": "language", "license": "license", "finetuned_from": "base_model", "dataset_tags": "datasets"}
SHOWN = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
         "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "seed")  # fmt: skip


def write_card(
    folder: Path, args: TrainingArguments, history: Sequence[Entry], facts: Mapping[str, str | list[str] | None]
) -> None:
    """Write a model card, README.md: facts a script gives, the settings, and the metrics of the latest evaluation."""
    head = {name: facts[key] for key, name in ENTRIES.items() if facts.get(key)}
    tags = facts.get("tags") or []
    head["tags"] = ["generated_from_trainer", *([tags] if isinstance(tags, str) else tags)]
    lines = ["---", "library_name: transformers"]
    for name, value in head.items():
        lines += [f"{name}: {value}"] if isinstance(value, str) else [f"{name}:", *(f"- {one}" for one in value or ())]
    lines += ["---", "", f"# {facts.get('model_name') or folder.name}", "", "## Settings", ""]
    lines += [f"- {name}: {getattr(args, name)}" for name in SHOWN]
    latest = next((entry for entry in reversed(history) if any(name.startswith("eval_") for name in entry)), None)
    if latest is not None:
        lines += ["", "## Evaluation", "", *(f"- {name}: {value}" for name, value in latest.items())]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def upload(folder: Path, name: str, message: str, *, token: str | None, revision: str | None) -> str:
    """Upload the files of a folder to a repository of the model hub, and return its address.

    Raises `ResourceError` if the hub cannot be reached, or refuses.
    """
    remedy = f"the model is saved in {folder}; upload it later with huggingface-cli upload {name} {folder}"
    if reason := hub_unreachable():
        raise ResourceError(f"the model hub cannot be reached: {reason}", remedy)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi(token=token)
    try:
        place = api.create_repo(name, exist_ok=True).repo_id
        ignored = ["checkpoint-*", "checkpoints.kept-*"]
        api.upload_folder(repo_id=place, folder_path=folder, commit_message=message, revision=revision, ignore_patterns=ignored)
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise ResourceError(f"the upload of {name} was refused: {error}", f"log in first; {remedy}") from error
    return f"https://huggingface.co/{place}"
