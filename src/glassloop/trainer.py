"""The Trainer: model, data and settings around the one loop.

`train` builds the parts of a training for the session (training/session.py), which runs the loop (training/loop.py).
`glassloop.Trainer` (compat/trainer.py) adds what scripts for transformers call and replace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, overload

import numpy as np
import torch

from glassloop.backends.choose import choose_backend
from glassloop.backends.packed import PackedBackend, supported_backend, verified_backend
from glassloop.base.errors import DataError, DivergedError, SettingsError, listed, visible
from glassloop.base.files import assigned, share_files, user_path
from glassloop.base.output import EVALUATING, say, stage
from glassloop.data import rows as data_rows
from glassloop.data.batches import Batches, PaddingCollator, collator_of, is_standard
from glassloop.data.interfaces import Collator, Model, Rows, Tokenizer
from glassloop.markup.notebook import chart, facts, figure, scores, table, view
from glassloop.models import interface as models
from glassloop.models.loading import quiet_transformers
from glassloop.runs.history import numbers_by_step, read_moments, resumed_steps
from glassloop.runs.record import BaselineRecord, Plan
from glassloop.scores.metrics import Measures, chosen_measures, read_scores
from glassloop.scores.result import Baselines
from glassloop.settings.training import SCORE, TrainingArguments, refuse_methods
from glassloop.training.callbacks import Callback, State, checked_callbacks
from glassloop.training.evaluate import Evaluation, Interrupted, PredictBatch, baseline_record, named_metrics, run_over
from glassloop.training.interfaces import Backend, LossSum, Say, Tensors, TrainingUse
from glassloop.training.losses import class_weights_of, make_loss
from glassloop.training.optimizer import make_plan
from glassloop.training.recorder import Recorder, read_given
from glassloop.training.session import Optimizers, ScriptParts, TrainingParts, advice, trained

if TYPE_CHECKING:
    from accelerate import Accelerator

    from glassloop.report.build import Report


class EvalPrediction(NamedTuple):
    """What `compute_metrics` gets: logits and labels of all rows, in their order.

    Args:
        predictions: The logits of each row; a tuple of them and of other arrays if the model returns more.
        label_ids: The labels of each row; a tuple if `label_names` names several.
    """

    predictions: Any
    label_ids: Any


class Metrics(dict[str, float]):
    """What `evaluate` returns: metrics by name. A dict, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        return scores("Evaluation", self)


class BaselineScores(dict[str, dict[str, float]]):
    """What `baselines` returns: the metrics of each simple method by its name. A dict, which notebooks show as a table.

    Attributes:
        intervals: The lower and the upper end of the 95% confidence interval of each metric that has one, as
            `intervals["words"]["accuracy"]`.
    """

    def __init__(self, records: Iterable[BaselineRecord]) -> None:
        records = [*records]
        super().__init__({one.name: {key: score.value for key, score in one.scores.items()} for one in records})
        self.intervals = {
            one.name: {
                key: (score.low, score.high)
                for key, score in one.scores.items()
                if score.low is not None and score.high is not None
            }
            for one in records
        }

    def _repr_html_(self) -> str:
        names = [*dict.fromkeys(name for scores in self.values() for name in scores)]
        rows = [(method, *(self._cell(method, name) for name in names)) for method in self]
        return view("Baselines", table(("method", *names), rows))

    def _cell(self, method: str, name: str) -> str:
        low_high = self.intervals[method].get(name)
        span = f" ({low_high[0]:.4f} to {low_high[1]:.4f})" if low_high else ""
        return f"{figure(self[method].get(name))}{span}"


class PredictionOutput(NamedTuple):
    """What `predict` returns: logits and labels of all rows, in their order, and metrics."""

    predictions: Any  # the logits of each row; a tuple of them and of other arrays if the model returns more
    label_ids: Any  # the labels of each row; None if there are none
    metrics: dict[str, float]  # the metrics by name

    def _repr_html_(self) -> str:
        first = self.predictions[0] if isinstance(self.predictions, tuple) else self.predictions
        return scores("Predictions", self.metrics, {"shape of the logits": str(np.shape(first))})


class TrainOutput(NamedTuple):
    """What `train` returns: the number of steps, the mean loss, and metrics."""

    global_step: int  # the number of steps
    training_loss: float  # the mean loss of all steps
    metrics: dict[str, float]  # speed and loss by name

    def _repr_html_(self) -> str:
        return scores("Training", self.metrics, {"steps": f"{self.global_step:,}"})


DEFAULT_DIR = "trainer_output"
SHOWN_EVALUATIONS = 15  # in a notebook


class Trainer:
    """Trains and evaluates one model. A notebook shows a Trainer with its evaluations and its learning curve.

    `glassloop.Trainer` describes the arguments that both have. Attributes that are assigned after construction take effect;
    assignments that would not are refused. Names that begin with an underscore are internal.

    Args:
        loss: A function of logits and labels that returns one loss per row, or their sum; replaces the loss of the task.
        on_gradients: Called with the model in each step, before gradients are clipped.
        accelerator: The `accelerate.Accelerator` to train with.
        backend: How steps are run. Default: chosen from the settings and the machine.
        measures: Which of Glassloop's metrics to compute, such as those of `Examples.measures`.
        quiet: Whether to show neither lines nor a progress bar.
        **unsupported: Arguments of transformers' Trainer that raise `SettingsError` unless they are None.

    Attributes:
        state: Where the training stands: step, epoch, best score and history.
        task: The task of the model, from its config.
    """

    _callbacks: list[Callback]
    _falls_back = False  # use fp32, with a line, where half precision does not work
    # Methods that are there to be called, and what to override instead: transformers' Trainer calls them during training, too.
    _only_for_users: ClassVar[dict[str, str]] = {
        "save_model": "override write_model, which also writes the model of a checkpoint"
    }

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
        quiet: bool = False,
        **unsupported: object,
    ) -> None:
        for name, value in unsupported.items():
            if name not in UNSUPPORTED:
                raise SettingsError(f"Trainer has no argument {visible(name)}", "see help(glassloop.Trainer)")
            if value is not None:
                raise SettingsError(f"Trainer does not support {name}", UNSUPPORTED[name])
        refuse_hooks(type(self))
        self.args = args if args is not None else TrainingArguments()
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self._reported: set[str] = set()  # lines that are shown once
        self._quiet = quiet
        self._readers: list[data_rows.RowReader] = []  # of rows that are no table, with what was read of them
        self._can_be_interrupted = False  # a signal ends an evaluation
        self._recorder: Recorder | None = None  # of the latest training
        self._baselines: list[tuple[Rows | None, Rows | None, Baselines]] = []  # after training rows and the rows predicted
        self._counted: tuple[tuple[str | None, int, Rows | None], list[float] | None] | None = None
        self._folder = Path(self.args.output_dir or DEFAULT_DIR)
        refuse_no_model(model)
        self.backend = backend if backend is not None else choose_backend(self.args, accelerator, falls_back=self._falls_back)
        self.model: Model = model  # moved to the device of the backend
        self._collate = collator_of(data_collator, self.processing_class, self.args.pad_to_multiple_of)
        models.refuse_unknown_tokens(self.processing_class, self.model)
        models.refuse_config(models.config_of(self.model))
        self.optimizers = optimizers
        self.callbacks = callbacks
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.on_gradients = on_gradients
        self.compute_metrics = compute_metrics
        self._given_measures = measures
        self.loss = loss
        self._choose_usable()
        self.state = State()

    def train(
        self, resume_from_checkpoint: bool | str | Path | None = None, *, restart: bool = False, report: bool = True
    ) -> TrainOutput:
        """Train the model in place, to the end, and write the report, if wanted, to the output folder."""
        from glassloop.report.build import write_report  # the report is loaded by those who write one
        from glassloop.report.errors import listed_rows

        self._readers = []  # rows may have changed since
        parts = self.training_parts()
        known = self._known_baselines(self.eval_dataset)
        recorder = Recorder(parts, self.processing_class, listed_rows, write_report if report else None, known)
        self._recorder = recorder
        with trained(parts, resume_from_checkpoint, restart=restart, callbacks=[recorder]) as metrics:
            recorder.end(metrics)
            for reader in self._readers:
                reader.release()
            return TrainOutput(self.state.step, self.state.mean_loss, metrics)

    def training_parts(self, *, in_run: bool = False) -> TrainingParts:
        """Check everything a training needs, choose its backend, and return its parts. `in_run`: for a run of the command."""
        refuse_hooks(type(self))
        self.args.check()
        if not in_run:
            refuse_methods(self.args)
        models.refuse_unmergeable(self.model)
        models.refuse_not_finite(self.model, lambda _: "the model given to Trainer")
        self._choose_usable()  # the user may have frozen weights or assigned parts
        self._prove()
        self._callbacks = checked_callbacks(self._callbacks)  # the list may have grown
        rows = self._readable(self.train_dataset)
        batches = self._batches(rows, training=True)
        plan = make_plan(self.args, len(batches), has_eval=self.eval_dataset is not None)
        self.state = state = State()
        return TrainingParts(
            model=self.model,
            args=self.args,
            backend=self.backend,
            difference=self.backend.differences.get(self.model) if isinstance(self.backend, PackedBackend) else None,
            use=self._training_use(),
            plan=plan,
            state=state,
            folder=self._folder,
            in_run=in_run,
            batches=batches,
            train_rows=self._reader(rows),
            eval_rows=self._reader(self.eval_dataset),
            eval_batches=lambda: self._batches(self.eval_dataset, training=False),
            task=self.task,
            loss_sum=self._loss_sum(),
            custom_loss=self.loss,
            class_weights=self._class_weights(),
            on_gradients=self.on_gradients,
            evaluate=self._evaluate_between_steps,
            measures=lambda: self.measures if self.compute_metrics is None else None,
            compute_metrics=self.compute_metrics,
            say=self._say,
            say_once=self._say_once,
            script=self._script_parts(plan, batches),
        )

    def _script_parts(self, plan: Plan, batches: Batches) -> ScriptParts:
        return ScriptParts(self.callbacks, self.optimizers, self.write_model, quiet=self._quiet)

    def _choose_usable(self) -> None:
        """Fall back to the plain backend if the fast one cannot run the model or the parts as they are now."""
        if not isinstance(self.backend, PackedBackend):
            return
        reasons = {
            "the optimizer is custom": tuple(self.optimizers) != (None, None),
            "the data collator is custom": not is_standard(self._collate),
            "gradient_checkpointing computes activations again": self.args.gradient_checkpointing,
            f"the optimizer is {self.args.optim}": not self.args.optim.startswith("adamw"),
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None) or self._why_plain()
        self.backend = supported_backend(self.backend, self.model, self._say_once, reason)

    def _why_plain(self) -> str | None:
        """Return why only the plain backend can run what a subclass adds, or None."""
        return None

    def _prove(self, rows: Rows | None = None) -> None:
        """Compare a fast backend with the plain model, once, in an evaluation of `rows` or, without, in a training."""
        if isinstance(self.backend, PackedBackend):
            use = self._training_use() if rows is None else None
            sample = partial(self._batches, self.train_dataset if rows is None else rows, training=rows is None)
            by_name = self.args.backend != "auto"
            self.backend = verified_backend(self.backend, self.model, sample, self._say_once, use, by_name=by_name)

    def evaluate(
        self, eval_dataset: Rows | None = None, ignore_keys: None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return loss and metrics over all rows of a split. A training calls this method, too."""
        return Metrics(self.evaluation(eval_dataset, metric_key_prefix).metrics)

    def evaluation(self, rows: Rows | None = None, prefix: str = "eval", *, interruptible: bool = False) -> Evaluation:
        """Return logits, labels and metrics of one pass over a split.

        Args:
            rows: The rows. Default: the `eval_dataset` of the Trainer.
            prefix: What the name of each metric begins with.
            interruptible: Whether a signal that a training has noted raises `Interrupted`.

        Raises:
            DivergedError: If the loss is not finite.
        """
        with self._interruptible() if interruptible else nullcontext():
            found = self._run(self.model, self.eval_dataset if rows is None else rows, prefix)
        if self._recorder is not None and (rows is None or rows is self.eval_dataset):
            self._recorder.evaluated(replace(found, outputs=None, several_labels=None))  # a report needs only logits
        return found

    def predict(self, test_dataset: Rows, ignore_keys: None = None, metric_key_prefix: str = "test") -> PredictionOutput:
        """Return logits, labels and metrics of all rows, in their order."""
        found = self._run(self.model, test_dataset, metric_key_prefix)
        return PredictionOutput(found.predictions, found.label_ids, found.metrics)

    def baselines(self, eval_dataset: Rows | None = None) -> BaselineScores:
        """Return what simple methods that are fitted to the training rows reach on the evaluation rows, in seconds.

        They are the class frequencies, a regression on words, and a regression on the embeddings of the model, whose weights
        stay as they are. The training does not change; its report compares the trained model with them.

        Args:
            eval_dataset: The rows to predict. Default: the `eval_dataset` of the Trainer.

        Returns:
            The metrics of each method by its name, as `scores["words"]["accuracy"]`; `scores.intervals` has the ends of their
            95% confidence intervals. With labels, they include log loss, Brier score and calibration error.

        Raises:
            SettingsError: There are no evaluation rows or no tokenizer, or the model has no encoder or was already trained.
            DataError: The rows have no labels, or neither texts nor tokens.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        found = self._known_baselines(rows)
        if found is None:
            found = self._fitted_baselines(rows)
            self._baselines.append((self.train_dataset, rows, found))
        measures = self.measures
        return BaselineScores(baseline_record(one, measures) for one in found.each)

    def _known_baselines(self, rows: Rows | None) -> Baselines | None:
        pairs = ((found, train is self.train_dataset and held_out is rows) for train, held_out, found in self._baselines)
        return next((found for found, same in pairs if same), None)

    def _fitted_baselines(self, rows: Rows | None) -> Baselines:
        from glassloop.predict.baselines import tokenized_baselines

        problems = {
            "there are no evaluation rows": (rows is None, "pass eval_dataset="),
            "the Trainer has no tokenizer": (self.processing_class is None, "pass processing_class="),
            "the model has no encoder of transformers": (not hasattr(self.model, "base_model"), "compare with other models"),
            "the encoder was already trained": (self.state.step > 0, "call baselines() before train()"),
        }
        for problem, (holds, remedy) in problems.items():
            if holds:
                raise SettingsError(f"no baselines: {problem}", remedy)
        # Of the tokens: no column tells whether it has texts or the names of labels, and the model reads only tokens.
        train, held_out = (read_given(self._reader(data), tokens_first=True) for data in (self.train_dataset, rows))
        if train is None or held_out is None:
            raise SettingsError("no baselines: the rows have no length", "pass data sets, not streams")
        return tokenized_baselines(self.model, self.processing_class, self.backend, train, held_out, self.task)

    def _evaluate_between_steps(self) -> dict[str, float] | None:
        """Return the metrics of an evaluation during training; None if a signal interrupts it."""
        try:
            with self._interruptible():
                return self.evaluate()
        except Interrupted:
            return None

    def _interruptible(self) -> AbstractContextManager[None]:
        """Let a signal interrupt an evaluation, which raises `Interrupted`. With several processes it runs to its end."""
        return assigned(self, _can_be_interrupted=self.backend.processes.num_processes == 1)

    def _run(self, model: Model, rows: Rows | None, prefix: str) -> Evaluation:
        padded = self._why_padded(rows)
        if padded is None:
            self._prove(rows)
        elif isinstance(self.backend, PackedBackend):
            self._say_once(f"evaluations use padded batches: {padded}")
        num_rows = len(rows) if rows is not None and hasattr(rows, "__len__") else None

        def should_stop() -> bool:
            return self._can_be_interrupted and bool(self.state.asked_to_stop)

        with stage(EVALUATING, num_rows), nullcontext() if padded else self.backend.evaluation_context(model):
            batches = self._batches(rows, training=False)
            adapted = batches if padded else self.backend.adapt_batches(batches, self._reader(rows))
            found = run_over(model, adapted, self.backend, self._loss_sum(), should_stop, self._predict_batch())
        lasting = self._own_data_sets()  # what was read of other rows is forgotten
        self._readers = [known for known in self._readers if any(known.rows is rows for rows in lasting)]
        if found.loss is not None and not math.isfinite(found.loss):
            facts = f"learning rate {self.args.learning_rate:g}, last finite loss {self.state.last_loss}"
            problem = f"step {self.state.step:,}: the loss of the evaluation is {found.loss} ({facts})"
            raise DivergedError(problem, f"{advice(trained=self.state.step > 0)}, or look at its rows")
        scores = {} if found.labels is None else self.metrics_of(EvalPrediction(found.predictions, found.label_ids))
        return named_metrics(found, scores, prefix)

    def _readable(self, rows: Rows | None) -> Rows:
        """Return the training rows. Raises `SettingsError` if they cannot be read by row number."""
        return data_rows.refuse_unreadable(rows, "train_dataset")

    def _why_padded(self, rows: Rows | None) -> str | None:
        """Return why an evaluation of these rows needs padded batches on any backend, or None."""
        return None

    def _predict_batch(self) -> PredictBatch | None:
        """Return what replaces the forward pass of an evaluation, or None."""
        return None

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """Return the metrics of `compute_metrics`, or those of the task. A subclass may override this method."""
        if self.compute_metrics is not None:
            return read_scores(self.compute_metrics(found), self._say_once, self.args.metric_for_best_model)
        names = models.label_names(models.config_of(self.model))
        return self.measures.scores(found.predictions, found.label_ids, self.task, names)

    def _batches(self, rows: Rows | None, *, training: bool) -> Batches:
        """Return the batches of a data set. Sets the task in the model's config if only the labels show it."""
        args, processes, use = self.args, self.backend.processes, self._row_use(training=training)
        rows = data_rows.refuse_unreadable(self._reader(rows), f"{'train' if training else 'eval'}_dataset")
        rows = rows if training else data_rows.without_missing_labels(rows)
        is_padding = isinstance(self._collate, PaddingCollator)  # another collator may make labels from anything
        seed = args.data_seed if args.data_seed is not None else args.seed
        batches = Batches(
            accepted_columns(rows, use.taken, self._say_once),
            self._collate,
            args.per_device_train_batch_size * processes.num_processes if training else args.per_device_eval_batch_size,
            seed=seed if training and use.shuffled else None,
            group_by_length=args.group_by_length if training else is_padding and use.sorted,
            drop_last=args.dataloader_drop_last and training,
            rank=processes.rank,
            num_processes=processes.num_processes,
        )
        with suppress(DataError) if use.any_labels else nullcontext():  # a model with its own loss may take any labels
            config = models.config_of(self.model)
            data_rows.infer_task(config, batches.first_labels, self._say_once)
            needed = training and is_padding and not use.any_labels
            data_rows.refuse_labels(rows, models.task_of(config), int(config.num_labels), needed=needed, ignored=use.ignored)
        return batches

    def _row_use(self, *, training: bool) -> RowUse:
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
        if rows is None or isinstance(rows, data_rows.RowReader) or data_rows.is_table(rows) or not hasattr(rows, "__len__"):
            return rows
        taken = self._taken_columns()
        for known in self._readers:
            if known.rows is rows and known.taken == taken and known.number == len(rows):
                return known
        reader = accepted_columns(rows, taken, self._say_once)
        if isinstance(reader, data_rows.RowReader):
            self._readers.append(reader)
        return reader

    def _own_data_sets(self) -> list[Rows | None]:
        """Return the rows that the Trainer was given, as opposed to those of a single evaluation."""
        return [self.train_dataset, self.eval_dataset]

    def _training_use(self) -> TrainingUse:
        sets = [rows for rows in self._own_data_sets() if rows is self.train_dataset or self._why_padded(rows) is None]
        return TrainingUse(
            [self._reader(rows) for rows in sets if rows is not None],
            self.args.weight_decay,
            reads_gradients=self.on_gradients is not None,
            adds_gradients=self.args.gradient_accumulation_steps > 1,
            reads_weights=any(getattr(callback, "reads_weights", True) for callback in self.callbacks),
        )

    def _loss_sum(self) -> LossSum:
        weights, smoothing = self._class_weights(), self.args.label_smoothing_factor
        if self.task == SCORE and (self.args.class_weights or smoothing):
            raise SettingsError("class_weights and label_smoothing_factor do not apply to regression", "omit them")
        tensor = torch.tensor(weights, device=self.backend.device) if weights else None
        return make_loss(self.task, label_smoothing=smoothing, class_weights=tensor, custom=self.loss)

    def _class_weights(self) -> list[float] | None:
        """Return the weight of each class, None if all count the same. Rows are counted once."""
        wanted = (self.args.class_weights, int(models.config_of(self.model).num_labels), self.train_dataset)
        if self._counted is None or any(now is not then for now, then in zip(wanted, self._counted[0], strict=True)):
            rows = self._reader(self.train_dataset) if self.args.class_weights == "balanced" else None
            if isinstance(rows, data_rows.RowReader):
                data_rows.repeats_of(rows)  # rows that repeat are kept until their batch is due
            self._counted = (wanted, class_weights_of(*wanted[:2], rows))
        return self._counted[1]

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Save the model, its config and its tokenizer as transformers does, in safetensors format."""
        if self.backend.processes.is_main:
            self.write_model(user_path(output_dir) if output_dir else self._folder)
        self.backend.processes.wait()

    def write_model(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model, its config and its tokenizer, for `save_model` and for checkpoints. A subclass may override this."""
        with quiet_transformers():
            models.save_whole(self.backend.unwrap(self.model), folder, weights)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
        share_files(folder, "*.safetensors")

    def report(self) -> Report:
        """Return the report of the training, as in `report.html`. A notebook shows it; `save(path)` writes it to a file."""
        from glassloop.report.build import report_of, source_report
        from glassloop.report.source import UNKNOWN, RunSource

        if self._recorder is not None and self._recorder.record is not None:
            return report_of(self._folder)
        resumed = resumed_steps(read_moments(self._folder))
        return source_report(RunSource(self._folder, None, UNKNOWN, self.state.history, resumed, by_trainer=True))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of a {models.config_of(self.model).model_type} model at step {self.state.step:,}>"

    def _repr_html_(self) -> str:
        args, kind = self.args, models.config_of(self.model).model_type
        parameters = sum(weight.numel() for weight in self.model.parameters())
        sizes = {"train": self.train_dataset, "evaluation": self.eval_dataset}
        named = {
            "model": f"{kind}, {parameters / 1e6:.1f} M parameters, {self.task.replace('_', ' ')}",
            "rows": ", ".join(f"{len(rows):,} {name}" for name, rows in sizes.items() if isinstance(rows, Sized)) or "none",
            "learning rate": f"{args.learning_rate:g}",
            "batch": f"{args.per_device_train_batch_size} rows",
            "backend": f"{self.backend.name} on {self.backend.device}",
            "step": f"{self.state.step:,}",
        }
        history = self.state.history
        evaluations = [entry for entry in history if any(name.startswith("eval_") for name in entry)][-SHOWN_EVALUATIONS:]
        names = [name for name in (evaluations[-1] if evaluations else ()) if name.startswith("eval_")]
        values = [[entry.get(name) for name in names] for entry in evaluations]
        cells = [[figure(value if isinstance(value, int | float) else None) for value in row] for row in values]
        rows = [(f"{entry['step']}", *row) for entry, row in zip(evaluations, cells, strict=True)]
        lines = {"training loss": numbers_by_step(history, "loss"), "evaluation loss": numbers_by_step(history, "eval_loss")}
        return view("Trainer", facts(named), table(("step", *names), rows), chart(lines, "step"))

    def __setattr__(self, name: str, value: object) -> None:
        refuse_assignment(self, name, value)
        if name == "model" and isinstance(value, torch.nn.Module):
            value = value.to(self.backend.device)
        super().__setattr__(name, value)

    @property
    def data_collator(self) -> Collator:
        """The function that makes a batch of rows."""
        return self._collate

    @data_collator.setter
    def data_collator(self, given: Collator | None) -> None:
        self._collate = collator_of(given, self.processing_class, self.args.pad_to_multiple_of)
        self._choose_usable()  # a fast backend makes batches itself

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, given: Sequence[Callback | type[Callback]] | None) -> None:
        self._callbacks = checked_callbacks(given)

    @property
    def task(self) -> str:
        """The task of the model, from its config."""
        return models.task_of(models.config_of(self.model))

    @property
    def measures(self) -> Measures:
        """The metrics of an evaluation, unless `compute_metrics` is given."""
        names = models.label_names(models.config_of(self.model))
        return chosen_measures(self._given_measures, self.task, names, self.args.positive_label)

    @measures.setter
    def measures(self, given: Measures | None) -> None:
        self._given_measures = given

    def _say(self, line: str) -> None:
        if self.backend.processes.is_main and not self._quiet:
            say(line)

    def _say_once(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            self._say(line)


# Arguments of transformers' Trainer, and what to do instead.
UNSUPPORTED = {
    "model_init": "build the model first: Trainer(model=load_model(...))",
    "compute_loss_func": "pass loss=, a function of logits and labels that returns one loss per row",
    "preprocess_logits_for_metrics": "do it in compute_metrics",
    "optimizer_cls_and_kwargs": "pass optimizers=(optimizer, scheduler)",
    "peft_config": "wrap the model first: model = peft.get_peft_model(model, config)",
}

# Methods and attributes of transformers' Trainer that this Trainer does not have, grouped by what to do instead.
BY_REMEDY = {
    UNSUPPORTED["compute_loss_func"]: "compute_loss label_smoother",
    UNSUPPORTED["optimizer_cls_and_kwargs"]: """create_optimizer create_scheduler create_optimizer_and_scheduler
        get_optimizer_cls_and_kwargs get_decay_parameter_names _get_learning_rate optimizer lr_scheduler""",
    "pass loss= to change the loss, on_gradients= to change gradients": """training_step _clip_grad_norm _get_grad_norm
        _has_mixed_mesh_grads _mixed_mesh_grad_norm _sync_replicated_trainable_parameters""",
    "pass a data set with len() and [number], and data_collator=": """get_train_dataloader get_eval_dataloader
        get_test_dataloader _get_dataloader _get_train_sampler _get_eval_sampler _get_collator_with_removed_columns
        _remove_unused_columns _set_signature_columns_if_needed _prepare_input _prepare_inputs get_batch_samples
        num_examples label_names _signature_columns""",
    "pass compute_metrics=, or override metrics_of or evaluate": """prediction_step prediction_loop evaluation_loop _evaluate
        _determine_best_metric _nested_gather _pad_across_processes""",
    "pass callbacks=, each a glassloop.Callback": """log store_flos floating_point_ops _maybe_log_save_evaluate callback_handler
        control end""",
    "override write_model, which also writes the model of a checkpoint": """_save _save_checkpoint _save_rng_state
        _save_optimizer_and_scheduler _save_scaler _rotate_checkpoints _sorted_checkpoints _get_output_dir""",
    "pass resume_from_checkpoint= to train()": """_load_from_checkpoint _load_best_model _load_rng_state
        _load_optimizer_and_scheduler _load_scaler _load_callback_state _issue_warnings_after_load""",
    "write the loop yourself with glassloop.fit": """_inner_training_loop _init_training_state
        _prepare_for_training _run_epoch _finalize_training set_initial_training_values get_total_train_batch_size""",
    "pass accelerator=, or set precision": """accelerator create_accelerator_and_postprocess _build_accelerator_args
        compute_loss_context_manager autocast_smart_context_manager _wrap_model _move_model_to_device model_wrapped
        gather_function get_sp_size get_cp_size get_tp_size _prepare_context_parallel_inputs""",
    UNSUPPORTED["model_init"]: "call_model_init _hp_search_setup _report_to_hp_search _tune_save_checkpoint",
    "omit it: the loss of a step is always divided by all of its rows": "_get_num_items_in_batch",
    "add the noise in a forward hook of model.get_input_embeddings()": "neftune_noise_alpha",
    "omit it": "_validate_args _update_auto_batch_size _track_num_input_tokens _push_from_checkpoint _finish_current_push",
}

INSTEAD = UNSUPPORTED | {name: remedy for remedy, names in BY_REMEDY.items() for name in names.split()}

# Settings that are only read when a Trainer is constructed.
READ_ONCE = ("output_dir", "device", "precision", "backend", "pad_to_multiple_of")
IGNORED = -100  # the label of a row that the loss of a model of transformers leaves out


def unused_names(kind: type[Trainer]) -> dict[str, str]:
    """Return the names of transformers' Trainer that a class has no use for, each with what to do instead."""
    # What one of Glassloop's classes defines is used, so nobody has to list it.
    ours = next(parent for parent in kind.__mro__ if parent.__module__.startswith("glassloop."))
    unused = {name: remedy for name, remedy in INSTEAD.items() if not hasattr(ours, name) or is_of_script(ours, name)}
    return unused | kind._only_for_users


def is_of_script(kind: type, name: str) -> bool:
    """Return whether a class has something by this name that a subclass defines, or a script has put into Glassloop's class."""
    parent = next((parent for parent in kind.__mro__ if name in vars(parent)), None)
    return parent is not None and not getattr(vars(parent)[name], "__module__", parent.__module__).startswith("glassloop.")


def refuse_hooks(kind: type[Trainer]) -> None:
    """Raise `SettingsError` with all methods of a subclass that Glassloop would never call."""
    instead = unused_names(kind)
    if names := [name for name in instead if is_of_script(kind, name)]:
        remedies = dict.fromkeys(instead[name] for name in names)
        raise SettingsError(f"{kind.__name__} overrides {listed(names)}, which Glassloop does not call", "; ".join(remedies))


def refuse_no_model(model: object) -> None:
    if model is None or not hasattr(model, "forward"):
        raise SettingsError("Trainer needs a model", "pass model=load_model(...)")


def refuse_assignment(trainer: Trainer, name: str, value: object) -> None:
    instead = unused_names(type(trainer))
    if name in instead:
        raise SettingsError(f"assigning {name} to a Trainer has no effect in Glassloop", instead[name])
    if name == "model":
        refuse_no_model(value)
    if name == "args" and not isinstance(value, TrainingArguments):
        problem = f"args is a {type(value).__module__}.{type(value).__name__}, not glassloop.TrainingArguments"
        raise SettingsError(problem, "change the import: from glassloop import TrainingArguments")
    if name not in vars(trainer):
        return  # the Trainer is being constructed
    changed = ["processing_class"] if name == "processing_class" else []
    if name == "args":
        before = vars(trainer)[name]
        read = {setting: getattr(before, setting) for setting in READ_ONCE}
        read["device"] = getattr(read["device"], "type", read["device"])  # scripts read a device of torch
        changed = [setting for setting in READ_ONCE if vars(value)[setting] not in (vars(before)[setting], read[setting])]
    if changed:
        raise SettingsError(f"{listed(changed)} cannot be changed after a Trainer is constructed", "construct a new Trainer")


@dataclass(frozen=True)
class RowUse:
    training: bool  # or evaluated
    taken: set[str] | None  # the columns of a batch; None takes all
    shuffled: bool = True  # a training draws their order
    sorted: bool = True  # an evaluation may put rows of similar length into a batch
    any_labels: bool = False  # labels may be of any kind, because the loss is not Glassloop's
    ignored: int | None = None  # a label that is no class and allowed


def columns_taken_by(model: Model) -> set[str]:
    return {*models.accepted_inputs(type(models.base_of(model))), *data_rows.LABEL_KEYS}


def accepted_columns(rows: Rows, taken: set[str] | None, say: Say) -> Rows:
    """Return the rows without columns that are not `taken` (None: all are), and report these columns."""

    def report(unused: list[str]) -> None:
        say(f"columns the model does not accept are dropped: {listed(unused)}")

    if isinstance(rows, data_rows.RowReader):
        return rows
    if not data_rows.is_table(rows):
        return data_rows.RowReader(rows, taken, report)
    known, unused = (rows, []) if taken is None else data_rows.known_columns(rows, taken)
    if unused:
        report(unused)
    return known
