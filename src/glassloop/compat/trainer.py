"""`glassloop.Trainer`: the Trainer with everything that scripts for transformers call, override and read.

It finds out what a script has replaced, hands that as `ScriptParts` to the core Trainer (trainer.py), and answers under the
names of transformers. Below it: models, losses and loaders of scripts, callbacks of transformers, and the model card.
"""

from __future__ import annotations

import dis
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl
from transformers import TrainerState as TheirState
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import BestRun, RemoveColumnsCollator
from transformers.utils import find_labels

from glassloop import trainer as core
from glassloop.base.errors import ModelError, SettingsError, TooLargeError, listed
from glassloop.base.files import assigned, user_path, write_text
from glassloop.base.output import show
from glassloop.compat.arguments import TrainingArguments
from glassloop.compat.names import GONE_OF_TRAINER
from glassloop.compat.substitution import LEDGER
from glassloop.compat.trials import Objective, Space, search
from glassloop.data.batches import Batch, Batches, seed_all, stacked
from glassloop.data.interfaces import Collator, Model, Rows, Tokenizer
from glassloop.data.rows import LABEL_KEYS, RowReader, is_table, labels_in, random_states_kept
from glassloop.markup.templates import markdown_table
from glassloop.models.interface import STAND_IN, base_of
from glassloop.models.pooled import PooledClassifier
from glassloop.report.card import Card, DataName, scores_table, write_card
from glassloop.runs.history import Entry, lasting
from glassloop.runs.record import Plan, checkpoint_name
from glassloop.scores.metrics import Measures, read_scores, short_metrics
from glassloop.scores.result import Score
from glassloop.settings.training import CLASSES, SCORE
from glassloop.settings.training import TrainingArguments as Settings
from glassloop.settings.transformers_names import SEQUENTIAL
from glassloop.share.upload import pushed, upload
from glassloop.trainer import DEFAULT_DIR, IGNORED, EvalPrediction, Metrics, PredictionOutput, RowUse, TrainOutput
from glassloop.training import optimizer as optimization
from glassloop.training.callbacks import Callback, State, checked_callbacks
from glassloop.training.evaluate import Evaluation, Interrupted, Nested, PredictBatch, each_array, first_array
from glassloop.training.interfaces import Backend, LossSum, LRScheduler, Optimizer, Tensors, TrainingUse
from glassloop.training.loop import TrainingBatch
from glassloop.training.losses import other_loss
from glassloop.training.session import STATE_NAME, Optimizers, ScriptParts, TrainingParts, log_history

if TYPE_CHECKING:
    from accelerate import Accelerator

Inputs = dict[str, torch.Tensor]
Prediction: TypeAlias = "tuple[torch.Tensor | None, Nested, Nested | None]"

THEIR_EVAL_BATCH_SIZE = 8  # the default of transformers' TrainingArguments
LOADER_OPTIONS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")
OPTIMIZERS = ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler")
TRAINS_AGAIN = "train() was called before: this training starts with a new optimizer; transformers' Trainer keeps the old one"


class Trainer(core.Trainer):
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
        loss: A function of logits and labels that returns one loss per row, or their sum; replaces the loss of the task.
        on_gradients: Called with the model in each step, before gradients are clipped.
        accelerator: The `accelerate.Accelerator` to train with.
        backend: How steps are run. Default: chosen from the settings and the machine.
        measures: Which of Glassloop's metrics to compute, such as those of `Examples.measures`.
        quiet: Whether to show neither lines nor a progress bar.
        **others: Arguments of other versions of transformers' Trainer, which are refused by name unless they are None.

    Attributes:
        optimizer: The optimizer of the current or last training; None before the first one.
        lr_scheduler: Its learning rate schedule.
        callback_handler: The callbacks for transformers, as a list of transformers.
        current_gradient_accumulation_steps: The number of batches of the current step.
        label_names: The inputs of the model that are labels.
        is_in_train: Whether a training is running.

    Raises:
        SettingsError: If an argument is missing, unknown or not supported.
        ModelError: If the tokenizer has tokens that the model has no vectors for.
    """

    # Overriding one of these in a subclass has an effect: `unused_names` looks for them here.
    model_init: Callable[..., Model] | None = None
    compute_loss_func: Callable[..., torch.Tensor] | None = None
    preprocess_logits_for_metrics: Callable[..., Nested] | None = None
    optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None
    optimizer: Optimizer | None = None
    lr_scheduler: LRScheduler | None = None
    callback_handler: CallbackHandler = None
    label_names: Sequence[str] = ("labels",)
    current_gradient_accumulation_steps = 1
    is_in_train = False

    _only_for_users: ClassVar[dict[str, str]] = {
        name: core.INSTEAD[name] for name in ("_prepare_inputs", "_remove_unused_columns", "compute_loss_context_manager")
    }
    _falls_back = True
    _plan: Plan | None = None
    _train_loader: DataLoader[object] | None = None  # what callbacks get as the batches of the training
    _latest_loader: DataLoader[object] | None = None  # and as those of the latest evaluation
    _loop_scores: list[dict[str, float]] | None = None  # what an evaluation of the loop has found so far, per data set
    _loop_parts: Sequence[dict[str, float]] = ()  # of the latest one
    _is_logging = False
    _is_proving = False  # a fast backend is compared with plain
    _has_trained = False
    _accelerator: Accelerator | None = None
    _eval_loaders: Mapping[str, Loader] = {}
    _model_loss: str | None = None  # why the loss is that of the model
    _made: Optimizers = (None, None)  # optimizer and schedule that the last training used
    _saves_alone = False  # the main process writes a checkpoint, and the others do not take part
    _trial: object = None  # of a search for hyperparameters
    _eval_loader = "get_eval_dataloader"
    _ignore_keys: list[str] | None = None  # outputs of the model that are no predictions
    _predicts = False  # all outputs are returned, even if no metric needs them
    _needs_logits_only = False  # nobody sees the other outputs of a batch

    def __init__(
        self,
        model: Model | None = None,
        args: Settings | None = None,
        data_collator: Collator | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        processing_class: Tokenizer | None = None,
        model_init: Callable[..., Model] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: Sequence[Callback | TrainerCallback | type] | None = None,
        optimizers: Optimizers = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None,
        preprocess_logits_for_metrics: Callable[..., torch.Tensor] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        loss: LossSum | None = None,
        on_gradients: Callable[[torch.nn.Module], None] | None = None,
        accelerator: Accelerator | None = None,
        backend: Backend | None = None,
        measures: Measures | None = None,
        quiet: bool = False,
        **others: object,
    ) -> None:
        args = TrainingArguments() if args is None else args
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._eval_sets: Mapping[str, Rows] = dict(eval_dataset) if isinstance(eval_dataset, dict) else {}
        tokenizer = processing_class if processing_class is not None else tokenizer
        if LEDGER.serves_old_names:
            drop_former(others, args)
        model = self._initialized(model_init, args.seed) if model is None and model_init is not None else model
        named: Sequence[str] | None = getattr(args, "label_names", None)
        if named is None:  # as in transformers, the inputs of the model with the word in their name
            named = (find_labels(type(base_of(model))) if isinstance(model, torch.nn.Module) else []) or ["labels"]
        self.label_names = named
        super().__init__(
            model if model is None else with_config(model),
            args,
            data_collator if data_collator is not None or tokenizer is not None else stacked,
            train_dataset,
            next(iter(self._eval_sets.values())) if self._eval_sets else eval_dataset,  # type: ignore[arg-type]
            tokenizer,
            compute_metrics,
            callbacks,
            optimizers,
            loss=loss,
            on_gradients=on_gradients,
            accelerator=accelerator,
            backend=backend,
            measures=measures,
            quiet=quiet,
            **others,
        )
        self.optimizer, self.lr_scheduler = self._made = optimizers
        # The values of settings that have no effect after construction.
        self._read_once = {name: {vars(args)[name]} for name in core.READ_ONCE if name != "output_dir"}
        self._read_once["device"].add(self.backend.device.type)
        if isinstance(args, TrainingArguments):
            args.set_device(self.backend.device.type)
        self._tell("on_init_end")

    def train(
        self,
        resume_from_checkpoint: bool | str | Path | None = None,
        trial: None = None,
        ignore_keys_for_eval: list[str] | None = None,
        *,
        restart: bool = False,
        report: bool = True,
    ) -> TrainOutput:
        """Train the model in place, to the end, and write `report.html` to the output folder.

        Args:
            resume_from_checkpoint: True to resume from the newest intact checkpoint of output_dir, a path for that one.
            trial: Must be None.
            ignore_keys_for_eval: Outputs of the model that evaluations leave out of the predictions.
            restart: Start again from step 0, and move existing checkpoints aside.
            report: Whether to write the report.

        Returns:
            The number of steps, the mean loss and the metrics.

        Raises:
            GlassloopError: If settings, model or data cannot be used, or if the training diverges or runs out of memory.
        """
        makes_optimizer = next(iter(self.optimizers)) is None and self._own_optimizers()[0] is None
        if self._has_trained and not resume_from_checkpoint and self.model_init is None and makes_optimizer:
            self._say(TRAINS_AGAIN)
        self._has_trained = True
        with assigned(self, is_in_train=True, _ignore_keys=ignore_keys_for_eval):
            again = restart or not resume_from_checkpoint  # as with transformers, a folder may be trained into again
            output = self._train_in_memory(resume_from_checkpoint, restart=again, report=report)
        if resume_from_checkpoint:
            self._say_once("train_loss is the mean over all steps; transformers' Trainer omits those before a resume")
        self.state.log_history.append({**output.metrics, "step": output.global_step})
        self._report({name: value for name, value in output.metrics.items() if name != "epoch"})
        self._tell("on_log", logs=output.metrics)
        self._tell("on_train_end")
        if getattr(self.args, "push_to_hub", False) and self.is_world_process_zero():
            self._say(pushed(self.push_to_hub))
        return output

    def _train_in_memory(self, resume: bool | str | Path | None, *, restart: bool, report: bool) -> TrainOutput:
        """Train; with `auto_find_batch_size`, halve a batch that does not fit into memory, and start again."""
        args = self.args
        if not getattr(args, "auto_find_batch_size", False) or resume or tuple(self.optimizers) != (None, None):
            return super().train(resume, restart=restart, report=report)
        initial = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}
        while True:
            try:
                return super().train(restart=restart, report=report)
            except TooLargeError:
                size = args.per_device_train_batch_size
                if size == 1 or self.state.evaluation_due:
                    raise
                self._say(f"a batch of {size} rows does not fit into memory: training starts again with {size // 2} rows")
                object.__setattr__(args, "per_device_train_batch_size", size // 2)
                self.model.load_state_dict(initial)
                restart = True  # what was trained with larger batches is moved aside

    def training_parts(self, *, in_run: bool = False) -> TrainingParts:
        """Check everything a training needs, with a new model of `model_init`, and return its parts. `in_run`: for a run."""
        if changed := [name for name, then in self._read_once.items() if vars(self.args)[name] not in then]:
            problem = f"{listed(changed)} cannot be changed after a Trainer is constructed"
            raise SettingsError(problem, "construct a new Trainer")
        self._folder = Path(self.args.output_dir or DEFAULT_DIR)
        if self.model_init is not None:
            self.model = self._initialized(self.model_init, self.args.seed)
        self._find_loss()
        batches = self.args.gradient_accumulation_steps
        if batches > 1 and not self._overrides("training_step") and adds_up_batches(base_of(self.model)):
            self._say_once(f"the loss of a step is the mean of its {batches:,} batches; transformers' Trainer logs their sum")
        return super().training_parts(in_run=in_run)

    def _script_parts(self, plan: Plan, batches: Batches) -> ScriptParts:
        self._plan = plan
        adapted = self._adapted
        if isinstance(batches, LoaderBatches):
            self._train_loader = batches.loader  # type: ignore[assignment]  # most often a DataLoader
        elif adapted.reads_weights:
            self._train_loader = self.get_train_dataloader()
        steps_itself = bool(self._overrides("training_step"))
        if steps_itself and (self.backend.processes.num_processes > 1 or getattr(self.backend, "precision", "") == "fp16"):
            problem = "an overridden training_step runs the backward pass itself, which needs one process and no fp16"
            raise SettingsError(problem, "override compute_loss instead, or use bf16 or fp32 in one process")
        optimizers = self.optimizers
        if tuple(optimizers) == (None, None):
            self.optimizer, self.lr_scheduler = self._own_optimizers()
            if self._overrides(*OPTIMIZERS) or self.optimizer_cls_and_kwargs is not None:
                self.create_optimizer_and_scheduler(plan.max_steps)
            optimizers = (self.optimizer, self.lr_scheduler)
        replaced = "training_step" if steps_itself else "compute_loss" if self._replaces_loss() else None
        saves_itself = bool(self._overrides("save_model"))
        reads_gradients = bool(adapted.listeners(*UPDATES))
        return ScriptParts(
            callbacks=self.callbacks,
            optimizers=optimizers,
            write_model=self._write_with_script if saves_itself else self.write_model,
            quiet=self._quiet or not self._shows_progress(),
            batch_loss=self._batch_loss if self._replaces_loss() else None,
            batch_step=self._batch_step if steps_itself else None,
            loss_compared=True,
            loss_name=replaced and f"{replaced} of {type(self).__name__}",
            before_update=adapted.before_update if reads_gradients else None,
            after_update=adapted.after_update if reads_gradients else None,
            asked_only=True,
            # A callback may read a checkpoint, or add files to it, as soon as it is saved.
            saves_in_background=not (saves_itself or adapted.listeners("on_save")),
            started=self._started,
        )

    def _started(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        self.optimizer, self.lr_scheduler = self._made = optimizer, scheduler

    # --- what a script has replaced, and what that costs

    def _initialized(self, make: Callable[..., Model], seed: int) -> Model:
        """Return a new model of `model_init`, with random weights that depend on the seed only."""
        seed_all(seed)
        if isinstance(make, torch.nn.Module):
            problem = "model_init is a model, not a function that returns one"
            raise SettingsError(problem, "omit the parentheses: model_init=model_init")
        return with_config(make(self._trial) if inspect.signature(make).parameters else make())

    def _overrides(self, *names: str) -> list[str]:
        """Return which of these methods are not those of Glassloop."""
        return [name for name in names if overrides(self, Trainer, name)]

    def _own_optimizers(self) -> Optimizers:
        """Return the optimizer and the schedule that a script has assigned or created before the training."""
        mine = [None if now is then else now for now, then in zip((self.optimizer, self.lr_scheduler), self._made, strict=True)]
        return mine[0], mine[1]  # type: ignore[return-value]  # an optimizer and a schedule, in this order

    def _why_plain(self) -> str | None:
        """Return why only the plain backend can train. What concerns evaluations alone does not count: `_why_padded`."""
        methods = ("training_step", "get_train_dataloader", "_get_train_sampler", *OPTIMIZERS)
        reasons = {
            "the model is a plain torch module": is_bare(self.model),
            **{f"{name} is overridden": True for name in self._overrides(*methods)},
            "optimizer_cls_and_kwargs is given": self.optimizer_cls_and_kwargs is not None,
            "the training data has no length": self.train_dataset is not None and not hasattr(self.train_dataset, "__len__"),
            "the optimizer is custom": self._own_optimizers() != (None, None),
            "a callback freezes or unfreezes weights": any(map(freezes_weights, self.callback_handler.callbacks)),
            **{f"{name} may read gradients": True for name in self._adapted.listeners(*UPDATES)},
            "label_names is set": self._model_loss is not None and self._other_label_names(),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _why_padded(self, rows: Rows | None) -> str | None:
        if replaced := self._overrides("prediction_step", self._eval_loader, "_get_eval_sampler"):
            return f"{replaced[0]} is overridden"
        if self._returns_more():
            return "the model returns hidden states or attentions"
        if self._replaces_loss():
            return "the loss of a script may depend on the rows of a batch"
        return "the rows have no length" if self._reads_loader(rows, training=False) else None

    def _find_loss(self) -> None:
        """Find out whether the model computes another loss than Glassloop; then the model's own is used."""
        if self._overrides("compute_loss") or self.compute_loss_func is not None or self._has_own_loss():
            return
        if is_bare(self.model):
            self._model_loss = "the model is a plain torch module"
        elif self._other_label_names() or self._has_ignored_labels(self.train_dataset):
            self._model_loss = "label_names is set" if self._other_label_names() else "some labels are -100"
            self._say_once(f"{self._model_loss}: the loss is that of the model")
        elif (batch := next(self._batches(self.train_dataset, training=True).epoch(), None)) is not None:
            if is_own(self.model) and not (fits_classes(batch.labels) or self.task == SCORE):
                self._model_loss = "the model has its own task"
                return
            try:
                reason = other_loss(self.model, batch, self.task, self.backend, self._say_once)
            except ModelError:
                if not is_own(self.model):
                    raise
                reason = "the outputs of the model have no logits by name"
            if reason is not None:
                self._model_loss = reason
                self._say_once(f"{reason}; training uses the model's own")

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

    def _has_own_loss(self) -> bool:
        """Return whether the settings define the loss, instead of the model."""
        return bool(self.loss is not None or self.args.class_weights or self.args.label_smoothing_factor)

    def _other_label_names(self) -> bool:
        """Return whether labels have other names than the usual ones, so that only the model knows what they mean."""
        return getattr(self.args, "label_names", None) is not None and not {*self.label_names} <= {*LABEL_KEYS}

    def _returns_more(self) -> bool:
        """Return whether the config of a model asks for outputs beside logits."""
        config = getattr(self.model, "config", None)
        return any(getattr(config, name, False) is True for name in ("output_hidden_states", "output_attentions"))

    # --- the loss and the steps of a script

    def compute_loss(
        self, model: Model, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: int | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, object]:
        """Return the mean loss of a batch. A subclass may override this; calling `model` with `inputs` runs packed.

        Args:
            model: The model.
            inputs: The tensors of the batch by name, with labels.
            return_outputs: Whether to return the outputs of the model, too.
            num_items_in_batch: The number of rows that the losses are divided by. Default: the rows of the batch.
        """
        labels = inputs.get("labels")
        unlabeled = {name: value for name, value in inputs.items() if name != "labels"}
        if self.compute_loss_func is not None:
            outputs = model(**unlabeled)
            count = num_items_in_batch if num_items_in_batch is not None else count_of(labels, rows_of(inputs))
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=count)
        elif labels is not None and self._has_own_loss():
            outputs = model(**unlabeled)
            loss = self._loss_sum()(logits_of(outputs).float(), labels) / len(labels)
        else:
            outputs = model(**inputs)
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Model, inputs: Inputs, num_items_in_batch: int | None = None) -> torch.Tensor:
        """Add the gradients of a batch, and return its part of the loss of the step. If overridden, the plain backend trains.

        `model` and `inputs` are those of `compute_loss`; `num_items_in_batch` is accepted for compatibility.
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
        return self.backend.move(inputs)

    def _inputs_of(self, batch: TrainingBatch | Batch) -> Inputs:
        inputs = self.backend.script_inputs(batch)
        return inputs if batch.labels is None else {**inputs, "labels": self.backend.move(batch.labels)}

    def _batch_loss(self, model: torch.nn.Module, batch: TrainingBatch) -> torch.Tensor:
        """Return the sum of the rows' losses by a `compute_loss` that returns their mean."""
        rows = len(batch.numbers)
        inputs = self._inputs_of(batch)
        loss = self.compute_loss(model, inputs, **named_count(self.compute_loss, inputs.get("labels"), rows))  # type: ignore[arg-type]
        return tensor_of(loss).float().mean() * rows

    def _batch_step(self, model: torch.nn.Module, batch: TrainingBatch, batches: int) -> torch.Tensor:
        """Run a script's own `training_step`, which runs the backward pass itself, for one batch of a step."""
        self.current_gradient_accumulation_steps = batches
        inputs = self._inputs_of(batch)
        count = named_count(self.training_step, inputs.get("labels"), len(batch.numbers))
        loss = self.training_step(model, inputs, **count)  # type: ignore[arg-type]
        return tensor_of(loss, "training_step").detach().float().mean()

    # --- optimizers and schedules

    def create_optimizer(self) -> Optimizer:
        """Set `optimizer` to that of the settings and return it."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is not None:
            self.optimizer = optimization.optimizer_of(self.model, self.args.weight_decay, *self.optimizer_cls_and_kwargs)
        elif self.optimizer is None:
            self.optimizer = optimization.optimizer_for(self.args, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Set `lr_scheduler` for `num_training_steps` of `optimizer`, or of that of the Trainer, and return it."""
        if self.lr_scheduler is None:
            optimizer = self.create_optimizer() if optimizer is None else optimizer
            warmup = optimization.whole_steps(self.args.warmup_steps, num_training_steps)
            self.lr_scheduler = optimization.scheduler_for(self.args, optimizer, warmup, num_training_steps)
        return self.lr_scheduler

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set `optimizer` and `lr_scheduler` for `num_training_steps`."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps, self.optimizer)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the parameters of `model` with weight decay: all but biases and those of normalization layers."""
        decayed = {id(weight) for weight in optimization.decay_groups(model, 1.0)[0]["params"]}
        return [name for name, weight in model.named_parameters() if id(weight) in decayed]

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each group of parameters. Raises `SettingsError` before there is an optimizer."""
        return [group["lr"] for group in self._torch_optimizer().param_groups]

    def get_optimizer_group(self, param: torch.nn.Parameter | None = None) -> list[dict[str, object]] | dict[str, object]:
        """Return the groups of the optimizer, or that of `param`. Raises `SettingsError` if there is none."""
        groups = self._torch_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        for group in groups:
            if any(weight is param for weight in group["params"]):
                return group
        raise SettingsError("no group of the optimizer has this parameter", "pass one that is trained")

    def _torch_optimizer(self) -> Optimizer:
        if self.optimizer is None:
            raise SettingsError("there is no optimizer before training", "call create_optimizer() first")
        return optimization.unwrap_optimizer(self.optimizer)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of parameters that are not frozen."""
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    # --- rows and batches

    def _batches(self, rows: Rows | None, *, training: bool) -> Batches:
        if not self._reads_loader(rows, training=training):
            return super()._batches(rows, training=training)
        if training:
            loader = self.get_train_dataloader()
        else:
            self._latest_loader = loader = getattr(self, self._eval_loader)(rows.rows if isinstance(rows, RowReader) else rows)
        processes = self.backend.processes
        if training and processes.num_processes > 1:  # transformers gives each process batches of its own
            self._say_once(f"each batch of get_train_dataloader is divided among the {processes.num_processes} processes")
        number = self.args.max_steps * self.args.gradient_accumulation_steps
        return LoaderBatches(loader, processes.rank, processes.num_processes, number)  # type: ignore[return-value]

    def _reads_loader(self, rows: Rows | None, *, training: bool) -> bool:
        """Return whether batches come from a DataLoader of a script, or from a stream of rows."""
        methods = ("get_train_dataloader", "_get_train_sampler") if training else (self._eval_loader, "_get_eval_sampler")
        is_stream = rows is not None and not hasattr(rows, "__len__") and hasattr(rows, "__iter__")
        return (is_stream and (not training or self.args.max_steps > 0)) or bool(self._overrides(*methods))

    def _readable(self, rows: Rows | None) -> Rows:
        if self._reads_loader(rows, training=True):
            return [] if rows is None else rows
        return super()._readable(rows)

    def _row_use(self, *, training: bool) -> RowUse:
        """Return what is done with rows. If a batch matters as a whole, as for an own loss, it holds rows in their order."""
        own_loss = self._replaces_loss() or self.loss is not None or bool(self._overrides("training_step"))
        in_order = own_loss or self._returns_more() or bool(self._overrides("prediction_step"))
        return replace(
            super()._row_use(training=training),
            shuffled=getattr(self.args, "train_sampling_strategy", None) != SEQUENTIAL,
            sorted=not in_order,
            any_labels=own_loss or is_own(self.model) or self._other_label_names(),
            ignored=IGNORED,
        )

    def _training_use(self) -> TrainingUse:
        use = super()._training_use()
        return replace(use, batch_loss=self._batch_loss if self._replaces_loss() else None)

    def _prove(self, rows: Rows | None = None) -> None:
        if rows is not None or not self._replaces_loss():
            super()._prove(rows)
            return
        # The check calls the loss of a script, which may count its calls and log: numbers and lists in attributes are restored,
        # and lists that the class of the script holds.
        values, own = dict(vars(self)), ("backend", "_reported", "_readers")
        data = (self.train_dataset, self.eval_dataset, self._eval_sets)
        of_classes = [
            value for kind in type(self).__mro__[: type(self).__mro__.index(Trainer)] for value in vars(kind).values()
        ]
        contents = [
            (value, copy(value))
            for value in (*of_classes, *(value for name, value in values.items() if name not in own))
            if isinstance(value, list | dict | set) and not any(value is rows for rows in data)
        ]
        with assigned(self, _is_proving=True):
            super()._prove(rows)
        found = {name: value for name, value in vars(self).items() if name in own}
        vars(self).clear()
        vars(self).update(values | found)
        for value, before in contents:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)

    def _own_data_sets(self) -> list[Rows | None]:
        return [self.train_dataset, *(self._eval_sets.values() or [self.eval_dataset])]

    def _taken_columns(self) -> set[str] | None:
        if getattr(self.args, "remove_unused_columns", True) is False:
            return None
        return core.columns_taken_by(self.model) | {*self.label_names}

    def _remove_unused_columns(self, dataset: Rows, description: str | None = None) -> Rows:
        """Return the rows without columns the model does not accept. Scripts that look for a mistake call this."""
        return core.accepted_columns(dataset, self._taken_columns(), self._say_once) if is_table(dataset) else dataset

    def get_train_dataloader(self) -> Loader:
        """Return a DataLoader of the training rows. Training uses it only if a subclass overrides it or its sampler."""
        return self._loader(self.train_dataset, self.args.per_device_train_batch_size, "_get_train_sampler")

    def get_eval_dataloader(self, eval_dataset: Rows | str | None = None) -> Loader:
        """Return a DataLoader of `eval_dataset`: rows, the name of one of several sets, or None for those of the Trainer.

        Evaluations use it only if a subclass overrides this method.
        """
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if key in self._eval_loaders:
            return self._eval_loaders[key]
        rows = self._eval_sets[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        rows = self.eval_dataset if rows is None else rows
        loader = self._loader(rows, self.args.per_device_eval_batch_size, "_get_eval_sampler")
        if getattr(self.args, "dataloader_persistent_workers", False):  # its worker processes live as long as the loader
            self._eval_loaders = {**self._eval_loaders, key: loader}
        return loader

    def get_test_dataloader(self, test_dataset: Rows) -> Loader:
        """Return a DataLoader of `test_dataset`. Predictions use it only if a subclass overrides this method."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, rows: Rows | None, size: int, sampler_method: str | None = None) -> Loader:
        """Return a DataLoader with the settings for DataLoaders, and the sampler of a method that a subclass may override."""
        if rows is None:
            raise SettingsError("the Trainer has no rows to read", "pass train_dataset= or eval_dataset=")
        rows = self._remove_unused_columns(rows)
        args, collate, taken = self.args, self.data_collator, self._taken_columns()
        if taken is not None and not is_table(rows):
            collate = RemoveColumnsCollator(collate, taken)
        sampler: Sampler[int] | None = None
        if sampler_method and hasattr(rows, "__len__"):
            make = getattr(self, sampler_method)
            sampler = make(rows) if inspect.signature(make).parameters else make()
        options = {name: getattr(args, f"dataloader_{name}", None) for name in LOADER_OPTIONS}
        return Loader(
            rows,  # type: ignore[arg-type]
            batch_size=size,
            sampler=sampler,
            collate_fn=collate,
            drop_last=args.dataloader_drop_last and hasattr(rows, "__len__"),
            **{name: value for name, value in options.items() if value is not None},
        )

    def _get_train_sampler(self, train_dataset: Rows | None = None) -> Sampler[int] | None:
        """Return the sampler of the training rows. Training uses it only if a subclass overrides this method."""
        rows, args = self.train_dataset if train_dataset is None else train_dataset, self.args
        if rows is None or not hasattr(rows, "__len__"):
            return None
        if getattr(args, "train_sampling_strategy", None) == SEQUENTIAL:
            return SequentialSampler(rows)
        generator = torch.Generator().manual_seed(args.seed)
        if args.group_by_length:
            size = args.per_device_train_batch_size * args.gradient_accumulation_steps
            grouped: Sampler[int] = LengthGroupedSampler(size, rows, generator=generator)
            return grouped
        return RandomSampler(rows, generator=generator)

    def _get_eval_sampler(self, eval_dataset: Rows) -> Sampler[int] | None:
        """Return the sampler of evaluation rows. Evaluations use it only if a subclass overrides this method."""
        return SequentialSampler(eval_dataset) if hasattr(eval_dataset, "__len__") else None

    def num_examples(self, dataloader: DataLoader[object]) -> int:
        """Return the number of rows of a `dataloader`."""
        return len(dataloader.dataset)  # type: ignore[arg-type]

    # The number of training rows of a batch in this process. Scripts assign it, too.
    _train_batch_size = property(
        lambda self: self.args.per_device_train_batch_size,
        lambda self, rows: setattr(self.args, "per_device_train_batch_size", rows),
    )

    # --- evaluations and predictions

    def evaluate(
        self,
        eval_dataset: Rows | Mapping[str, Rows] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Return loss and metrics over all rows of one or several data sets. A training calls this method, too.

        Args:
            eval_dataset: The rows, several data sets by name, or the name of one. Default: the `eval_dataset` of the Trainer.
            ignore_keys: Outputs of the model to leave out of the predictions. Default: those that its config names.
            metric_key_prefix: What the name of each metric begins with; the name of a data set follows.

        Returns:
            The metrics by name, such as `eval_loss`.

        Raises:
            DivergedError: If the loss is not finite.
        """
        if isinstance(eval_dataset, str):
            eval_dataset = {eval_dataset: self._eval_sets[eval_dataset]}
        several = self._eval_sets if eval_dataset is None else eval_dataset if isinstance(eval_dataset, dict) else {}
        sets = {f"{metric_key_prefix}_{name}": rows for name, rows in several.items()} or {metric_key_prefix: eval_dataset}
        metrics = Metrics()
        for prefix, rows in sets.items():
            with assigned(self, _ignore_keys=self._ignore_keys if ignore_keys is None else ignore_keys), self._undisturbed():
                scores = super().evaluate(rows, None, prefix)
            if self._loop_scores is None:
                self._log_evaluation(scores)
            else:
                self._loop_scores.append(scores)
            metrics |= scores
        return metrics

    def _log_evaluation(self, scores: dict[str, float]) -> None:
        self.log(scores)
        self._tell("on_evaluate", metrics=scores)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run a pass over rows that a callback makes between two steps without an effect on the steps that follow."""
        if not self.is_in_train or self._loop_scores is not None:
            yield
            return
        self.backend.sync_to_model()
        with random_states_kept(self.backend.device):
            yield

    def _evaluate(
        self, trial: None = None, ignore_keys_for_eval: list[str] | None = None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Return the metrics of an evaluation during training, under the name that transformers has for it."""
        return self.evaluate()

    def _evaluate_between_steps(self) -> dict[str, float] | None:
        evaluated: list[dict[str, float]] = []
        try:
            with self._interruptible(), assigned(self, _loop_scores=evaluated):
                metrics = self._evaluate(None, None)
        except Interrupted:
            return None
        # The loop logs what `evaluate` returns; a script's own `evaluate` may have evaluated other rows, too.
        self._loop_parts = [scores for scores in evaluated if scores.keys() <= metrics.keys()]
        for scores in evaluated:
            if not scores.keys() <= metrics.keys():
                self._log_evaluation(scores)
        return metrics

    def predict(
        self, test_dataset: Rows, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return logits, labels and metrics of all rows, in their order.

        Args:
            test_dataset: The rows, with or without labels.
            ignore_keys: Outputs of the model to leave out of the predictions. Default: those that its config names.
            metric_key_prefix: What the name of each metric begins with.

        Returns:
            The logits, or a tuple of them and other outputs of the model, as `predictions`; labels as `label_ids`; metrics.

        Raises:
            DivergedError: If the loss is not finite.
        """
        with assigned(self, _eval_loader="get_test_dataloader", _predicts=True, _ignore_keys=ignore_keys), self._undisturbed():
            output = super().predict(test_dataset, None, metric_key_prefix)
        if output.label_ids is not None and flattens_scores(self.model):
            output = output._replace(predictions=flattened(output.predictions))
        if self.args.group_by_length:
            self._say_once("predictions are in the order of the rows; transformers' Trainer sorts them with group_by_length")
        self._tell("on_predict", metrics=output.metrics)
        return output

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
        labels = self._labels_in(inputs)  # before the loss may remove them
        if labels is None:
            return None, self._predictions(model(**inputs), ignore_keys), None
        count = named_count(self.compute_loss, labels, rows_of(inputs))
        result = self.compute_loss(model, inputs, return_outputs=True, **count)  # type: ignore[arg-type]
        if not isinstance(result, tuple) or len(result) != 2:
            problem = "compute_loss ignores return_outputs=True, so an evaluation has no logits"
            raise SettingsError(problem, "return (loss, outputs) if return_outputs is true")
        predictions = None if prediction_loss_only else self._predictions(result[1], ignore_keys, after_loss=True)
        return tensor_of(result), predictions, labels

    def _labels_in(self, inputs: Mapping[str, torch.Tensor]) -> Nested | None:
        """Return the labels among the inputs: a tuple of several, None if there are none."""
        named = tuple(inputs[name] for name in self.label_names if inputs.get(name) is not None)
        if named and len(named) == len(self.label_names):
            return named[0] if len(named) == 1 else named
        return inputs.get("labels")

    def _predictions(self, outputs: object, ignore_keys: Sequence[str] | None, *, after_loss: bool = False) -> Nested:
        """Return the logits, or all outputs but the loss, as transformers does; `after_loss`, a tuple begins with it."""
        if self._needs_logits_only:
            return logits_of(outputs).float()
        if ignore_keys is None:
            ignore_keys = getattr(getattr(self.model, "config", None), "keys_to_ignore_at_inference", None)
        ignored = {"loss", *(["past_key_values"] if ignore_keys is None else ignore_keys)}
        parts: object = outputs
        if isinstance(outputs, Mapping):
            parts = tuple(value for name, value in outputs.items() if name not in ignored)
        elif isinstance(outputs, tuple):
            parts = outputs[1:] if after_loss and len(outputs) > 1 else outputs
        if not isinstance(parts, tuple) or not parts:
            return logits_of(outputs).float()
        chosen = parts[0] if len(parts) == 1 else parts
        return each_array(lambda value: value.float() if value.is_floating_point() else value, chosen)

    def _run(self, model: Model, rows: Rows | None, prefix: str) -> Evaluation:
        if rows is not None and self._adapted.reads_weights and not self._reads_loader(rows, training=False):
            raw = rows.rows if isinstance(rows, RowReader) else rows
            self._latest_loader = self._loader(raw, self.args.per_device_eval_batch_size)
        size, number = self.args.per_device_eval_batch_size, len(rows) if hasattr(rows, "__len__") else 0  # type: ignore[arg-type]
        if self._replaces_loss() and size == Settings.per_device_eval_batch_size and number > THEIR_EVAL_BATCH_SIZE:
            theirs = f"the default of transformers is {THEIR_EVAL_BATCH_SIZE}"
            self._say_once(f"evaluations have batches of {size} rows ({theirs}), on which a loss that is not a mean depends")
        is_unknown = not (self.is_in_train or self._replaces_loss() or self._has_own_loss())
        is_unusual = is_unknown and (is_own(self.model) or self._other_label_names() or self._has_ignored_labels(rows))
        with assigned(self, _model_loss="nothing was compared yet" if is_unusual else self._model_loss):
            evaluation = super()._run(model, rows, prefix)
        labels = evaluation.labels
        if isinstance(labels, np.ndarray) and labels.size and (labels == IGNORED).all():
            # Every label is -100: there is nothing to compare with, so there is no loss.
            metrics = {name: value for name, value in evaluation.metrics.items() if name != f"{prefix}_loss"}
            return replace(evaluation, loss=None, metrics=metrics)
        return evaluation

    def _predict_batch(self) -> PredictBatch:
        by_step, own_loss, loss_sum = bool(self._overrides("prediction_step")), self._replaces_loss(), self._loss_sum()
        change, move = self.preprocess_logits_for_metrics, self.backend.move
        shows_outputs = by_step or self._predicts or self.compute_metrics is not None or change is not None
        is_watched = bool(self._adapted.listeners("on_prediction_step"))

        def with_step(model: torch.nn.Module, batch: Batch) -> Prediction:
            loss, logits, labels = self.prediction_step(model, self._inputs_of(batch), False, self._ignore_keys)
            if logits is None:
                raise SettingsError("prediction_step returned no logits", "return (loss, logits, labels)")
            if loss is not None:
                loss = tensor_of(loss).float().mean() * len(batch.numbers)
                if isinstance(labels, torch.Tensor) and not labels.is_floating_point() and not labels.ne(IGNORED).any():
                    loss = torch.zeros_like(loss)  # the mean of no losses is not a number
            return loss, logits, batch.labels if labels is None else labels

        def with_usual_loss(model: torch.nn.Module, batch: Batch) -> Prediction:
            outputs = model(**move(batch.inputs))
            loss = None if batch.labels is None else loss_sum(logits_of(outputs).float(), move(batch.labels))
            return loss, self._predictions(outputs, self._ignore_keys), batch.labels

        def predict(model: torch.nn.Module, batch: Batch) -> Prediction:
            with assigned(self, _needs_logits_only=not shows_outputs):
                loss, logits, labels = (with_step if by_step or own_loss else with_usual_loss)(model, batch)
            if change is not None:
                logits = change(logits, None if labels is None else each_array(move, labels))
            if is_watched:
                self._tell("on_prediction_step")
            return loss, logits, labels

        return predict

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """Return the metrics of `compute_metrics`, or of the task, for what was `found`. A subclass may override this."""
        if getattr(self.args, "batch_eval_metrics", False) and self.compute_metrics is not None:
            scores = in_batches(self.compute_metrics, found, self.args.per_device_eval_batch_size)
            return read_scores(scores, self._say_once, self.args.metric_for_best_model)
        is_changed = self.preprocess_logits_for_metrics is not None and self.compute_metrics is None
        if getattr(self.args, "prediction_loss_only", False) or is_changed:
            return {}
        if self.compute_metrics is not None:
            flat = flattens_scores(self.model)
            return super().metrics_of(found._replace(predictions=flattened(found.predictions)) if flat else found)
        logits, labels = first_array(found.predictions), first_array(found.label_ids)
        if is_own(self.model) and self.task != SCORE and not fits_classes(labels, logits):
            return {}
        counted = labels != IGNORED if self.task == CLASSES and labels.ndim == 1 else np.ones(len(labels), dtype=bool)
        return super().metrics_of(EvalPrediction(logits[counted], labels[counted])) if counted.any() else {}

    # --- callbacks, state and log

    @property
    def state(self) -> TrainerState:
        """Where the training stands, as callbacks see it, too."""
        return self._seen.follow(self._plan, self.args.per_device_train_batch_size)

    @state.setter
    def state(self, state: State | TrainerState) -> None:
        self._seen = state if isinstance(state, TrainerState) else TrainerState.of(state)

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""
        return self._adapted.control

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user; those of transformers as one."""
        return [*self._callbacks, self._adapted]

    @callbacks.setter
    def callbacks(self, callbacks: Sequence[Callback | TrainerCallback | type] | None) -> None:
        foreign = [one for one in callbacks or () if is_for_transformers(one)]
        others = [one for one in callbacks or () if not is_for_transformers(one)]
        self._callbacks = checked_callbacks([one for one in others if not isinstance(one, TrainerCallbacks)])
        if len(self._callbacks) == len(others):
            # The default list of transformers, that of the script, and one that stands for Glassloop's progress display.
            self.callback_handler = CallbackHandler([DefaultFlowCallback, *foreign], None, None, None, None)
            self.callback_handler.add_callback(OWN_PRINTER if self.args.disable_tqdm else OWN_PROGRESS)
            self._adapted = TrainerCallbacks(self)
        else:  # the list as it was read, perhaps with more callbacks
            for one in foreign:
                self.callback_handler.add_callback(one)

    def add_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Add a `callback`, or one of a class."""
        if is_for_transformers(callback):
            self.callback_handler.add_callback(callback)
        else:
            self._callbacks += checked_callbacks([callback])

    def pop_callback(self, callback: Callback | TrainerCallback | type) -> Callback | TrainerCallback | None:
        """Remove a `callback`, or the one of a class, and return it; return None if the Trainer does not have it."""
        popped = next((one for one in self._callbacks if callback in (one, type(one))), None)
        if popped is None:
            return self.callback_handler.pop_callback(callback)
        self._callbacks = [one for one in self._callbacks if one is not popped]
        return popped

    def remove_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Remove a `callback`, or the one of a class, if the Trainer has it."""
        self.pop_callback(callback)

    def _shows_progress(self) -> bool:
        # A script may have removed the callback that stands for the progress display.
        return any(isinstance(one, ProgressCallback | PrinterCallback) for one in self.callback_handler.callbacks)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add `logs` and the epoch to the history of the training. A subclass may override this to see every entry.

        `start_time` is accepted for compatibility.
        """
        if self._is_proving:
            return
        state = self.state
        if self._is_logging:  # the loop has written the entry; a script's own `log` may have added to it
            if self.is_in_train:
                state.history[-1].update(lasting(logs))
            if state.log_history:
                state.log_history[-1].update(logs)
            return
        logs["epoch"] = state.epoch
        state.add(logs)
        self._tell("on_log", logs=logs)

    def _report(self, logs: dict[str, float]) -> None:
        """Call an overridden `log` with an entry that the history has already."""
        if self._overrides("log"):
            with assigned(self, _is_logging=True):
                self.log(logs)

    def _tell(self, event: str, **facts: object) -> None:
        """Call a method of the callbacks of transformers outside a training."""
        self._adapted.tell(event, None, **facts)

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the loop's latest evaluation for each data set. What a script added belongs to the last."""
        *others, last = self._loop_parts or [metrics]
        return [*others, {**last, **{name: value for name, value in metrics.items() if not any(name in one for one in others)}}]

    def _current_plan(self) -> Plan:
        """Return the plan of the training, or of the one that would start now."""
        if self._plan is None:
            number = len(self._batches(self.train_dataset, training=True))
            self._plan = optimization.make_plan(self.args, number, has_eval=self.eval_dataset is not None)
        return self._plan

    def log_metrics(self, split: str, metrics: Mapping[str, float]) -> None:
        """Print the `metrics` of a `split`, such as "eval", as transformers does: a line for each, ordered by name."""
        if self.is_world_process_zero():
            show(f"***** {split} metrics *****")
            width = max(map(len, metrics), default=0)
            for name, value in sorted(metrics.items()):
                show(f"  {name:<{width}} = {round(value, 4) if isinstance(value, float) else value!s:>10}")

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        """Write the `metrics` of a `split` to SPLIT_results.json and, if `combined`, add them to all_results.json."""
        if not self.is_world_process_zero():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        contents = {self._folder / f"{split}_results.json": dict(metrics)}
        if combined:
            path = self._folder / "all_results.json"
            contents[path] = {**(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}), **metrics}
        for path, content in contents.items():
            write_text(path, json.dumps(content, indent=4, sort_keys=True) + "\n")

    def save_state(self) -> None:
        """Write the state to trainer_state.json in output_dir."""
        if self.is_world_process_zero():
            self._folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(str(self._folder / STATE_NAME))

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of all."""
        return self.backend.processes.is_main

    def is_local_process_zero(self) -> bool:
        """Return whether this is the main process of this machine."""
        return self.is_world_process_zero()

    # --- files, uploads and searches

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Save the model, its config and its tokenizer in safetensors format to `output_dir`. Default: that of the settings."""
        if self._saves_alone:
            self.write_model(user_path(output_dir) if output_dir else self._folder)
        else:
            super().save_model(output_dir)

    def write_model(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model, or other `weights`, and its tokenizer to a `folder`; of a plain torch module, only weights."""
        if not is_bare(self.model):
            super().write_model(folder, weights)
            return
        folder.mkdir(parents=True, exist_ok=True)
        tensors = weights or self.backend.unwrap(self.model).state_dict()
        save_file({name: value.detach().cpu().clone() for name, value in tensors.items()}, folder / "model.safetensors")
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _write_with_script(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model of a checkpoint with a script's own `save_model`, in the main process alone."""
        named = {"_internal_call": True} if "_internal_call" in inspect.signature(self.save_model).parameters else {}
        with assigned(self, _saves_alone=True):
            self.save_model(str(folder), **named)

    def create_model_card(self, **facts: str | list[str] | None) -> None:
        """Write README.md to `output_dir`: a model card with the settings and the latest metrics. An edited card is kept.

        `facts` are entries of the card, such as language, license, tags, model_name, finetuned_from, dataset.
        """
        if self.is_world_process_zero():
            write_card(self._folder, trainer_card(self._folder.name, self.args, self.state.history, facts))

    def push_to_hub(self, commit_message: str = "End of training", blocking: bool = True, **facts: str | None) -> str:
        """Save the model and upload `output_dir` to the model hub. Return the address.

        Args:
            commit_message: The message of the commit.
            blocking: Accepted for compatibility: this method always waits for the upload.
            **facts: Entries of the model card; `token` and `revision` are those of the hub.

        Raises:
            ResourceError: If there is no access token, or the hub cannot be reached, or refuses.
        """
        stored = vars(self.args)
        name = stored.get("hub_model_id") or stored.get("push_to_hub_model_id") or self._folder.name
        owner = stored.get("push_to_hub_organization")
        token = facts.pop("token", None) or stored.get("hub_token") or stored.get("push_to_hub_token")
        revision = facts.pop("revision", None) or stored.get("hub_revision")
        self.save_model()
        self.create_model_card(**facts)
        name = f"{owner}/{name}" if owner and "/" not in name else str(name)
        private = stored.get("hub_private_repo")
        return upload(self._folder, name, commit_message, token=token, revision=revision, private=private)

    def hyperparameter_search(
        self,
        hp_space: Space | None = None,
        compute_objective: Objective | None = None,
        n_trials: int = 20,
        direction: str | Sequence[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[..., str] | None = None,
        **kwargs: object,
    ) -> BestRun | list[BestRun]:
        """Train with several hyperparameters, chosen by optuna, and return the best trial.

        Each trial trains a new model of `model_init` in its own folder, `run-0`, `run-1` and so on. The settings of this
        Trainer stay as they are. `study.json` in `output_dir` records all trials: the same call in another process continues
        a search that was stopped.

        Args:
            hp_space: Returns the settings of a trial for an `optuna.Trial`. Default: that of transformers.
            compute_objective: Returns a number for the metrics of an evaluation. Default: the sum of the metrics of
                `compute_metrics`; without it, the evaluation loss.
            n_trials: The number of trials.
            direction: "minimize" or "maximize", or a list of them for several objectives.
            backend: Must be None or "optuna".
            hp_name: Returns the name of a trial, and of its folder.
            **kwargs: Arguments of `optuna.create_study` and `optuna.Study.optimize`.

        Raises:
            SettingsError: If there is no model_init, no eval_dataset or no optuna, or if a setting is not allowed.
        """
        parts = {name: getattr(self, name) for name in ("backend", "_folder", "_plan")}
        args, ours, theirs = dict(vars(self.args)), [*self._callbacks], [*self.callback_handler.callbacks]
        attributes = [(callback, dict(vars(callback))) for callback in (*ours, *theirs)]

        def reset(trial: object) -> None:
            vars(self.args).clear()
            vars(self.args).update(args)
            vars(self).update(parts, _trial=trial)
            for callback, values in attributes:  # such as the counter of EarlyStoppingCallback
                vars(callback).clear()
                vars(callback).update(values)
            self._callbacks, self.callback_handler.callbacks = [*ours], [*theirs]

        rows: dict[str, object] = {"train": self.train_dataset, **(self._eval_sets or {"validation": self.eval_dataset})}
        try:
            return search(
                self, reset, rows, self.model_init, hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs
            )
        finally:
            reset(None)

    # --- what scripts read

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

    if not TYPE_CHECKING:  # else no wrong name would be found

        def __getattr__(self, name: str) -> object:
            if name in READ_BY_SCRIPTS:
                return READ_BY_SCRIPTS[name](self)
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")


# What scripts read of transformers' Trainer, or call in methods that they copied from it. Overriding these has no effect, so
# they are no attributes of the class, and a subclass that has one of them is refused.
READ_BY_SCRIPTS: dict[str, Callable[[Trainer], object]] = {
    **dict.fromkeys(("is_model_parallel", "is_deepspeed_enabled", "is_fsdp_xla_enabled"), lambda trainer: False),
    **dict.fromkeys(("deepspeed", "hp_name", "hp_search_backend", "hub_model_id", "label_smoother"), lambda trainer: None),
    **dict.fromkeys(("_set_signature_columns_if_needed", "store_flos", "end"), lambda trainer: lambda: None),
    "current_flos": lambda trainer: 0,
    "floating_point_ops": lambda trainer: lambda inputs: 0,
    "place_model_on_device": lambda trainer: True,
    "is_fsdp_enabled": lambda trainer: trainer.backend.name == "fsdp",
    "can_return_loss": lambda trainer: getattr(forward_parameters(trainer).get("return_loss"), "default", None) is True,
    "_signature_columns": lambda trainer: [
        *dict.fromkeys((*forward_parameters(trainer), "label", "label_ids", *trainer.label_names))
    ],
    "get_total_train_batch_size": lambda trainer: partial(rows_of_a_step, trainer),
    "_get_output_dir": lambda trainer: lambda trial=None: str(trainer._folder),
    "_get_learning_rate": lambda trainer: lambda: trainer.get_learning_rates()[0],
    "_prepare_input": lambda trainer: partial(moved, trainer),
    "_move_model_to_device": lambda trainer: lambda model, device: model.to(device),
    "autocast_smart_context_manager": lambda trainer: lambda cache_enabled=True: trainer.backend.forward(trainer.model),
}


def forward_parameters(trainer: Trainer) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(base_of(trainer.model).forward).parameters


def moved(trainer: Trainer, data: object) -> object:
    """Return a tensor, or the tensors in a dict, list or tuple, on the device of a Trainer."""
    if isinstance(data, list | tuple):
        return type(data)(moved(trainer, part) for part in data)
    return trainer.backend.move(data)


def rows_of_a_step(trainer: Trainer, args: Settings | None = None) -> int:
    chosen = trainer.args if args is None else args
    return chosen.per_device_train_batch_size * chosen.gradient_accumulation_steps * trainer.backend.processes.num_processes


def drop_former(named: dict[str, object], args: Settings) -> None:
    """Remove arguments that transformers' Trainer had in 2020, and report them: `glassloop run` runs scripts of any age."""
    for name in GONE_OF_TRAINER.keys() & named.keys():
        value = named.pop(name)
        LEDGER.note(f"Trainer({name}=)", "nothing", f"removed in transformers 4: {GONE_OF_TRAINER[name]}")
        if name == "prediction_loss_only" and value and isinstance(args, TrainingArguments):
            args.prediction_loss_only = value


# --- models of scripts
@dataclass
class BareConfig:
    """What Glassloop reads of a model's config, for a module that has none. The module computes its own loss."""

    num_labels: int = 2
    problem_type: str | None = None
    model_type: str = "module"
    id2label: dict[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {"num_labels": self.num_labels}


def with_config(model: Model) -> Model:
    """Return the model; a plain torch module gets what stands for a config, with a label for each output of its last layer."""
    # A config that the module has is a script's own, of any kind; that of an encoder inside says nothing about the outputs.
    known = isinstance(base_of(model), PreTrainedModel | PooledClassifier)
    if isinstance(model, torch.nn.Module) and not known and not is_bare(model):
        widths = [part.out_features for part in model.modules() if isinstance(part, torch.nn.Linear)]
        number = widths[-1] if widths else 2
        config = BareConfig(number, id2label={place: f"LABEL_{place}" for place in range(number)})
        object.__setattr__(model, STAND_IN, config)  # not a part of the module
        if getattr(model, "config", None) is None:
            object.__setattr__(model, "config", config)
    return model


def is_bare(model: object) -> bool:
    return hasattr(model, STAND_IN)


def is_own(model: object) -> bool:
    """Return whether the class of a model is a script's own, so that its loss and its labels may be of any kind."""
    base = base_of(model)
    known = any(kind.__module__.startswith("transformers.models.") for kind in type(base).__mro__)
    return not (known or isinstance(base, PooledClassifier))


def flattens_scores(model: object) -> bool:
    """Return whether a model of transformers returns scores without their dimension of size 1 if it gets labels."""
    base = base_of(model)
    is_deberta = type(base).__name__.startswith("Deberta") and not is_own(base)
    return is_deberta and base.config.num_labels == 1 and base.config.problem_type is None


def flattened(predictions: Nested) -> Nested:
    if isinstance(predictions, np.ndarray):
        return predictions.reshape(-1)
    return (flattened(predictions[0]), *predictions[1:]) if isinstance(predictions, tuple) else predictions


def fits_classes(labels: torch.Tensor | np.ndarray | None, logits: np.ndarray | None = None) -> bool:
    """Return whether labels and logits are those of a classifier: class numbers, or a number for each class."""
    if labels is None or (logits is not None and logits.ndim != 2):
        return False
    return labels.ndim == 2 or "float" not in str(labels.dtype)


def adds_up_batches(model: torch.nn.Module) -> bool:
    """Return whether transformers' Trainer adds up the losses of the batches of a step, instead of taking their mean."""
    # It leaves the division to models that accept `num_items_in_batch`. Those for classification ignore it.
    accepts = getattr(model, "accepts_loss_kwargs", None)
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds if accepts is None else bool(accepts)


# --- losses, logits and loaders of scripts
def count_of(labels: Nested | None, rows: int) -> int | torch.Tensor:
    """Return the number of labels that count, as in transformers; without a tensor of labels, that of the rows."""
    return labels.ne(IGNORED).sum() if isinstance(labels, torch.Tensor) else max(rows, 1)


def named_count(function: Callable[..., object], labels: Nested | None, rows: int) -> dict[str, int | torch.Tensor]:
    """Return `num_items_in_batch` for a function that names it. With it, too, its result is the mean of a batch."""
    named = "num_items_in_batch" in inspect.signature(function).parameters
    return {"num_items_in_batch": count_of(labels, rows)} if named else {}


def tensor_of(loss: object, name: str = "compute_loss") -> torch.Tensor:
    """Return the loss that a method returned, alone or with outputs. Raises `SettingsError` if it is no tensor."""
    loss = loss[0] if isinstance(loss, tuple) else loss
    if not isinstance(loss, torch.Tensor):
        raise SettingsError(f"{name} returned a {type(loss).__name__}, not a tensor", "return the loss")
    return loss


def logits_of(outputs: object) -> torch.Tensor:
    """Return the logits among the outputs of a model: by name, or the first that is not the loss."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        logits = outputs.get("logits", next((value for name, value in outputs.items() if name != "loss"), None))
    else:
        logits = getattr(outputs, "logits", None)
        if logits is None and isinstance(outputs, tuple):
            logits = next((value for value in outputs if isinstance(value, torch.Tensor) and value.dim() > 0), None)
    if not isinstance(logits, torch.Tensor):
        raise SettingsError("the outputs of the model contain no logits", "return an object with logits, or a dict")
    return logits


def in_batches(compute: Callable[..., dict[str, float]], whole: EvalPrediction, size: int) -> dict[str, float]:
    """Return the result of a `compute_metrics` that takes batch by batch, as tensors, and sums up when it gets the last."""
    scores: dict[str, float] = {}
    number = len(first_array(whole.predictions))
    for first in range(0, number, size):
        part_of = partial(lambda rows, values: torch.from_numpy(values[rows]), slice(first, first + size))
        parts = (None if values is None else each_array(part_of, values) for values in whole)
        scores = compute(EvalPrediction(*parts), compute_result=first + size >= number)
    return scores


def rows_of(inputs: Mapping[str, torch.Tensor]) -> int:
    return len(next(iter(inputs.values())))


class Loader(DataLoader[object]):
    """A DataLoader that knows the number of rows of a batch under the name that Accelerate gives it."""

    @property
    def total_batch_size(self) -> int:
        return self.batch_size or 1


class LoaderBatches:
    """The batches of a script's own DataLoader, in its order. A loader without a length has `num_batches`."""

    def __init__(self, loader: Iterable[Inputs], rank: int = 0, num_processes: int = 1, num_batches: int = 0) -> None:
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
        for part in ("sampler", "dataset"):
            if (set_epoch := getattr(getattr(self.loader, part, None), "set_epoch", None)) is not None:
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


# --- callbacks of transformers, and the state they see
ASKED_TO_STOP = "a callback asked to stop"
ASKED = {"should_log": "log", "should_evaluate": "evaluate", "should_save": "save"}
UPDATES = ("on_pre_optimizer_step", "on_optimizer_step")  # events at which gradients can be read


def overrides(owner: object, base: type, name: str) -> bool:
    """Return whether an object has its own version of a method, by a subclass or by an assignment."""
    return getattr(type(owner), name, None) is not getattr(base, name, None) or name in vars(owner)


def is_for_transformers(callback: object) -> bool:
    kind = callback if isinstance(callback, type) else type(callback)
    return any(parent.__name__ == "TrainerCallback" for parent in kind.__mro__)


def silent(kind: type[TrainerCallback]) -> type[TrainerCallback]:
    """Return a class of the same name whose events do nothing: it stands for what Glassloop shows itself."""
    events = {name: value for name, value in vars(TrainerCallback).items() if name.startswith("on_")}
    return type(kind.__name__, (kind,), {**events, "__module__": __name__})


OWN_PROGRESS = silent(ProgressCallback)
OWN_PRINTER = silent(PrinterCallback)


def freezes_weights(callback: TrainerCallback) -> bool:
    """Return whether a method of a callback assigns `requires_grad`: a fast optimizer works with a fixed set of weights."""
    values = (value for kind in type(callback).__mro__ for value in vars(kind).values() if inspect.isfunction(value))
    codes = [inspect.unwrap(value).__code__ for value in values]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        if any(part.opname == "STORE_ATTR" and part.argval == "requires_grad" for part in dis.get_instructions(code)):
            return True
    return any("requires_grad_" in code.co_names for code in codes)


class TrainerState(TheirState):  # type: ignore[misc]
    """The state of a training, as scripts for transformers read it. Other names, such as `step`, are those of the loop's."""

    loop: State  # the state of the loop
    global_step: int
    epoch: float
    history: list[Entry]
    log_history: list[dict[str, object]]
    best_metric: float | None
    best_global_step: int | None
    save_to_json: Callable[[str], None]
    taken = 0  # how many entries of the loop's history `log_history` has

    @classmethod
    def of(cls, loop: State) -> TrainerState:
        made = cls(is_local_process_zero=True, is_world_process_zero=True, total_flos=0.0, epoch=0.0)
        made.loop = loop
        return made

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or "loop" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loop, name)

    def follow(self, plan: Plan | None, batch_size: int) -> TrainerState:
        """Bring everything up to date that the loop has changed, and return the state."""
        loop = self.loop
        if plan is not None:
            if loop.step != self.global_step or not self.epoch:  # an epoch that is cut short counts when the next one begins
                self.epoch = loop.epoch + loop.batch / plan.batches_per_epoch
            self.max_steps, self.num_train_epochs = plan.max_steps, -(-plan.max_steps // plan.steps_per_epoch)
            self.logging_steps, self.eval_steps, self.save_steps = plan.log_every, plan.eval_every, plan.save_every
        self.global_step, self.train_batch_size = loop.step, batch_size
        for entry in log_history(loop.history[self.taken :]):  # a script may have added entries of its own
            self.log_history.append({**entry, "epoch": self.epoch} if entry["step"] == loop.step else entry)
        self.taken = len(loop.history)
        return self

    def add(self, logs: Mapping[str, object]) -> None:
        """Add an entry of a script itself. The history leaves out what differs between repeated runs, or is not a number."""
        loop = self.loop
        loop.own_entries.append(len(loop.history))
        loop.history.append({"step": loop.step, **lasting(logs), "epoch": round(self.epoch, 4)})
        self.taken = len(loop.history)
        self.log_history.append({**logs, "step": loop.step})


class TrainerCallbacks(Callback):
    """Calls transformers' callbacks at the events of the loop, and passes on what their control asks for."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.control = trainer, TrainerControl()
        self.told_update = False  # the events of this step's update

    @property
    def reads_weights(self) -> bool:  # type: ignore[override]
        """Whether a callback of a script may read the weights between two steps, or anything else."""
        known = ("transformers.", "glassloop.")
        return any(not type(one).__module__.startswith(known) for one in self.trainer.callback_handler.callbacks)

    def listeners(self, *events: str) -> list[str]:
        """Return the methods of callbacks for these events, each with the name of its class."""
        known = self.trainer.callback_handler.callbacks
        return [f"{type(one).__name__}.{name}" for one in known for name in events if overrides(one, TrainerCallback, name)]

    def tell(self, event: str, loop: State | None, **facts: object) -> None:
        trainer, state = self.trainer, self.trainer.state
        handler = trainer.callback_handler
        # What each callback gets by name.
        for name in ("model", "processing_class", "optimizer", "lr_scheduler"):
            setattr(handler, name, getattr(trainer, name, None))
        handler.train_dataloader, handler.eval_dataloader = trainer._train_loader, trainer._latest_loader
        before = {flag: getattr(self.control, flag) for flag in ASKED}
        self.control = getattr(handler, event)(trainer.args, state, self.control, **facts) or self.control
        if loop is None:
            return
        # As with transformers, a callback that evaluates in on_log, for example, takes the place of the evaluation to come.
        loop.asked -= {wanted for flag, wanted in ASKED.items() if before[flag] and not getattr(self.control, flag)}
        if self.control.should_epoch_stop:
            self.control.should_epoch_stop = False
            loop.epoch_ends = event != "on_epoch_end"  # then it ends anyway
        if self.control.should_training_stop and not loop.stop_reason and loop.step < trainer._current_plan().max_steps:
            loop.stop_reason = ASKED_TO_STOP
        loop.asked |= {wanted for flag, wanted in ASKED.items() if getattr(self.control, flag)}

    on_epoch_start = partialmethod(tell, "on_epoch_begin")
    on_step_start = partialmethod(tell, "on_step_begin")
    on_epoch_end = partialmethod(tell, "on_epoch_end")

    def on_fit_start(self, state: State) -> None:
        if state.stop_reason == ASKED_TO_STOP:  # of the run that is resumed
            state.stop_reason = None
        self.tell("on_train_begin", state)
        for place, entry in enumerate(state.history):  # early stopping counts the evaluations before a resume
            if place not in state.own_entries:
                self.judge(entry, state.step, replayed=True)

    def before_update(self, group: Sequence[object]) -> None:
        """Call on_pre_optimizer_step within a step, when gradients are clipped and the weights have not changed yet."""
        loop = self.trainer.state.loop
        for _ in group[1:]:
            self.tell("on_substep_end", loop)
        self.tell("on_pre_optimizer_step", loop)

    def after_update(self) -> None:
        """Call on_optimizer_step within a step, when the weights have changed and gradients are not cleared yet."""
        self.tell("on_optimizer_step", self.trainer.state.loop)
        self.told_update = True

    def on_step(self, state: State, batches: list[Batch]) -> None:
        if not self.told_update:  # no callback has use for gradients
            self.before_update(batches)
            self.after_update()
        self.told_update = False
        self.tell("on_step_end", state)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        if self.control.should_log:
            entry = state.history[-1]  # an overridden `log` may add to it
            self.trainer._report({name: value for name, value in entry.items() if name not in ("step", "epoch")})  # type: ignore[misc]
            self.tell("on_log", state, logs={name: value for name, value in entry.items() if name != "step"})
        elif logged := self.trainer.state.log_history:
            logged.pop()  # only Glassloop logs it

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Call on_log and on_evaluate for each data set, with the best score before this evaluation, as transformers does."""
        evaluated = self.trainer._evaluated_parts(metrics)
        for part in evaluated:
            self.trainer._report(dict(part))
        seen = self.trainer.state
        parts = [{**part, "epoch": seen.epoch} for part in evaluated]
        entry, names = seen.log_history.pop(), {name for part in parts for name in part}
        added = {name: value for name, value in entry.items() if name not in names}  # by a script's own `log`, and the step
        for part in parts:  # each with an entry of its own instead of one for them all
            seen.log_history.append({**part, **added})
            self.tell("on_log", state, logs=part)
            self.tell("on_evaluate", state, metrics=part)
        self.judge(metrics, state.step)

    def judge(self, metrics: Entry | dict[str, float], step: int, *, replayed: bool = False) -> None:
        """Take over the score of an evaluation if it is the best one so far."""
        plan, state = self.trainer._current_plan(), self.trainer.state
        score = metrics.get(plan.best_metric)
        if not plan.needs_best or not isinstance(score, int | float):
            return
        for callback in self.trainer.callback_handler.callbacks if replayed else ():
            if hasattr(callback, "early_stopping_patience_counter"):
                callback.check_metric_value(self.trainer.args, state, self.control, score)
        if state.best_metric is None:  # as in transformers: NaN is never the best, and early stopping counts it
            state.best_metric = -math.inf if plan.greater_is_better else math.inf
        if score > state.best_metric if plan.greater_is_better else score < state.best_metric:
            state.best_metric, state.best_global_step = score, int(str(metrics.get("step", step)))

    def on_save(self, state: State) -> None:
        seen = self.trainer.state
        if seen.best_global_step is not None:
            best = Path(str(self.trainer.args.output_dir), checkpoint_name(seen.best_global_step))
            is_saved = seen.best_global_step == state.step or best.is_dir()
            seen.best_model_checkpoint = str(best) if is_saved else seen.best_model_checkpoint
        self.tell("on_save", state)

    def on_fit_end(self, state: State) -> None:
        if state.batch:  # the training stops within an epoch; the Trainer calls on_train_end, after the last log
            self.tell("on_epoch_end", None)


# --- the model card
HEAD_OF_CARD = {"language": "language", "license": "license", "finetuned_from": "base_model", "dataset_tags": "datasets"}
SETTINGS_OF_CARD = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
                    "max_steps", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "seed")  # fmt: skip


def trainer_card(title: str, args: Settings, history: Sequence[Entry], facts: Mapping[str, str | list[str] | None]) -> Card:
    """Return the card of a Trainer: facts a script gives, the settings, and the metrics of the latest evaluation."""
    head: dict[str, str | list[str]] = {name: value for key, name in HEAD_OF_CARD.items() if (value := facts.get(key))}
    tags = facts.get("tags") or []
    head["tags"] = ["glassloop", "generated_from_trainer", *([tags] if isinstance(tags, str) else tags)]
    latest = next((entry for entry in reversed(history) if any(name.startswith("eval_") for name in entry)), {})
    numbers = {name: value for name, value in latest.items() if name.startswith("eval_") and isinstance(value, float)}
    scores = [Score("validation", name, name, value) for name, value in short_metrics(numbers).items()]
    named, tagged = facts.get("dataset"), head.get("datasets")
    first = next((value if isinstance(value, str) else value[0] for value in (named, tagged) if value), None)
    data = DataName(first, tagged if isinstance(tagged, str) else first) if first else None
    rows = [[name, getattr(args, name)] for name in SETTINGS_OF_CARD]
    sections = [("Results", scores_table(scores)), ("Training", markdown_table(["setting", "value"], rows))]
    return Card(str(facts.get("model_name") or title), data, scores, head, sections)
