"""`glassloop study`: many runs of different settings and seeds, an honest choice, and what it shows."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import fmean

from glassloop.base.errors import ResumeError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import absolute_name, locked, near_name, refuse_held, user_path
from glassloop.base.output import CommandResult, note
from glassloop.report.card import update_card
from glassloop.report.study import show_study, study_content, write_page
from glassloop.runs.record import FAILED, FINISHED, RUNNING, SELECTION, STOPPED, is_study
from glassloop.runs.status import free_folder, refuse_taken
from glassloop.runs.study import SeedRecord, StudyRecord, read_study, write_study
from glassloop.scores.metrics import LOSS
from glassloop.scores.statistics import detectable_by_rows
from glassloop.settings import study as searches
from glassloop.settings.defaults import Facts, choose_settings
from glassloop.settings.file import GivenSettings, write_settings
from glassloop.settings.study import MODEL, StudySettings, Values, setting_name, study_settings, vary_text
from glassloop.settings.training import (
    TYPES,
    DataSettings,
    data_settings,
    launched_processes,
    refuse,
    training_arguments,
    wrong_choice,
)
from glassloop.study.ray import RayTrials, refuse_unreachable
from glassloop.study.strategies import Played, next_optuna_round, next_round
from glassloop.study.tasks import (
    RUNS_NAME,
    Check,
    Executor,
    LocalWorkers,
    Task,
    Watcher,
    first_place,
    no_choice,
    reached,
    run_tasks,
    stored_answer,
    study_places,
)
from glassloop.training.callbacks import leave, leave_on_signal, noted_signals

WORST_LOSS = 1e9  # of a failed run, where less is better
UNHASHED = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # do not change what a run computes
Runs = Mapping[str, tuple[SeedRecord, GivenSettings]]
Say = Callable[[str], None]


class Study:
    """Trains runs with different settings and seeds, chooses one setting honestly, and compares all of them.

    Settings are chosen on a held-out part of the training rows, or on cross-validation folds. All settings are compared on the
    validation split, and the chosen one is tested once. `run` also continues a study that was stopped or killed.

    Args:
        source: Data to train on, as for `glassloop train`.
        model: Model to start from.
        vary: The values of each setting to vary: a list, or text such as "log:1e-5..1e-3" or "linear:0..0.1".
        seeds: Number of random seeds for each setting.
        strategy: "auto", "grid", "random", "halving" or "optuna".
        budget: The most that the search may cost, such as "2h" or "200_runs".
        fold: Number of cross-validation folds to choose on. Default: hold out a tenth of the training rows.
        samples: Number of settings to draw for random, optuna and ranges.
        output_dir: Folder of the study. A study that is there is continued.
        at_once: Number of runs to train at the same time on each GPU, or on the CPU.
        on: "ray" or the address of a Ray cluster, to train on its nodes.
        **settings: Training and data settings that all runs share.

    Attributes:
        given: The settings that all runs share.
        study: What is varied, and how it is searched.

    Raises:
        SettingsError: If a setting is unknown or not allowed. All problems are reported together.
    """

    def __init__(
        self,
        source: str | None = None,
        *,
        model: str | None = None,
        vary: Mapping[str, object],
        seeds: int = 3,
        strategy: str = "auto",
        budget: str | None = None,
        fold: int | None = None,
        samples: int | None = None,
        output_dir: str | Path | None = None,
        at_once: int | None = None,
        on: str | None = None,
        **settings: object,
    ) -> None:
        known = [*TYPES, *(entry.name for entry in fields(DataSettings))]
        advice = "glassloop train --help lists all settings"
        unknown = [name for name in settings if name not in known]
        refuse([SettingsError(f"unknown setting {visible(name)}{did_you_mean(name, known)}", advice) for name in unknown])
        training = {name: value for name, value in settings.items() if name in TYPES}
        data = {name: value for name, value in settings.items() if name not in TYPES}
        self.given = GivenSettings(source, model, training, data)
        varied = {name: vary_text(value) for name, value in vary.items()}
        self.study = StudySettings(varied, seeds, strategy, budget, fold, samples)
        checked(self.given, self.study)
        self.output_dir, self.at_once, self.on = output_dir, at_once, on

    def run(self) -> StudyRecord:
        """Run the study to its end, or continue it, and return its record.

        Raises:
            GlassloopError: If data or model cannot be used. No run is started then.
            KeyboardInterrupt: Ctrl-C stopped the study. `run` continues it.
        """
        return run_study(self.given, self.study, str(self.output_dir) if self.output_dir else None, self.at_once, self.on)[1]


def study(
    given: GivenSettings, resume: str | None = None, *, at_once: int | None = None, on: str | None = None
) -> CommandResult:
    leave_on_signal()
    output_dir = given.training.get("output_dir")
    if resume is not None:
        folder = user_path(str(output_dir) if resume == "newest" and output_dir else resume)
        if folder.is_dir():
            refuse_held(folder)
        stored = read_study(folder)
        if stored.study.strategy == searches.SCRIPT:
            problem = f"{folder} is the search of a script, Trainer.hyperparameter_search"
            raise SettingsError(problem, "run the script again: it continues its search")
        names = [*given.training, *given.data, *given.study]
        names += [name for name, value in (("data", given.source), (MODEL, given.model)) if value]
        if changed := [name for name in names if name != "output_dir"]:
            problem = f"--resume continues {folder} with its own settings, but there are others: {listed(changed)}"
            raise SettingsError(problem, "omit them; or omit --resume and repeat the whole command with --output_dir")
        given, settings, output_dir = stored.base, stored.study, str(folder)
    else:
        settings = study_settings(given.study)
        checked(given, settings)
    folder, record = run_study(given, settings, str(output_dir) if output_dir else None, at_once, on)
    show_study(folder, record)
    return CommandResult(study_content(folder, record), 0 if record.chosen is not None and record.status != FAILED else 1)


def checked(given: GivenSettings, settings: StudySettings) -> None:
    """Raise `SettingsError` for settings that are not allowed, or that are both varied and given."""
    given.checked()
    if launched_processes() > 1:
        raise SettingsError("a study cannot be launched in several processes", "start it once: it uses all GPUs by itself")
    if settings.strategy in (searches.SCRIPT, searches.SEEDS):
        refuse([wrong_choice("strategy", settings.strategy, searches.STRATEGIES)])
    both = [name for name in settings.vary if name in given.training or (name == MODEL and given.model)]
    problems = [SettingsError(f"{name} is both set and varied", f"omit {name}, or do not vary it") for name in both]
    if "selection_fold" in given.data:
        problems.append(SettingsError("selection_fold is set by the study", "use --fold for cross-validation"))
    refuse(problems)


def run_study(
    given: GivenSettings, settings: StudySettings, output_dir: str | None, at_once: int | None, on: str | None
) -> tuple[Path, StudyRecord]:
    wanted = user_path(output_dir) if output_dir else None
    if wanted is not None and wanted.is_dir():
        refuse_held(wanted)  # before data and model are loaded
    known = wanted is not None and is_study(wanted)
    device, threads = str(given.training.get("device", "auto")), read_study(wanted).threads if known and wanted else None
    with LocalWorkers([first_place(device, at_once, threads)]) as workers:
        checked = workers.check(Check(given, study=settings))
        (record,) = checked.study
        if on is not None:
            refuse_unreachable(on)
        folder = wanted if known and wanted else free_folder(output_dir)
        with locked(folder, note), noted_signals() as signals:
            if known:
                earlier = read_study(folder)
                refuse_changed_inputs(folder, earlier, record)
                record = replace(record, runs=earlier.runs, seconds=earlier.seconds, threads=earlier.threads,
                                 test_evaluations=earlier.test_evaluations, results=earlier.results)  # fmt: skip
            else:
                refuse_taken(folder)
            (folder / RUNS_NAME).mkdir(exist_ok=True)
            note(plan_of(settings, checked.validation_rows, folder))
            num_runs = settings.num_settings * settings.runs_per_setting
            places = [] if on else study_places(checked, num_runs, at_once, record.threads)
            with RayTrials(record, on, at_once) if on else workers as executor:
                workers.spread(places)
                record = replace(record, threads=record.threads or executor.threads)
                write_study(folder, record)
                record = StudyRunner(folder, record, checked.facts, executor, signals, note).run()
            if record.status != STOPPED:
                from glassloop.study.conclusions import conclude  # imports torch

                record = conclude(folder, record, note)
                write_study(folder, record)
                write_page(folder, record)
                final = {} if record.chosen is None else record.runs_of(record.chosen, final=True)
                for name in (name for name, run in final.items() if run.finished):
                    update_card(folder / RUNS_NAME / name)
    if record.status == STOPPED and signals:
        note(f"stopped by {signal.Signals(signals[0]).name}; continue with: glassloop study --resume {folder}")
        leave(signals[0])
    return folder, record


def plan_of(settings: StudySettings, rows: int, folder: Path) -> str:
    """Return a sentence about what a study trains and how small differences it detects on `rows` validation rows."""
    return (
        f"{counted(settings.num_settings, 'setting', 'settings')} x {counted(settings.seeds, 'seed', 'seeds')}"
        + (f" x {settings.fold} folds" if settings.fold else "")
        + f" = {counted(settings.num_settings * settings.runs_per_setting, 'run', 'runs')}, {settings.chosen_strategy}; "
        f"{counted(rows, 'validation row', 'validation rows')} detect differences of about "
        f"{100 * detectable_by_rows(rows):.1f} points between two models; chosen on "
        f"{listed(settings.folds)} of the training rows ({SELECTION}) → {folder}"
    )


# --- before the first run ------------------------------------------------------------------------------------------------
def refuse_changed_inputs(folder: Path, earlier: StudyRecord, record: StudyRecord) -> None:
    """Raise `ResumeError` if data or models have changed since the study was started: its runs could not be used again."""
    splits: list[str] = []
    asked, before = ((one.base.source, one.base.model, one.base.data, one.study.folds) for one in (record, earlier))
    if asked == before:  # else the user has asked for other rows
        splits = [name for name in {**earlier.data, **record.data} if earlier.data.get(name) != record.data.get(name)]
    changed = [f"the rows of {listed(splits)} in {near_name(record.base.source or 'quickstart')}"] if splits else []
    changed += [f"the files of the model {name}" for name, key in earlier.models.items() if record.models.get(name, key) != key]
    if changed and earlier.runs:
        raise ResumeError(
            f"{folder}: {' and '.join(changed)} changed since the study was started, so none of its runs could be used again",
            "restore what changed, or start a new study with another --output_dir",
        )


# --- the runs ------------------------------------------------------------------------------------------------------------
class RunSettler:
    """Returns the settings of each run of a study, with those that the default rule chooses, and the name of its folder."""

    def __init__(self, record: StudyRecord, facts: Mapping[str, Facts]) -> None:
        self.record = record
        self.facts = facts  # by model

    def given(self, values: Values, seed: int, fold: str | None) -> GivenSettings:
        """Return the settings of one run. The rule chooses from the rows of the first fold, for all runs of a setting."""
        base, first_fold = self.record.base, self.record.study.folds[0]
        training = {**base.training, **{name: value for name, value in values.items() if name != MODEL}}
        model = absolute_name(str(values.get(MODEL) or base.model or "quickstart"))
        chosen = choose_settings(training_arguments(training), training, self.facts[model])
        settled = {**training, **{name: getattr(chosen.settings, name) for name in chosen.names}, "seed": seed}
        if settled.get("load_best_model_at_end") or settled.get("early_stopping_patience"):
            fold = fold or first_fold  # otherwise validation rows would decide which weights a final run ends with
        return replace(base, model=model, training=settled, data={**base.data, **({"selection_fold": fold} if fold else {})})

    def name_of(self, given: GivenSettings) -> str:
        """Return the name of a run: its seed, and a hash of all that its numbers depend on."""
        args = training_arguments(given.training).to_dict()
        content = {
            "training": {name: value for name, value in args.items() if name not in UNHASHED},
            "data": asdict(data_settings(given.data)),
            "rows": self.record.data,
            "model": self.record.models[str(given.model)],
            "new_head": given.new_head,
        }
        digest = sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
        return f"seed-{args['seed']}-{digest[:12]}"


class StudyRunner(Watcher):
    """Runs one study in its folder, which the caller has locked: the search, the choice, and the runs of the chosen setting."""

    def __init__(
        self,
        folder: Path,
        record: StudyRecord,
        facts: Mapping[str, Facts],
        executor: Executor,
        signals: Sequence[int],
        say: Say,
    ) -> None:
        self.folder, self.executor, self.signals, self.say = folder, executor, signals, say
        self.stored = record.runs  # from an earlier start
        self.record = replace(record, runs={}, tried=(), rounds=(), status=RUNNING)
        self.settler = RunSettler(record, facts)
        self.sign = 1 if record.greater_is_better else -1
        self.began, self.before = time.monotonic(), record.seconds

    def run(self) -> StudyRecord:
        """Search, choose, and train the chosen setting on all training rows. Return the record."""
        self.search()
        finished = False
        if not self.signals:
            self.choose()
        if not self.signals and (chosen := self.record.chosen) is not None:
            runs = self.planned([chosen], final=True)
            self.say(f"final: {counted(len(runs), 'run', 'runs')} of the chosen setting on all training rows")
            self.train(runs, 1.0)
            finished = any(run.finished for run in self.record.runs_of(chosen, final=True).values())
        self.update(status=STOPPED if self.signals else FINISHED if finished else FAILED, seconds=self.elapsed)
        return self.record

    @property
    def elapsed(self) -> float:
        """Seconds of this study, over all its starts."""
        return self.before + time.monotonic() - self.began

    @property
    def out_of_time(self) -> bool:
        most = self.record.study.limit.seconds
        return most is not None and self.elapsed >= most

    def update(self, **changes: object) -> None:
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]  # fields of the record
        write_study(self.folder, self.record)

    def planned(self, settings: Sequence[int], *, final: bool = False) -> Runs:
        """Return a run of each setting, seed and fold, known ones with what they have reached; final ones on all rows."""
        record, known = self.record, {**self.stored, **self.record.runs}
        runs = {}
        for number, seed, fold in product(settings, record.seeds, (None,) if final else record.study.folds):
            given = self.settler.given(record.tried[number], seed, fold)
            name = f"{'final-' if final else ''}{self.settler.name_of(given)}"
            runs[name] = (replace(known.get(name, SeedRecord()), setting=number, seed=seed, fold=fold), given)
        return runs

    def search(self) -> None:
        """Train round after round until the strategy, the budget or a signal ends it; earlier rounds are only read again."""
        played: list[Played] = []
        propose = next_optuna_round if self.record.study.chosen_strategy == searches.OPTUNA else next_round
        while not self.signals and (proposed := propose(self.record.study, self.record.seeds[0], self.record.tried, played)):
            before, numbers, fraction = self.record, proposed.round.settings, proposed.round.fraction
            self.update(tried=(*before.tried, *proposed.added), rounds=(*before.rounds, proposed.round))
            runs = self.planned(numbers)
            if self.out_of_time and (left := self.unreached(runs, fraction)):
                if len(left) == len(runs):  # the round was never begun
                    self.update(tried=before.tried, rounds=before.rounds, runs=before.runs)
                return
            part = "" if fraction == 1 else f", up to {fraction:.0%} of their steps"
            settings = counted(len(numbers), "setting", "settings")
            self.say(f"round {len(self.record.rounds)}: {settings}, {counted(len(runs), 'run', 'runs')}{part}")
            self.train(runs, fraction)
            if self.out_of_time:
                done = sum(self.is_complete(number, fraction) for number in numbers)
                self.say(f"the budget of {self.record.study.budget} ended: {done} of {settings} of this round were trained")
            if self.signals or not all(self.has_ended(number, fraction) for number in numbers):
                return
            played.append(Played(proposed.round, {number: self.score(number, fraction) for number in numbers}))

    def train(self, runs: Runs, fraction: float) -> None:
        """Train runs up to a fraction, as many at a time as the executor takes."""
        tasks = self.unreached(runs, fraction)
        self.is_search = any(run.fold for run, _ in runs.values())
        self.num_tasks = len(tasks)
        self.told = time.monotonic()
        run_tasks(tasks, self.executor, self.signals, self)

    def unreached(self, runs: Runs, fraction: float) -> list[Task]:
        """Note all runs of a round, and return the tasks of those that have not reached a fraction."""
        noted, tasks = dict(self.record.runs), []
        for name, (run, given) in runs.items():
            noted[name] = run
            if run.settled or run.scores_at(fraction):
                continue
            folder = (self.folder / RUNS_NAME / name).absolute()
            if answer := stored_answer(folder, fraction):
                noted[name] = reached(run, answer, fraction)
                continue
            task = Task(name, replace(given, training={**given.training, "output_dir": str(folder)}), fraction)
            tasks.append(task)
            if not (path := folder.with_suffix(".toml")).exists():
                write_settings(path, task.given)
        self.update(runs=noted)
        return tasks

    def may_start(self) -> bool:
        return not (self.is_search and self.out_of_time)

    def ended(self, task: Task, answer: SeedRecord) -> None:
        run = reached(self.record.runs[task.name], answer, task.fraction)
        self.update(runs={**self.record.runs, task.name: run}, seconds=self.elapsed)
        if run.status == FAILED:
            name = setting_name(self.record.tried[run.setting])
            self.say(f"failed: {name}, seed {run.seed} (exit status {run.exit_code}): {' '.join(run.error)}")

    def tick(self, num_waiting: int, num_running: int) -> None:
        if time.monotonic() - self.told > 10:
            self.told = time.monotonic()
            self.say(f"{self.num_tasks - num_waiting - num_running:,} of {self.num_tasks:,} runs done, {num_running} running")

    def score(self, number: int, fraction: float) -> tuple[float, float]:
        """Return the mean selection score of a setting, higher is better, and the negative mean loss for equal ones."""
        metric = self.record.metric
        baselines = [run.baseline[metric] for run in self.record.runs.values() if metric in run.baseline]
        # A run that failed counts like always giving the most frequent answer.
        lowest = baselines[0] if baselines else 0.0 if self.sign > 0 else WORST_LOSS
        scores = [run.scores_at(fraction) or {} for run in self.record.runs_of(number).values()]
        return fmean(self.sign * one.get(metric, lowest) for one in scores), -fmean(one.get(LOSS, WORST_LOSS) for one in scores)

    def choose(self) -> None:
        """Choose the setting with the best mean on the selection split, among those that were trained furthest."""
        rounds = [(part.fraction, number) for part in self.record.rounds for number in part.settings]
        complete = [(fraction, number) for fraction, number in rounds if self.is_complete(number, fraction)]
        if not complete:
            self.update(status=FAILED, seconds=self.elapsed)
            raise no_choice(self.record, self.folder)
        furthest = max(fraction for fraction, _ in complete)
        numbers = [number for fraction, number in complete if fraction == furthest]
        best = max(numbers, key=lambda number: self.score(number, furthest))
        self.update(chosen=best)
        self.say(
            f"chosen on the {SELECTION} split, by mean {self.record.metric}: {setting_name(self.record.tried[best])} "
            f"({self.score(best, furthest)[0] * self.sign:.4f})"
        )

    def has_ended(self, number: int, fraction: float) -> bool:
        """Return whether all runs of a setting have reached a fraction or failed."""
        runs = [*self.record.runs_of(number).values()]
        return bool(runs) and all(run.scores_at(fraction) or run.status == FAILED for run in runs)

    def is_complete(self, number: int, fraction: float) -> bool:
        """Return whether all runs of a setting have reached a fraction or failed, and at least one has a score."""
        return self.has_ended(number, fraction) and any(run.scores_at(fraction) for run in self.record.runs_of(number).values())
