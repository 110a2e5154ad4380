"""The methods that subclasses of transformers' Trainer override, as they are if nobody overrides them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import RemoveColumnsCollator

from glassloop.arguments import TrainingArguments
from glassloop.data.formats import is_table
from glassloop.data.interfaces import Rows
from glassloop.drop_in.hooks import Inputs, Outputs, count_of, logits_of, tensor_of
from glassloop.drop_in.settings import SEQUENTIAL
from glassloop.drop_in.with_callbacks import WithCallbacks
from glassloop.engine.evaluate import Nested
from glassloop.engine.interfaces import LRScheduler, Optimizer
from glassloop.engine.optimizer import decay_groups, optimizer_for, optimizer_of, scheduler_for, unwrap_optimizer
from glassloop.engine.plan import warmup_steps_of
from glassloop.errors import SettingsError
from glassloop.models.adapters import base_of
from glassloop.training.rows import accepted_columns, columns_taken_by
from glassloop.transformers_types import Model

if TYPE_CHECKING:
    from accelerate import Accelerator

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
