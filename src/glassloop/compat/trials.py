"""`Trainer.hyperparameter_search`: each trial is a training of its own, recorded as a run of a study."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import BestRun, default_hp_space_optuna

from glassloop.base import errors
from glassloop.base.errors import SettingsError, counted, listed, visible
from glassloop.base.files import set_aside
from glassloop.base.output import say
from glassloop.base.records import versions
from glassloop.compat.arguments import OWN
from glassloop.data.batches import Batches
from glassloop.runs import record as records
from glassloop.runs.study import RoundRecord, SeedRecord, StudyRecord, read_study, write_study
from glassloop.scores.metrics import short_metrics
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import SCRIPT, StudySettings, Value, Values, setting_name
from glassloop.settings.training import TYPES, launched_processes
from glassloop.settings.transformers_names import SETTINGS
from glassloop.study.strategies import KnownTrial, refuse_without_optuna, sampler_for, started_search
from glassloop.trainer import DEFAULT_DIR, Trainer
from glassloop.training.callbacks import Callback, State
from glassloop.training.checkpoints import digest, identified, rows_fingerprint

if TYPE_CHECKING:
    from optuna import Trial

Space = Callable[["Trial"], Mapping[str, object]]
Caught = tuple[type[BaseException], ...]  # what ends a trial, and not the search
Objective = Callable[[dict[str, float]], float | Sequence[float]]

OBJECTIVE = "objective"  # of several, objective, objective-1 and so on
DIRECTIONS = ("minimize", "maximize")
PRUNED = "optuna pruned the trial"
# Settings that do not change what a search finds.
NOT_COMPARED = ("output_dir", "overwrite_output_dir", "run_name", "logging_dir", "report_to", "disable_tqdm")
OF_OPTIMIZE = ("timeout", "gc_after_trial", "catch", "callbacks", "show_progress_bar")


def default_objective(metrics: Mapping[str, float], *, own_metrics: bool) -> float:
    """Return the sum of the metrics of `compute_metrics`; without it, the evaluation loss, or the sum over several sets."""
    if not own_metrics:
        return sum(value for name, value in metrics.items() if name.endswith("_loss"))
    scores = {name: value for name, value in metrics.items() if name not in ("epoch", "eval_loss")}
    counted_scores = [value for name, value in scores.items() if not name.endswith(records.TIMINGS)]
    return sum(counted_scores) if scores else metrics["eval_loss"]


def search(
    trainer: Trainer,
    reset: Callable[[object], None],
    rows: Mapping[str, object],
    model_init: Callable[..., object] | None,
    space: Space | None,
    objective: Objective | None,
    n_trials: int | None,
    direction: str | Sequence[str],
    backend: object,
    name_of: Callable[[Trial], str] | None,
    options: dict[str, object],
) -> BestRun | list[BestRun]:
    """Run the trials that are not done yet, and return the best one; with several directions, all that none dominates.

    `reset` brings the Trainer back to its state before the search, and gives it a trial. `rows` are its data sets by name.
    """
    directions = [direction] if isinstance(direction, str) else [*direction]
    refuse_search(trainer, model_init, directions, backend, options)
    refuse_without_optuna("hyperparameter_search")
    space = space or default_hp_space_optuna
    settings = {name: getattr(trainer.args, name) for name in TYPES} | {"device": trainer.backend.device.type}
    compared = {name: value for name, value in settings.items() if name not in NOT_COMPARED}
    functions = [identified(one) for one in (space, objective, model_init)]
    what = json.dumps([type(trainer).__qualname__, directions, compared, functions], default=str)
    identity = {"search": digest(what), **{name: rows_text(one) for name, one in rows.items()}}
    seed = trainer.args.seed
    folder = Path(trainer.args.output_dir or DEFAULT_DIR)
    record = SearchRecord(folder, identity, seed, directions[0] == "maximize", GivenSettings(training=settings))
    of_study = {name: value for name, value in options.items() if name not in (*OF_OPTIMIZE, "n_jobs")}
    known = [] if "storage" in of_study else record.known()  # a storage of the user has them
    study = started_search(seed, known, directions, of_study)
    if record.waiting and "storage" not in of_study:
        study.enqueue_trial(record.waiting)
    caught: Caught = tuple(options.get("catch", (errors.DivergedError,)))  # type: ignore[arg-type]
    callbacks = [*options.get("callbacks", ())]  # type: ignore[misc]  # a list of functions
    if "sampler" not in of_study:
        callbacks.insert(0, lambda study, trial: setattr(study, "sampler", sampler_for(seed, trial.number + 1)))
    of_optimize = {name: options[name] for name in OF_OPTIMIZE if name in options}
    score = objective or (lambda metrics: default_objective(metrics, own_metrics=trainer.compute_metrics is not None))

    def run(trial: Trial) -> float | Sequence[float]:
        reset(trial)
        set_hyperparameters(trainer.args, space(trial), trial.number)
        name = name_of(trial) if name_of else f"run-{trial.number}"
        return train_trial(trainer, trial, name, score, record, caught, reports=len(directions) == 1)

    missing = None if n_trials is None else max(0, n_trials - len(known))
    study.optimize(run, missing, **of_optimize | {"catch": caught, "callbacks": callbacks})
    best: list[BestRun] = []
    if any(trial.state.name == "COMPLETE" for trial in study.trials):
        if len(directions) == 1:
            best = [BestRun(str(study.best_trial.number), study.best_value, study.best_params)]
        else:
            best = [BestRun(str(trial.number), [*trial.values], trial.params) for trial in study.best_trials]
    record.end(int(best[0].run_id) if best else None)
    if not isinstance(direction, str):
        return best
    if not best:
        raise SettingsError("no trial of the search was completed", "search among smaller learning rates")
    return best[0]


def refuse_search(
    trainer: Trainer, model_init: object, directions: Sequence[str], backend: object, options: Mapping[str, object]
) -> None:
    wanted = getattr(backend, "value", backend)
    if wanted not in (None, "optuna"):
        problem = f"hyperparameter_search does not support the backend {visible(str(wanted))}"
        raise SettingsError(problem, 'use backend="optuna", and let hp_space suggest values with the optuna trial it gets')
    if model_init is None:
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


def rows_text(rows: object) -> str:
    """Return the number of rows, and a hash of their content if they are the same each time."""
    if not isinstance(rows, Sized):
        return "a stream of rows"
    return rows_fingerprint(Batches(rows, lambda batch: {}, 1).row_hashes())  # type: ignore[arg-type]


def train_trial(
    trainer: Trainer, trial: Trial, name: str, objective: Objective, record: SearchRecord, caught: Caught, *, reports: bool
) -> float | Sequence[float]:
    """Train one trial, record it, and return its objective. `reports` to optuna, which allows it for one objective only."""
    from optuna import TrialPruned
    from optuna.distributions import distribution_to_json

    began = time.perf_counter()
    known = record.record.runs.get(name)
    if known is not None and known.setting != trial.number:
        name = f"{name}-{trial.number}"  # another trial has that name, which is that of its folder
    distributions = {part: distribution_to_json(one) for part, one in trial.distributions.items()}
    reported = record.begin(trial.number, name, trainer.args.seed, trial.params, distributions)
    folder = record.folder / name
    for setting, value in {"run_name": name, "push_to_hub": False, "output_dir": str(folder)}.items():
        setattr(trainer.args, setting, value)
    watch = Watch(trial, objective, record, name, reports=reports)
    trainer.callbacks = [*trainer.callbacks, watch]
    try:
        checkpoints = [] if reported is None else records.checkpoints_in(folder)
        for step, value in (reported or {}).items():
            if checkpoints and step <= records.step_of(checkpoints[0]):
                watch.report(value, step)  # what an earlier process reported before the checkpoint
        trainer.train(resume_from_checkpoint=True if checkpoints else None)
        if trainer.state.stop_reason == PRUNED:
            record.note(name, status=records.PAUSED, seconds=time.perf_counter() - began)
            raise TrialPruned
        reached = watch.note(trainer.evaluate()) if watch.reached is None else watch.reached
        values = [reached] if isinstance(reached, int | float) else [*reached]
        if not all(map(math.isfinite, values)):
            raise errors.DivergedError(f"the objective of trial {trial.number} is {listed(values)}", "check compute_objective")
    except caught as error:
        record.failed(name, error, time.perf_counter() - began)
        raise
    record.finished(name, values, watch.metrics, time.perf_counter() - began)
    return reached


def set_hyperparameters(args: object, hyperparameters: object, number: int) -> None:
    if not isinstance(hyperparameters, Mapping):
        problem = f"hp_space returned a {type(hyperparameters).__name__} for trial {number}"
        raise SettingsError(problem, "return a dict of settings, such as {'learning_rate': trial.suggest_float(…)}")
    known = [*OWN, *SETTINGS]
    for name, value in hyperparameters.items():
        if name not in known:
            problem = f"hp_space returned {visible(str(name))}, which is not a setting{errors.did_you_mean(str(name), known)}"
            raise SettingsError(problem, "return settings of TrainingArguments; read other values in model_init(trial)")
        setattr(args, name, value)


class Watch(Callback):
    """Reads the objective of each evaluation of a trial, and stops the training if optuna prunes the trial."""

    reads_weights = False

    def __init__(self, trial: Trial, objective: Objective, record: SearchRecord, name: str, *, reports: bool) -> None:
        self.trial, self.objective, self.record, self.name, self.reports = trial, objective, record, name, reports
        self.metrics: dict[str, float] = {}
        self.reached: float | Sequence[float] | None = None

    def note(self, metrics: dict[str, float]) -> float | Sequence[float]:
        self.reached = self.objective(dict(metrics))
        self.metrics = short_metrics({name: value for name, value in metrics.items() if math.isfinite(value)})
        return self.reached

    def report(self, value: float, step: int) -> None:
        self.reached = value
        self.trial.report(value, step)
        if math.isfinite(value):
            reported = self.record.record.runs[self.name].rungs
            self.record.note(self.name, rungs={**reported, str(step): {OBJECTIVE: value}})

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        reached = self.note(metrics)
        if self.reports and isinstance(reached, int | float):
            self.report(reached, state.step)
            if self.trial.should_prune():
                state.stop_reason = PRUNED


class SearchRecord:
    """Writes each trial of a script's search to study.json as a run, paused if pruned, and returns those of an earlier process.

    A search continues if its `identity` is the same. Of several objectives, `greater_is_better` is about the first.
    """

    def __init__(self, folder: Path, identity: dict[str, str], seed: int, greater_is_better: bool, base: GivenSettings) -> None:
        self.folder = folder
        study = StudySettings(strategy=SCRIPT, seeds=1)
        self.record = StudyRecord(
            base, study, OBJECTIVE, greater_is_better, (seed,), data=identity, status=records.RUNNING, versions=versions()
        )
        folder.mkdir(parents=True, exist_ok=True)
        if not records.is_study(folder):
            return
        try:
            earlier = read_study(folder)
        except errors.GlassloopError:
            earlier = None
        if earlier is not None and (earlier.study.strategy, earlier.data) == (SCRIPT, identity):
            self.record = replace(earlier, status=records.RUNNING)
            ended = sum(run.status != records.WAITING for run in earlier.runs.values())
            say(f"continuing the search in {folder}: {counted(ended, 'trial is', 'trials are')} done")
        else:
            earlier_file = folder / records.STUDY_NAME
            say(f"moved aside: the earlier search {earlier_file} is now {set_aside(earlier_file).name}")

    @property
    def waiting(self) -> Values | None:
        """The values of the trial that was running when an earlier process ended; None if there was none."""
        waiting = (run for run in self.record.runs.values() if run.status == records.WAITING)
        return next((self.record.tried[run.setting] for run in waiting), None)

    def known(self) -> list[KnownTrial]:
        from optuna.distributions import json_to_distribution

        drawn = {name: json_to_distribution(text) for name, text in self.record.study.vary.items()}
        trials = []
        for run in sorted(self.record.runs.values(), key=lambda run: run.setting):
            if run.status != records.WAITING:
                params = self.record.tried[run.setting]
                values = tuple(run.selection.values()) if run.finished else None
                of_trial = {name: drawn[name] for name in params}
                is_pruned = run.status == records.PAUSED
                trials.append(KnownTrial(params, of_trial, values, pruned=is_pruned, reports=reports_of(run)))
        return trials

    def begin(
        self, number: int, name: str, seed: int, params: Mapping[str, Value], distributions: Mapping[str, str]
    ) -> dict[int, float] | None:
        """Note that a trial starts. Return what it reported before, if an earlier process had started it; else None."""
        known = self.record.runs.get(name)
        study = replace(self.record.study, vary={**self.record.study.vary, **distributions})
        rounds = tuple(RoundRecord((one,), 1.0) for one in range(number + 1))
        tried = (*self.record.tried, *({} for _ in range(number)))[:number]  # a storage of the user may have earlier trials
        runs = {**self.record.runs, name: SeedRecord(number, seed)}
        self.record = replace(self.record, study=study, rounds=rounds, tried=(*tried, dict(params)), runs=runs)
        write_study(self.folder, self.record)
        return None if known is None else reports_of(known)

    def note(self, name: str, **changes: object) -> None:
        run = replace(self.record.runs[name], **changes)  # type: ignore[arg-type]
        self.record = replace(self.record, runs={**self.record.runs, name: run})
        write_study(self.folder, self.record)

    def finished(self, name: str, values: Sequence[float], metrics: dict[str, float], seconds: float) -> None:
        objectives = {f"{OBJECTIVE}-{place}" if place else OBJECTIVE: value for place, value in enumerate(values)}
        self.note(name, selection=objectives, validation=metrics, status=records.FINISHED, fraction=1.0, seconds=seconds)

    def failed(self, name: str, error: BaseException, seconds: float) -> None:
        code, lines = errors.failure_of(error)
        self.note(name, status=records.FAILED, exit_code=code, error=lines, seconds=seconds)
        params = self.record.tried[self.record.runs[name].setting]
        say(f"failed: {name}, {setting_name(params)} (exit status {code}): {lines[0]}")

    def end(self, best: int | None) -> None:
        runs = [*self.record.runs.values()]
        status = records.FINISHED if best is not None else records.FAILED
        self.record = replace(self.record, status=status, chosen=best, seconds=sum(run.seconds for run in runs))
        write_study(self.folder, self.record)
        parts = [counted(len(runs), "trial", "trials")]
        for kind, word in ((records.PAUSED, "pruned"), (records.FAILED, "failed")):
            if number := sum(run.status == kind for run in runs):
                parts.append(f"{number:,} {word}")
        chosen = "" if best is None else f"; the best: {setting_name(self.record.tried[best]) or f'trial {best}'}"
        say(f"{', '.join(parts)}{chosen} → {self.folder / records.STUDY_NAME}")


def reports_of(run: SeedRecord) -> dict[int, float]:
    return {int(step): scores[OBJECTIVE] for step, scores in run.rungs.items()}
