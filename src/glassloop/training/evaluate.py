"""One pass over a split: the logits of every example once, in the order of the data, and their mean loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from torch.nn.functional import pad

from glassloop.base.errors import SettingsError
from glassloop.base.output import advance
from glassloop.data.batches import Batch
from glassloop.markup.notebook import scores
from glassloop.runs.record import TIMINGS
from glassloop.training.interfaces import EvaluationBackend, LossSum, RowBatches

# Logits, or logits and other outputs of a model: tensors in tuples, lists and dicts. In a result they are arrays.
Nested: TypeAlias = "torch.Tensor | np.ndarray | Sequence[Nested] | Mapping[str, Nested]"
# A model and a batch -> the sum of the rows' losses (None without labels), the logits or all outputs, and the labels
PredictBatch: TypeAlias = "Callable[[torch.nn.Module, Batch], tuple[torch.Tensor | None, Nested, Nested | None]]"
READ_BATCHES = 16  # batches whose logits are copied from the device at once
PADDING = -100  # what fills up outputs of rows that are shorter than others, as in transformers


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
        outputs: The logits and the other outputs of the model; None if there are no others.
        several_labels: The labels under several names; None if there is only one.
    """

    logits: np.ndarray
    labels: np.ndarray | None
    loss: float | None
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    outputs: Nested | None = None
    several_labels: Nested | None = None

    @property
    def predictions(self) -> Nested:
        """The logits, or a tuple of them and the other outputs of the model."""
        return self.logits if self.outputs is None else self.outputs

    @property
    def label_ids(self) -> Nested | None:
        """The labels, or a tuple of them if there are several."""
        return self.labels if self.several_labels is None else self.several_labels

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

    Only what `predict` returns is kept: usually logits, so memory grows by a few bytes per row and class.

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

    def usual(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        logits = model(**backend.move(batch.inputs)).logits.float()
        if batch.labels is None or loss_sum is None:
            return None, logits, None
        return loss_sum(logits, backend.move(batch.labels)), logits, batch.labels

    predict = usual if predict is None else predict
    numbers: list[np.ndarray] = []
    labels: list[Nested] = []
    cost = torch.zeros((), device=backend.device)
    logits: list[Nested] = []
    waiting: list[Nested] = []  # logits on the device: copying them one by one would wait for each batch
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
                if len(waiting) == READ_BATCHES or not isinstance(found, torch.Tensor):
                    logits.append(in_memory(joined(waiting)))
                    waiting.clear()
                if should_stop():
                    raise Interrupted
            if waiting:
                logits.append(in_memory(joined(waiting)))
    finally:
        if trains:
            model.train(was_training)
    known_labels = [in_memory(joined(labels))] if labels else []
    shares = backend.processes.gather_objects([(numbers, logits, known_labels, float(cost))])
    order = np.concatenate([part for share in shares for part in share[0]])
    places = np.argsort(order, kind="stable")
    outputs = in_order(joined([part for share in shares for part in share[1]]), places)
    all_labels = [part for share in shares for part in share[2]]
    found_labels = in_order(joined(all_labels), places) if all_labels else None
    mean = sum(share[3] for share in shares) / len(order) if all_labels else None
    seconds, labels_alone = time.perf_counter() - began, None if found_labels is None else first_array(found_labels)
    made = Evaluation(first_array(outputs), labels_alone, mean, seconds)
    made = made if isinstance(outputs, np.ndarray) else replace(made, outputs=outputs)
    return made if found_labels is labels_alone else replace(made, several_labels=found_labels)


def each_array(change: Callable[..., Nested], found: Nested) -> Nested:
    """Return outputs of a model with every tensor or array changed. Raises `SettingsError` for anything else."""
    if isinstance(found, Mapping):
        return {name: each_array(change, value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        made = [each_array(change, value) for value in found]
        return made if isinstance(found, list) else tuple(made)
    if isinstance(found, torch.Tensor | np.ndarray):
        return change(found)
    problem = f"the model returned a {type(found).__name__} among its outputs, which cannot be a prediction"
    raise SettingsError(problem, "name its key in ignore_keys=, or in config.keys_to_ignore_at_inference")


def first_array(found: Nested) -> np.ndarray:
    """Return the first array of outputs, which holds the logits."""
    while not isinstance(found, np.ndarray):
        found = next(iter(found.values())) if isinstance(found, Mapping) else found[0]
    return found


def in_memory(found: Nested) -> Nested:
    return each_array(lambda value: value.cpu().numpy(), found)


def in_order(found: Nested, places: np.ndarray) -> Nested:
    """Return arrays in the order of the rows; arrays that do not have one entry for each row stay as they are."""
    return each_array(lambda value: value[places] if len(value) == len(places) else value, found)


def joined(parts: Sequence[Nested]) -> Nested:
    """Join the outputs of several batches. As in transformers, the second dimension is padded where batches differ in it."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: joined([part[name] for part in parts if isinstance(part, Mapping)]) for name in first}
    if isinstance(first, list | tuple):
        made = [joined([part[place] for part in parts if isinstance(part, list | tuple)]) for place in range(len(first))]
        return made if isinstance(first, list) else tuple(made)
    arrays = [np.atleast_1d(part) for part in parts if isinstance(part, np.ndarray)]
    tensors = [part.reshape(1) if part.ndim == 0 else part for part in parts if isinstance(part, torch.Tensor)]
    if len(arrays) + len(tensors) < len(parts):
        each_array(lambda value: value, first)  # raises
    shapes = [tuple(array.shape) for array in arrays] + [tuple(tensor.shape) for tensor in tensors]
    if len({shape[2:] for shape in shapes}) > 1:
        problem = "an output of the model has another shape in each batch, so its batches cannot be joined"
        raise SettingsError(problem, "name its key in ignore_keys=, or pad all rows to the same length")
    if len(shapes[0]) == 1:
        return torch.cat(tensors) if tensors else np.concatenate(arrays)
    width, rest = max(shape[1] for shape in shapes), len(shapes[0]) - 2
    if tensors:
        return torch.cat([pad(part, [0, 0] * rest + [0, width - part.shape[1]], value=PADDING) for part in tensors])
    edges = [[(0, 0), (0, width - part.shape[1]), *[(0, 0)] * rest] for part in arrays]
    return np.concatenate([np.pad(part, edge, constant_values=PADDING) for part, edge in zip(arrays, edges, strict=True)])


def named_metrics(found: Evaluation, values: Mapping[str, float], prefix: str) -> Evaluation:
    """Return an evaluation with its loss, other values and timings as metrics whose names begin with `prefix`."""
    runtime, per_second = TIMINGS
    metrics = {} if found.loss is None else {"loss": found.loss, **values}
    metrics |= {runtime: found.seconds, per_second: len(found.logits) / max(found.seconds, 1e-9)}
    named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
    return replace(found, metrics=named)
