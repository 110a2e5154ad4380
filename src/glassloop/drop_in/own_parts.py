"""A Trainer whose parts are those of a script: its model, loss, loaders and optimizers, as the loop needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import TrainerCallback

from glassloop.arguments import TrainingArguments as Settings
from glassloop.compatibility import EvalPrediction
from glassloop.data.batches import Batches
from glassloop.data.formats import is_table
from glassloop.data.interfaces import Rows
from glassloop.data.row_labels import LABEL_KEYS, labels_in
from glassloop.data.row_reader import RowReader
from glassloop.drop_in.callbacks import freezes_weights
from glassloop.drop_in.hooks import (
    BatchStep,
    LoaderBatches,
    adds_up_batches,
    in_batches,
    overrides,
    predicted,
    predicted_by_step,
    predicted_with_loss,
    preprocessed,
    stepped,
    summed_loss,
    told,
)
from glassloop.drop_in.loop_callbacks import Logged
from glassloop.drop_in.modules import fits_classes, flattened, flattens_scores, is_bare, is_own, save_bare, with_config
from glassloop.drop_in.overridable import LOADERS, OPTIMIZERS, SAMPLERS, Overridable
from glassloop.engine.evaluate import Evaluation, PredictBatch, first_array
from glassloop.engine.interfaces import LRScheduler, Optimizer, Tensors, TrainingUse
from glassloop.engine.losses import other_loss
from glassloop.errors import ModelError, SettingsError, listed
from glassloop.measures import read_scores
from glassloop.models.adapters import base_of
from glassloop.seeding import seed_all
from glassloop.settings import CLASSES, SCORE
from glassloop.training.parts import Optimizers, TrainingParts
from glassloop.training.rows import IGNORED, RowUse
from glassloop.training.setup import DEFAULT_DIR
from glassloop.transformers_types import Model

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
        base = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("glassloop.drop_in."))
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
