"""What a script has replaced in a Trainer: callbacks, methods, loss, loaders and optimizers, as the loop needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from transformers import TrainerCallback, TrainerControl
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import RemoveColumnsCollator

from glassloop.base.errors import ModelError, SettingsError, listed
from glassloop.compat.callbacks import (
    SHOWS,
    Logged,
    TrainerCallbacks,
    TrainerState,
    freezes_weights,
    is_for_transformers,
    make_handler,
)
from glassloop.compat.hooks import (
    BatchStep,
    Inputs,
    LoaderBatches,
    Outputs,
    adds_up_batches,
    count_of,
    fits_classes,
    flattened,
    flattens_scores,
    in_batches,
    is_bare,
    is_own,
    logits_of,
    overrides,
    predicted,
    predicted_by_step,
    predicted_with_loss,
    preprocessed,
    save_bare,
    stepped,
    summed_loss,
    tensor_of,
    told,
    with_config,
)
from glassloop.data.batches import Batches
from glassloop.data.interfaces import Model, Rows
from glassloop.data.order import seed_all
from glassloop.data.rows import LABEL_KEYS, RowReader, is_table, labels_in
from glassloop.models.adapters import base_of
from glassloop.runs.record import Plan
from glassloop.scores.measures import read_scores
from glassloop.settings.fields import CLASSES, SCORE
from glassloop.settings.training import TrainingArguments
from glassloop.settings.training import TrainingArguments as Settings
from glassloop.settings.transformers_names import SEQUENTIAL
from glassloop.trainer import DEFAULT_DIR, IGNORED, EvalPrediction, RowUse, accepted_columns, columns_taken_by
from glassloop.trainer import Trainer as OwnTrainer
from glassloop.training.callbacks import Callback, checked_callbacks
from glassloop.training.evaluate import Evaluation, Nested, PredictBatch, first_array
from glassloop.training.interfaces import LRScheduler, Optimizer, Tensors, TrainingUse
from glassloop.training.losses import other_loss
from glassloop.training.optimizer import (
    decay_groups,
    optimizer_for,
    optimizer_of,
    scheduler_for,
    unwrap_optimizer,
    warmup_steps_of,
)
from glassloop.training.parts import Optimizers, TrainingParts
from glassloop.training.state import State

if TYPE_CHECKING:
    from accelerate import Accelerator


class WithCallbacks(OwnTrainer):
    """A Trainer whose callbacks may be added and removed.

    Attributes:
        optimizer: The optimizer of the current or last training; None before the first one.
        lr_scheduler: Its learning rate schedule.
        callback_handler: The callbacks for transformers, as a list of transformers.
    """

    optimizer: Optimizer | None = None
    lr_scheduler: LRScheduler | None = None
    callback_handler: CallbackHandler
    _adapted: TrainerCallbacks | None = None
    _plan: Plan | None = None
    _seen: TrainerState
    _train_loader: DataLoader[object] | None = None  # what callbacks get as the batches of the training
    _latest_loader: DataLoader[object] | None = None  # and as those of the latest evaluation
    _loop_found: list[dict[str, float]] | None = None  # what an evaluation of the loop has found so far, per data set
    _loop_parts: Sequence[dict[str, float]] = ()  # of the latest one

    @property
    def state(self) -> TrainerState:
        """Where the training stands, as callbacks see it, too."""
        return self._seen.follow(self._plan, self.args.per_device_train_batch_size)

    @state.setter
    def state(self, given: State | TrainerState) -> None:
        self._seen = given if isinstance(given, TrainerState) else TrainerState.of(given)

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""
        return TrainerControl() if self._adapted is None else self._adapted.control

    @contextmanager
    def _within(self, **facts: object) -> Iterator[None]:
        """Set internal attributes while a block runs."""
        before = {name: getattr(self, name) for name in facts}
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(before)

    def _current_plan(self) -> Plan:
        """Return the plan of the training, or of the one that would start now."""
        if self._plan is None:
            self._plan = self._make_plan(self._batches(self.train_dataset, training=True))
        return self._plan

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user; those of transformers as one."""
        return [*self._own_callbacks, *([self._adapted] if self._adapted is not None else [])]

    @callbacks.setter
    def callbacks(self, given: Sequence[Callback | TrainerCallback | type] | None) -> None:
        if given is not None and any(isinstance(one, TrainerCallbacks) for one in given):
            return  # the list as it is
        given = given or ()
        self._own_callbacks = checked_callbacks([one for one in given if not is_for_transformers(one)])
        foreign = [one for one in given if is_for_transformers(one)]
        self.callback_handler = make_handler(foreign, prints_lines=self.args.disable_tqdm)
        self._adapted = TrainerCallbacks(self)

    def _has_flow(self) -> bool:
        """Return whether transformers' `DefaultFlowCallback` asks for log entries, evaluations and checkpoints."""
        return any(isinstance(one, DefaultFlowCallback) for one in self.callback_handler.callbacks)

    def _shows_progress(self) -> bool:
        """Return whether a script has left the callback in the list that stands for the progress display."""
        return any(isinstance(one, SHOWS) for one in self.callback_handler.callbacks)

    def _callback_parts(self) -> dict[str, object]:
        """Return what each callback of transformers gets by name."""
        named = {name: getattr(self, name, None) for name in ("model", "processing_class", "optimizer", "lr_scheduler")}
        return {**named, "train_dataloader": self._train_loader, "eval_dataloader": self._latest_loader}

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the loop's latest evaluation for each data set. What a script added belongs to the last."""
        *others, last = self._loop_parts or [metrics]
        return [*others, {**last, **{name: value for name, value in metrics.items() if not any(name in one for one in others)}}]

    def _tell(self, event: str, **facts: object) -> None:
        """Call a method of the callbacks of transformers outside a training."""
        if self._adapted is not None:
            self._adapted.tell(event, None, **facts)

    def add_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Add a callback.

        Args:
            callback: A callback or its class.
        """
        if is_for_transformers(callback):
            self.callback_handler.add_callback(callback)
        else:
            self._own_callbacks += checked_callbacks([callback])

    def pop_callback(self, callback: Callback | TrainerCallback | type) -> Callback | TrainerCallback | None:
        """Remove a callback and return it; return None if the Trainer does not have it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        found = next((one for one in self._own_callbacks if callback in (one, type(one))), None)
        if found is None:
            return self.callback_handler.pop_callback(callback)
        self._own_callbacks = [one for one in self._own_callbacks if one is not found]
        return found

    def remove_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Remove a callback, if the Trainer has it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        self.pop_callback(callback)


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


def moved(trainer: Overridable, data: object) -> object:
    """Return a tensor, or the tensors in a dict, list or tuple, on the device of a Trainer."""
    if isinstance(data, list | tuple):
        return type(data)(moved(trainer, part) for part in data)
    return trainer.backend.move(data)


def accepted_names(trainer: Overridable) -> list[str]:
    """Return the arguments that the model accepts, and the names that labels may have."""
    taken = inspect.signature(base_of(trainer.model).forward).parameters
    return [*dict.fromkeys((*taken, "label", "label_ids", *trainer.label_names))]


def returns_loss(trainer: Overridable) -> bool:
    """Return whether the model computes a loss without labels, by an argument `return_loss` that is true by default."""
    found = inspect.signature(base_of(trainer.model).forward).parameters.get("return_loss")
    return found is not None and found.default is True


def rows_of_a_step(trainer: Overridable, args: TrainingArguments | None = None) -> int:
    """Return the number of rows of a step, over all batches and processes."""
    chosen = trainer.args if args is None else args
    return chosen.per_device_train_batch_size * chosen.gradient_accumulation_steps * trainer.backend.processes.num_processes


# What scripts read of transformers' Trainer, or call in methods that they copied from it. Overriding these has no effect, so
# they are no attributes of the class, and a subclass that has one of them is refused.
READ_BY_SCRIPTS: dict[str, Callable[[Overridable], object]] = {
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


class Overridable(WithCallbacks):
    """A Trainer with every method that a subclass may override.

    Attributes:
        compute_loss_func: Returns the mean loss for outputs, labels and `num_items_in_batch`.
        optimizer_cls_and_kwargs: The class of an optimizer and its arguments.
        current_gradient_accumulation_steps: The number of batches of the current step.
        label_names: The inputs of the model that are labels.
    """

    compute_loss_func: Callable[..., torch.Tensor] | None = None
    optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None
    current_gradient_accumulation_steps = 1
    _is_logging = False
    _is_training = False
    _accelerator: Accelerator | None = None
    _eval_sets: Mapping[str, Rows] = {}
    _kept_loaders: Mapping[str, Loader] = {}
    label_names: Sequence[str] = ("labels",)

    def compute_loss(
        self, model: Model, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: int | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, object]:
        """Return the mean loss of a batch. A subclass may override this; then the plain backend trains.

        Args:
            model: The model.
            inputs: The tensors of the batch by name, with labels.
            return_outputs: Whether to return the outputs of the model, too.
            num_items_in_batch: The number of rows that the losses are divided by. Default: the rows of the batch.
        """
        labels = inputs.get("labels")
        if self.compute_loss_func is not None:
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            count = num_items_in_batch if num_items_in_batch is not None else count_of(inputs)
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=count)
        elif self._has_own_loss() and labels is not None:
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            loss = self._loss_sum()(logits_of(outputs).float(), labels) / len(labels)
        else:
            outputs = model(**inputs)
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Model, inputs: Inputs, num_items_in_batch: int | None = None) -> torch.Tensor:
        """Add the gradients of a batch, and return its part of the loss of the step. If overridden, the plain backend trains.

        Args:
            model: The model.
            inputs: The tensors of the batch by name, with labels.
            num_items_in_batch: Accepted for compatibility.
        """
        model.train()
        with self.compute_loss_context_manager():
            loss = tensor_of(self.compute_loss(model, self._prepare_inputs(inputs))).float().mean()
        loss = loss / self.current_gradient_accumulation_steps
        self.backend.backward(loss)
        return loss.detach()

    def compute_loss_context_manager(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass, in the precision of the settings."""
        return self.backend.forward(self.model)

    def _prepare_inputs(self, inputs: Inputs) -> Inputs:
        """Return the tensors of a batch on the device."""
        return self.backend.move(inputs)

    def _has_own_loss(self) -> bool:
        """Return whether the settings define the loss, instead of the model."""
        args = self.args
        return bool(self.loss is not None or args.class_weights or args.label_smoothing_factor)

    def prediction_step(
        self, model: Model, inputs: Inputs, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Nested | None, Nested | None]:
        """Return loss, logits and labels of a batch. A subclass may override this; then the plain backend evaluates.

        Args:
            model: The model.
            inputs: The tensors of the batch by name.
            prediction_loss_only: Whether to return the loss alone.
            ignore_keys: Outputs of the model that are no predictions. Default: those that its config names.
        """
        outputs = self._outputs(ignore_keys)
        labels = outputs.labels(inputs)  # before the loss may remove them
        if labels is None:
            return None, outputs.predictions(model(**inputs), after_loss=False), None
        loss, found = self.compute_loss(model, inputs, return_outputs=True)
        return loss, None if prediction_loss_only else outputs.predictions(found, after_loss=True), labels

    def _outputs(self, ignore_keys: list[str] | None) -> Outputs:
        """Return which outputs of the model are predictions, and which inputs are labels."""
        usual = getattr(getattr(self.model, "config", None), "keys_to_ignore_at_inference", None)
        ignored = ignore_keys if ignore_keys is not None else usual if usual is not None else ["past_key_values"]
        return Outputs(tuple(ignored), tuple(self.label_names))

    def _taken_columns(self) -> set[str] | None:
        if getattr(self.args, "remove_unused_columns", True) is False:
            return None
        return columns_taken_by(self.model) | {*self.label_names}

    def _remove_unused_columns(self, dataset: Rows, description: str | None = None) -> Rows:
        """Return the rows without columns the model does not accept. Scripts that look for a mistake call this."""
        taken = self._taken_columns()
        return accepted_columns(dataset, taken, self._say_once) if is_table(dataset) else dataset

    def get_train_dataloader(self) -> Loader:
        """Return a DataLoader of the training rows. Training uses it only if a subclass overrides it or its sampler."""
        rows = self._remove_unused_columns(refuse_no_rows(self.train_dataset))
        return self._loader(rows, self.args.per_device_train_batch_size, self._sampler("_get_train_sampler", rows))

    def _sampler(self, name: str, rows: Rows) -> Sampler[int] | None:
        """Return the sampler of a method that a subclass may override, with or without an argument."""
        if not hasattr(rows, "__len__"):
            return None
        make = getattr(self, name)
        made: Sampler[int] | None = make(rows) if inspect.signature(make).parameters else make()
        return made

    def _get_train_sampler(self, train_dataset: Rows | None = None) -> Sampler[int] | None:
        """Return the sampler of the training rows. Training uses it only if a subclass overrides this method.

        Args:
            train_dataset: The rows. Default: the `train_dataset` of the Trainer.
        """
        rows, args = self.train_dataset if train_dataset is None else train_dataset, self.args
        if rows is None or not hasattr(rows, "__len__"):
            return None
        if self._keeps_order():
            return SequentialSampler(rows)
        generator = torch.Generator().manual_seed(args.seed)
        if args.group_by_length:
            size = args.per_device_train_batch_size * args.gradient_accumulation_steps
            grouped: Sampler[int] = LengthGroupedSampler(size, rows, generator=generator)
            return grouped
        return RandomSampler(rows, generator=generator)

    def _get_eval_sampler(self, eval_dataset: Rows) -> Sampler[int] | None:
        """Return the sampler of evaluation rows. Evaluations use it only if a subclass overrides this method.

        Args:
            eval_dataset: The rows.
        """
        return SequentialSampler(eval_dataset) if hasattr(eval_dataset, "__len__") else None

    def _keeps_order(self) -> bool:
        """Return whether training rows come in their order."""
        return getattr(self.args, "train_sampling_strategy", None) == SEQUENTIAL

    def get_eval_dataloader(self, eval_dataset: Rows | str | None = None) -> Loader:
        """Return a DataLoader of evaluation rows. Evaluations use it only if a subclass overrides this method.

        Args:
            eval_dataset: The rows, or the name of one of several data sets. Default: the `eval_dataset` of the Trainer.
        """
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if key in self._kept_loaders:
            return self._kept_loaders[key]
        rows = self._eval_sets[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        rows = self._remove_unused_columns(refuse_no_rows(self.eval_dataset if rows is None else rows))
        made = self._loader(rows, self.args.per_device_eval_batch_size, self._sampler("_get_eval_sampler", rows))
        if getattr(self.args, "dataloader_persistent_workers", False):  # its worker processes live as long as the loader
            self._kept_loaders = {**self._kept_loaders, key: made}
        return made

    def _loader(self, rows: Rows, size: int, sampler: Sampler[int] | None) -> Loader:
        """Return a DataLoader with the settings for DataLoaders."""
        args, collate, taken = self.args, self.data_collator, self._taken_columns()
        if taken is not None and not is_table(rows):
            collate = RemoveColumnsCollator(collate, taken)
        options = {name: getattr(args, f"dataloader_{name}", None) for name in LOADER_OPTIONS}
        return Loader(
            rows,  # type: ignore[arg-type]
            batch_size=size,
            sampler=sampler,
            collate_fn=collate,
            drop_last=args.dataloader_drop_last and hasattr(rows, "__len__"),
            **{name: value for name, value in options.items() if value is not None},
        )

    def get_test_dataloader(self, test_dataset: Rows) -> Loader:
        """Return a DataLoader of rows to predict. Predictions use it only if a subclass overrides this method.

        Args:
            test_dataset: The rows.
        """
        return self.get_eval_dataloader(test_dataset)

    @property
    def accelerator(self) -> Accelerator:
        """The Accelerator of the backend, or one that only scripts use."""
        if self._accelerator is None:
            from accelerate import Accelerator

            mine = getattr(self.backend, "accelerator", None)
            self._accelerator = Accelerator(cpu=self.backend.device.type == "cpu") if mine is None else mine
        return self._accelerator

    @property
    def model_wrapped(self) -> Model:
        """The model: what wraps it for several processes is a part of the backend."""
        return self.model

    @property
    def is_in_train(self) -> bool:
        """Whether a training is running."""
        return self._is_training

    @property
    def _train_batch_size(self) -> int:
        """The number of training rows of a batch in this process. Scripts assign it, too."""
        return self.args.per_device_train_batch_size

    @_train_batch_size.setter
    def _train_batch_size(self, rows: int) -> None:
        self.args.per_device_train_batch_size = rows

    if not TYPE_CHECKING:  # else no wrong name would be found

        def __getattr__(self, name: str) -> object:
            if name in READ_BY_SCRIPTS:
                return READ_BY_SCRIPTS[name](self)
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def get_num_trainable_parameters(self) -> int:
        """Return the number of parameters that are not frozen."""
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay: all but biases and those of normalization layers.

        Args:
            model: The model.
        """
        found = {id(weight) for weight in decay_groups(model, 1.0)[0]["params"]}
        return [name for name, weight in model.named_parameters() if id(weight) in found]

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each group of parameters. Raises `SettingsError` before there is an optimizer."""
        return [group["lr"] for group in self._made_optimizer().param_groups]

    def get_optimizer_group(self, param: torch.nn.Parameter | None = None) -> list[dict[str, object]] | dict[str, object]:
        """Return the groups of the optimizer, or that of one parameter. Raises `SettingsError` if there is none.

        Args:
            param: The parameter. Default: all groups.
        """
        groups = self._made_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        found = [group for group in groups if any(weight is param for weight in group["params"])]
        if not found:
            raise SettingsError("no group of the optimizer has this parameter", "pass one that is trained")
        return found[0]

    def _made_optimizer(self) -> Optimizer:
        """Return the optimizer. Raises `SettingsError` if there is none yet."""
        if self.optimizer is None:
            raise SettingsError("there is no optimizer before training", "call create_optimizer() first")
        return unwrap_optimizer(self.optimizer)

    def num_examples(self, dataloader: DataLoader[object]) -> int:
        """Return the number of rows of a DataLoader.

        Args:
            dataloader: The DataLoader.
        """
        return len(dataloader.dataset)  # type: ignore[arg-type]

    def create_optimizer(self) -> Optimizer:
        """Set `optimizer` to that of the settings and return it."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is not None:
            self.optimizer = optimizer_of(self.model, self.args.weight_decay, *self.optimizer_cls_and_kwargs)
        elif self.optimizer is None:
            self.optimizer = optimizer_for(self.args, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Set `lr_scheduler` to that of the settings and return it.

        Args:
            num_training_steps: The number of steps of the training.
            optimizer: The optimizer. Default: `optimizer`.
        """
        if self.lr_scheduler is None:
            optimizer = self.create_optimizer() if optimizer is None else optimizer
            warmup = warmup_steps_of(self.args.warmup_steps, num_training_steps)
            self.lr_scheduler = scheduler_for(self.args, optimizer, warmup, num_training_steps)
        return self.lr_scheduler

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set `optimizer` and `lr_scheduler`.

        Args:
            num_training_steps: The number of steps of the training.
        """
        self.create_optimizer()
        self.create_scheduler(num_training_steps, self.optimizer)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add an entry to the history of the training. A subclass may override this to see every entry.

        Args:
            logs: Names and values. The epoch is added to them, as transformers does.
            start_time: Accepted for compatibility.
        """
        if self._is_logging:  # the loop has written the entry; a script's own `log` may have added to it
            self.state.add_to_latest(logs, of_loop=self._is_training)
            return
        logs["epoch"] = self.state.epoch
        self.state.add(logs)
        self._tell("on_log", logs=logs)


THEIR_EVAL_BATCH_SIZE = 8  # the default of transformers' TrainingArguments


USED_NAMES = frozenset(
    (
        *("compute_loss", "compute_loss_func", "model_init", "log", "prediction_step", "save_model", "num_examples"),
        *(
            "training_step",
            "optimizer",
            "lr_scheduler",
            "tokenizer",
            "preprocess_logits_for_metrics",
            "optimizer_cls_and_kwargs",
        ),
        *("callback_handler", "control", "accelerator", "model_wrapped", "get_decay_parameter_names", "_evaluate"),
        *("label_names", *SAMPLERS.values()),
        *(*LOADERS, *OPTIMIZERS),
    )
)


def without_ignored(found: Evaluation, prefix: str) -> Evaluation:
    """Return an evaluation without its loss if every label is -100: there is nothing to compare with."""
    if not (isinstance(found.labels, np.ndarray) and found.labels.size and (found.labels == IGNORED).all()):
        return found
    kept = {name: value for name, value in found.metrics.items() if name != f"{prefix}_loss"}
    return replace(found, loss=None, metrics=kept)


class OwnParts(Overridable):
    """Finds out what a script has replaced, and builds the parts of a training from it.

    Attributes:
        model_init: Returns the model; called when the Trainer is constructed and again before each training.
        preprocess_logits_for_metrics: Changes logits, given labels, before metrics are computed.
    """

    model_init: Callable[..., Model] | None = None
    preprocess_logits_for_metrics: Callable[..., torch.Tensor] | None = None
    _used_names = USED_NAMES
    _falls_back = True
    _model_loss: str | None = None  # why the loss is that of the model
    _made: Optimizers = (None, None)  # optimizer and schedule that the last training used
    _read_once: Mapping[str, set[object]] = {}  # values of settings that have no effect after construction
    _has_trained = False
    _saves_alone = False  # the main process writes a checkpoint, and the others do not take part
    _trial: object = None  # of a search for hyperparameters
    _eval_loader = "get_eval_dataloader"
    _ignore_keys: list[str] | None = None  # outputs of the model that are no predictions
    _predicts = False  # all outputs are returned, even if no metric needs them

    def _initialized(self, seed: int) -> Model:
        """Return a new model of `model_init`, with random weights that depend on the seed only."""
        seed_all(seed)
        make = self.model_init
        if make is None:
            return self.model
        if isinstance(make, torch.nn.Module):
            raise SettingsError(
                "model_init is a model, not a function that returns one", "omit the parentheses: model_init=model_init"
            )
        return with_config(make(self._trial) if inspect.signature(make).parameters else make())

    def _overrides(self, *names: str) -> list[str]:
        """Return which of these methods are not those of Glassloop."""
        base = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("glassloop.compat."))
        return [name for name in names if overrides(self, base, name)]

    def _why_plain(self) -> str | None:
        """Return why only the plain backend can train. What concerns evaluations alone does not count: `_why_padded`."""
        if is_bare(self.model):
            return "the model is a plain torch module"
        training = ("training_step", "compute_loss", "get_train_dataloader", "_get_train_sampler")
        if found := self._overrides(*training, *OPTIMIZERS):
            return f"{found[0]} is overridden"
        for name in ("compute_loss_func", "optimizer_cls_and_kwargs"):
            if getattr(self, name) is not None:
                return f"{name} is given"
        if self.train_dataset is not None and not hasattr(self.train_dataset, "__len__"):
            return "the training data has no length"
        if self._own_optimizers() != (None, None):
            return "the optimizer is custom"
        if any(map(freezes_weights, self.callback_handler.callbacks)):
            return "a callback freezes or unfreezes weights"
        if self._adapted is not None and (found := self._adapted.gradient_readers):
            return f"{found[0]} may read gradients"
        return "the loss is that of the model" if self._model_loss else None

    def _why_padded(self, rows: Rows | None) -> str | None:
        if found := self._overrides("prediction_step", self._eval_loader, "_get_eval_sampler"):
            return f"{found[0]} is overridden"
        if self._returns_more():
            return "the model returns hidden states or attentions"
        return "the rows have no length" if self._reads_loader(rows, training=False) else None

    def _training_use(self) -> TrainingUse:
        """Return how the model will be trained; all evaluation sets count, unless a script reads them in its own way."""
        every = self._eval_sets.values() or [self.eval_dataset]
        sets = [self.train_dataset, *(rows for rows in every if self._why_padded(rows) is None)]
        return replace(super()._training_use(), data_sets=[self._reader(rows) for rows in sets if rows is not None])

    def _own_data_sets(self) -> list[Rows | None]:
        return [*super()._own_data_sets(), *self._eval_sets.values()]

    def _returns_more(self) -> bool:
        """Return whether the config of a model asks for outputs beside logits."""
        config = getattr(self.model, "config", None)
        return any(getattr(config, name, False) is True for name in ("output_hidden_states", "output_attentions"))

    def _other_label_names(self) -> bool:
        """Return whether labels have other names than the usual ones, so that only the model knows what they mean."""
        return getattr(self.args, "label_names", None) is not None and not {*self.label_names} <= {*LABEL_KEYS}

    def _row_use(self, *, training: bool) -> RowUse:
        """Return what is done with rows. If a batch matters as a whole, as for an own loss, it holds rows in their order."""
        own_loss = self._replaces_loss() or self.loss is not None or bool(self._overrides("training_step"))
        in_order = own_loss or self._returns_more() or bool(self._overrides("prediction_step"))
        return replace(
            super()._row_use(training=training),
            shuffled=not self._keeps_order(),
            sorted=not in_order,
            any_labels=own_loss or is_own(self.model) or self._other_label_names(),
            ignored=IGNORED,
        )

    def _own_optimizers(self) -> Optimizers:
        """Return the optimizer and the schedule that a script has assigned or created before the training."""
        mine = [None if now is then else now for now, then in zip((self.optimizer, self.lr_scheduler), self._made, strict=True)]
        return mine[0], mine[1]  # type: ignore[return-value]  # an optimizer and a schedule, in this order

    def _made_by_glassloop(self) -> bool:
        """Return whether a training makes its optimizer, instead of using one that the script made."""
        return next(iter(self.optimizers)) is None and self._own_optimizers()[0] is None

    def _reads_loader(self, rows: Rows | None, *, training: bool) -> bool:
        """Return whether batches come from a DataLoader of a script, or from a stream of rows."""
        name = "get_train_dataloader" if training else self._eval_loader
        is_stream = rows is not None and not hasattr(rows, "__len__") and hasattr(rows, "__iter__")
        is_stream = is_stream and (not training or self.args.max_steps > 0)
        return is_stream or bool(self._overrides(name, SAMPLERS["train" if training else "eval"]))

    def _batches(self, rows: Rows | None, *, training: bool) -> Batches:
        if not self._reads_loader(rows, training=training):
            return super()._batches(rows, training=training)
        rows = rows.rows if isinstance(rows, RowReader) else rows
        name = "get_train_dataloader" if training else self._eval_loader
        made = self.get_train_dataloader() if training else getattr(self, name)(rows)
        if not training:
            self._latest_loader = made
        processes = self.backend.processes
        known = self.args.max_steps * self.args.gradient_accumulation_steps
        if training and processes.num_processes > 1:  # transformers gives each process batches of its own
            self._say_once(f"each batch of get_train_dataloader is divided among the {processes.num_processes} processes")
        return LoaderBatches(made, processes.rank, processes.num_processes, known)  # type: ignore[return-value]

    def _readable(self, rows: Rows | None) -> Rows:
        if self._reads_loader(rows, training=True):
            return [] if rows is None else rows
        return super()._readable(rows)

    def _refuse_late_changes(self) -> None:
        """Raise `SettingsError` for settings that were assigned after the Trainer had used them."""
        changed = [name for name, then in self._read_once.items() if vars(self.args)[name] not in then]
        if changed:
            raise SettingsError(
                f"{listed(changed)} cannot be changed after a Trainer is constructed", "construct a new Trainer"
            )

    def _parts(self) -> TrainingParts:
        self._refuse_late_changes()
        self._folder = Path(self.args.output_dir or DEFAULT_DIR)
        if self.model_init is not None:
            self.model = self._initialized(self.args.seed)
        self._find_loss()
        batches = self.args.gradient_accumulation_steps
        if batches > 1 and not self._overrides("training_step") and adds_up_batches(base_of(self.model)):
            self._say_once(f"the loss of a step is the mean of its {batches:,} batches; transformers' Trainer logs their sum")
        parts = super()._parts()
        self._plan = parts.plan
        if isinstance(parts.batches, LoaderBatches):
            self._train_loader = parts.batches.loader  # type: ignore[assignment]  # most often a DataLoader
        elif self._has_script_callbacks():
            self._train_loader = self.get_train_dataloader()
        callbacks = [*([Logged(self)] if self._overrides("log") else []), *parts.callbacks]
        batch_loss = summed_loss(self.compute_loss, self.backend) if self._replaces_loss() else None
        batch_step = self._own_step()
        name = None if batch_loss is None else f"compute_loss of {type(self).__name__}"
        name = name if batch_step is None else f"training_step of {type(self).__name__}"
        saves_itself = bool(self._overrides("save_model"))
        updates = self._adapted if self._adapted is not None and self._adapted.gradient_readers else None
        return replace(
            parts,
            state=self._seen.loop,
            asked_only=True,
            quiet=parts.quiet or not self._shows_progress(),
            callbacks=callbacks,
            write_model=self._write_with_script if saves_itself else parts.write_model,
            saves_in_background=not (saves_itself or (self._adapted is not None and self._adapted.reads_checkpoints)),
            batch_loss=batch_loss,
            batch_step=batch_step,
            before_update=None if updates is None else updates.before_update,
            after_update=None if updates is None else updates.after_update,
            loss_name=name,
            loss_compared=True,
            started=self._started,
            optimizers=self._created_optimizers(parts),
        )

    def _own_step(self) -> BatchStep | None:
        """Return the step of a script's own `training_step`. Raises `SettingsError` where its gradients would be wrong."""
        if not self._overrides("training_step"):
            return None
        if self.backend.processes.num_processes > 1 or getattr(self.backend, "precision", "") == "fp16":
            problem = "an overridden training_step runs the backward pass itself, which needs one process and no fp16"
            raise SettingsError(problem, "override compute_loss instead, or use bf16 or fp32 in one process")
        return stepped(self, self.backend)

    def _created_optimizers(self, parts: TrainingParts) -> Optimizers:
        """Return the optimizer and the schedule of a script, if it has its own."""
        if tuple(parts.optimizers) != (None, None):
            return parts.optimizers
        self.optimizer, self.lr_scheduler = self._own_optimizers()
        if self._overrides(*OPTIMIZERS) or self.optimizer_cls_and_kwargs is not None:
            self.create_optimizer_and_scheduler(parts.plan.max_steps)
        return self.optimizer, self.lr_scheduler

    def _find_loss(self) -> None:
        """Find out whether the model computes another loss than Glassloop; then the model's own is used."""
        if self._overrides("compute_loss") or self.compute_loss_func is not None or self._has_own_loss():
            return
        if is_bare(self.model):
            self._model_loss = "the model is a plain torch module"
            return
        if self._other_label_names() or self._has_ignored_labels(self.train_dataset):
            self._model_loss = "label_names is set" if self._other_label_names() else "some labels are -100"
            self._say_once(f"{self._model_loss}: the loss is that of the model")
            return
        batch = next(self._batches(self.train_dataset, training=True).epoch(), None)
        if is_own(self.model) and batch is not None and not (fits_classes(batch.labels) or self.task == SCORE):
            self._model_loss = "the model has its own task"
            return
        try:
            found = None if batch is None else other_loss(self.model, batch, self.task, self.backend, self._say_once)
        except ModelError:
            if not is_own(self.model):
                raise
            found = "the outputs of the model have no logits by name"
        if found is not None:
            self._model_loss = found
            self._say_once(f"{found}; training uses the model's own")

    def _has_ignored_labels(self, rows: Rows | None) -> bool:
        """Return whether some rows have the label -100, which the loss of a model leaves out; not of rows that may be slow."""
        if self.task != CLASSES or not (is_table(rows) or isinstance(rows, list)):
            return False
        first = rows[0] if len(rows) else {}
        label = next((first[name] for name in LABEL_KEYS if name in first), None) if isinstance(first, Mapping) else None
        if label is None or isinstance(label, str) or np.ndim(label) != 0:
            return False
        labels = labels_in(rows)
        return labels is not None and bool((labels == IGNORED).any())

    def _replaces_loss(self) -> bool:
        """Return whether the loss is that of a script or of the model, instead of Glassloop's."""
        return bool(self._overrides("compute_loss") or self.compute_loss_func is not None or self._model_loss)

    def _write_with_script(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model of a checkpoint with a script's own `save_model`, in the main process alone."""
        named = {"_internal_call": True} if "_internal_call" in inspect.signature(self.save_model).parameters else {}
        self._saves_alone = True
        try:
            self.save_model(str(folder), **named)
        finally:
            self._saves_alone = False

    def write_model(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model and its tokenizer; of a plain torch module, its weights.

        Args:
            folder: The folder to write to.
            weights: Weights to write instead of those of the model.
        """
        if not is_bare(self.model):
            super().write_model(folder, weights)
            return
        save_bare(self.backend.unwrap(self.model), folder, weights)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _predict_batch(self) -> PredictBatch | None:
        needed = self._predicts or self.compute_metrics is not None or self.preprocess_logits_for_metrics is not None
        outputs = replace(self._outputs(self._ignore_keys), logits_only=not needed)
        predict: PredictBatch | None = None
        if self._overrides("prediction_step"):
            predict = predicted_by_step(self.prediction_step, self.backend, self._ignore_keys)
        elif self._replaces_loss():
            predict = predicted_with_loss(self.compute_loss, self.backend, outputs)
        whole = predict or predicted(self.backend, self._loss_sum(), outputs)
        if self.preprocess_logits_for_metrics is not None:
            predict = whole = preprocessed(whole, self.preprocess_logits_for_metrics, self.backend)
        watches = any(overrides(one, TrainerCallback, "on_prediction_step") for one in self.callback_handler.callbacks)
        return told(whole, partial(self._tell, "on_prediction_step")) if watches else whole

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """Return the metrics of `compute_metrics`, or those of the task. A subclass may override this method.

        Args:
            found: Logits and labels of all rows.
        """
        changed = self.preprocess_logits_for_metrics is not None and self.compute_metrics is None
        if getattr(self.args, "batch_eval_metrics", False) and self.compute_metrics is not None:
            scores = in_batches(self.compute_metrics, found, self.args.per_device_eval_batch_size)
            return read_scores(scores, self._say_once, self.args.metric_for_best_model)
        if getattr(self.args, "prediction_loss_only", False) or changed:
            return {}
        if self.compute_metrics is not None:
            flat = flattens_scores(self.model)
            return super().metrics_of(found._replace(predictions=flattened(found.predictions)) if flat else found)
        logits, labels = first_array(found.predictions), first_array(found.label_ids)
        if is_own(self.model) and self.task != SCORE and not fits_classes(labels, logits):
            return {}
        counted = labels != IGNORED if self.task == CLASSES and labels.ndim == 1 else np.ones(len(labels), dtype=bool)
        return super().metrics_of(EvalPrediction(logits[counted], labels[counted])) if counted.any() else {}

    def _has_script_callbacks(self) -> bool:
        """Return whether a script has callbacks of its own, which may read anything."""
        return self._adapted is not None and self._adapted.reads_weights

    def _name_eval_batches(self, rows: Rows | None) -> None:
        """Say how large the batches of an evaluation are if a script relies on the default: its own loss may depend on it."""
        size = self.args.per_device_eval_batch_size
        number = len(rows) if rows is not None and hasattr(rows, "__len__") else 0
        if self._replaces_loss() and size == Settings.per_device_eval_batch_size and number > THEIR_EVAL_BATCH_SIZE:
            theirs = f"the default of transformers is {THEIR_EVAL_BATCH_SIZE}"
            self._say_once(f"evaluations have batches of {size} rows ({theirs}), on which a loss that is not a mean depends")

    def _run(self, model: Model, rows: Rows | None, prefix: str) -> Evaluation:
        if rows is not None and self._has_script_callbacks() and not self._reads_loader(rows, training=False):
            accepted = self._remove_unused_columns(rows.rows if isinstance(rows, RowReader) else rows)
            self._latest_loader = self._loader(accepted, self.args.per_device_eval_batch_size, None)
        self._name_eval_batches(rows)
        compared = self._is_training or self._replaces_loss() or self._has_own_loss()
        if not compared and (is_own(self.model) or self._other_label_names() or self._has_ignored_labels(rows)):
            with self._within(_model_loss="nothing was compared yet"):
                return without_ignored(super()._run(model, rows, prefix), prefix)
        return without_ignored(super()._run(model, rows, prefix), prefix)

    def _started(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Take over the optimizer and the schedule of a training that begins."""
        self.optimizer, self.lr_scheduler = self._made = optimizer, scheduler

    def _report(self, logs: dict[str, float]) -> None:
        """Call an overridden `log` with an entry that the history has already."""
        if self._overrides("log"):
            with self._within(_is_logging=True):
                self.log(logs)
