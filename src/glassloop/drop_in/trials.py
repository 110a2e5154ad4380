"""The trials of `Trainer.hyperparameter_search`: each is a training of its own, recorded as a run of a study."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from glassloop.arguments import TYPES
from glassloop.data.batches import Batches
from glassloop.drop_in.arguments import OWN
from glassloop.drop_in.own_parts import OwnParts
from glassloop.drop_in.settings import SETTINGS
from glassloop.engine.callbacks import Callback
from glassloop.engine.identity import digest, identified, rows_fingerprint
from glassloop.engine.state import State
from glassloop.errors import DivergedError, SettingsError, did_you_mean, listed, visible
from glassloop.measures import short_metrics
from glassloop.run_folder.layout import checkpoints_in, step_of
from glassloop.run_folder.record import TIMINGS
from glassloop.run_folder.study_json import BaseRecord
from glassloop.study.optuna_search import sampler_for, started_search
from glassloop.study.script_search import SearchRecord
from glassloop.study_space import Value
from glassloop.training.setup import DEFAULT_DIR

PRUNED = "optuna pruned the trial"
# Settings that do not change what a search finds.
NOT_COMPARED = ("output_dir", "overwrite_output_dir", "run_name", "logging_dir", "report_to", "disable_tqdm")
OF_OPTIMIZE = ("timeout", "gc_after_trial", "catch", "callbacks", "show_progress_bar")
Space = Callable[["Trial"], Mapping[str, object]]
Objective = Callable[[dict[str, float]], float | Sequence[float]]


class Trial(Protocol):
    """What is used of an `optuna.Trial`."""

    number: int
    params: dict[str, Value]
    distributions: Mapping[str, object]

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int) -> int: ...
    def suggest_categorical(self, name: str, choices: Sequence[int]) -> int: ...
    def report(self, value: float, step: int) -> None: ...
    def should_prune(self) -> bool: ...


class BestRun(NamedTuple):
    """The best trial of a search.

    Args:
        run_id: The number of the trial.
        objective: Its objective; a list if there are several.
        hyperparameters: What was suggested to it, by name.
        run_summary: None: only other backends have one.
    """

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, object]
    run_summary: None = None


def default_objective(trainer: OwnParts) -> Objective:
    """Return the sum of the metrics of `compute_metrics`; without it, the evaluation loss, or the sum over several sets."""

    def objective(metrics: dict[str, float]) -> float:
        losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
        scores = {name: value for name, value in metrics.items() if name not in ("epoch", "eval_loss")}
        if trainer.compute_metrics is None:
            return sum(losses.values())
        return sum(value for name, value in scores.items() if not name.endswith(TIMINGS)) if scores else metrics["eval_loss"]

    return objective


class Trials:
    """The trials of one search. They are recorded in study.json, and a search that was stopped continues.

    Args:
        trainer: The Trainer, which is reset before each trial.
        space: Returns the settings of a trial.
        objective: Returns one or several numbers for the metrics of an evaluation; None for the default.
        name_of: Returns the name of a trial.
        directions: The direction of each objective.
    """

    def __init__(
        self,
        trainer: OwnParts,
        space: Space,
        objective: Objective | None,
        name_of: Callable[[Trial], str] | None,
        directions: Sequence[str],
    ) -> None:
        self.trainer, self.space, self.given_objective, self.directions = trainer, space, objective, directions
        self.objective = objective or default_objective(trainer)
        self.name_of = name_of or (lambda trial: f"run-{trial.number}")
        self.folder = Path(trainer.args.output_dir or DEFAULT_DIR)
        self.caught: tuple[type[BaseException], ...] = (DivergedError,)

    def run(self, n_trials: int | None, options: dict[str, object]) -> list[BestRun]:
        """Run the trials that are not done yet, and return the best one, or all that no other one dominates."""
        settings = {name: getattr(self.trainer.args, name) for name in TYPES} | {"device": self.trainer.backend.device.type}
        base, seed = BaseRecord(training=settings), self.trainer.args.seed
        is_max = self.directions[0] == "maximize"
        self.record = SearchRecord(self.folder, self.identity(settings), seed, greater_is_better=is_max, base=base)
        own = {name: value for name, value in options.items() if name not in (*OF_OPTIMIZE, "n_jobs")}
        known = [] if "storage" in own else self.record.known()  # a storage of the user has them
        search = started_search(seed, known, self.directions, own)
        if self.record.waiting and "storage" not in own:
            search.enqueue_trial(self.record.waiting)
        self.caught = tuple(options.get("catch", self.caught))  # type: ignore[arg-type]  # optuna takes any iterable
        callbacks = [*options.get("callbacks", ())]  # type: ignore[misc]  # a list of functions
        if "sampler" not in own:
            callbacks.insert(0, lambda found, trial: setattr(found, "sampler", sampler_for(seed, trial.number + 1)))
        of_optimize = {name: options[name] for name in OF_OPTIMIZE if name in options} | {
            "catch": self.caught,
            "callbacks": callbacks,
        }
        with unchanged(self.trainer) as reset:
            missing = None if n_trials is None else max(0, n_trials - len(known))
            search.optimize(lambda trial: self.trial(trial, reset), n_trials=missing, **of_optimize)
        finished = [trial for trial in search.trials if trial.state.name == "COMPLETE"]
        found = search.best_trials if finished else []
        best = [BestRun(str(trial.number), [*trial.values], trial.params) for trial in found]
        if len(self.directions) == 1:
            best = [BestRun(str(search.best_trial.number), search.best_value, search.best_params)] if finished else []
        self.record.end(int(best[0].run_id) if best else None)
        return best

    def identity(self, settings: Mapping[str, object]) -> dict[str, str]:
        """Return what must be the same for a search to continue: settings, functions and rows."""
        trainer = self.trainer
        kept = {name: value for name, value in settings.items() if name not in NOT_COMPARED}
        functions = [identified(one) for one in (self.space, self.given_objective, trainer.model_init)]
        named = [type(trainer).__qualname__, [*self.directions], kept, functions]
        rows = {"train": trainer.train_dataset, **trainer._eval_sets} if trainer._eval_sets else {
            "train": trainer.train_dataset, "validation": trainer.eval_dataset}  # fmt: skip
        return {"search": digest(json.dumps(named, default=str)), **{name: rows_text(found) for name, found in rows.items()}}

    def trial(self, trial: Trial, reset: Callable[[], None]) -> float | Sequence[float]:
        """Train one trial, record it, and return its objective."""
        from optuna import TrialPruned

        trainer, began = self.trainer, time.perf_counter()
        reset()
        set_hyperparameters(trainer, trial, self.space(trial))
        name = self.record.free_name(self.name_of(trial), trial.number)
        distributions = {part: distribution_text(found) for part, found in trial.distributions.items()}
        reports = self.record.begin(trial.number, name, trainer.args.seed, trial.params, distributions)
        trainer.args.run_name, trainer.args.push_to_hub = name, False
        trainer.args.output_dir = str(self.folder / name)
        watch = Watch(trial, self.objective, self.record, name, reports=len(self.directions) == 1)
        trainer.add_callback(watch)
        trainer._trial = trial
        try:
            if reports is not None and (found := checkpoints_in(self.folder / name)):
                watch.repeat({step: value for step, value in reports.items() if step <= step_of(found[0])})
                trainer.train(resume_from_checkpoint=True)
            else:
                trainer.train()
            if trainer.state.stop_reason == PRUNED:
                self.record.pruned(name, time.perf_counter() - began)
                raise TrialPruned
            reached = watch.note(trainer.evaluate()) if watch.found is None else watch.found
            values = [reached] if isinstance(reached, int | float) else [*reached]
            if not all(map(math.isfinite, values)):
                raise DivergedError(f"the objective of trial {trial.number} is {listed(values)}", "check compute_objective")
        except self.caught as error:
            self.record.failed(name, error, time.perf_counter() - began)
            raise
        self.record.finished(name, values, watch.metrics, time.perf_counter() - began)
        return reached


def distribution_text(found: object) -> str:
    """Return what a value is drawn from as Optuna's JSON."""
    from optuna.distributions import BaseDistribution, distribution_to_json

    return distribution_to_json(found) if isinstance(found, BaseDistribution) else ""


def rows_text(rows: object) -> str:
    """Return the number of rows, and a hash of their content if they are the same each time."""
    if not isinstance(rows, Sized):
        return "a stream of rows"
    return rows_fingerprint(Batches(rows, lambda batch: {}, 1).row_hashes())  # type: ignore[arg-type]


def set_hyperparameters(trainer: OwnParts, trial: Trial, found: object) -> None:
    """Assign the hyperparameters of a trial. Raises `SettingsError` if one is not a setting."""
    if not isinstance(found, Mapping):
        problem = f"hp_space returned a {type(found).__name__} for trial {trial.number}"
        raise SettingsError(problem, "return a dict of settings, such as {'learning_rate': trial.suggest_float(…)}")
    for name, value in found.items():
        if name not in OWN and name not in SETTINGS:
            problem = (
                f"hp_space returned {visible(str(name))}, which is not a setting{did_you_mean(str(name), [*OWN, *SETTINGS])}"
            )
            raise SettingsError(problem, "return settings of TrainingArguments; read other values in model_init(trial)")
        setattr(trainer.args, name, value)


@contextmanager
def unchanged(trainer: OwnParts) -> Iterator[Callable[[], None]]:
    """Yield a function that brings a Trainer back to its state before the block; call it at the end of the block, too."""
    args, parts = dict(vars(trainer.args)), ("backend", "_folder", "_trial", "_plan")
    kept = {name: getattr(trainer, name) for name in parts}
    own, foreign = [*trainer._own_callbacks], [*trainer.callback_handler.callbacks]
    before = [(callback, dict(vars(callback))) for callback in (*own, *foreign)]

    def reset() -> None:
        vars(trainer.args).clear()
        vars(trainer.args).update(args)
        vars(trainer).update(kept)
        for callback, attributes in before:  # such as the counter of EarlyStoppingCallback
            vars(callback).clear()
            vars(callback).update(attributes)
        trainer._own_callbacks, trainer.callback_handler.callbacks = [*own], [*foreign]

    try:
        yield reset
    finally:
        reset()


class Watch(Callback):
    """Reads the objective of each evaluation of a trial, and stops the training if optuna prunes the trial.

    Args:
        trial: The trial.
        objective: A function of metrics.
        record: The record of the search.
        name: The name of the trial.
        reports: Whether to report to optuna, which it allows for one objective only.
    """

    reads_weights = False

    def __init__(self, trial: Trial, objective: Objective, record: SearchRecord, name: str, *, reports: bool) -> None:
        self.trial, self.objective, self.record, self.name, self.reports = trial, objective, record, name, reports
        self.metrics: dict[str, float] = {}
        self.found: float | Sequence[float] | None = None

    def repeat(self, reports: Mapping[int, float]) -> None:
        """Report what an earlier process reported before the checkpoint that the trial resumes from."""
        for step, value in reports.items():
            self.found = value
            self.trial.report(value, step)
            self.record.report(self.name, step, value)

    def note(self, metrics: dict[str, float]) -> float | Sequence[float]:
        """Keep the metrics of an evaluation, and return its objective."""
        self.found = self.objective(dict(metrics))
        self.metrics = short_metrics({name: value for name, value in metrics.items() if math.isfinite(value)})
        return self.found

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report the objective."""
        self.note(metrics)
        if self.reports and isinstance(self.found, int | float):
            self.trial.report(self.found, state.step)
            if math.isfinite(self.found):
                self.record.report(self.name, state.step, self.found)
            if self.trial.should_prune():
                state.stop_reason = PRUNED
