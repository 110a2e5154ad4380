"""What a script replaces, as the loop needs it: overridden methods, DataLoaders, plain torch modules, and names it reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from transformers import PreTrainedModel
from transformers.utils import find_labels

from glassloop.base.errors import SettingsError
from glassloop.data.batches import Batch
from glassloop.data.interfaces import Model, Rows
from glassloop.models.interface import STAND_IN, base_of
from glassloop.settings.training import TrainingArguments
from glassloop.trainer import IGNORED, EvalPrediction
from glassloop.training.evaluate import Evaluation, Nested, PredictBatch, each_array, first_array
from glassloop.training.interfaces import Backend, LossSum, StepBackend, Tensors
from glassloop.training.loop import TrainingBatch

Inputs = dict[str, torch.Tensor]


BatchLoss = Callable[[torch.nn.Module, TrainingBatch], torch.Tensor]


BatchStep = Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor]


Prediction: TypeAlias = "tuple[torch.Tensor | None, Nested, Nested | None]"


COUNT = "num_items_in_batch"


class StepsItself(Protocol):
    """A Trainer whose `training_step` a script overrides."""

    current_gradient_accumulation_steps: int

    def training_step(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """Add the gradients of a batch, and return its part of the loss."""


def adds_up_batches(model: torch.nn.Module) -> bool:
    """Return whether transformers' Trainer adds up the losses of the batches of a step, instead of taking their mean.

    It leaves the division to models that accept `num_items_in_batch`. Those for classification ignore it.
    """
    accepts = getattr(model, "accepts_loss_kwargs", None)
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds if accepts is None else bool(accepts)


def inputs_with_labels(batch: TrainingBatch | Batch, backend: StepBackend) -> Inputs:
    """Return the inputs of a batch and its labels as a script gets them, on the device."""
    inputs: Inputs = {**batch.inputs}  # type: ignore[dict-item]  # batches consist of tensors
    return backend.move(inputs if batch.labels is None else {**inputs, "labels": batch.labels})


def count_for(compute_loss: Callable[..., object], labels: Nested | None, rows: int) -> dict[str, int | torch.Tensor]:
    """Return `num_items_in_batch` for a function that names it: the labels that count, as in transformers, or the rows.

    With it, too, its result is the mean of the losses of a batch.
    """
    if COUNT not in inspect.signature(compute_loss).parameters:
        return {}
    return {COUNT: labels.ne(IGNORED).sum() if isinstance(labels, torch.Tensor) else max(rows, 1)}


def count_of(inputs: Mapping[str, torch.Tensor]) -> int | torch.Tensor:
    """Return the number of labels that count, or of rows without labels."""
    return inputs["labels"].ne(IGNORED).sum() if "labels" in inputs else rows_of(inputs)


def summed_loss(compute_loss: Callable[..., object], backend: StepBackend) -> BatchLoss:
    """Return the sum of the rows' losses for a `compute_loss` that returns their mean."""

    def batch_loss(model: torch.nn.Module, batch: TrainingBatch) -> torch.Tensor:
        rows, inputs = len(batch.numbers), inputs_with_labels(batch, backend)
        loss = compute_loss(model, inputs, **count_for(compute_loss, inputs.get("labels"), rows))
        return tensor_of(loss).float().mean() * rows

    return batch_loss


def stepped(trainer: StepsItself, backend: StepBackend) -> BatchStep:
    """Return the step of one batch by a script's own `training_step`, which runs the backward pass itself."""

    def batch_step(model: torch.nn.Module, batch: TrainingBatch, batches: int) -> torch.Tensor:
        trainer.current_gradient_accumulation_steps = batches
        inputs = inputs_with_labels(batch, backend)
        count = count_for(trainer.training_step, inputs.get("labels"), len(batch.numbers))
        loss = trainer.training_step(model, inputs, **count)
        return tensor_of(loss, "training_step").detach().float().mean()

    return batch_step


def tensor_of(loss: object, name: str = "compute_loss") -> torch.Tensor:
    """Return the loss that a method returned, alone or with outputs. Raises `SettingsError` if it is no tensor."""
    loss = loss[0] if isinstance(loss, tuple) else loss
    if not isinstance(loss, torch.Tensor):
        raise SettingsError(f"{name} returned a {type(loss).__name__}, not a tensor", "return the loss")
    return loss


@dataclass(frozen=True)
class Outputs:
    """Which outputs of a model are predictions, and which inputs are labels.

    Attributes:
        ignored: The names of outputs that are no predictions.
        label_names: The names of the inputs that are labels.
        logits_only: Whether nothing but logits is needed.
    """

    ignored: Container[str] = ()
    label_names: Sequence[str] = ("labels",)
    logits_only: bool = False

    def predictions(self, outputs: object, *, after_loss: bool) -> Nested:
        """Return the logits, or a tuple of all outputs but the loss, as transformers does.

        Args:
            outputs: What the model returned.
            after_loss: Whether the first one of a tuple is the loss.
        """
        found: object = outputs
        if isinstance(outputs, Mapping):
            found = tuple(value for name, value in outputs.items() if name != "loss" and name not in self.ignored)
        elif isinstance(outputs, tuple):
            found = outputs[1:] if after_loss and len(outputs) > 1 else outputs
        if self.logits_only or not isinstance(found, tuple) or not found:
            return logits_of(outputs).float()
        chosen = found[0] if len(found) == 1 else found
        return each_array(lambda value: value.float() if value.is_floating_point() else value, chosen)

    def labels(self, inputs: Mapping[str, torch.Tensor]) -> Nested | None:
        """Return the labels among the inputs: a tuple of several, None if there are none."""
        named = tuple(inputs[name] for name in self.label_names if inputs.get(name) is not None)
        if named and len(named) == len(self.label_names):
            return named[0] if len(named) == 1 else named
        return inputs.get("labels")


def predicted(backend: StepBackend, loss_sum: LossSum | None, outputs: Outputs) -> PredictBatch:
    """Return one prediction with Glassloop's loss, and all outputs of the model."""

    def predict(model: torch.nn.Module, batch: Batch) -> Prediction:
        made = model(**backend.move(batch.inputs))
        found = outputs.predictions(made, after_loss=False)
        if batch.labels is None or loss_sum is None:
            return None, found, None
        return loss_sum(logits_of(made).float(), backend.move(batch.labels)), found, batch.labels

    return predict


def predicted_with_loss(compute_loss: Callable[..., object], backend: StepBackend, outputs: Outputs) -> PredictBatch:
    """Return one prediction of a script's own loss, called with `return_outputs=True`."""

    def predict(model: torch.nn.Module, batch: Batch) -> Prediction:
        inputs, rows = inputs_with_labels(batch, backend), len(batch.numbers)
        labels = outputs.labels(inputs)  # before the loss may remove them
        if labels is None:
            return None, outputs.predictions(model(**inputs), after_loss=False), None
        found = compute_loss(model, inputs, return_outputs=True, **count_for(compute_loss, labels, rows))
        if not isinstance(found, tuple) or len(found) != 2:
            problem = "compute_loss ignores return_outputs=True, so an evaluation has no logits"
            raise SettingsError(problem, "return (loss, outputs) if return_outputs is true")
        loss = tensor_of(found).float().mean() * rows
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point() and not labels.ne(IGNORED).any():
            loss = torch.zeros_like(loss)  # the mean of no losses is not a number
        return loss, outputs.predictions(found[1], after_loss=True), labels

    return predict


def predicted_by_step(
    prediction_step: Callable[..., tuple[object, Nested | None, Nested | None]],
    backend: StepBackend,
    ignore_keys: list[str] | None = None,
) -> PredictBatch:
    """Return one prediction of a script's own `prediction_step`."""

    def predict(model: torch.nn.Module, batch: Batch) -> Prediction:
        loss, logits, labels = prediction_step(model, inputs_with_labels(batch, backend), False, ignore_keys)
        if logits is None:
            raise SettingsError("prediction_step returned no logits", "return (loss, logits, labels)")
        total = None if loss is None else tensor_of(loss).float().mean() * len(batch.numbers)
        return total, logits, batch.labels if labels is None else labels

    return predict


def preprocessed(
    predict: PredictBatch, change: Callable[[Nested, Nested | None], Nested], backend: StepBackend
) -> PredictBatch:
    """Return a prediction whose logits `preprocess_logits_for_metrics` has changed."""

    def changed(model: torch.nn.Module, batch: Batch) -> Prediction:
        loss, logits, labels = predict(model, batch)
        known = None if labels is None else each_array(backend.move, labels)
        return loss, change(logits, known), labels

    return changed


def told(predict: PredictBatch, tell: Callable[[], None]) -> PredictBatch:
    """Return a prediction that tells callbacks about each batch."""

    def predict_and_tell(model: torch.nn.Module, batch: Batch) -> Prediction:
        found = predict(model, batch)
        tell()
        return found

    return predict_and_tell


def part_of(rows: slice, values: np.ndarray) -> torch.Tensor:
    """Return some rows of an array as a tensor."""
    return torch.from_numpy(values[rows])


def in_batches(compute: Callable[..., dict[str, float]], found: EvalPrediction, size: int) -> dict[str, float]:
    """Return the result of a `compute_metrics` that takes batch by batch, as tensors, and sums up when it gets the last."""
    scores: dict[str, float] = {}
    number = len(first_array(found.predictions))
    for first in range(0, number, size):
        part = slice(first, first + size)
        chosen = partial(each_array, partial(part_of, part))
        batch = EvalPrediction(chosen(found.predictions), None if found.label_ids is None else chosen(found.label_ids))
        scores = compute(batch, compute_result=first + size >= number)
    return scores


def logits_of(outputs: object) -> torch.Tensor:
    """Return the logits among the outputs of a model: by name, or the first that is not the loss."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits", next((value for name, value in outputs.items() if name != "loss"), None))
    else:
        found = getattr(outputs, "logits", None)
        if found is None and isinstance(outputs, tuple):
            found = next((value for value in outputs if isinstance(value, torch.Tensor) and value.dim() > 0), None)
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
        for part in ("sampler", "dataset"):
            set_epoch = getattr(getattr(self.loader, part, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        first = skip * self.batch_size
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

    def order(self, epoch: int = 0) -> list[np.ndarray]:
        """Return the rows of each batch, numbered as the loader yields them in any epoch."""
        return [np.arange(place * self.batch_size, (place + 1) * self.batch_size) for place in range(len(self))]

    def row_hashes(self) -> np.ndarray:
        """Return no hash: reading a loader may draw random numbers."""
        return np.zeros(0, dtype=np.int64)

    def first_labels(self) -> torch.Tensor | None:
        """Return the labels of the first batch."""
        return next(self.epoch()).labels


def rows_of(inputs: Mapping[str, torch.Tensor]) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(inputs.values())))


@dataclass
class BareConfig:
    """What Glassloop reads of a model's config, for a module that has none. The module computes its own loss."""

    num_labels: int = 2
    problem_type: str | None = None
    model_type: str = "module"
    id2label: dict[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})

    def to_dict(self) -> dict[str, object]:
        """Return the values by name."""
        return {"num_labels": self.num_labels}


def with_config(model: Model) -> Model:
    """Return the model; a plain torch module gets what stands for a config, with as many labels as its last layer has outputs.

    A config that the module has is a script's own: it may be of any kind, and that of an encoder inside says nothing about
    the outputs of the module.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(base_of(model), PreTrainedModel) and not is_bare(model):
        widths = [part.out_features for part in model.modules() if isinstance(part, torch.nn.Linear)]
        number = widths[-1] if widths else 2
        config = BareConfig(number, id2label={place: f"LABEL_{place}" for place in range(number)})
        object.__setattr__(model, STAND_IN, config)  # not a part of the module
        if getattr(model, "config", None) is None:
            object.__setattr__(model, "config", config)
    return model


def is_bare(model: object) -> bool:
    """Return whether a model is a plain torch module."""
    return hasattr(model, STAND_IN)


def is_own(model: object) -> bool:
    """Return whether the class of a model is a script's own, so that its loss and its labels may be of any kind."""
    kinds = type(base_of(model)).__mro__
    return not any(kind.__module__.startswith("transformers.models.") for kind in kinds)


def flattens_scores(model: object) -> bool:
    """Return whether a model of transformers returns scores without their dimension of size 1 if it gets labels."""
    base = base_of(model)
    config = base.config
    return (
        type(base).__name__.startswith("Deberta")
        and not is_own(base)
        and config.num_labels == 1
        and config.problem_type is None
    )


def flattened(predictions: Nested) -> Nested:
    """Return predictions whose scores have no dimension of size 1."""
    if isinstance(predictions, np.ndarray):
        return predictions.reshape(-1)
    return (flattened(predictions[0]), *predictions[1:]) if isinstance(predictions, tuple) else predictions


def labels_of(model: object) -> list[str]:
    """Return the inputs of a model that are labels: those with the word in their name, as in transformers."""
    if not isinstance(model, torch.nn.Module):
        return ["labels"]
    return find_labels(type(base_of(model))) or ["labels"]


def fits_classes(labels: torch.Tensor | np.ndarray | None, logits: np.ndarray | None = None) -> bool:
    """Return whether labels and logits are those of a classifier: class numbers, or a number for each class."""
    if labels is None or (logits is not None and logits.ndim != 2):
        return False
    return labels.ndim == 2 or "float" not in str(labels.dtype)


def save_bare(model: torch.nn.Module, folder: Path, weights: Tensors | None) -> None:
    """Write the weights of a plain torch module, under the name that transformers uses."""
    folder.mkdir(parents=True, exist_ok=True)
    found = weights or model.state_dict()
    save_file({name: value.detach().cpu().clone() for name, value in found.items()}, folder / "model.safetensors")


LOADER_OPTIONS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")


LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")


SAMPLERS = {"train": "_get_train_sampler", "eval": "_get_eval_sampler"}


OPTIMIZERS = ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler")


class Loader(DataLoader[object]):
    """A DataLoader that knows the number of rows of a batch under the name that Accelerate gives it."""

    @property
    def total_batch_size(self) -> int:
        """The number of rows of a batch."""
        return self.batch_size or 1


def refuse_no_rows(rows: Rows | None) -> Rows:
    """Return the rows. Raises `SettingsError` if there are none."""
    if rows is None:
        raise SettingsError("the Trainer has no rows to read", "pass train_dataset= or eval_dataset=")
    return rows


class ReadByScripts(Protocol):
    """What is read of a Trainer for names that only scripts use."""

    model: Model
    args: TrainingArguments
    backend: Backend
    label_names: Sequence[str]
    _folder: Path

    def get_learning_rates(self) -> list[float]: ...


def moved(trainer: ReadByScripts, data: object) -> object:
    """Return a tensor, or the tensors in a dict, list or tuple, on the device of a Trainer."""
    if isinstance(data, list | tuple):
        return type(data)(moved(trainer, part) for part in data)
    return trainer.backend.move(data)


def accepted_names(trainer: ReadByScripts) -> list[str]:
    """Return the arguments that the model accepts, and the names that labels may have."""
    taken = inspect.signature(base_of(trainer.model).forward).parameters
    return [*dict.fromkeys((*taken, "label", "label_ids", *trainer.label_names))]


def returns_loss(trainer: ReadByScripts) -> bool:
    """Return whether the model computes a loss without labels, by an argument `return_loss` that is true by default."""
    found = inspect.signature(base_of(trainer.model).forward).parameters.get("return_loss")
    return found is not None and found.default is True


def rows_of_a_step(trainer: ReadByScripts, args: TrainingArguments | None = None) -> int:
    """Return the number of rows of a step, over all batches and processes."""
    chosen = trainer.args if args is None else args
    return chosen.per_device_train_batch_size * chosen.gradient_accumulation_steps * trainer.backend.processes.num_processes


# What scripts read of transformers' Trainer, or call in methods that they copied from it. Overriding these has no effect, so
# they are no attributes of the class, and a subclass that has one of them is refused.
READ_BY_SCRIPTS: dict[str, Callable[[ReadByScripts], object]] = {
    **dict.fromkeys(("is_model_parallel", "is_deepspeed_enabled", "is_fsdp_xla_enabled"), lambda trainer: False),
    **dict.fromkeys(("deepspeed", "hp_name", "hp_search_backend", "hub_model_id", "label_smoother"), lambda trainer: None),
    "current_flos": lambda trainer: 0,
    "place_model_on_device": lambda trainer: True,
    "is_fsdp_enabled": lambda trainer: trainer.backend.name == "fsdp",
    "can_return_loss": returns_loss,
    "_signature_columns": accepted_names,
    "_set_signature_columns_if_needed": lambda trainer: lambda: None,
    "get_total_train_batch_size": lambda trainer: partial(rows_of_a_step, trainer),
    "_get_output_dir": lambda trainer: lambda trial=None: str(trainer._folder),
    "_get_learning_rate": lambda trainer: lambda: trainer.get_learning_rates()[0],
    "_prepare_input": lambda trainer: partial(moved, trainer),
    "_move_model_to_device": lambda trainer: lambda model, device: model.to(device),
    "autocast_smart_context_manager": lambda trainer: lambda cache_enabled=True: trainer.backend.forward(trainer.model),
    "floating_point_ops": lambda trainer: lambda inputs: 0,
    "store_flos": lambda trainer: lambda: None,
    "end": lambda trainer: lambda: None,
}


def without_ignored(found: Evaluation, prefix: str) -> Evaluation:
    """Return an evaluation without its loss if every label is -100: there is nothing to compare with."""
    if not (isinstance(found.labels, np.ndarray) and found.labels.size and (found.labels == IGNORED).all()):
        return found
    kept = {name: value for name, value in found.metrics.items() if name != f"{prefix}_loss"}
    return replace(found, loss=None, metrics=kept)
