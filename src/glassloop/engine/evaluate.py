"""One pass over a split: the logits of every example once, in the order of the data, and their mean loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from glassloop.data.batches import Batch
from glassloop.engine.interfaces import EvaluationBackend, LossSum, RowBatches
from glassloop.markup import scores
from glassloop.run_folder.record import TIMINGS
from glassloop.stages import advance

# A model and a batch -> the sum of the rows' losses (None without labels), the logits, and the labels
PredictBatch = Callable[[torch.nn.Module, Batch], tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]]
READ_BATCHES = 16  # batches whose logits are copied from the device at once


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A signal ended a pass over a split before its last batch."""


@dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split.

    Attributes:
        logits: The logits of each row, in the order of the data.
        labels: The labels of each row; None if there are none.
        loss: The mean loss of the rows; None without labels or without a loss function.
        seconds: How long the pass took.
        metrics: The metrics by name.
    """

    logits: np.ndarray
    labels: np.ndarray | None
    loss: float | None
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return scores("Evaluation", self.metrics, {"rows": f"{len(self.logits):,}"})


def run_over(
    model: torch.nn.Module,
    batches: RowBatches,
    backend: EvaluationBackend,
    loss_sum: LossSum | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    predict: PredictBatch | None = None,
) -> Evaluation:
    """Run a model over all batches, without dropout and without gradients. Each process takes whole batches in turn.

    Only logits are kept, so memory grows by a few bytes per row and class.

    Args:
        model: The model. It returns an object with `logits`.
        batches: The batches of the split.
        backend: The device and precision to use, and the processes that share the batches.
        loss_sum: A function of logits and labels that returns the sum of the rows' losses.
        should_stop: Called after each batch; True ends the pass.
        predict: Replaces the forward pass and `loss_sum`: returns the sum of the losses of a batch's rows, logits and labels.

    Returns:
        Logits, labels and loss, without metrics.

    Raises:
        Interrupted: `should_stop` returned True.
    """
    began = time.perf_counter()
    was_training, trains = model.training, any(part.training for part in model.modules())
    if trains:
        model.eval()
    predict = predicted_with(backend, loss_sum) if predict is None else predict
    numbers: list[np.ndarray] = []
    labels: list[torch.Tensor] = []
    cost = torch.zeros((), device=backend.device)
    logits: list[np.ndarray] = []
    waiting: list[torch.Tensor] = []  # logits on the device: copying them one by one would wait for each batch
    try:
        with torch.inference_mode():
            for batch in batches.whole(backend.processes.rank, backend.processes.num_processes):
                with backend.forward(model):
                    loss, found, known = predict(model, batch)
                if loss is not None and known is not None:
                    cost = cost + loss
                    labels.append(known)
                numbers.append(batch.numbers)
                waiting.append(found)
                advance(len(batch.numbers) * backend.processes.num_processes)
                if len(waiting) == READ_BATCHES:
                    logits.append(torch.cat(waiting).cpu().numpy())
                    waiting.clear()
                if should_stop():
                    raise Interrupted
            if waiting:
                logits.append(torch.cat(waiting).cpu().numpy())
    finally:
        if trains:
            model.train(was_training)
    known_labels = [torch.cat(labels).cpu().numpy()] if labels else []
    shares = backend.processes.gather_objects([(numbers, logits, known_labels, float(cost))])
    order = np.concatenate([part for share in shares for part in share[0]])
    places = np.argsort(order, kind="stable")
    found_logits = np.concatenate([part for share in shares for part in share[1]])[places]
    all_labels = [part for share in shares for part in share[2]]
    found_labels = np.concatenate(all_labels)[places] if all_labels else None
    mean = sum(share[3] for share in shares) / len(order) if all_labels else None
    return Evaluation(found_logits, found_labels, mean, time.perf_counter() - began)


def predicted_with(backend: EvaluationBackend, loss_sum: LossSum | None) -> PredictBatch:
    """Return the usual forward pass: the logits of a model, and `loss_sum` of logits and labels if there are labels."""

    def predict(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        logits = model(**backend.move(batch.inputs)).logits.float()
        if batch.labels is None or loss_sum is None:
            return None, logits, None
        return loss_sum(logits, backend.move(batch.labels)), logits, batch.labels

    return predict


def named_metrics(found: Evaluation, values: Mapping[str, float], prefix: str) -> Evaluation:
    """Return an evaluation with its loss, other values and timings as metrics whose names begin with `prefix`."""
    runtime, per_second = TIMINGS
    metrics = {} if found.loss is None else {"loss": found.loss, **values}
    metrics |= {runtime: found.seconds, per_second: len(found.logits) / max(found.seconds, 1e-9)}
    named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
    return replace(found, metrics=named)
