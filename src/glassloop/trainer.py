"""The Trainer: model, data and settings around the one loop. A user of transformers' Trainer changes one import."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import supported_backend, verified_backend
from glassloop.backends.choose import choose_backend
from glassloop.compatibility import refuse_assignment, refuse_hooks, refuse_keys, refuse_unsupported
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator, collator_of
from glassloop.data.formats import known_columns, refuse_unreadable
from glassloop.data.row_labels import LABEL_KEYS, infer_task, refuse_labels
from glassloop.engine.callbacks import checked_callbacks
from glassloop.engine.evaluate import Evaluation, Interrupted, run_over
from glassloop.engine.identity import identified
from glassloop.engine.interfaces import Backend, TrainingUse
from glassloop.engine.losses import LossSum, class_weights_of, loss_of
from glassloop.engine.plan import make_plan
from glassloop.engine.state import State
from glassloop.errors import DivergedError, listed, say
from glassloop.files import share_files, user_path
from glassloop.measures import Measures, checked_numbers, chosen_measures
from glassloop.metrics import decide
from glassloop.models.adapters import base_of, refuse_unmergeable, save_whole
from glassloop.models.inputs import accepted_inputs, refuse_unknown_tokens
from glassloop.models.loading import quiet_transformers, refuse_not_finite
from glassloop.models.outputs import label_names, task_of
from glassloop.run_folder.record import Plan
from glassloop.training.parts import TrainingParts
from glassloop.training.session import trained

DEFAULT_DIR = "trainer_output"


class EvalPrediction(NamedTuple):
    """What `compute_metrics` gets."""

    predictions: np.ndarray
    label_ids: np.ndarray | None


class PredictionOutput(NamedTuple):
    """What `predict` returns: logits and labels in the order of the rows, and metrics."""

    predictions: np.ndarray
    label_ids: np.ndarray | None
    metrics: dict[str, float]


class TrainOutput(NamedTuple):
    """What `train` returns."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class Trainer:
    """Trains and evaluates one model. `loss` is a function of logits and labels that returns a loss a row (or their sum).
    `on_gradients` is called with the model before clipping. `measures` (of examples) replace the default metrics."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[Any], Mapping[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        *,
        tokenizer: Any = None,
        loss: LossSum | None = None,
        on_gradients: Callable[[Any], None] | None = None,
        accelerator: Any = None,
        backend: Backend | None = None,
        measures: Measures | None = None,
        **unsupported: Any,
    ) -> None:
        refuse_unsupported(unsupported)
        refuse_hooks(type(self))
        self.args = args if args is not None else TrainingArguments()
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.told: set[str] = set()
        self.quiet = False  # no lines and no bar
        self.should_stop: Callable[[], bool] = lambda: False  # asked after each batch of an evaluation
        self.model = model
        self.backend = backend if backend is not None else choose_backend(self.args, accelerator)
        self.model = model.to(self.backend.device)
        self.data_collator = data_collator
        refuse_unknown_tokens(self.processing_class, self.model)
        self.optimizers, self.callbacks = optimizers, callbacks or []
        self.train_dataset, self.eval_dataset, self.on_gradients = train_dataset, eval_dataset, on_gradients
        self.compute_metrics, self.given_measures, self.loss = compute_metrics, measures, loss
        self.choose_usable()
        self.folder = Path(self.args.output_dir or DEFAULT_DIR)
        self.in_run = False  # set by a run, which holds the lock of the folder; the final model is saved there
        self.weighed: tuple[tuple[str | None, int, Any], list[float] | None] | None = None
        self.state = State()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. What is assigned after construction takes effect, or is refused."""
        name = "given_measures" if name == "measures" else name
        refuse_assignment(self, name, value)
        if name == "model" and "backend" in vars(self):
            value = value.to(self.backend.device)
        super().__setattr__(name, checked_callbacks(value) if name == "callbacks" else value)
        if name == "collate" and "state" in vars(self):
            self.choose_usable()

    # Parts, each usable alone

    @property
    def data_collator(self) -> Callable[[Any], Any]:
        """What makes a batch of rows."""
        return self.collate

    @data_collator.setter
    def data_collator(self, given: Any) -> None:
        self.collate = collator_of(given, self.processing_class, self.args.pad_to_multiple_of)

    def choose_usable(self) -> None:
        """Fall back to the plain backend where the fast one cannot run the model or the parts as they are now."""
        own = None if isinstance(self.collate, PaddingCollator) else "batches come from a collator of your own"
        own = own if tuple(self.optimizers) == (None, None) else "the optimizer is your own"
        if self.on_gradients is not None and self.args.backend == "auto":
            own = own or "on_gradients may do anything with gradients"
        self.backend = supported_backend(self.backend, self.model, self.say_once, own)

    def batches(self, rows: Any, *, training: bool) -> Batches:
        """The batches of a data set: shuffled by seed and epoch for training, else by length."""
        refuse_unreadable(rows, f"{'train' if training else 'eval'}_dataset")
        made_by_us = isinstance(self.collate, PaddingCollator)  # another collator may make labels of anything
        args, processes = self.args, self.backend.processes.num_processes
        seed = args.data_seed if args.data_seed is not None else args.seed
        size = (args.per_device_train_batch_size * processes) if training else args.per_device_eval_batch_size
        batches = Batches(
            self.with_known_columns(rows),
            self.collate,
            size,
            seed=seed if training else None,
            group_by_length=args.group_by_length if training else made_by_us,
            drop_last=args.dataloader_drop_last and training,
            rank=self.backend.processes.rank,
            num_processes=processes,
        )
        infer_task(self.model.config, batches.first_labels, self.say_once)
        refuse_labels(rows, self.task, int(self.model.config.num_labels), needed=training and made_by_us)
        return batches

    def with_known_columns(self, rows: Any) -> Any:
        """Drop columns the model does not accept, and report them once."""
        known, unused = known_columns(rows, {*accepted_inputs(type(base_of(self.model))), *LABEL_KEYS})
        if unused:
            self.say_once(f"columns the model does not accept are dropped: {listed(unused)}")
        return known

    def say_once(self, line: str) -> None:
        if line not in self.told:
            self.told.add(line)
            self.say(line)

    def say(self, line: str) -> None:
        """One line for a person, from the main process only."""
        if self.backend.processes.is_main and not self.quiet:
            say(line)

    @property
    def task(self) -> str:
        """What the model learns, from its config."""
        return task_of(self.model.config)

    @property
    def measures(self) -> Measures:
        """The metrics of an evaluation, where compute_metrics is not given."""
        return chosen_measures(self.given_measures, self.task, label_names(self.model.config), self.args.positive_label)

    def training_use(self) -> TrainingUse:
        """Return how the model will be trained, as far as a backend has to know it."""
        return TrainingUse(
            [rows for rows in (self.train_dataset, self.eval_dataset) if rows is not None],
            self.args.weight_decay,
            reads_gradients=self.on_gradients is not None,
            adds_gradients=self.args.gradient_accumulation_steps > 1,
            reads_weights=any(getattr(callback, "reads_weights", True) for callback in self.callbacks),
        )

    def loss_sum(self) -> LossSum:
        """The sum of the rows' losses, as the settings say."""
        return loss_of(self.args, self.task, self.class_weights(), self.loss, self.backend.device)

    def class_weights(self) -> list[float] | None:
        """The weight of each class, where the settings ask for some; rows are counted once."""
        wanted = (self.args.class_weights, int(self.model.config.num_labels), self.train_dataset)
        if self.weighed is None or any(now is not then for now, then in zip(wanted, self.weighed[0], strict=True)):
            self.weighed = (wanted, class_weights_of(*wanted))
        return self.weighed[1]

    def make_plan(self, batches: Batches) -> Plan:
        """All intervals and lengths as plain numbers."""
        return make_plan(self.args, len(batches), has_eval=self.eval_dataset is not None)

    def prove(self, rows: Any = None) -> None:
        """Compare a fast backend with the plain model on a few rows, once; where they differ, plain takes its place.

        `rows`: those of an evaluation; None: a training is checked, gradients too.
        """
        chosen, training, args = self.train_dataset if rows is None else rows, rows is None, self.args
        use = self.training_use() if training else None
        parts = partial(self.batches, chosen, training=training)
        self.backend = verified_backend(self.backend, self.model, parts, self.say_once, use, by_name=args.backend != "auto")

    # The verbs

    def train(self, resume_from_checkpoint: bool | str | Path | None = None, *, restart: bool = False) -> TrainOutput:
        """Run the loop to its end; the model is trained in place.

        `resume_from_checkpoint`: True resumes from the newest intact checkpoint of output_dir, a path from that one.
        `restart`: start again from step 0, and move existing checkpoints aside.
        """
        with self.training(resume_from_checkpoint, restart=restart) as output:
            return output

    @contextmanager
    def training(
        self, resume: bool | str | Path | None = None, *, restart: bool = False, parts: TrainingParts | None = None
    ) -> Iterator[TrainOutput]:
        """Train as `train` does; until the block ends, a signal is only noted, in `state.asked_to_stop`.

        Args:
            resume: True for the newest intact checkpoint of output_dir, a path for that one.
            restart: Start again from step 0, and move existing checkpoints aside.
            parts: What `parts` returned, if it was needed before the training.

        Yields:
            The number of steps, the mean loss and the metrics.
        """
        resume = user_path(resume) if isinstance(resume, str) else resume
        with trained(parts or self.parts(), resume, restart=restart) as metrics:
            yield TrainOutput(self.state.step, self.state.mean_loss, metrics)

    def parts(self) -> TrainingParts:
        """Check everything a training needs, choose its backend, and return its parts."""
        refuse_hooks(type(self))
        refuse_unmergeable(self.model)
        refuse_not_finite(self.model, lambda _: "the model given to Trainer")
        self.choose_usable()  # weights may have been frozen since, parts assigned
        self.prove()
        self.callbacks = self.callbacks  # checked again: the list may have grown
        batches = self.batches(self.train_dataset, training=True)
        own, ours = self.compute_metrics, self.measures if self.compute_metrics is None else None
        self.state = State()
        return TrainingParts(
            model=self.model,
            args=self.args,
            backend=self.backend,
            use=self.training_use(),
            plan=self.make_plan(batches),
            state=self.state,
            folder=self.folder,
            in_run=self.in_run,
            batches=batches,
            train_rows=self.train_dataset,
            eval_rows=self.eval_dataset,
            eval_batches=lambda: self.batches(self.eval_dataset, training=False),
            task=self.task,
            loss_sum=self.loss_sum(),
            custom_loss=self.loss,
            optimizers=self.optimizers,
            on_gradients=self.on_gradients,
            evaluate=self.evaluate_between_steps,
            metrics=identified(own) if ours is None else ", ".join(map(ours.title, ours.keys)),
            metric_title=str if ours is None else ours.title,
            write_model=self.write_model,
            callbacks=self.callbacks,
            say=self.say,
            say_once=self.say_once,
            quiet=self.quiet,
        )

    def run(self, model: Any, rows: Any, prefix: str) -> Evaluation:
        """One pass over `rows`: logits, labels and metrics named with `prefix`."""
        self.prove(rows)
        with self.backend.evaluation_context(model):
            batches = self.backend.adapt_batches(self.batches(rows, training=False), rows)
            found = run_over(model, batches, self.backend, self.loss_sum(), self.should_stop)
        metrics: dict[str, float] = {}
        if found.labels is not None:
            metrics["loss"] = float(found.loss or 0.0)
            if not math.isfinite(metrics["loss"]):
                facts = f"learning rate {self.args.learning_rate:g}, last finite loss {self.state.last_loss}"
                problem = f"step {self.state.step:,}: the loss of the evaluation is {metrics['loss']} ({facts})"
                raise DivergedError(problem, "lower learning_rate, add warmup_steps, or use precision fp32")
            metrics |= self.metrics_of(EvalPrediction(found.logits, found.labels))
        metrics |= {"runtime": found.seconds, "samples_per_second": len(found.logits) / max(found.seconds, 1e-9)}
        named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
        return replace(found, metrics=named)

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """The user's metrics, else those that fit the task."""
        if self.compute_metrics is not None:
            return checked_numbers(self.compute_metrics(found))
        metric = self.measures.metric(self.task, label_names(self.model.config))
        return metric.compute(predictions=decide(found.predictions, self.task), references=found.label_ids)

    def evaluate(self, eval_dataset: Any = None, ignore_keys: None = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return loss and metrics over all rows of a split; training calls this too."""
        refuse_keys(ignore_keys)
        return self.evaluation(eval_dataset, metric_key_prefix).metrics

    def evaluate_between_steps(self) -> dict[str, float] | None:
        """Return the metrics of an evaluation during training; None if a signal interrupts it."""
        try:
            with self.interruptible():
                return self.evaluate()
        except Interrupted:
            return None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt an evaluation, which raises `Interrupted`. With several processes it runs to its end."""
        self.should_stop = lambda: bool(self.state.asked_to_stop) and self.backend.processes.num_processes == 1
        try:
            yield
        finally:
            self.should_stop = lambda: False

    def evaluation(self, rows: Any = None, prefix: str = "eval") -> Evaluation:
        """Logits, labels and metrics of all rows of a split."""
        return self.run(self.model, self.eval_dataset if rows is None else rows, prefix)

    def predict(self, test_dataset: Any, ignore_keys: None = None, metric_key_prefix: str = "test") -> PredictionOutput:
        """Return logits, labels and metrics of all rows, in their order."""
        refuse_keys(ignore_keys)
        found = self.run(self.model, test_dataset, metric_key_prefix)
        return PredictionOutput(found.logits, found.labels, found.metrics)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """The model, its config and its tokenizer as any Hugging Face user expects them: safetensors, full names."""
        if self.backend.processes.is_main:
            self.write_model(user_path(output_dir) if output_dir else self.folder)
        self.backend.processes.wait()

    def write_model(self, folder: Path, weights: dict[str, Any] | None = None) -> None:
        """Write the model (with other `weights` where given), its config and its tokenizer."""
        with quiet_transformers():
            save_whole(self.backend.unwrap(self.model), folder, weights)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
        share_files(folder, "*.safetensors")
