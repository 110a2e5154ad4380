"""`Trainer.hyperparameter_search` of transformers, as a search of Optuna whose trials are recorded as those of a study.

Each trial is a training of its own, in its own folder: a new model, the settings of the script with those of the trial, and
callbacks as they were before the first trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassloop.backends.choose import launched_processes
from glassloop.drop_in.own_parts import OwnParts
from glassloop.drop_in.trials import BestRun, Objective, Space, Trial, Trials
from glassloop.errors import SettingsError, listed, visible
from glassloop.study.optuna_search import refuse_without_optuna

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
