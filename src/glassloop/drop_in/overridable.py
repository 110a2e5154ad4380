"""The methods that subclasses of transformers' Trainer override, as they are if nobody overrides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.utils.data import DataLoader, RandomSampler

from glassloop.data.interfaces import Rows
from glassloop.drop_in.hooks import Inputs, logits_of, rows_of
from glassloop.drop_in.with_callbacks import WithCallbacks
from glassloop.engine.interfaces import LRScheduler, Optimizer
from glassloop.engine.optimizer import optimizer_for, optimizer_of, scheduler_for
from glassloop.training.rows import accepted_columns
from glassloop.transformers_types import Model

LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
OPTIMIZERS = ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler")


class Overridable(WithCallbacks):
    """A Trainer with every method that a subclass may override.

    Attributes:
        compute_loss_func: Returns the mean loss for outputs, labels and `num_items_in_batch`.
        optimizer_cls_and_kwargs: The class of an optimizer and its arguments.
    """

    compute_loss_func: Callable[..., torch.Tensor] | None = None
    optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None
    _is_logging = False

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
            count = num_items_in_batch if num_items_in_batch is not None else rows_of(inputs)
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=count)
        elif self._has_own_loss() and labels is not None:
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            loss = self._loss_sum()(logits_of(outputs).float(), labels) / len(labels)
        else:
            outputs = model(**inputs)
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        return (loss, outputs) if return_outputs else loss

    def _has_own_loss(self) -> bool:
        """Return whether the settings define the loss, instead of the model."""
        args = self.args
        return bool(self.loss is not None or args.class_weights or args.label_smoothing_factor)

    def prediction_step(
        self, model: Model, inputs: Inputs, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Return loss, logits and labels of a batch. A subclass may override this; then the plain backend evaluates.

        Args:
            model: The model.
            inputs: The tensors of the batch by name.
            prediction_loss_only: Whether to return the loss alone.
            ignore_keys: Accepted for compatibility; only logits are read.
        """
        labels = inputs.get("labels")
        if labels is None:
            return None, logits_of(model(**inputs)), None
        loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss, None if prediction_loss_only else logits_of(outputs), labels

    def _remove_unused_columns(self, dataset: Rows | None, description: str | None = None) -> Rows | None:
        """Return the rows without columns the model does not accept. Scripts that look for a mistake call this."""
        return dataset if dataset is None else accepted_columns(dataset, self.model, self._say_once)

    def get_train_dataloader(self) -> DataLoader[object]:
        """Return a DataLoader of the training rows. Training uses it only if a subclass overrides this method."""
        generator = torch.Generator().manual_seed(self.args.seed)
        rows = self._remove_unused_columns(self.train_dataset)
        return DataLoader(
            rows,  # type: ignore[arg-type]
            batch_size=self.args.per_device_train_batch_size,
            sampler=RandomSampler(rows, generator=generator) if hasattr(rows, "__len__") else None,  # type: ignore[arg-type]
            collate_fn=self.data_collator,
            drop_last=self.args.dataloader_drop_last,
        )

    def get_eval_dataloader(self, eval_dataset: Rows | None = None) -> DataLoader[object]:
        """Return a DataLoader of evaluation rows. Evaluations use it only if a subclass overrides this method.

        Args:
            eval_dataset: The rows. Default: the `eval_dataset` of the Trainer.
        """
        rows = self._remove_unused_columns(self.eval_dataset if eval_dataset is None else eval_dataset)
        size = self.args.per_device_eval_batch_size
        return DataLoader(rows, batch_size=size, collate_fn=self.data_collator)  # type: ignore[arg-type]

    def get_test_dataloader(self, test_dataset: Rows) -> DataLoader[object]:
        """Return a DataLoader of rows to predict. Predictions use it only if a subclass overrides this method.

        Args:
            test_dataset: The rows.
        """
        return self.get_eval_dataloader(test_dataset)

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
            self.lr_scheduler = scheduler_for(self.args, optimizer, self._current_plan().warmup_steps, num_training_steps)
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
            logs: Names and numbers.
            start_time: Accepted for compatibility.
        """
        if not self._is_logging:
            epoch = self.state.epoch + self.state.batch / max(self._plan.batches_per_epoch if self._plan else 1, 1)
            self.state.history.append({"step": self.state.step, "epoch": round(epoch, 4), **logs})
            self._tell("on_log", logs=logs)
