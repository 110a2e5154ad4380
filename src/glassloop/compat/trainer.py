"""`glassloop.Trainer`: the Trainer with everything that scripts for transformers call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from glassloop.backends.choose import launched_processes
from glassloop.base.errors import SettingsError, TooLargeError, listed, visible
from glassloop.base.files import user_path
from glassloop.compat.arguments import TrainingArguments
from glassloop.compat.callbacks import show_metrics, write_metrics
from glassloop.compat.hooks import flattened, flattens_scores, labels_of, with_config
from glassloop.compat.overrides import OwnParts
from glassloop.compat.trials import BestRun, Objective, Space, Trial, Trials
from glassloop.data.collator import stacked
from glassloop.data.interfaces import Collator, Model, Rows, Tokenizer
from glassloop.data.order import random_states_kept
from glassloop.markup.templates import markdown_table
from glassloop.report.card import Card, DataName, Score, scores_table, write_card
from glassloop.runs.history import Entry
from glassloop.scores.measures import short_metrics
from glassloop.settings.training import TrainingArguments as Settings
from glassloop.share.upload import pushed, upload
from glassloop.study.strategies import refuse_without_optuna
from glassloop.trainer import READ_ONCE, EvalPrediction, Metrics, PredictionOutput, TrainOutput
from glassloop.training.callbacks import Callback
from glassloop.training.evaluate import Interrupted
from glassloop.training.interfaces import Optimizer
from glassloop.training.parts import Optimizers
from glassloop.training.session import STATE_NAME

if TYPE_CHECKING:
    from transformers import TrainerCallback


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
    trainer: OwnParts,
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


def refuse_search(trainer: OwnParts, directions: Sequence[str], backend: object, options: dict[str, object]) -> None:
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


class Searching(OwnParts):
    """A Trainer that can search for hyperparameters."""

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


TRAINS_AGAIN = (
    "train() was called before: this training starts with a new optimizer, which transformers' Trainer would keep "
    "(docs/reference/transformers.md)"
)


class Trainer(Searching):
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
        self.model_init, self.compute_loss_func = model_init, compute_loss_func
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._eval_sets = dict(eval_dataset) if isinstance(eval_dataset, dict) else {}
        tokenizer = processing_class if processing_class is not None else tokenizer
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

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Save the model, its config and its tokenizer as transformers does, in safetensors format.

        Args:
            output_dir: The folder. Default: `output_dir` of the settings.
        """
        if self._saves_alone:
            self.write_model(user_path(output_dir) if output_dir else self._folder)
        else:
            super().save_model(output_dir)

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
