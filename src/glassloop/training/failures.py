"""Why a training cannot start or continue: not enough disk space or memory, or figures that are not finite."""

from __future__ import annotations

import shutil

import numpy as np
import torch

from glassloop.data.encoding import lengths_of
from glassloop.data.interfaces import Rows
from glassloop.engine.interfaces import Tensors
from glassloop.engine.optimizer import unwrap_optimizer
from glassloop.engine.state import NotFiniteError
from glassloop.errors import DivergedError, ResourceError, TooLargeError, listed
from glassloop.training.started import StartedTraining


def with_slack(num_bytes: int) -> int:
    """Return the disk space for a model with this many bytes of weights, its config and its tokenizer."""
    return num_bytes + num_bytes // 20 + (1 << 16)


def refuse_full_disk(training: StartedTraining) -> None:
    """Raise `ResourceError` if the disk cannot hold two checkpoints and, in a run, the final model."""
    parts, num_bytes, wanted = training.parts, training.num_bytes, {}
    if parts.args.save_strategy != "no":
        wanted["two checkpoints"] = 2 * (4 if parts.args.load_best_model_at_end else 3) * num_bytes
    if parts.in_run:
        wanted["the final model"] = with_slack(num_bytes)
    needed, free = sum(wanted.values()), shutil.disk_usage(parts.folder).free
    if free < needed:
        raise ResourceError(
            f"{parts.folder}: {needed:,} bytes are needed for {' and '.join(wanted)}, {free:,} are free",
            "free disk space or choose another output_dir"
            + ("; save_strategy no needs less" if "two checkpoints" in wanted else ""),
        )


def refuse_not_finite_weights(weights: Tensors, step: int) -> None:
    """Raise `NotFiniteError` with the first weight that is not finite after a step."""
    for name, value in weights.items():
        if value.numel() and not torch.isfinite(torch.stack(torch.aminmax(value))).all():  # no copy as large as the value
            raise NotFiniteError(f"step {step:,}: the weight {name} is not finite", step)


def diverged(training: StartedTraining, error: NotFiniteError) -> DivergedError:
    """Return the error for a step with a figure that is not finite, with its rows and the learning rate."""
    parts, (problem, step) = training.parts, error.args
    epoch, place = divmod(step - 1 + parts.state.steps_left_out, parts.plan.steps_per_epoch)
    group = training.batches.order(epoch)[place * parts.plan.accumulate : (place + 1) * parts.plan.accumulate]
    rows = listed(np.concatenate(group).tolist(), 8)
    last = "none" if parts.state.last_loss is None else f"{parts.state.last_loss:.4g}"
    rate = unwrap_optimizer(training.optimizer).param_groups[0].get("initial_lr", parts.args.learning_rate)
    return DivergedError(
        f"{problem} (last finite loss {last}, learning rate {rate:g}, rows {rows} of the training data)",
        f"{advice(trained=parts.state.last_loss is not None)}, or look at these rows",
    )


def advice(*, trained: bool) -> str:
    """Return what to do about a figure that is not finite. Before the first update, the learning rate is not its cause."""
    if trained:
        return "lower learning_rate, add warmup_steps, use precision fp32"
    return "no weight was updated yet: use another model, use precision fp32"


def out_of_memory(training: StartedTraining, error: BaseException) -> TooLargeError:
    """Return the error for a batch that does not fit into memory, with the setting to lower."""
    parts = training.parts
    kind = "eval" if parts.state.evaluation_due else "train"
    rows = parts.eval_rows if parts.state.evaluation_due and parts.eval_rows is not None else parts.train_rows
    size = getattr(parts.args, f"per_device_{kind}_batch_size")
    return TooLargeError(
        f"not enough memory for a batch of {size} rows{longest(rows)} ({error})",
        f"lower per_device_{kind}_batch_size"
        + (" and raise gradient_accumulation_steps by the same factor" if kind == "train" else "")
        + ", or lower max_length",
    )


def longest(rows: Rows) -> str:
    """Return how many tokens the longest row has, as part of a sentence; nothing if rows have no tokens to count."""
    try:
        return f" of up to {max(lengths_of(rows)):,} tokens"
    except (TypeError, KeyError, IndexError, ValueError):
        return ""
