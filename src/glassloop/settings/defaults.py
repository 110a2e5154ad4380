"""Choose batch size, epochs, learning rate and warm-up from the data and the model, as docs/explanation/defaults.md says."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from glassloop.base.errors import counted, listed
from glassloop.settings.training import TrainingArguments

BATCH_SIZES = {1_000: 8, 10_000: 16}  # up to so many rows; beyond, LARGE_BATCH
LARGE_BATCH = 32
WANTED_STEPS, STEPS_PER_LABEL, MOST_STEPS = 1_000, 80, 20_000
LEAST_EPOCHS, MOST_EPOCHS = 3, 20
BASE_RATE, BASE_WEIGHTS = 3e-5, 12 * 12 * 768**2  # the learning rate of an encoder of 12 layers of width 768
MOST_RATE = 3e-4
MOST_FEW_STEPS = 2.0  # how much higher the learning rate is at most if there are fewer steps than wanted
WARMUP, LEAST_STEPS_WITH_WARMUP = 0.1, 20  # a step of warm-up begins at a learning rate of zero
CHOSEN_SETTINGS = {
    "per_device_train_batch_size": "batch size",
    "num_train_epochs": "epochs",
    "learning_rate": "learning rate",
    "warmup_steps": "warm-up",
}


# Recorded as ordinary settings: resume, eject and seeds read these, and a later version with another rule cannot change a
# run.
@dataclass(frozen=True)
class Chosen:
    """Training settings, the names of those that the rule chose, and from what it chose them; empty if it chose none."""

    settings: TrainingArguments
    names: tuple[str, ...] = ()
    reason: str = ""


def has_own_settings(source: str | None) -> bool:
    """Return whether runs on a source keep the defaults of `TrainingArguments`: GLUE, as in the course."""
    return source is not None and (source == "glue" or source.startswith("glue/"))


def choose_settings(
    args: TrainingArguments, given: Collection[str], rows: int, labels: int, weights: int | None, processes: int = 1
) -> Chosen:
    """Return settings in which the rule has chosen everything but the settings that the user gave, whose names are `given`."""
    # A small function of rows, labels and encoder size, so that its choice can be predicted and written on one page. It
    # looks at no scores: a search would need the validation rows.
    shares = args.gradient_accumulation_steps * processes
    chosen: dict[str, int | float] = {}
    if "per_device_train_batch_size" not in given:  # few rows make small batches, so that an epoch has enough steps
        batch = next((size for most, size in BATCH_SIZES.items() if rows <= most), LARGE_BATCH)
        chosen["per_device_train_batch_size"] = max(1, batch // shares)
    per_epoch = math.ceil(rows / (chosen.get("per_device_train_batch_size", args.per_device_train_batch_size) * shares))
    if "num_train_epochs" not in given and args.max_steps < 1:
        chosen["num_train_epochs"] = num_epochs(per_epoch, labels)
    epochs = chosen.get("num_train_epochs", args.num_train_epochs)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * epochs)
    if "learning_rate" not in given:
        chosen["learning_rate"] = learning_rate(weights, steps)
    if "warmup_steps" not in given:
        chosen["warmup_steps"] = WARMUP if steps >= LEAST_STEPS_WITH_WARMUP else 0.0
    if not chosen:
        return Chosen(args)
    sizes = [counted(rows, "training row", "training rows"), counted(labels, "output", "outputs")]
    sizes += [f"{weights / 1e6:,.1f} M encoder weights"] if weights else []
    reason = f"{listed(CHOSEN_SETTINGS[name] for name in chosen)}: from {', '.join(sizes)}"
    return Chosen(replace(args, **chosen), tuple(chosen), reason)  # type: ignore[arg-type]  # names and values of settings


def num_epochs(per_epoch: int, labels: int) -> int:
    """Return how many epochs of `per_epoch` steps give enough steps, without too many passes over the same rows."""
    wanted = max(WANTED_STEPS, STEPS_PER_LABEL * labels)
    enough = min(max(math.ceil(wanted / per_epoch), LEAST_EPOCHS), MOST_EPOCHS)
    return max(min(enough, MOST_STEPS // per_epoch), 1)


def learning_rate(weights: int | None, steps: int) -> float:
    """Return the peak learning rate, with two digits: higher for a small encoder, and for few steps."""
    size = math.sqrt(BASE_WEIGHTS / weights) if weights else 1.0
    haste = min(max((WANTED_STEPS / steps) ** 0.25, 1.0), MOST_FEW_STEPS)
    return float(f"{min(BASE_RATE * size * haste, MOST_RATE):.1e}")
