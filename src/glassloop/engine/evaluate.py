"""One pass over a split: the logits of every example once, in their own order, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from glassloop.run_folder.record import TIMINGS

READ_BATCHES = 16  # logits are read from the device so many batches at a time


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A pass over a split was asked to stop before its end."""


@dataclass(frozen=True)
class Evaluation:
    """Logits and labels of a split in the order of its rows, the mean loss, and the metrics."""

    logits: np.ndarray
    labels: np.ndarray | None
    loss: float | None
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


def run_over(
    model: Any,
    batches: Any,
    backend: Any,
    loss_sum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """The model over all batches, without dropout and without gradients. Each process takes whole batches in turn.

    Only the logits of each batch are kept, so memory grows with the rows by a few bytes a class.
    Raises `Interrupted` when `should_stop` says so.
    """
    began = time.perf_counter()
    was_training = model.training
    model.eval()
    numbers, labels, cost = [], [], torch.zeros((), device=backend.device)
    logits: list[np.ndarray] = []
    waiting: list[torch.Tensor] = []  # logits on the device: reading them one by one would wait for each batch
    try:
        with torch.inference_mode():
            for batch in batches.whole(backend.processes.rank, backend.processes.num_processes):
                with backend.forward(model):
                    found = model(**backend.move(batch.inputs)).logits.float()
                if batch.labels is not None and loss_sum is not None:
                    cost = cost + loss_sum(found, backend.move(batch.labels))
                    labels.append(batch.labels)
                numbers.append(batch.numbers)
                waiting.append(found)
                if len(waiting) == READ_BATCHES:
                    logits.append(torch.cat(waiting).cpu().numpy())
                    waiting.clear()
                if should_stop():
                    raise Interrupted
            if waiting:
                logits.append(torch.cat(waiting).cpu().numpy())
    finally:
        model.train(was_training)
    known_labels = [torch.cat(labels).cpu().numpy()] if labels else []
    shares = backend.processes.gather_objects([(numbers, logits, known_labels, float(cost))])
    order = np.concatenate([part for share in shares for part in share[0]])
    places = np.argsort(order, kind="stable")
    found_logits = np.concatenate([part for share in shares for part in share[1]])[places]
    known = [part for share in shares for part in share[2]]
    found_labels = np.concatenate(known)[places] if known else None
    loss = sum(share[3] for share in shares) / len(order) if known else None
    return Evaluation(found_logits, found_labels, loss, time.perf_counter() - began)


def named_metrics(found: Evaluation, scores: Mapping[str, float], prefix: str) -> Evaluation:
    """Return an evaluation with its loss, scores and timings as metrics whose names begin with `prefix`."""
    runtime, per_second = TIMINGS
    metrics = {} if found.loss is None else {"loss": found.loss, **scores}
    metrics |= {runtime: found.seconds, per_second: len(found.logits) / max(found.seconds, 1e-9)}
    named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
    return replace(found, metrics=named)
