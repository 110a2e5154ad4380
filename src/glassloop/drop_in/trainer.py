"""`glassloop.Trainer`: the Trainer with the methods that scripts for transformers call and override."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, RandomSampler

from glassloop.arguments import TrainingArguments as Settings
from glassloop.compatibility import EvalPrediction, Metrics, TrainOutput
from glassloop.data.batches import Batches
from glassloop.data.interfaces import Collator, Rows
from glassloop.drop_in.arguments import TrainingArguments
from glassloop.drop_in.callbacks import TrainerCallbacks, is_for_transformers
from glassloop.drop_in.hooks import (
    LoaderBatches,
    inputs_with_labels,
    logits_of,
    overrides,
    predicted_by_step,
    predicted_with_loss,
    summed_loss,
)
from glassloop.drop_in.modules import is_bare, save_bare, with_config
from glassloop.drop_in.rows import stacked
from glassloop.drop_in.state import STATE_NAME, TrainerState, show_metrics, write_metrics
from glassloop.engine.callbacks import Callback, checked_callbacks
from glassloop.engine.evaluate import PredictBatch
from glassloop.engine.interfaces import LRScheduler, Optimizer, Tensors
from glassloop.engine.losses import other_loss
from glassloop.engine.optimizer import make_optimizers, make_scheduler
from glassloop.engine.state import State
from glassloop.errors import SettingsError
from glassloop.seeding import seed_all
from glassloop.trainer import Trainer as OwnTrainer
from glassloop.training.parts import BatchLoss, Optimizers, TrainingParts
from glassloop.transformers_types import Model, Tokenizer

if TYPE_CHECKING:
    from transformers import TrainerCallback

Inputs = dict[str, torch.Tensor]
LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
OPTIMIZERS = ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler")
USED_NAMES = frozenset(
    (
        *("compute_loss", "compute_loss_func", "model_init", "log", "prediction_step", "save_model", "num_examples", "optimizer"),
        *("lr_scheduler", "tokenizer", "preprocess_logits_for_metrics", *LOADERS, *OPTIMIZERS),
    )
)


class Trainer(OwnTrainer):
    """Trains and evaluates one model. Scripts for transformers' Trainer change the import, and subclasses of it keep working.

    Args:
        model: The model to train, in place.
        args: The settings. Default: `TrainingArguments()`.
        data_collator: Makes a batch of rows. Default: pad the rows to the longest one with the tokenizer; without a
            tokenizer, stack rows that have the same length.
        train_dataset: The rows to train on.
        eval_dataset: The rows to evaluate on, or a dict of several data sets.
        processing_class: The tokenizer, which pads batches and is saved with the model.
        model_init: Returns the model; called when the Trainer is constructed and again before each training.
        compute_loss_func: Returns the mean loss for outputs, labels and `num_items_in_batch`.
        compute_metrics: Returns names and numbers for an `EvalPrediction`; replaces the default metrics.
        callbacks: Callbacks of transformers or `glassloop.Callback` objects, or their classes.
        optimizers: An optimizer and a learning rate schedule that replace those of the settings.
        optimizer_cls_and_kwargs: The class of an optimizer and its arguments.
        preprocess_logits_for_metrics: Changes logits, given labels, before metrics are computed.
        tokenizer: Another name for `processing_class`.
        **own: Arguments that only Glassloop has: loss, on_gradients, accelerator, backend, measures.

    Raises:
        SettingsError: If an argument is missing, unknown or not supported.
        ModelError: If the tokenizer has tokens that the model has no vectors for.
    """

    _used_names = USED_NAMES

    def __init__(
        self,
        model: Model | None = None,
        args: Settings | None = None,
        data_collator: Collator | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: Tokenizer | None = None,
        model_init: Callable[[], Model] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: Sequence[Callback | TrainerCallback | type] | None = None,
        optimizers: Optimizers = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None,
        preprocess_logits_for_metrics: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        **own: object,
    ) -> None:
        args = TrainingArguments() if args is None else args
        self.model_init, self.compute_loss_func = model_init, compute_loss_func
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self._optimizer_class = optimizer_cls_and_kwargs
        self.optimizer: Optimizer | None = None
        self.lr_scheduler: LRScheduler | None = None
        self._eval_sets = dict(eval_dataset) if isinstance(eval_dataset, dict) else {}
        self._model_loss: str | None = None
        self._adapted: TrainerCallbacks | None = None
        tokenizer = processing_class if processing_class is not None else tokenizer
        model = self._initialized(args.seed) if model is None and model_init is not None else model
        super().__init__(
            model if model is None else with_config(model),
            args,
            data_collator if data_collator is not None or tokenizer is not None else stacked,
            train_dataset,
            next(iter(self._eval_sets.values())) if self._eval_sets else eval_dataset,  # type: ignore[arg-type]
            tokenizer,
            compute_metrics,
            callbacks,  # type: ignore[arg-type]
            optimizers,
            **own,  # type: ignore[arg-type]
        )
        self._tell("on_init_end")

    # --- parts of a training

    _is_logging = False

    def _initialized(self, seed: int) -> Model:
        """Return a new model of `model_init`, with random weights that depend on the seed only."""
        seed_all(seed)
        assert self.model_init is not None
        return self.model_init()

    def _overrides(self, *names: str) -> list[str]:
        """Return which of these methods are not those of Glassloop."""
        return [name for name in names if overrides(self, Trainer, name)]

    def _why_plain(self) -> str | None:
        found = self._overrides("compute_loss", "prediction_step", *LOADERS, *OPTIMIZERS)
        if found:
            return f"{found[0]} is overridden"
        if self.compute_loss_func is not None:
            return "compute_loss_func is given"
        if self.train_dataset is not None and not hasattr(self.train_dataset, "__len__"):
            return "the training data has no length"
        return "the loss is that of the model" if self._model_loss else None

    def _new_state(self) -> State:
        return TrainerState()

    def _batches(self, rows: Rows | None, *, training: bool) -> Batches:
        name = "get_train_dataloader" if training else "get_eval_dataloader"
        if self._overrides(name) or (training and not hasattr(rows, "__len__")):
            made = self.get_train_dataloader() if training else self.get_eval_dataloader(rows)
            processes = self.backend.processes
            known = self.args.max_steps * self.args.gradient_accumulation_steps
            return LoaderBatches(made, processes.rank, processes.num_processes, known)  # type: ignore[return-value]
        return super()._batches(rows, training=training)

    def _readable(self, rows: Rows | None) -> Rows:
        if rows is not None and (self._overrides("get_train_dataloader") or not hasattr(rows, "__len__")):
            return rows
        return super()._readable(rows)

    def _parts(self) -> TrainingParts:
        if self.model_init is not None:
            self.model = self._initialized(self.args.seed)
        self._adapt()
        self._find_loss()
        parts = super()._parts()
        self._plan = parts.plan
        if isinstance(self.state, TrainerState):
            self.state.max_steps = parts.plan.max_steps
        batch_loss = self._batch_loss()
        name = None if batch_loss is None else f"compute_loss of {type(self).__name__}"
        if self._overrides("log"):
            parts = replace(parts, callbacks=[*parts.callbacks, Logged(self)])
        if self._overrides(*OPTIMIZERS) or self._optimizer_class is not None:
            self.optimizer = self.lr_scheduler = None
            self.create_optimizer_and_scheduler(parts.plan.max_steps)
            parts = replace(parts, optimizers=(self.optimizer, self.lr_scheduler))
        return replace(parts, batch_loss=batch_loss, loss_name=name, started=self._started)

    def _find_loss(self) -> None:
        """Find out whether the model computes another loss than Glassloop; then the model's own is used."""
        if self._overrides("compute_loss") or self.compute_loss_func is not None or self._has_own_loss():
            return
        if self.train_dataset is None:
            return
        if is_bare(self.model):
            self._model_loss = "the model is a plain torch module"
            return
        batch = next(self._batches(self.train_dataset, training=True).epoch())
        found = other_loss(self.model, batch, self.task, self.backend, self._say_once)
        if found is not None:
            self._model_loss = found
            self._say_once(f"{found}; training uses the model's own")

    def _batch_loss(self) -> BatchLoss | None:
        """Return the loss of a script, or of the model, if Glassloop does not compute it itself."""
        if self._overrides("compute_loss") or self.compute_loss_func is not None or self._model_loss:
            return summed_loss(self.compute_loss, self.backend)
        return None

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
        if self._overrides("prediction_step"):
            return predicted_by_step(self.prediction_step, self.backend)
        if self._overrides("compute_loss") or self.compute_loss_func is not None or self._model_loss:
            return predicted_with_loss(self.compute_loss, self.backend)
        return None

    def _started(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Take over the optimizer and the schedule of a training that begins."""
        self.optimizer, self.lr_scheduler = optimizer, scheduler

    # --- what scripts call

    def train(
        self,
        resume_from_checkpoint: bool | str | Path | None = None,
        trial: None = None,
        ignore_keys_for_eval: None = None,
        *,
        restart: bool = False,
    ) -> TrainOutput:
        """Train the model in place, to the end.

        Args:
            resume_from_checkpoint: True to resume from the newest intact checkpoint of output_dir, a path for that one.
            trial: Must be None.
            ignore_keys_for_eval: Must be None: only the logits of a model are read.
            restart: Start again from step 0, and move existing checkpoints aside.

        Returns:
            The number of steps, the mean loss and the metrics.

        Raises:
            GlassloopError: If settings, model or data cannot be used, or if the training diverges or runs out of memory.
        """
        output = super().train(resume_from_checkpoint, restart=restart)
        if isinstance(self.state, TrainerState):
            self.state.result = output.metrics
        self._report({name: value for name, value in output.metrics.items() if name != "epoch"})
        self._tell("on_log", logs=output.metrics)
        self._tell("on_train_end")
        return output

    def _report(self, logs: dict[str, float]) -> None:
        """Call an overridden `log` with an entry that the history has already."""
        if self._overrides("log"):
            self._is_logging = True
            try:
                self.log(logs)
            finally:
                self._is_logging = False

    def evaluate(
        self,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        ignore_keys: None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Return loss and metrics over all rows of one or several data sets. A training calls this method, too.

        Args:
            eval_dataset: The rows, or several data sets by name. Default: the `eval_dataset` of the Trainer.
            ignore_keys: Must be None: only the logits of a model are read.
            metric_key_prefix: What the name of each metric begins with; the name of a data set follows.

        Returns:
            The metrics by name, such as `eval_loss`.

        Raises:
            DivergedError: If the loss is not finite.
        """
        several = self._eval_sets if eval_dataset is None else eval_dataset if isinstance(eval_dataset, dict) else {}
        if not several:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)  # type: ignore[arg-type]
        found = Metrics()
        for name, rows in several.items():
            found |= super().evaluate(rows, ignore_keys, f"{metric_key_prefix}_{name}")
        return found

    def log_metrics(self, split: str, metrics: Mapping[str, float]) -> None:
        """Print metrics.

        Args:
            split: What they are of, such as "train" or "eval".
            metrics: Names and numbers.
        """
        if self.is_world_process_zero():
            show_metrics(split, metrics)

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        """Write metrics to SPLIT_results.json, and add them to all_results.json.

        Args:
            split: What they are of, such as "train" or "eval".
            metrics: Names and numbers.
            combined: Whether to add them to all_results.json.
        """
        if self.is_world_process_zero():
            write_metrics(self._folder, split, metrics, combined=combined)

    def save_state(self) -> None:
        """Write the state to trainer_state.json in output_dir."""
        if self.is_world_process_zero() and isinstance(self.state, TrainerState):
            self._folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(self._folder / STATE_NAME)

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of all."""
        return self.backend.processes.is_main

    def is_local_process_zero(self) -> bool:
        """Return whether this is the main process of this machine."""
        return self.backend.processes.is_main

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Save the model, its config and its tokenizer as transformers does, in safetensors format.

        Args:
            output_dir: The folder. Default: `output_dir` of the settings.
        """
        super().save_model(output_dir)

    def hyperparameter_search(self, *given: object, **named: object) -> None:
        """Refuse: train with other settings instead."""
        problem = "hyperparameter_search is not supported"
        raise SettingsError(problem, "train one run per setting: glassloop train --seeds, or a loop over TrainingArguments")


class Logged(Callback):
    """Calls an overridden `log` of a Trainer with every entry of its history."""

    reads_weights = False

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def report(self, state: State) -> None:
        """Call `log` with the latest entry."""
        self.trainer._report({name: value for name, value in state.history[-1].items() if name not in ("step", "epoch")})  # type: ignore[misc]

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Report a logged step."""
        self.report(state)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report an evaluation."""
        self.report(state)


__all__ = ["Trainer", "inputs_with_labels"]
