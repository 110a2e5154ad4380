"""`glassloop.Trainer`: the Trainer with everything that scripts for transformers call, override and read.

The core Trainer (trainer.py) assembles and trains. This class finds out what a script has replaced, hands that to the core as
`ScriptParts`, and answers under the names of transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from transformers import TrainerCallback, TrainerControl
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import RemoveColumnsCollator

from glassloop.backends.choose import launched_processes
from glassloop.base.errors import ModelError, SettingsError, TooLargeError, listed, visible
from glassloop.base.files import user_path
from glassloop.compat.arguments import TrainingArguments
from glassloop.compat.callbacks import (
    SHOWS,
    Logged,
    TrainerCallbacks,
    TrainerState,
    freezes_weights,
    is_for_transformers,
    make_handler,
    overrides,
    show_metrics,
    write_metrics,
)
from glassloop.compat.names import GONE_OF_TRAINER
from glassloop.compat.overrides import (
    LOADER_OPTIONS,
    OPTIMIZERS,
    READ_BY_SCRIPTS,
    SAMPLERS,
    BatchStep,
    Inputs,
    Loader,
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
    labels_of,
    logits_of,
    predicted,
    predicted_by_step,
    predicted_with_loss,
    preprocessed,
    refuse_no_rows,
    save_bare,
    stepped,
    summed_loss,
    tensor_of,
    told,
    with_config,
    without_ignored,
)
from glassloop.compat.substitution import LEDGER
from glassloop.compat.trials import BestRun, Objective, Space, Trial, Trials
from glassloop.data.batches import Batches, seed_all, stacked
from glassloop.data.interfaces import Collator, Model, Rows, Tokenizer
from glassloop.data.rows import LABEL_KEYS, RowReader, is_table, labels_in, random_states_kept
from glassloop.markup.templates import markdown_table
from glassloop.models.interface import base_of
from glassloop.report.card import Card, DataName, Score, scores_table, write_card
from glassloop.runs.history import Entry
from glassloop.runs.record import Plan
from glassloop.scores.metrics import read_scores, short_metrics
from glassloop.settings.training import CLASSES, SCORE
from glassloop.settings.training import TrainingArguments as Settings
from glassloop.settings.transformers_names import SEQUENTIAL
from glassloop.share.upload import pushed, upload
from glassloop.study.strategies import refuse_without_optuna
from glassloop.trainer import (
    DEFAULT_DIR,
    IGNORED,
    INSTEAD,
    READ_ONCE,
    EvalPrediction,
    Metrics,
    PredictionOutput,
    RowUse,
    TrainOutput,
    accepted_columns,
    columns_taken_by,
)
from glassloop.trainer import Trainer as CoreTrainer
from glassloop.training.callbacks import Callback, State, checked_callbacks
from glassloop.training.evaluate import Evaluation, Interrupted, Nested, PredictBatch, first_array
from glassloop.training.interfaces import LRScheduler, Optimizer, Tensors
from glassloop.training.losses import other_loss
from glassloop.training.optimizer import (
    decay_groups,
    make_plan,
    optimizer_for,
    optimizer_of,
    scheduler_for,
    unwrap_optimizer,
    warmup_steps_of,
)
from glassloop.training.session import STATE_NAME, Optimizers, ScriptParts, TrainingParts

if TYPE_CHECKING:
    from accelerate import Accelerator


TRAINS_AGAIN = (
    "train() was called before: this training starts with a new optimizer, which transformers' Trainer would keep "
    "(docs/reference/transformers.md)"
)


THEIR_EVAL_BATCH_SIZE = 8  # the default of transformers' TrainingArguments


class Trainer(CoreTrainer):
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
        **own: Arguments that only Glassloop has: loss, on_gradients, accelerator, backend, measures, quiet.

    Attributes:
        optimizer: The optimizer of the current or last training; None before the first one.
        lr_scheduler: Its learning rate schedule.
        callback_handler: The callbacks for transformers, as a list of transformers.
        current_gradient_accumulation_steps: The number of batches of the current step.
        label_names: The inputs of the model that are labels.

    Raises:
        SettingsError: If an argument is missing, unknown or not supported.
        ModelError: If the tokenizer has tokens that the model has no vectors for.
    """

    # Overriding one of these in a subclass has an effect: `unused_names` looks for them here.
    model_init: Callable[..., Model] | None = None
    compute_loss_func: Callable[..., torch.Tensor] | None = None
    preprocess_logits_for_metrics: Callable[..., torch.Tensor] | None = None
    optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, object]] | None = None
    optimizer: Optimizer | None = None
    lr_scheduler: LRScheduler | None = None
    callback_handler: CallbackHandler = None
    label_names: Sequence[str] = ("labels",)
    current_gradient_accumulation_steps = 1

    _only_for_users: ClassVar[dict[str, str]] = {
        name: INSTEAD[name] for name in ("_prepare_inputs", "_remove_unused_columns", "compute_loss_context_manager")
    }
    _falls_back = True
    _adapted: TrainerCallbacks  # the callbacks of transformers as one of Glassloop's
    _plan: Plan | None = None
    _seen: TrainerState
    _train_loader: DataLoader[object] | None = None  # what callbacks get as the batches of the training
    _latest_loader: DataLoader[object] | None = None  # and as those of the latest evaluation
    _loop_found: list[dict[str, float]] | None = None  # what an evaluation of the loop has found so far, per data set
    _loop_parts: Sequence[dict[str, float]] = ()  # of the latest one
    _is_logging = False
    _is_training = False
    _has_trained = False
    _accelerator: Accelerator | None = None
    _eval_sets: Mapping[str, Rows] = {}
    _kept_loaders: Mapping[str, Loader] = {}
    _model_loss: str | None = None  # why the loss is that of the model
    _made: Optimizers = (None, None)  # optimizer and schedule that the last training used
    _read_once: Mapping[str, set[object]] = {}  # values of settings that have no effect after construction
    _saves_alone = False  # the main process writes a checkpoint, and the others do not take part
    _trial: object = None  # of a search for hyperparameters
    _eval_loader = "get_eval_dataloader"
    _ignore_keys: list[str] | None = None  # outputs of the model that are no predictions
    _predicts = False  # all outputs are returned, even if no metric needs them

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
        **own: object,
    ) -> None:
        args = TrainingArguments() if args is None else args
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._eval_sets = dict(eval_dataset) if isinstance(eval_dataset, dict) else {}
        tokenizer = processing_class if processing_class is not None else tokenizer
        if LEDGER.serves_old_names:
            drop_former(own, args)
        model = self._initialized(args.seed) if model is None and model_init is not None else model
        named: Sequence[str] | None = getattr(args, "label_names", None)
        self.label_names = labels_of(model) if named is None else named
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
            **own,  # type: ignore[arg-type]
        )
        self.optimizer, self.lr_scheduler = self._made = optimizers
        self._read_once = {name: {vars(args)[name]} for name in READ_ONCE if name != "output_dir"}
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
        if self._has_trained and not resume_from_checkpoint and self.model_init is None and self._made_by_glassloop():
            self._say(TRAINS_AGAIN)
        self._has_trained = True
        with self._within(_is_training=True, _ignore_keys=ignore_keys_for_eval):
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
        """Check everything a training needs, with a new model of `model_init`, and return its parts.

        Args:
            in_run: Whether a run of the command holds the lock of the folder and gets the final model.
        """
        self._refuse_late_changes()
        self._folder = Path(self.args.output_dir or DEFAULT_DIR)
        if self.model_init is not None:
            self.model = self._initialized(self.args.seed)
        self._find_loss()
        batches = self.args.gradient_accumulation_steps
        if batches > 1 and not self._overrides("training_step") and adds_up_batches(base_of(self.model)):
            self._say_once(f"the loss of a step is the mean of its {batches:,} batches; transformers' Trainer logs their sum")
        return super().training_parts(in_run=in_run)

    def _script_parts(self, plan: Plan, batches: Batches) -> ScriptParts:
        self._plan = plan
        if isinstance(batches, LoaderBatches):
            self._train_loader = batches.loader  # type: ignore[assignment]  # most often a DataLoader
        elif self._has_script_callbacks():
            self._train_loader = self.get_train_dataloader()
        batch_loss = summed_loss(self.compute_loss, self.backend) if self._replaces_loss() else None
        batch_step = self._own_step()
        replaced = "training_step" if batch_step is not None else None if batch_loss is None else "compute_loss"
        saves_itself = bool(self._overrides("save_model"))
        adapted = self._adapted
        reads_gradients = bool(adapted.gradient_readers)
        return ScriptParts(
            callbacks=[*([Logged(self)] if self._overrides("log") else []), *self.callbacks],
            optimizers=self._created_optimizers(plan),
            write_model=self._write_with_script if saves_itself else self.write_model,
            quiet=self._quiet or not self._shows_progress(),
            batch_loss=batch_loss,
            batch_step=batch_step,
            loss_compared=True,
            loss_name=replaced and f"{replaced} of {type(self).__name__}",
            before_update=adapted.before_update if reads_gradients else None,
            after_update=adapted.after_update if reads_gradients else None,
            asked_only=True,
            saves_in_background=not (saves_itself or adapted.reads_checkpoints),
            started=self._started,
        )

    def _own_step(self) -> BatchStep | None:
        """Return the step of a script's own `training_step`. Raises `SettingsError` where its gradients would be wrong."""
        if not self._overrides("training_step"):
            return None
        if self.backend.processes.num_processes > 1 or getattr(self.backend, "precision", "") == "fp16":
            problem = "an overridden training_step runs the backward pass itself, which needs one process and no fp16"
            raise SettingsError(problem, "override compute_loss instead, or use bf16 or fp32 in one process")
        return stepped(self, self.backend)

    def _created_optimizers(self, plan: Plan) -> Optimizers:
        """Return the optimizer and the schedule of a script, if it has its own."""
        if tuple(self.optimizers) != (None, None):
            return self.optimizers
        self.optimizer, self.lr_scheduler = self._own_optimizers()
        if self._overrides(*OPTIMIZERS) or self.optimizer_cls_and_kwargs is not None:
            self.create_optimizer_and_scheduler(plan.max_steps)
        return self.optimizer, self.lr_scheduler

    def _own_optimizers(self) -> Optimizers:
        """Return the optimizer and the schedule that a script has assigned or created before the training."""
        mine = [None if now is then else now for now, then in zip((self.optimizer, self.lr_scheduler), self._made, strict=True)]
        return mine[0], mine[1]  # type: ignore[return-value]  # an optimizer and a schedule, in this order

    def _made_by_glassloop(self) -> bool:
        """Return whether a training makes its optimizer, instead of using one that the script made."""
        return next(iter(self.optimizers)) is None and self._own_optimizers()[0] is None

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

    def _started(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Take over the optimizer and the schedule of a training that begins."""
        self.optimizer, self.lr_scheduler = self._made = optimizer, scheduler

    # --- the loss and the steps of a script

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

    # --- optimizers and schedules

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

    def get_num_trainable_parameters(self) -> int:
        """Return the number of parameters that are not frozen."""
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    # --- rows and batches

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

    def _reads_loader(self, rows: Rows | None, *, training: bool) -> bool:
        """Return whether batches come from a DataLoader of a script, or from a stream of rows."""
        name = "get_train_dataloader" if training else self._eval_loader
        is_stream = rows is not None and not hasattr(rows, "__len__") and hasattr(rows, "__iter__")
        is_stream = is_stream and (not training or self.args.max_steps > 0)
        return is_stream or bool(self._overrides(name, SAMPLERS["train" if training else "eval"]))

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
            shuffled=not self._keeps_order(),
            sorted=not in_order,
            any_labels=own_loss or is_own(self.model) or self._other_label_names(),
            ignored=IGNORED,
        )

    def _own_data_sets(self) -> list[Rows | None]:
        return [self.train_dataset, *(self._eval_sets.values() or [self.eval_dataset])]

    def _other_label_names(self) -> bool:
        """Return whether labels have other names than the usual ones, so that only the model knows what they mean."""
        return getattr(self.args, "label_names", None) is not None and not {*self.label_names} <= {*LABEL_KEYS}

    def _returns_more(self) -> bool:
        """Return whether the config of a model asks for outputs beside logits."""
        config = getattr(self.model, "config", None)
        return any(getattr(config, name, False) is True for name in ("output_hidden_states", "output_attentions"))

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

    def get_test_dataloader(self, test_dataset: Rows) -> Loader:
        """Return a DataLoader of rows to predict. Predictions use it only if a subclass overrides this method.

        Args:
            test_dataset: The rows.
        """
        return self.get_eval_dataloader(test_dataset)

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

    def num_examples(self, dataloader: DataLoader[object]) -> int:
        """Return the number of rows of a DataLoader.

        Args:
            dataloader: The DataLoader.
        """
        return len(dataloader.dataset)  # type: ignore[arg-type]

    @property
    def _train_batch_size(self) -> int:
        """The number of training rows of a batch in this process. Scripts assign it, too."""
        return self.args.per_device_train_batch_size

    @_train_batch_size.setter
    def _train_batch_size(self, rows: int) -> None:
        self.args.per_device_train_batch_size = rows

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
        found = Metrics()
        for prefix, rows in sets.items():
            keys = self._ignore_keys if ignore_keys is None else ignore_keys
            with self._within(_ignore_keys=keys), self._undisturbed():
                scores = super().evaluate(rows, None, prefix)
            if self._loop_found is None:
                self._log_evaluation(scores)
            else:
                self._loop_found.append(scores)
            found |= scores
        return found

    def _log_evaluation(self, scores: dict[str, float]) -> None:
        """Log an evaluation that a script or a callback made, and report it to the callbacks."""
        self.log(scores)
        self._tell("on_evaluate", metrics=scores)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run a pass over rows that a callback makes between two steps without an effect on the steps that follow."""
        if not self._is_training or self._loop_found is not None:
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
        found: list[dict[str, float]] = []
        try:
            with self._interruptible(), self._within(_loop_found=found):
                metrics = self._evaluate(None, None)
        except Interrupted:
            return None
        # The loop logs what `evaluate` returns; a script's own `evaluate` may have evaluated other rows, too.
        self._loop_parts = [scores for scores in found if scores.keys() <= metrics.keys()]
        for scores in found:
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
        given = self._within(_eval_loader="get_test_dataloader", _predicts=True, _ignore_keys=ignore_keys)
        with given, self._undisturbed():
            found = super().predict(test_dataset, None, metric_key_prefix)
        if found.label_ids is not None and flattens_scores(self.model):
            found = found._replace(predictions=flattened(found.predictions))
        if self.args.group_by_length:
            self._say_once("predictions are in the order of the rows; transformers' Trainer sorts them with group_by_length")
        self._tell("on_predict", metrics=found.metrics)
        return found

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

    def _name_eval_batches(self, rows: Rows | None) -> None:
        """Say how large the batches of an evaluation are if a script relies on the default: its own loss may depend on it."""
        size = self.args.per_device_eval_batch_size
        number = len(rows) if rows is not None and hasattr(rows, "__len__") else 0
        if self._replaces_loss() and size == Settings.per_device_eval_batch_size and number > THEIR_EVAL_BATCH_SIZE:
            theirs = f"the default of transformers is {THEIR_EVAL_BATCH_SIZE}"
            self._say_once(f"evaluations have batches of {size} rows ({theirs}), on which a loss that is not a mean depends")

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

    # --- what a script has replaced, and what that costs

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
        return [name for name in names if overrides(self, Trainer, name)]

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
        if found := self._adapted.gradient_readers:
            return f"{found[0]} may read gradients"
        return "the loss is that of the model" if self._model_loss else None

    def _why_padded(self, rows: Rows | None) -> str | None:
        if found := self._overrides("prediction_step", self._eval_loader, "_get_eval_sampler"):
            return f"{found[0]} is overridden"
        if self._returns_more():
            return "the model returns hidden states or attentions"
        return "the rows have no length" if self._reads_loader(rows, training=False) else None

    def _refuse_late_changes(self) -> None:
        """Raise `SettingsError` for settings that were assigned after the Trainer had used them."""
        changed = [name for name, then in self._read_once.items() if vars(self.args)[name] not in then]
        if changed:
            raise SettingsError(
                f"{listed(changed)} cannot be changed after a Trainer is constructed", "construct a new Trainer"
            )

    # --- callbacks, state and log

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
        return self._adapted.control

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user; those of transformers as one."""
        return [*self._callbacks, self._adapted]

    @callbacks.setter
    def callbacks(self, given: Sequence[Callback | TrainerCallback | type] | None) -> None:
        foreign = [one for one in given or () if is_for_transformers(one)]
        others = [one for one in given or () if not is_for_transformers(one)]
        self._callbacks = checked_callbacks([one for one in others if not isinstance(one, TrainerCallbacks)])
        if len(self._callbacks) == len(others):
            self.callback_handler = make_handler(foreign, prints_lines=self.args.disable_tqdm)
            self._adapted = TrainerCallbacks(self)
        else:  # the list as it was read, perhaps with more callbacks
            for one in foreign:
                self.callback_handler.add_callback(one)

    def add_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Add a callback.

        Args:
            callback: A callback or its class.
        """
        if is_for_transformers(callback):
            self.callback_handler.add_callback(callback)
        else:
            self._callbacks += checked_callbacks([callback])

    def pop_callback(self, callback: Callback | TrainerCallback | type) -> Callback | TrainerCallback | None:
        """Remove a callback and return it; return None if the Trainer does not have it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        found = next((one for one in self._callbacks if callback in (one, type(one))), None)
        if found is None:
            return self.callback_handler.pop_callback(callback)
        self._callbacks = [one for one in self._callbacks if one is not found]
        return found

    def remove_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Remove a callback, if the Trainer has it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        self.pop_callback(callback)

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

    def _report(self, logs: dict[str, float]) -> None:
        """Call an overridden `log` with an entry that the history has already."""
        if self._overrides("log"):
            with self._within(_is_logging=True):
                self.log(logs)

    def _has_script_callbacks(self) -> bool:
        """Return whether a script has callbacks of its own, which may read anything."""
        return self._adapted.reads_weights

    def _tell(self, event: str, **facts: object) -> None:
        """Call a method of the callbacks of transformers outside a training."""
        self._adapted.tell(event, None, **facts)

    def _callback_parts(self) -> dict[str, object]:
        """Return what each callback of transformers gets by name."""
        named = {name: getattr(self, name, None) for name in ("model", "processing_class", "optimizer", "lr_scheduler")}
        return {**named, "train_dataloader": self._train_loader, "eval_dataloader": self._latest_loader}

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the loop's latest evaluation for each data set. What a script added belongs to the last."""
        *others, last = self._loop_parts or [metrics]
        return [*others, {**last, **{name: value for name, value in metrics.items() if not any(name in one for one in others)}}]

    def _current_plan(self) -> Plan:
        """Return the plan of the training, or of the one that would start now."""
        if self._plan is None:
            number = len(self._batches(self.train_dataset, training=True))
            self._plan = make_plan(self.args, number, has_eval=self.eval_dataset is not None)
        return self._plan

    @contextmanager
    def _within(self, **facts: object) -> Iterator[None]:
        """Set internal attributes while a block runs."""
        before = {name: getattr(self, name) for name in facts}
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(before)

    def _shows_progress(self) -> bool:
        """Return whether a script has left the callback in the list that stands for the progress display."""
        return any(isinstance(one, SHOWS) for one in self.callback_handler.callbacks)

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
        if self.is_world_process_zero():
            self._folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(str(self._folder / STATE_NAME))

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of all."""
        return self.backend.processes.is_main

    def is_local_process_zero(self) -> bool:
        """Return whether this is the main process of this machine."""
        return self.backend.processes.is_main

    # --- files, uploads and searches

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Save the model, its config and its tokenizer as transformers does, in safetensors format.

        Args:
            output_dir: The folder. Default: `output_dir` of the settings.
        """
        if self._saves_alone:
            self.write_model(user_path(output_dir) if output_dir else self._folder)
        else:
            super().save_model(output_dir)

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

    def _write_with_script(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model of a checkpoint with a script's own `save_model`, in the main process alone."""
        named = {"_internal_call": True} if "_internal_call" in inspect.signature(self.save_model).parameters else {}
        self._saves_alone = True
        try:
            self.save_model(str(folder), **named)
        finally:
            self._saves_alone = False

    def create_model_card(self, **facts: str | list[str] | None) -> None:
        """Write README.md to `output_dir`: a model card with the settings and the latest metrics. An edited card is kept.

        Args:
            **facts: Entries of the card, such as language, license, tags, model_name, finetuned_from, dataset.
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
        token, revision = facts.pop("token", None), facts.pop("revision", None)
        self.save_model()
        self.create_model_card(**facts)
        name, token = repository_of(self._folder, self.args), token or token_of(self.args)
        revision = revision or getattr(self.args, "hub_revision", None)
        private = getattr(self.args, "hub_private_repo", None)
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
        return search(self, hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs)

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

    @property
    def is_in_train(self) -> bool:
        """Whether a training is running."""
        return self._is_training

    if not TYPE_CHECKING:  # else no wrong name would be found

        def __getattr__(self, name: str) -> object:
            if name in READ_BY_SCRIPTS:
                return READ_BY_SCRIPTS[name](self)
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")


ENTRIES = {"language": "language", "license": "license", "finetuned_from": "base_model", "dataset_tags": "datasets"}


SHOWN = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
         "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "seed")  # fmt: skip


def trainer_card(title: str, args: Settings, history: Sequence[Entry], facts: Mapping[str, str | list[str] | None]) -> Card:
    """Return the card of a Trainer: facts a script gives, the settings, and the metrics of the latest evaluation."""
    head: dict[str, str | list[str]] = {name: value for key, name in ENTRIES.items() if (value := facts.get(key))}
    tags = facts.get("tags") or []
    head["tags"] = ["glassloop", "generated_from_trainer", *([tags] if isinstance(tags, str) else tags)]
    latest = next((entry for entry in reversed(history) if any(name.startswith("eval_") for name in entry)), {})
    numbers = {name: value for name, value in latest.items() if name.startswith("eval_") and isinstance(value, float)}
    scores = [Score(name, name, value) for name, value in short_metrics(numbers).items()]
    named, tagged = facts.get("dataset"), head.get("datasets")
    first = next((value if isinstance(value, str) else value[0] for value in (named, tagged) if value), None)
    data = DataName(first, tagged if isinstance(tagged, str) else first) if first else None
    rows = [[name, getattr(args, name)] for name in SHOWN]
    sections = [("Results", scores_table(scores)), ("Training", markdown_table(["setting", "value"], rows))]
    return Card(str(facts.get("model_name") or title), data, scores, head, sections)


def repository_of(folder: Path, args: Settings) -> str:
    """Return the name of the repository to upload to: that of the settings, or the name of the folder."""
    name = getattr(args, "hub_model_id", None) or getattr(args, "push_to_hub_model_id", None) or folder.name
    owner = getattr(args, "push_to_hub_organization", None)
    return f"{owner}/{name}" if owner and "/" not in name else str(name)


def token_of(args: Settings) -> str | None:
    """Return the access token of the settings, if there is one."""
    return getattr(args, "hub_token", None) or getattr(args, "push_to_hub_token", None)


DIRECTIONS = ("minimize", "maximize")


def default_space(trial: Trial) -> dict[str, object]:
    """Return the hyperparameters of a trial if a script does not choose them: the same as in transformers."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


def search(
    trainer: Trainer,
    space: Space | None,
    objective: Objective | None,
    n_trials: int,
    direction: str | Sequence[str],
    backend: object,
    name_of: Callable[[Trial], str] | None,
    options: dict[str, object],
) -> BestRun | list[BestRun]:
    """Run the trials and return the best one; with several directions, all that no other one dominates."""
    directions = [direction] if isinstance(direction, str) else [*direction]
    refuse_search(trainer, directions, backend, options)
    refuse_without_optuna("hyperparameter_search")
    trials = Trials(trainer, space or default_space, objective, name_of, directions)
    best = trials.run(n_trials, options)
    if not isinstance(direction, str):
        return best
    if not best:
        raise SettingsError("no trial of the search was completed", "search among smaller learning rates")
    return best[0]


def refuse_search(trainer: Trainer, directions: Sequence[str], backend: object, options: dict[str, object]) -> None:
    """Raise `SettingsError` for a search that cannot be run."""
    wanted = getattr(backend, "value", backend)
    if wanted not in (None, "optuna"):
        problem = f"hyperparameter_search does not support the backend {visible(str(wanted))}"
        raise SettingsError(problem, 'use backend="optuna", and let hp_space suggest values with the optuna trial it gets')
    if trainer.model_init is None:
        raise SettingsError("hyperparameter_search needs a new model for each trial", "pass model_init= to Trainer, not model=")
    if trainer.eval_dataset is None:
        raise SettingsError("hyperparameter_search compares evaluations", "pass eval_dataset= to Trainer")
    if tuple(trainer.optimizers) != (None, None):
        problem = "optimizers= belong to one model, but a search trains several"
        raise SettingsError(problem, "override create_optimizer, or set optim")
    if wrong := [name for name in directions if name not in DIRECTIONS]:
        raise SettingsError(f"direction is {visible(str(wrong[0]))}", f"use {listed(DIRECTIONS)}")
    if options.get("n_jobs", 1) != 1:
        raise SettingsError(f"n_jobs is {options['n_jobs']}, but a Trainer runs one trial at a time", "omit n_jobs")
    if launched_processes() > 1:
        raise SettingsError("hyperparameter_search runs in one process", "start the script without a launcher")


def drop_former(named: dict[str, object], args: Settings) -> None:
    """Remove arguments that transformers' Trainer had in 2020, and report them: `glassloop run` runs scripts of any age."""
    for name, why in GONE_OF_TRAINER.items():
        if name in named:
            value = named.pop(name)
            LEDGER.note(f"Trainer({name}=)", "nothing", f"removed in transformers 4: {why}")
            if name == "prediction_loss_only" and value and isinstance(args, TrainingArguments):
                args.prediction_loss_only = value
