"""The Trainer: model, data and settings around the one loop. A user of transformers' Trainer changes one import."""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import LABEL_KEYS, Batches, PaddingCollator
from glassloop.devices import choose_backend
from glassloop.engine.backends import PlainBackend
from glassloop.engine.callbacks import Callback, checked_callbacks
from glassloop.engine.evaluate import Evaluation, run_over
from glassloop.engine.loop import fit, train_step
from glassloop.engine.losses import LossSum, balanced_weights, check_loss, make_loss
from glassloop.engine.optimizer import make_optimizer, make_scheduler
from glassloop.engine.recorder import HISTORY_NAME, History, Trackers
from glassloop.engine.state import Plan, State
from glassloop.errors import DivergedError, SettingsError, listed, visible
from glassloop.metrics import decide, metrics_for
from glassloop.modeling import quiet_transformers
from glassloop.progress import progress_for
from glassloop.seeding import seed_all

DEFAULT_DIR = "trainer_output"
UNSUPPORTED = {
    "model_init": "build the model first: Trainer(model=load_model(...))",
    "compute_loss_func": "give loss=, a function of logits and labels that returns one loss a row",
    "preprocess_logits_for_metrics": "do it in compute_metrics",
    "optimizer_cls_and_kwargs": "give optimizers=(optimizer, scheduler)",
    "peft_config": "wrap the model first",
}


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
    """Trains and evaluates one model. `loss` is a function of logits and labels that returns a loss a row (or their sum);
    `on_gradients` is called with the model after the backward passes of a step, before clipping."""

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
        backend: PlainBackend | None = None,
        **unsupported: Any,
    ) -> None:
        for name, value in unsupported.items():
            if name not in UNSUPPORTED:
                raise SettingsError(f"Trainer has no argument {visible(name)}", "see help(glassloop.Trainer)")
            if value is not None:
                raise SettingsError(f"Trainer does not support {name}", UNSUPPORTED[name])
        if model is None or not hasattr(model, "forward"):
            raise SettingsError("Trainer needs a model", "give model=load_model(...)")
        self.args = args if args is not None else TrainingArguments()
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.backend = backend if backend is not None else choose_backend(self.args, accelerator)
        self.model = model.to(self.backend.device)
        self.collate = self.choose_collator(data_collator)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_metrics, self.optimizers = compute_metrics, optimizers
        self.custom_loss, self.on_gradients = loss, on_gradients
        self.callbacks = checked_callbacks(callbacks)
        self.state = State()
        self.told: set[str] = set()

    # Parts, each usable alone

    def choose_collator(self, given: Any) -> Callable[[Any], Any]:
        """The user's collator; ours where none is given or where it is known to give the same."""
        if given is not None and type(given).__name__ != "DataCollatorWithPadding":
            return given  # type: ignore[no-any-return]
        tokenizer = getattr(given, "tokenizer", None) or self.processing_class
        if tokenizer is None:
            raise SettingsError("Trainer needs a tokenizer to pad batches", "give processing_class=tokenizer or data_collator=")
        if given is not None and getattr(given, "padding", True) not in (True, "longest"):
            return given  # type: ignore[no-any-return]
        return PaddingCollator(tokenizer, getattr(given, "pad_to_multiple_of", None) or self.args.pad_to_multiple_of)

    def batches(self, rows: Any, *, training: bool) -> Batches:
        """The batches of a data set: shuffled by seed and epoch for training, else by length."""
        if rows is None:
            raise SettingsError(f"there is no {'train' if training else 'eval'}_dataset", "give one to the Trainer")
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise SettingsError(
                f"a {type(rows).__name__} has no length or no rows by number, so its order cannot be repeated",
                "give a datasets.Dataset, a list of dicts, or another data set with len() and [number]",
            )
        if len(rows) == 0:
            raise SettingsError("the data set has no rows", "give at least one row")
        args, processes = self.args, self.backend.num_processes
        seed = args.data_seed if args.data_seed is not None else args.seed
        size = (args.per_device_train_batch_size * processes) if training else args.per_device_eval_batch_size
        return Batches(
            self.with_known_columns(rows),
            self.collate,
            size,
            seed=seed if training else None,
            group_by_length=args.group_by_length if training else isinstance(self.collate, PaddingCollator),
            drop_last=args.dataloader_drop_last and training,
            rank=self.backend.rank,
            num_processes=processes,
        )

    def with_known_columns(self, rows: Any) -> Any:
        """The rows without columns that the model does not take; which ones is told once."""
        if not hasattr(rows, "remove_columns"):
            return rows
        taken = [*inspect.signature(self.model.forward).parameters, *LABEL_KEYS]
        if "input_ids" not in rows.column_names:
            raise SettingsError(
                f"the data set has no column input_ids; found {listed(rows.column_names)}",
                "tokenize it first: glassloop.encode(examples, tokenizer, max_length), or dataset.map(tokenizer, …)",
            )
        unused = [name for name in rows.column_names if name not in taken]
        if unused:
            self.say_once(f"columns the model does not take are left out: {listed(unused)}")
        return rows.remove_columns(unused) if unused else rows

    def say_once(self, line: str) -> None:
        if self.backend.is_main and line not in self.told:
            self.told.add(line)
            print(f"glassloop: {line}", file=sys.stderr)

    @property
    def task(self) -> str:
        """What the model learns, from its config."""
        config = self.model.config
        if config.problem_type:
            return str(config.problem_type)
        return "regression" if config.num_labels == 1 else "single_label_classification"

    def loss_sum(self) -> LossSum:
        """The sum of the rows' losses, as the settings say."""
        args, weights = self.args, None
        if args.class_weights:
            weights = torch.tensor(self.class_weights(args.class_weights), device=self.backend.device)
        if self.task == "regression" and (args.class_weights or args.label_smoothing_factor):
            raise SettingsError("class_weights and label_smoothing_factor have no meaning for scores", "leave them away")
        return make_loss(self.task, label_smoothing=args.label_smoothing_factor, class_weights=weights, custom=self.custom_loss)

    def class_weights(self, text: str) -> list[float]:
        number = int(self.model.config.num_labels)
        if text == "balanced":
            key = next(key for key in LABEL_KEYS if key in self.train_dataset.column_names)
            labels = np.asarray(self.train_dataset.with_format("numpy")[key])
            counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=number)
            return balanced_weights({str(label): int(count) for label, count in enumerate(counts)})
        try:
            weights = [float(part) for part in text.split(",")]
        except ValueError as error:
            raise SettingsError(f"class_weights is {visible(text)}", "write balanced, or numbers: 1,2.5") from error
        if len(weights) != number or min(weights) < 0:
            raise SettingsError(f"class_weights has {len(weights)} numbers for {number} labels", "give one a label, 0 or more")
        return weights

    def make_plan(self, batches: Batches) -> Plan:
        """All intervals and lengths as plain numbers."""
        args, num_batches = self.args, len(batches)
        if num_batches == 0:
            raise SettingsError("dataloader_drop_last leaves no batch at all", "use a smaller batch size")
        per_epoch = math.ceil(num_batches / args.gradient_accumulation_steps)
        max_steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
        warmup = args.warmup_steps
        eval_every = {"no": 0, "steps": args.eval_steps or args.logging_steps, "epoch": per_epoch}[args.eval_strategy]
        if eval_every and self.eval_dataset is None:
            raise SettingsError(f"eval_strategy is {args.eval_strategy}, but there is no eval_dataset", "give one")
        best = args.metric_for_best_model or "loss"
        best = best if best.startswith("eval_") else f"eval_{best}"
        greater = args.greater_is_better if args.greater_is_better is not None else not best.endswith("loss")
        return Plan(
            max_steps=max_steps,
            steps_per_epoch=per_epoch,
            batches_per_epoch=num_batches,
            accumulate=args.gradient_accumulation_steps,
            warmup_steps=math.ceil(warmup * max_steps) if warmup < 1 else int(warmup),
            log_every=args.logging_steps,
            eval_every=eval_every,
            save_every={"no": 0, "steps": args.save_steps, "epoch": per_epoch}[args.save_strategy],
            eval_on_start=args.eval_on_start,
            best_metric=best,
            greater_is_better=greater,
            patience=args.early_stopping_patience,
            least_gain=args.early_stopping_threshold,
        )

    def make_optimizers(self, plan: Plan) -> tuple[Any, Any]:
        """The user's optimizer and schedule where given, else AdamW and the schedule of the settings."""
        args = self.args
        optimizer, scheduler = self.optimizers
        if optimizer is None:
            optimizer = make_optimizer(
                self.model,
                args.learning_rate,
                weight_decay=args.weight_decay,
                betas=(args.adam_beta1, args.adam_beta2),
                epsilon=args.adam_epsilon,
                fused=args.optim == "adamw_torch_fused",
            )
        if scheduler is None:
            try:
                options = json.loads(args.lr_scheduler_kwargs) if args.lr_scheduler_kwargs else None
            except ValueError as error:
                raise SettingsError(f"lr_scheduler_kwargs is not JSON: {error}", 'write {"num_cycles": 2}') from error
            scheduler = make_scheduler(args.lr_scheduler_type, optimizer, plan.warmup_steps, plan.max_steps, options)
        return optimizer, scheduler

    # The verbs

    def train(self) -> TrainOutput:
        """Run the loop to its end; the model is trained in place."""
        args, backend, began = self.args, self.backend, time.perf_counter()
        batches = self.batches(self.train_dataset, training=True)
        plan, loss_sum = self.make_plan(batches), self.loss_sum()
        if self.custom_loss is not None:
            check_loss(loss_sum, self.model, next(batches.epoch()), backend)
        optimizer, scheduler = self.make_optimizers(plan)
        model, optimizer, scheduler = backend.prepare(self.model, optimizer, scheduler)
        self.state = State()
        folder = Path(args.output_dir or DEFAULT_DIR)
        if backend.is_main:
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / HISTORY_NAME if backend.is_main else None
        history = History(path, lambda: rate_of(scheduler), plan.batches_per_epoch)
        best = BestWeights(self.model)
        watching: list[Callback] = [history, *([best] if args.load_best_model_at_end else [])]
        if backend.is_main:
            if args.trackers:
                name = args.run_name or folder.name
                watching.append(Trackers(args.trackers, folder, name, args.to_dict(), history))
            watching.append(progress_for(plan, args.disable_tqdm, history))
        step = partial(
            train_step,
            model,
            loss_sum=loss_sum,
            optimizer=optimizer,
            scheduler=scheduler,
            backend=backend,
            max_norm=args.max_grad_norm,
            on_gradients=self.on_gradients,
        )
        evaluate = partial(self.evaluate_with, model) if plan.eval_every or plan.eval_on_start else None
        model.train()
        seed_all(args.seed + backend.rank)
        try:
            fit(
                step,
                batches,
                plan,
                self.state,
                callbacks=[*watching, *self.callbacks],
                evaluate=evaluate,
                gather=backend.gather_figures,
            )
        except FloatingPointError as error:
            raise self.diverged(error, batches, plan) from error
        if args.load_best_model_at_end and best.weights:
            backend.unwrap(model).load_state_dict(best.weights)
        seconds = time.perf_counter() - began
        metrics = {
            "train_loss": self.state.mean_loss,
            "train_runtime": seconds,
            "train_steps_per_second": self.state.step / seconds,
            "train_samples_per_second": self.state.step * plan.accumulate * batches.batch_size / seconds,
            "epoch": history.epoch(self.state),
        }
        return TrainOutput(self.state.step, self.state.mean_loss, metrics)

    def diverged(self, error: FloatingPointError, batches: Batches, plan: Plan) -> DivergedError:
        """What is known about the step whose figure is not finite."""
        problem, step = error.args
        epoch, place = divmod(step - 1, plan.steps_per_epoch)
        group = batches.plan(epoch)[place * plan.accumulate : (place + 1) * plan.accumulate]
        rows = listed(np.concatenate(group).tolist(), 8)
        last = "none" if self.state.last_loss is None else f"{self.state.last_loss:.4g}"
        return DivergedError(
            f"{problem} (last finite loss {last}, learning rate {self.args.learning_rate:g}, rows {rows} of the training data)",
            "lower learning_rate, add warmup_steps, use precision fp32, or look at these rows",
        )

    def evaluate_with(self, model: Any, rows: Any = None, prefix: str = "eval") -> dict[str, float]:
        return self.run(model, self.eval_dataset if rows is None else rows, prefix).metrics

    def run(self, model: Any, rows: Any, prefix: str) -> Evaluation:
        """One pass over `rows`: logits, labels and metrics named with `prefix`."""
        batches = self.batches(rows, training=False)
        found = run_over(model, batches, self.backend, self.loss_sum())
        metrics: dict[str, float] = {}
        if found.labels is not None:
            metrics["loss"] = float(found.loss or 0.0)
            metrics |= self.metrics_of(EvalPrediction(found.logits, found.labels))
        metrics |= {"runtime": found.seconds, "samples_per_second": len(found.logits) / max(found.seconds, 1e-9)}
        named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
        return replace(found, metrics=named)

    def metrics_of(self, found: EvalPrediction) -> dict[str, float]:
        """The user's metrics, else those that fit the task."""
        if self.compute_metrics is not None:
            given = self.compute_metrics(found)
            if not isinstance(given, Mapping):
                raise SettingsError(f"compute_metrics returned a {type(given).__name__}", "return a dict of names and numbers")
            return {str(name): float(value) for name, value in given.items()}
        metric = metrics_for(self.task, int(self.model.config.num_labels))
        return metric.compute(predictions=decide(found.predictions, self.task), references=found.label_ids)

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Loss and metrics over all rows of a split."""
        return self.evaluate_with(self.model, eval_dataset, metric_key_prefix)

    def predict(self, test_dataset: Any, metric_key_prefix: str = "test") -> PredictionOutput:
        """Logits, labels and metrics of all rows, in their order."""
        found = self.run(self.model, test_dataset, metric_key_prefix)
        return PredictionOutput(found.logits, found.labels, found.metrics)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """The model, its config and its tokenizer as any Hugging Face user expects them: safetensors, full names."""
        if self.backend.is_main:
            folder = Path(output_dir or self.args.output_dir or DEFAULT_DIR)
            with quiet_transformers():
                self.backend.unwrap(self.model).save_pretrained(folder)
                if self.processing_class is not None:
                    self.processing_class.save_pretrained(folder)
        self.backend.wait()


class BestWeights(Callback):
    """Keeps a copy of the weights of the best evaluation in main memory."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights: dict[str, torch.Tensor] = {}

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        if state.best_step == state.step:
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}


def rate_of(scheduler: Any) -> float:
    """The learning rate of the next step."""
    return float(scheduler.optimizer.param_groups[0]["lr"])
