"""Methods that subclasses of transformers' Trainer override, as parts of the loop: the loss, one prediction, loaders.

A loss of a script is the mean over the rows of a batch. The loop needs their sum, which it divides by the true number of rows
of a step. So a script's own loss is right under accumulation and with several processes, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

import numpy as np
import torch

from glassloop.data.batches import Batch
from glassloop.engine.evaluate import PredictBatch
from glassloop.engine.interfaces import StepBackend
from glassloop.engine.loop import TrainingBatch
from glassloop.errors import SettingsError

Inputs = dict[str, torch.Tensor]
BatchLoss = Callable[[torch.nn.Module, TrainingBatch], torch.Tensor]
COUNT = "num_items_in_batch"


class HasLogits(Protocol):
    """What a model returns."""

    logits: torch.Tensor


def overrides(trainer: object, base: type, name: str) -> bool:
    """Return whether a Trainer has its own version of a method, by a subclass or by an assignment."""
    own = getattr(type(trainer), name, None) is not getattr(base, name, None)
    return own or name in vars(trainer)


def inputs_with_labels(batch: TrainingBatch | Batch, backend: StepBackend) -> Inputs:
    """Return the inputs of a batch and its labels as a script gets them, on the device."""
    inputs = {**batch.inputs, **({} if batch.labels is None else {"labels": batch.labels})}
    return dict(backend.move(inputs))


def summed_loss(compute_loss: Callable[..., torch.Tensor], backend: StepBackend) -> BatchLoss:
    """Return the sum of the rows' losses for a `compute_loss` that returns their mean."""
    needs_count = is_required(compute_loss, COUNT)

    def batch_loss(model: torch.nn.Module, batch: TrainingBatch) -> torch.Tensor:
        rows = len(batch.numbers)
        count = {COUNT: max(rows, 1)} if needs_count else {}
        loss = compute_loss(model, inputs_with_labels(batch, backend), **count)
        if isinstance(loss, tuple):
            loss = loss[0]
        if not isinstance(loss, torch.Tensor):
            raise SettingsError(f"compute_loss returned a {type(loss).__name__}, not a tensor", "return the loss")
        return loss.float().mean() * rows

    return batch_loss


def is_required(function: Callable[..., object], name: str) -> bool:
    """Return whether a function cannot be called without an argument."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def predicted_with_loss(compute_loss: Callable[..., object], backend: StepBackend) -> PredictBatch:
    """Return one prediction of a script's own loss, called with `return_outputs=True`."""

    def predict(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        inputs = inputs_with_labels(batch, backend)
        if batch.labels is None:
            return None, logits_of(model(**inputs)), None
        found = compute_loss(model, dict(inputs), return_outputs=True)
        if not isinstance(found, tuple) or len(found) != 2:
            problem = "compute_loss ignores return_outputs=True, so an evaluation has no logits"
            raise SettingsError(problem, "return (loss, outputs) if return_outputs is true")
        loss, outputs = found
        return loss.float().mean() * len(batch.numbers), logits_of(outputs), batch.labels

    return predict


def predicted_by_step(prediction_step: Callable[..., object], backend: StepBackend) -> PredictBatch:
    """Return one prediction of a script's own `prediction_step`."""

    def predict(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        loss, logits, labels = prediction_step(model, inputs_with_labels(batch, backend), False, None)  # type: ignore[misc]
        total = None if loss is None else loss.float().mean() * len(batch.numbers)
        logits = logits[0] if isinstance(logits, tuple) else logits
        return total, logits, labels.cpu() if isinstance(labels, torch.Tensor) else batch.labels

    return predict


def logits_of(outputs: object) -> torch.Tensor:
    """Return the logits among the outputs of a model: by name, or the first that is not the loss."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits", next((value for name, value in outputs.items() if name != "loss"), None))
    else:
        found = getattr(outputs, "logits", None)
        if found is None and isinstance(outputs, tuple):
            found = next((value for value in outputs if isinstance(value, torch.Tensor) and value.dim() > 1), None)
    if not isinstance(found, torch.Tensor):
        raise SettingsError("the outputs of the model contain no logits", "return an object with logits, or a dict")
    return found


class LoaderBatches:
    """The batches of a script's own DataLoader: its order is the loader's, and resuming skips batches.

    Args:
        loader: Yields dicts of tensors.
        rank: The number of this process, from 0; it gets its share of the rows of each batch.
        num_processes: The number of processes.
        num_batches: The number of batches of an epoch, if the loader does not know it.
    """

    def __init__(
        self,
        loader: Iterable[Mapping[str, torch.Tensor]],
        rank: int = 0,
        num_processes: int = 1,
        num_batches: int = 0,
    ) -> None:
        self.loader, self.rank, self.num_processes, self.num_batches = loader, rank, num_processes, num_batches
        self.batch_size = getattr(loader, "batch_size", None) or 1

    def __len__(self) -> int:
        try:
            return len(self.loader)  # type: ignore[arg-type]  # a DataLoader over rows with a length
        except TypeError:
            if self.num_batches < 1:
                raise SettingsError("the training data has no length", "set max_steps") from None
            return self.num_batches

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, without the first `skip`."""
        sampler = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        first = 0
        for inputs in islice(self.loader, skip, None):
            yield self.share(inputs, self.rank, self.num_processes, first)
            first += rows_of(inputs)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Yield every `num_processes`-th batch from number `rank` on, whole."""
        first = 0
        for place, inputs in enumerate(self.loader):
            if place % num_processes == rank:
                yield self.share(inputs, 0, 1, first)
            first += rows_of(inputs)

    def share(self, inputs: Mapping[str, torch.Tensor], rank: int, num_processes: int, first: int) -> Batch:
        """Return the share of one process of a batch whose first row has the number `first`."""
        rows = rows_of(inputs)
        mine = np.arange(rows)[rank::num_processes]
        chosen = torch.from_numpy(mine if len(mine) else np.zeros(1, dtype=np.int64))
        taken = {name: value[chosen] if num_processes > 1 else value for name, value in inputs.items()}
        labels = taken.pop("labels", None)
        return Batch(taken, labels, mine + first, rows)

    def row_hashes(self) -> np.ndarray:
        """Return no hash: reading a loader may draw random numbers."""
        return np.zeros(0, dtype=np.int64)

    def first_labels(self) -> torch.Tensor | None:
        """Return the labels of the first batch."""
        return next(self.epoch()).labels


def rows_of(inputs: Mapping[str, torch.Tensor]) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(inputs.values())))
