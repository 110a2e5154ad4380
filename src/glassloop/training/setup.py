"""The model, data and settings of a Trainer, and what is made from them: batches, plan, loss, backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import supported_backend, verified_backend
from glassloop.backends.choose import choose_backend
from glassloop.compatibility import EvalPrediction, refuse_assignment, refuse_hooks, refuse_no_model, refuse_unsupported
from glassloop.data.batches import Batches
from glassloop.data.collator import collator_of, is_standard
from glassloop.data.formats import is_table
from glassloop.data.interfaces import Collator, Rows
from glassloop.data.row_reader import RowReader, repeats_of
from glassloop.engine.callbacks import Callback, checked_callbacks
from glassloop.engine.interfaces import Backend, LossSum, TrainingUse
from glassloop.engine.losses import class_weights_of, loss_of
from glassloop.engine.plan import make_plan
from glassloop.engine.state import State
from glassloop.errors import say
from glassloop.measures import Measures, chosen_measures
from glassloop.models.inputs import refuse_unknown_tokens
from glassloop.models.outputs import config_of, label_names, refuse_config, task_of
from glassloop.run_folder.record import Plan
from glassloop.training.parts import Optimizers
from glassloop.training.recorder import Recorder
from glassloop.training.rows import RowUse, accepted_columns, columns_taken_by, make_batches
from glassloop.transformers_types import Model, Tokenizer

if TYPE_CHECKING:
    from accelerate import Accelerator

DEFAULT_DIR = "trainer_output"


def why_plain(args: TrainingArguments) -> str | None:
    """Return why only the plain backend can train with these settings; None if any can."""
    if args.gradient_checkpointing:
        return "gradient_checkpointing computes activations again"
    return None if args.optim.startswith("adamw") else f"the optimizer is {args.optim}"


class TrainerSetup:
    """Keeps and checks what a Trainer is given. Each method makes one part of a training and may be overridden."""

    _falls_back = False  # use fp32, with a line, where half precision does not work

    def __init__(
        self,
        model: Model | None = None,
        args: TrainingArguments | None = None,
        data_collator: Collator | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | None = None,
        processing_class: Tokenizer | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: Sequence[Callback | type[Callback]] | None = None,
        optimizers: Optimizers = (None, None),
        *,
        tokenizer: Tokenizer | None = None,
        loss: LossSum | None = None,
        on_gradients: Callable[[torch.nn.Module], None] | None = None,
        accelerator: Accelerator | None = None,
        backend: Backend | None = None,
        measures: Measures | None = None,
        **unsupported: object,
    ) -> None:
        refuse_unsupported(unsupported)
        refuse_hooks(type(self))
        self.args = args if args is not None else TrainingArguments()
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self._reported: set[str] = set()  # lines that are shown once
        self._quiet = False  # no lines and no progress bar
        self._readers: list[RowReader] = []  # of rows that are no table, with what was read of them
        self._should_stop: Callable[[], bool] = lambda: False  # called after each batch of an evaluation
        self.model = refuse_no_model(model)
        self.backend = backend if backend is not None else choose_backend(self.args, accelerator, falls_back=self._falls_back)
        self.model = self.model  # moved to the device of the backend
        self.data_collator = data_collator
        refuse_unknown_tokens(self.processing_class, self.model)
        refuse_config(config_of(self.model))
        self.optimizers, self.callbacks = optimizers, callbacks
        self.train_dataset, self.eval_dataset, self.on_gradients = train_dataset, eval_dataset, on_gradients
        self.compute_metrics, self._given_measures, self.loss = compute_metrics, measures, loss
        self._choose_usable()
        self._folder = Path(self.args.output_dir or DEFAULT_DIR)
        self._in_run = False  # a run holds the lock of the folder, and gets the final model
        self._recorder: Recorder | None = None  # of the latest training
        self._counted: tuple[tuple[str | None, int, Rows | None], list[float] | None] | None = None
        self.state = self._new_state()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. Raises `SettingsError` if the assignment would have no effect."""
        name = "_given_measures" if name == "measures" else name
        refuse_assignment(self, name, value)
        if isinstance(value, torch.nn.Module) and name == "model" and "backend" in vars(self):
            value = value.to(self.backend.device)
        super().__setattr__(name, value)
        if name == "_collate" and "_counted" in vars(self):
            self._choose_usable()

    @property
    def data_collator(self) -> Collator:
        """The function that makes a batch of rows."""
        return self._collate

    @data_collator.setter
    def data_collator(self, given: Collator | None) -> None:
        self._collate = collator_of(given, self.processing_class, self.args.pad_to_multiple_of)

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user."""
        return self._checked_callbacks

    @callbacks.setter
    def callbacks(self, given: Sequence[Callback | type[Callback]] | None) -> None:
        self._checked_callbacks = checked_callbacks(given)

    @property
    def task(self) -> str:
        """The task of the model, from its config."""
        return task_of(config_of(self.model))

    @property
    def measures(self) -> Measures:
        """The metrics of an evaluation, unless `compute_metrics` is given."""
        return chosen_measures(self._given_measures, self.task, label_names(config_of(self.model)), self.args.positive_label)

    @property
    def _own_measures(self) -> Measures | None:
        """Glassloop's metrics; None if `compute_metrics` replaces them."""
        return self.measures if self.compute_metrics is None else None

    def _choose_usable(self) -> None:
        """Fall back to the plain backend if the fast one cannot run the model or the parts as they are now."""
        reason = None if is_standard(self._collate) else "the data collator is custom"
        reason = reason if tuple(self.optimizers) == (None, None) else "the optimizer is custom"
        reason = reason or why_plain(self.args) or self._why_plain()
        if self.on_gradients is not None and self.args.backend == "auto":
            reason = reason or "on_gradients may change gradients"
        self.backend = supported_backend(self.backend, self.model, self._say_once, reason)

    def _new_state(self) -> State:
        """Return the state of a training before its first step."""
        return State()

    def _why_plain(self) -> str | None:
        """Return why only the plain backend can run what a subclass adds, or None."""
        return None

    def _prove(self, rows: Rows | None = None) -> None:
        """Compare a fast backend with the plain model on a few rows, once, and fall back to plain if they differ.

        Args:
            rows: The rows of an evaluation. None: check a training, with its gradients.
        """
        use, by_name = self._training_use() if rows is None else None, self.args.backend != "auto"
        sample = partial(self._batches, self.train_dataset if rows is None else rows, training=rows is None)
        self.backend = verified_backend(self.backend, self.model, sample, self._say_once, use, by_name=by_name)

    def _batches(self, rows: Rows | None, *, training: bool) -> Batches:
        """Return the batches of a data set: shuffled by seed and epoch for training, else sorted by length."""
        known = (self._reader(rows), self._collate, self.args, self.backend, self.model, self._say_once)
        return make_batches(*known, self._row_use(training=training))

    def _row_use(self, *, training: bool) -> RowUse:
        """Return what is done with the rows of a training or an evaluation."""
        return RowUse(training, self._taken_columns())

    def _taken_columns(self) -> set[str] | None:
        """Return the columns that a batch may contain; None for all."""
        return columns_taken_by(self.model)

    @overload
    def _reader(self, rows: None) -> None: ...

    @overload
    def _reader(self, rows: Rows) -> Rows: ...

    def _reader(self, rows: Rows | None) -> Rows | None:
        """Return what reads the rows of a data set, always the same; a table is read without one."""
        if rows is None or isinstance(rows, RowReader) or is_table(rows) or not hasattr(rows, "__len__"):
            return rows
        taken = self._taken_columns()
        for known in self._readers:
            if known.rows is rows and known.taken == taken and known.number == len(rows):
                return known
        found = accepted_columns(rows, taken, self._say_once)
        if isinstance(found, RowReader):
            self._readers.append(found)
        return found

    def _own_data_sets(self) -> list[Rows | None]:
        """Return the rows that the Trainer was given, as opposed to those of a single evaluation."""
        return [self.train_dataset, self.eval_dataset]

    def _forget_other_rows(self) -> None:
        """Forget what was read of rows that are not the Trainer's own."""
        own = self._own_data_sets()
        self._readers = [known for known in self._readers if any(known.rows is rows for rows in own)]

    def _training_use(self) -> TrainingUse:
        """Return how the model will be trained, as far as a backend has to know it."""
        return TrainingUse(
            [self._reader(rows) for rows in (self.train_dataset, self.eval_dataset) if rows is not None],
            self.args.weight_decay,
            reads_gradients=self.on_gradients is not None,
            adds_gradients=self.args.gradient_accumulation_steps > 1,
            reads_weights=any(getattr(callback, "reads_weights", True) for callback in self.callbacks),
        )

    def _loss_sum(self) -> LossSum:
        """Return the function that computes the sum of the rows' losses."""
        return loss_of(self.args, self.task, self._class_weights(), self.loss, self.backend.device)

    def _class_weights(self) -> list[float] | None:
        """Return the weight of each class, None if all count the same. Rows are counted once."""
        wanted = (self.args.class_weights, int(config_of(self.model).num_labels), self.train_dataset)
        if self._counted is None or any(now is not then for now, then in zip(wanted, self._counted[0], strict=True)):
            rows = self._reader(self.train_dataset) if self.args.class_weights == "balanced" else None
            if isinstance(rows, RowReader):
                repeats_of(rows)  # rows that repeat are kept until their batch is due
            self._counted = (wanted, class_weights_of(*wanted[:2], rows))
        return self._counted[1]

    def _make_plan(self, batches: Batches) -> Plan:
        """Return all intervals and lengths of a training as plain numbers."""
        return make_plan(self.args, len(batches), has_eval=self.eval_dataset is not None)

    def _say(self, line: str) -> None:
        """Show a line to the user, from the main process only."""
        if self.backend.processes.is_main and not self._quiet:
            say(line)

    def _say_once(self, line: str) -> None:
        """Show a line to the user unless it was shown before."""
        if line not in self._reported:
            self._reported.add(line)
            self._say(line)
