"""Where a training stands, in the words of transformers' trainer_state.json, which other programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from glassloop.arguments import TrainingArguments
from glassloop.engine.state import State
from glassloop.run_folder.history import Entry
from glassloop.run_folder.layout import checkpoint_name
from glassloop.run_folder.record import Plan

STATE_NAME = "trainer_state.json"


def log_history(history: Sequence[Entry]) -> list[dict[str, object]]:
    """Return the entries of a history as transformers' `state.log_history` has them: the step comes last."""
    return [{**{name: value for name, value in entry.items() if name != "step"}, "step": entry["step"]} for entry in history]


def lasting_facts(plan: Plan, args: TrainingArguments) -> dict[str, int]:
    """Return the entries that stay the same during a training."""
    return {
        "max_steps": plan.max_steps,
        "num_train_epochs": -(-plan.max_steps // plan.steps_per_epoch),
        "logging_steps": plan.log_every,
        "eval_steps": plan.eval_every,
        "save_steps": plan.save_every,
        "train_batch_size": args.per_device_train_batch_size,
    }


def best_checkpoint(folder: Path, best_step: int | None) -> str | None:
    """Return the checkpoint of the best evaluation; None if it does not exist."""
    path = folder / checkpoint_name(best_step or 0)
    return str(path) if best_step is not None and path.is_dir() else None


def state_text(
    state: State,
    epoch: float,
    history: list[dict[str, object]],
    best_model_checkpoint: str | None,
    facts: Mapping[str, int],
) -> str:
    """Return the content of trainer_state.json.

    Args:
        state: Where the training stands.
        epoch: The epoch as a number with a fraction.
        history: The entries of the log.
        best_model_checkpoint: The checkpoint of the best evaluation.
        facts: What stays the same during the training.
    """
    values = {
        **facts,
        "epoch": epoch,
        "global_step": state.step,
        "best_metric": state.best_score,
        "best_global_step": state.best_step,
        "best_model_checkpoint": best_model_checkpoint,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
