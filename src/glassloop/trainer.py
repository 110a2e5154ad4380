"""The Trainer: model, data and settings around the one loop. Users of transformers' Trainer change one import."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from glassloop.backends.packed import PackedBackend
from glassloop.compatibility import EvalPrediction, Metrics, PredictionOutput, TrainOutput, refuse_hooks, refuse_keys
from glassloop.data.formats import refuse_unreadable
from glassloop.data.interfaces import Rows
from glassloop.engine.evaluate import Evaluation, Interrupted, PredictBatch, named_metrics, run_over
from glassloop.engine.identity import identified
from glassloop.engine.interfaces import Tensors
from glassloop.errors import DivergedError
from glassloop.files import share_files, user_path
from glassloop.measures import read_scores
from glassloop.models.adapters import refuse_unmergeable, save_whole
from glassloop.models.loading import quiet_transformers, refuse_not_finite
from glassloop.models.outputs import config_of, label_names
from glassloop.report.build import Report
from glassloop.show.html import trainer_view
from glassloop.stages import EVALUATING, stage
from glassloop.training.failures import advice
from glassloop.training.parts import TrainingParts
from glassloop.training.recorder import Recorder, report_so_far
from glassloop.training.session import trained
from glassloop.training.setup import TrainerSetup
from glassloop.transformers_types import Model


class Trainer(TrainerSetup):
    """Trains and evaluates one model. A notebook shows a Trainer with its evaluations and its learning curve.

    Every argument but `tokenizer` and `accelerator` is also an attribute. Attributes that are assigned after construction
    take effect; assignments that would not are refused. Names that begin with an underscore are internal.

    Args:
        model: The model to train, in place.
        args: The settings. Default: `TrainingArguments()`.
        data_collator: Makes a batch of rows. Default: pad the rows to the longest one with the tokenizer.
        train_dataset: The rows to train on: a `datasets.Dataset`, a list of dicts, or anything with `len()` and `[number]`.
        eval_dataset: The rows to evaluate on.
        processing_class: The tokenizer, which pads batches and is saved with the model.
        compute_metrics: Returns names and numbers for an `EvalPrediction`; replaces the default metrics.
        callbacks: `glassloop.Callback` objects or classes.
        optimizers: An optimizer and a learning rate schedule that replace those of the settings.
        tokenizer: Another name for `processing_class`.
        loss: A function of logits and labels that returns one loss per row, or their sum; replaces the loss of the task.
        on_gradients: Called with the model in each step, before gradients are clipped.
        accelerator: The `accelerate.Accelerator` to train with.
        backend: How steps are run. Default: chosen from the settings and the machine.
        measures: Which of Glassloop's metrics to compute, such as those of `Examples.measures`.
        **unsupported: Arguments of transformers' Trainer that raise `SettingsError` unless they are None.

    Attributes:
        state: Where the training stands: step, epoch, best score and history.
        task: The task of the model, from its config.

    Raises:
        SettingsError: If an argument is missing, unknown or not supported.
        ModelError: If the tokenizer has tokens that the model has no vectors for.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of a {config_of(self.model).model_type} model at step {self.state.step:,}>"

    def _repr_html_(self) -> str:
        args, parameters = self.args, sum(weight.numel() for weight in self.model.parameters())
        sizes = {"train": self.train_dataset, "evaluation": self.eval_dataset}
        named = {
            "model": f"{config_of(self.model).model_type}, {parameters / 1e6:.1f} M parameters, {self.task.replace('_', ' ')}",
            "rows": ", ".join(
                f"{len(rows):,} {name}" for name, rows in sizes.items() if rows is not None and hasattr(rows, "__len__")
            )
            or "none",
            "learning rate": f"{args.learning_rate:g}",
            "batch": f"{args.per_device_train_batch_size} rows",
            "backend": f"{self.backend.name} on {self.backend.device}",
            "step": f"{self.state.step:,}",
        }
        return trainer_view(named, self.state.history)

    def report(self) -> Report:
        """Return the report of the training, as in `report.html`. A notebook shows it; `save(path)` writes it to a file."""
        return report_so_far(self._recorder, self._folder, self.state.history)

    def _parts(self) -> TrainingParts:
        """Check everything a training needs, choose its backend, and return its parts."""
        refuse_hooks(type(self))
        self.args.check()
        refuse_unmergeable(self.model)
        refuse_not_finite(self.model, lambda _: "the model given to Trainer")
        self._choose_usable()  # the user may have frozen weights or assigned parts
        self._prove()
        self.callbacks = self.callbacks  # checked again: the list may have grown
        rows = self._readable(self.train_dataset)
        batches = self._batches(rows, training=True)
        measures = self._own_measures
        self.state = self._new_state()
        return TrainingParts(
            model=self.model,
            args=self.args,
            backend=self.backend,
            use=self._training_use(),
            plan=self._make_plan(batches),
            state=self.state,
            folder=self._folder,
            in_run=self._in_run,
            batches=batches,
            train_rows=self._reader(rows),
            eval_rows=self._reader(self.eval_dataset),
            eval_batches=lambda: self._batches(self.eval_dataset, training=False),
            task=self.task,
            loss_sum=self._loss_sum(),
            custom_loss=self.loss,
            optimizers=self.optimizers,
            on_gradients=self.on_gradients,
            evaluate=self._evaluate_between_steps,
            metrics=", ".join(map(measures.title, measures.keys)) if measures else identified(self.compute_metrics),
            metric_title=measures.title if measures else str,
            write_model=self.write_model,
            callbacks=self.callbacks,
            say=self._say,
            say_once=self._say_once,
            quiet=self._quiet,
        )

    def train(
        self, resume_from_checkpoint: bool | str | Path | None = None, *, restart: bool = False, report: bool = True
    ) -> TrainOutput:
        """Train the model in place, to the end, and write `report.html` to the output folder.

        Args:
            resume_from_checkpoint: True to resume from the newest intact checkpoint of output_dir, a path for that one.
            restart: Start again from step 0, and move existing checkpoints aside.
            report: Whether to write the report.

        Returns:
            The number of steps, the mean loss and the metrics.

        Raises:
            GlassloopError: If settings, model or data cannot be used, or if the training diverges or runs out of memory.
        """
        self._readers = []  # rows may have changed since
        recorder = Recorder(self._parts(), self._own_measures, self.processing_class, with_report=report)
        self._recorder = recorder
        with self._training(resume_from_checkpoint, restart=restart, parts=recorder.parts) as output:
            recorder.end(output.metrics)
            for known in self._readers:
                known.release()
            return output

    @contextmanager
    def _training(
        self, resume: bool | str | Path | None = None, *, restart: bool = False, parts: TrainingParts | None = None
    ) -> Iterator[TrainOutput]:
        """Train as `train` does; until the block ends, a signal is only noted, in `state.asked_to_stop`.

        Args:
            resume: True for the newest intact checkpoint of output_dir, a path for that one.
            restart: Start again from step 0, and move existing checkpoints aside.
            parts: The result of `parts()`, if it was needed before the training.

        Yields:
            The number of steps, the mean loss and the metrics.
        """
        resume = user_path(resume) if isinstance(resume, str) else resume
        with trained(parts or self._parts(), resume, restart=restart) as metrics:
            yield TrainOutput(self.state.step, self.state.mean_loss, metrics)

    def evaluate(
        self, eval_dataset: Rows | None = None, ignore_keys: None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return loss and metrics over all rows of a split. A training calls this method, too.

        Args:
            eval_dataset: The rows. Default: the `eval_dataset` of the Trainer.
            ignore_keys: Must be None: only the logits of a model are read.
            metric_key_prefix: What the name of each metric begins with.

        Returns:
            The metrics by name, such as `eval_loss`: a dict, which notebooks show as a table.

        Raises:
            DivergedError: If the loss is not finite.
        """
        refuse_keys(ignore_keys)
        return Metrics(self.evaluation(eval_dataset, metric_key_prefix).metrics)

    def evaluation(self, rows: Rows | None = None, prefix: str = "eval") -> Evaluation:
        """Return logits, labels and metrics of one pass over a split.

        Args:
            rows: The rows. Default: the `eval_dataset` of the Trainer.
            prefix: What the name of each metric begins with.

        Raises:
            DivergedError: If the loss is not finite.
        """
        found = self._run(self.model, self.eval_dataset if rows is None else rows, prefix)
        if self._recorder is not None and (rows is None or rows is self.eval_dataset):
            self._recorder.evaluated(replace(found, outputs=None, several_labels=None), prefix)  # a report needs only logits
        return found

    def _run(self, model: Model, rows: Rows | None, prefix: str) -> Evaluation:
        """Return logits, labels and metrics named with `prefix` of one pass over `rows`."""
        padded = self._why_padded(rows)
        if padded is None:
            self._prove(rows)
        elif isinstance(self.backend, PackedBackend):
            self._say_once(f"evaluations use padded batches: {padded}")
        num_rows = len(rows) if rows is not None and hasattr(rows, "__len__") else None
        with stage(EVALUATING, num_rows), nullcontext() if padded else self.backend.evaluation_context(model):
            batches = self._batches(rows, training=False)
            adapted = batches if padded else self.backend.adapt_batches(batches, self._reader(rows))
            found = run_over(model, adapted, self.backend, self._loss_sum(), self._should_stop, self._predict_batch())
        self._forget_other_rows()
        if found.loss is not None and not math.isfinite(found.loss):
            facts = f"learning rate {self.args.learning_rate:g}, last finite loss {self.state.last_loss}"
            problem = f"step {self.state.step:,}: the loss of the evaluation is {found.loss} ({facts})"
            raise DivergedError(problem, f"{advice(trained=self.state.step > 0)}, or look at its rows")
        scores = {} if found.labels is None else self.metrics_of(EvalPrediction(found.predictions, found.label_ids))
        return named_metrics(found, scores, prefix)

    def _readable(self, rows: Rows | None) -> Rows:
        """Return the training rows. Raises `SettingsError` if they cannot be read by row number."""
        return refuse_unreadable(rows, "train_dataset")

    def _why_padded(self, rows: Rows | None) -> str | None:
        """Return why an evaluation of these rows needs padded batches on any backend, or None."""
        return None

    def _predict_batch(self) -> PredictBatch | None:
        """Return what replaces the forward pass of an evaluation, or None."""
        return None

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """Return the metrics of `compute_metrics`, or those of the task. A subclass may override this method.

        Args:
            found: Logits and labels of all rows.
        """
        if self.compute_metrics is not None:
            return read_scores(self.compute_metrics(found), self._say_once, self.args.metric_for_best_model)
        return self.measures.scores(found.predictions, found.label_ids, self.task, label_names(config_of(self.model)))

    def predict(self, test_dataset: Rows, ignore_keys: None = None, metric_key_prefix: str = "test") -> PredictionOutput:
        """Return logits, labels and metrics of all rows, in their order.

        Args:
            test_dataset: The rows, with or without labels.
            ignore_keys: Must be None: only the logits of a model are read.
            metric_key_prefix: What the name of each metric begins with.

        Returns:
            The logits as `predictions`, the labels as `label_ids`, and the metrics.

        Raises:
            DivergedError: If the loss is not finite.
        """
        refuse_keys(ignore_keys)
        found = self._run(self.model, test_dataset, metric_key_prefix)
        return PredictionOutput(found.predictions, found.label_ids, found.metrics)

    def _evaluate_between_steps(self) -> dict[str, float] | None:
        """Return the metrics of an evaluation during training; None if a signal interrupts it."""
        try:
            with self._interruptible():
                return self.evaluate()
        except Interrupted:
            return None

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let a signal interrupt an evaluation, which raises `Interrupted`. With several processes it runs to its end."""
        self._should_stop = lambda: bool(self.state.asked_to_stop) and self.backend.processes.num_processes == 1
        try:
            yield
        finally:
            self._should_stop = lambda: False

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Save the model, its config and its tokenizer as transformers does, in safetensors format.

        Args:
            output_dir: The folder. Default: `output_dir` of the settings.
        """
        if self.backend.processes.is_main:
            self.write_model(user_path(output_dir) if output_dir else self._folder)
        self.backend.processes.wait()

    def write_model(self, folder: Path, weights: Tensors | None = None) -> None:
        """Write the model, its config and its tokenizer, for `save_model` and for checkpoints. A subclass may override this.

        Args:
            folder: The folder to write to.
            weights: Weights to write instead of those of the model.
        """
        with quiet_transformers():
            save_whole(self.backend.unwrap(self.model), folder, weights)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
        share_files(folder, "*.safetensors")
