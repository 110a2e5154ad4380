"""A search for hyperparameters with optuna, as `Trainer.hyperparameter_search` of transformers has it.

Each trial is a training of its own, in its own folder: a new model, the settings of the script with those of the trial, and
callbacks as they were before the first trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from glassloop.backends.choose import launched_processes
from glassloop.drop_in.arguments import OWN
from glassloop.drop_in.own_parts import OwnParts
from glassloop.drop_in.settings import SETTINGS
from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.errors import DivergedError, SettingsError, did_you_mean, listed, visible
from glassloop.run_folder.record import TIMINGS
from glassloop.training.setup import DEFAULT_DIR

DIRECTIONS = ("minimize", "maximize")
PRUNED = "optuna pruned the trial"
OF_OPTIMIZE = ("timeout", "gc_after_trial", "catch", "callbacks", "show_progress_bar")
Space = Callable[["Trial"], Mapping[str, object]]
Objective = Callable[[dict[str, float]], float | Sequence[float]]


class Trial(Protocol):
    """What is used of an `optuna.Trial`."""

    number: int

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


def default_space(trial: Trial) -> dict[str, object]:
    """Return the hyperparameters of a trial if a script does not choose them: the same as in transformers."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


def default_objective(trainer: OwnParts) -> Objective:
    """Return the sum of the metrics of `compute_metrics`; without it, the evaluation loss, or the sum over several sets."""

    def objective(metrics: dict[str, float]) -> float:
        losses = {name: value for name, value in metrics.items() if name.endswith("_loss")}
        scores = {name: value for name, value in metrics.items() if name not in ("epoch", "eval_loss")}
        if trainer.compute_metrics is None:
            return sum(losses.values())
        return sum(value for name, value in scores.items() if not name.endswith(TIMINGS)) if scores else metrics["eval_loss"]

    return objective


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
    several = not isinstance(direction, str)
    refuse_search(trainer, [direction] if isinstance(direction, str) else direction, backend, options)
    try:
        import optuna
    except ImportError as error:
        problem = "hyperparameter_search needs the package optuna"
        raise SettingsError(problem, "pip install 'glassloop[optuna]'") from error
    of_study = {"sampler": optuna.samplers.TPESampler(seed=trainer.args.seed)} if not several else {}
    of_study |= {name: value for name, value in options.items() if name not in (*OF_OPTIMIZE, "n_jobs")}
    of_optimize = {"catch": (DivergedError,)} | {name: options[name] for name in OF_OPTIMIZE if name in options}
    study = optuna.create_study(**of_study, **{"directions" if several else "direction": direction})
    objective = default_objective(trainer) if objective is None else objective
    with unchanged(trainer) as reset:

        def run(trial: Trial) -> float | Sequence[float]:
            reset()
            set_hyperparameters(trainer, trial, (space or default_space)(trial))
            name = f"run-{trial.number}" if name_of is None else name_of(trial)
            trainer.args.run_name, trainer.args.push_to_hub = name, False
            trainer.args.output_dir = str(Path(trainer.args.output_dir or DEFAULT_DIR) / name)
            watch = Watch(trial, objective, reports=not several)
            trainer.add_callback(watch)
            trainer._trial = trial
            trainer.train()
            if trainer.state.stop_reason == PRUNED:
                raise optuna.TrialPruned
            return watch.objective(trainer.evaluate()) if watch.found is None else watch.found

        study.optimize(run, n_trials=n_trials, **of_optimize)
    if several:
        return [BestRun(str(best.number), list(best.values), best.params) for best in study.best_trials]
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not finished:
        raise SettingsError("no trial of the search was completed", "search among smaller learning rates")
    best = study.best_trial
    return BestRun(str(best.number), best.value, best.params)


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
        reports: Whether to report to optuna, which it allows for one objective only.
    """

    reads_weights = False

    def __init__(self, trial: Trial, objective: Objective, *, reports: bool) -> None:
        self.trial, self.objective, self.reports = trial, objective, reports
        self.found: float | Sequence[float] | None = None

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report the objective."""
        self.found = self.objective(dict(metrics))
        if self.reports and isinstance(self.found, int | float):
            self.trial.report(self.found, state.step)
            if self.trial.should_prune():
                state.stop_reason = PRUNED


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
        Trainer stay as they are.

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
