"""The trials of `Trainer.hyperparameter_search`: each is a training of its own, recorded as a run of a study."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from transformers.trainer_callback import CallbackHandler

from glassloop.base.errors import (
    DivergedError,
    GlassloopError,
    SettingsError,
    counted,
    did_you_mean,
    failure_of,
    listed,
    visible,
)
from glassloop.base.files import set_aside
from glassloop.base.output import say
from glassloop.base.records import versions
from glassloop.compat.arguments import OWN
from glassloop.compat.callbacks import TrainerState
from glassloop.data.batches import Batches
from glassloop.data.interfaces import Model, Rows
from glassloop.runs.record import (
    FAILED,
    FINISHED,
    PAUSED,
    RUNNING,
    STUDY_NAME,
    TIMINGS,
    WAITING,
    checkpoints_in,
    is_study,
    step_of,
)
from glassloop.runs.study import RoundRecord, SeedRecord, StudyRecord, read_study, write_study
from glassloop.scores.metrics import short_metrics
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import SCRIPT, StudySettings, Value, Values, setting_name
from glassloop.settings.training import TYPES, TrainingArguments
from glassloop.settings.transformers_names import SETTINGS
from glassloop.study.strategies import KnownTrial, sampler_for, started_search
from glassloop.trainer import DEFAULT_DIR
from glassloop.training.callbacks import Callback, State
from glassloop.training.checkpoints import digest, identified, rows_fingerprint
from glassloop.training.interfaces import Backend

OBJECTIVE = "objective"  # of several, objective, objective-1 and so on


class Searched(Protocol):
    """What a search uses of a Trainer."""

    args: TrainingArguments
    backend: Backend
    train_dataset: Rows | None
    eval_dataset: Rows | None
    model_init: Callable[..., Model] | None
    compute_metrics: Callable[..., dict[str, float]] | None
    callback_handler: CallbackHandler
    _callbacks: list[Callback]
    _eval_sets: Mapping[str, Rows]
    _trial: object

    @property
    def state(self) -> TrainerState: ...
    def add_callback(self, callback: Callback) -> None: ...
    def train(self, resume_from_checkpoint: bool | None = None) -> object: ...
    def evaluate(self) -> dict[str, float]: ...


class SearchRecord:
    """Writes each trial of a script's search to study.json, and returns those of an earlier process.

    A trial is a run of the study. One that was pruned has the status "paused".

    Args:
        folder: The folder of the search.
        identity: What must be the same for the search to continue: settings, functions and rows, as short texts.
        seed: The random seed of the settings.
        greater_is_better: Whether a higher objective is better, of several the first.
        base: The settings of the script.
    """

    def __init__(
        self, folder: Path, identity: dict[str, str], seed: int, *, greater_is_better: bool, base: GivenSettings
    ) -> None:
        self.folder = folder
        study = StudySettings(strategy=SCRIPT, seeds=1)
        self.record = StudyRecord(
            base, study, OBJECTIVE, greater_is_better, (seed,), data=identity, status=RUNNING, versions=versions()
        )
        folder.mkdir(parents=True, exist_ok=True)
        if is_study(folder):
            try:
                found = read_study(folder)
            except GlassloopError:
                found = None
            if found is not None and (found.study.strategy, found.data) == (SCRIPT, identity):
                self.record = replace(found, status=RUNNING)
                say(f"continuing the search in {folder}: {counted(len(self.settled), 'trial is', 'trials are')} done")
            else:
                say(f"moved aside: the earlier search {folder / STUDY_NAME} is now {set_aside(folder / STUDY_NAME).name}")

    @property
    def settled(self) -> list[SeedRecord]:
        """The trials that ended, in their order."""
        runs = sorted(self.record.runs.values(), key=lambda run: run.setting)
        return [run for run in runs if run.status != WAITING]

    @property
    def waiting(self) -> Values | None:
        """The values of the trial that was running when an earlier process ended; None if there was none."""
        found = [run for run in self.record.runs.values() if run.status == WAITING]
        return self.record.tried[found[0].setting] if found else None

    def known(self) -> list[KnownTrial]:
        """Return the trials that ended as Optuna takes them."""
        from optuna.distributions import json_to_distribution

        drawn = {name: json_to_distribution(text) for name, text in self.record.study.vary.items()}
        found = []
        for run in self.settled:
            params = self.record.tried[run.setting]
            reports = {int(step): scores[OBJECTIVE] for step, scores in run.rungs.items()}
            values = tuple(run.selection.values()) if run.finished else None
            of_trial = {name: drawn[name] for name in params}
            found.append(KnownTrial(params, of_trial, values, pruned=run.status == PAUSED, reports=reports))
        return found

    def free_name(self, name: str, number: int) -> str:
        """Return the name of a trial, with its number if another trial has that name: it is the name of its folder."""
        known = self.record.runs.get(name)
        return name if known is None or known.setting == number else f"{name}-{number}"

    def begin(
        self, number: int, name: str, seed: int, params: Mapping[str, Value], distributions: Mapping[str, str]
    ) -> dict[int, float] | None:
        """Note that a trial starts. Return what it reported before, if an earlier process had started it; else None.

        Args:
            number: Its number.
            name: The name of its folder.
            seed: Its random seed.
            params: The values that were suggested to it.
            distributions: What they were drawn from, as Optuna's JSON.
        """
        known = self.record.runs.get(name)
        study = replace(self.record.study, vary={**self.record.study.vary, **distributions})
        rounds = tuple(RoundRecord((one,), 1.0) for one in range(number + 1))
        tried = (*self.record.tried, *({} for _ in range(number)))[:number]  # a storage of the user may have earlier trials
        self.record = replace(self.record, study=study, rounds=rounds, tried=(*tried, dict(params)))
        self.note(name, SeedRecord(number, seed))
        return None if known is None else {int(step): scores[OBJECTIVE] for step, scores in known.rungs.items()}

    def report(self, name: str, step: int, value: float) -> None:
        """Note the objective of an evaluation."""
        run = self.record.runs[name]
        self.note(name, replace(run, rungs={**run.rungs, str(step): {OBJECTIVE: value}}))

    def finished(self, name: str, values: Sequence[float], metrics: dict[str, float], seconds: float) -> None:
        """Note the objectives of a trial that was trained to its end, and its last metrics."""
        named = {f"{OBJECTIVE}-{place}" if place else OBJECTIVE: value for place, value in enumerate(values)}
        run = replace(self.record.runs[name], selection=named, validation=metrics, status=FINISHED, fraction=1.0)
        self.note(name, replace(run, seconds=seconds))

    def pruned(self, name: str, seconds: float) -> None:
        """Note that Optuna stopped a trial."""
        self.note(name, replace(self.record.runs[name], status=PAUSED, seconds=seconds))

    def failed(self, name: str, error: BaseException, seconds: float) -> None:
        """Note that a trial failed. It counts, and is not repeated."""
        code, lines = failure_of(error)
        run = replace(self.record.runs[name], status=FAILED, exit_code=code, error=lines, seconds=seconds)
        self.note(name, run)
        say(f"failed: {name}, {setting_name(self.record.tried[run.setting])} (exit status {code}): {lines[0]}")

    def note(self, name: str, run: SeedRecord) -> None:
        """Write the record with a changed run."""
        self.record = replace(self.record, runs={**self.record.runs, name: run})
        write_study(self.folder, self.record)

    def end(self, best: int | None) -> None:
        """Write which trial is the best one, and show how many ended how."""
        runs = [*self.record.runs.values()]
        self.record = replace(
            self.record,
            status=FINISHED if best is not None else FAILED,
            chosen=best,
            seconds=sum(run.seconds for run in runs),
        )
        write_study(self.folder, self.record)
        counts = {status: sum(run.status == status for run in runs) for status in (PAUSED, FAILED)}
        parts = [counted(len(runs), "trial", "trials")]
        parts += [f"{counts[PAUSED]:,} pruned"] if counts[PAUSED] else []
        parts += [f"{counts[FAILED]:,} failed"] if counts[FAILED] else []
        chosen = "" if best is None else f"; the best: {setting_name(self.record.tried[best]) or f'trial {best}'}"
        say(f"{', '.join(parts)}{chosen} → {self.folder / STUDY_NAME}")


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


def default_objective(trainer: Searched) -> Objective:
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
        trainer: Searched,
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
        base, seed = GivenSettings(training=settings), self.trainer.args.seed
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


def set_hyperparameters(trainer: Searched, trial: Trial, found: object) -> None:
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
def unchanged(trainer: Searched) -> Iterator[Callable[[], None]]:
    """Yield a function that brings a Trainer back to its state before the block; call it at the end of the block, too."""
    args, parts = dict(vars(trainer.args)), ("backend", "_folder", "_trial", "_plan")
    kept = {name: getattr(trainer, name) for name in parts}
    own, foreign = [*trainer._callbacks], [*trainer.callback_handler.callbacks]
    before = [(callback, dict(vars(callback))) for callback in (*own, *foreign)]

    def reset() -> None:
        vars(trainer.args).clear()
        vars(trainer.args).update(args)
        vars(trainer).update(kept)
        for callback, attributes in before:  # such as the counter of EarlyStoppingCallback
            vars(callback).clear()
            vars(callback).update(attributes)
        trainer._callbacks, trainer.callback_handler.callbacks = [*own], [*foreign]

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
