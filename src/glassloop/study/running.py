"""Run a study to its end: the rounds of the search, the choice, and the final runs of the chosen setting."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Protocol

from glassloop.base.errors import DataError, DivergedError, GlassloopError, ModelError, ResourceError, SettingsError, counted
from glassloop.runs.record import FAILED, FINISHED, PAUSED, RUNNING, SELECTION, STOPPED, WAITING
from glassloop.runs.study import SeedRecord, StudyRecord, write_study
from glassloop.scores.metrics import LOSS
from glassloop.settings.file import GivenSettings, write_settings
from glassloop.settings.study import OPTUNA, setting_name
from glassloop.study.strategies import Played, next_optuna_round, next_round
from glassloop.study.trials import Done, RunSettler, Task, found_done, planned_runs, task_of

MOST_REPEATS = 2  # of a run whose process was killed, as by a system without memory
WORST_LOSS = 1e9  # of a failed run, where less is better
KILLED = 128 + signal.SIGKILL  # the exit status of a process that the system ended, as it does if memory runs out
KINDS = {kind.exit_code: kind for kind in (SettingsError, DataError, ModelError, DivergedError, ResourceError)}
Runs = Mapping[str, tuple[SeedRecord, GivenSettings]]


class Executor(Protocol):
    """Executes tasks somewhere: in worker processes of this machine, or on a cluster."""

    @property
    def slots(self) -> int:
        """Number of tasks to hand over at the same time."""

    def start(self, task: Task) -> None:
        """Start a task."""

    def wait(self) -> list[Done]:
        """Return the tasks that ended. May wait a moment, and return none."""

    def stop(self) -> None:
        """Ask all running tasks to save a checkpoint and end."""


class Watcher(Protocol):
    """Records and shows what becomes of tasks."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def may_start(self) -> bool:
        """Return whether more tasks may start."""

    def started(self, task: Task) -> None:
        """Note that a task was started."""

    def ended(self, task: Task, done: Done) -> None:
        """Note that a task ended, or that a signal stopped it."""

    def tick(self, num_waiting: int, num_running: int) -> None:
        """Note that a moment has passed."""


def run_tasks(tasks: Sequence[Task], executor: Executor, signals: Sequence[int], watcher: Watcher) -> None:
    """Train tasks, as many at a time as the executor takes, until all have ended, none may start, or a signal stops them."""
    waiting, by_name, losses = [*tasks], {task.name: task for task in tasks}, Counter[str]()
    num_running = num_stops = 0
    while num_running or (waiting and not signals):
        while waiting and num_running < executor.slots and not signals and watcher.may_start():
            task = waiting.pop(0)
            executor.start(task)
            num_running += 1
            watcher.started(task)
        while num_stops < len(signals):  # a second signal ends a run without waiting for its checkpoint
            executor.stop()
            num_stops += 1
        if not num_running and not signals:
            return  # none may start
        for done in executor.wait():
            num_running -= 1
            losses[done.name] += done.is_lost
            if done.is_lost and signals:  # a scheduler sends its signal to the workers, too
                watcher.ended(by_name[done.name], Done(done.name, STOPPED))
            elif done.is_lost and losses[done.name] <= MOST_REPEATS:
                watcher.say(f"the process of {done.name} was killed (exit status {done.exit_code}): it is trained again")
                waiting.append(by_name[done.name])
            else:
                watcher.ended(by_name[done.name], done)
        watcher.tick(len(waiting), num_running)


class StudyRunner:
    """Runs one study in its folder.

    Args:
        folder: The folder of the study, which the caller has locked.
        record: The study, with the runs that are known from an earlier start.
        executor: Where runs are trained.
        signals: The signals that this process received; the first one stops the study.
        say: Shows a line to the user.
    """

    def __init__(
        self, folder: Path, record: StudyRecord, executor: Executor, signals: Sequence[int], say: Callable[[str], None]
    ) -> None:
        self.folder, self.executor, self.signals, self.say = folder, executor, signals, say
        self.stored = record.runs
        self.record = replace(record, runs={}, tried=(), rounds=(), status=RUNNING)
        self.settler = RunSettler(self.record)
        self.began, self.before = time.monotonic(), record.seconds

    def run(self) -> StudyRecord:
        """Search, choose, and train the chosen setting on all training rows. Return the record."""
        self.search()
        if not self.signals:
            self.choose()
        if not self.signals and self.record.chosen is not None:
            runs = self.planned([self.record.chosen], final=True)
            self.say(f"final: {counted(len(runs), 'run', 'runs')} of the chosen setting on all training rows")
            self.train(runs, 1.0)
        unfinished = self.record.chosen is None or not any(
            run.finished for run in self.record.runs_of(self.record.chosen, final=True).values()
        )
        stopped = bool(self.signals)
        self.update(status=STOPPED if stopped else FAILED if unfinished else FINISHED, seconds=self.elapsed)
        return self.record

    @property
    def elapsed(self) -> float:
        """Seconds of this study, over all its starts."""
        return self.before + time.monotonic() - self.began

    @property
    def out_of_time(self) -> bool:
        """Whether the time of the search is over."""
        most = self.record.study.limit.seconds
        return most is not None and self.elapsed >= most

    def update(self, **changes: object) -> None:
        """Change the record and write it."""
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]  # fields of the record
        self.settler.record = self.record
        write_study(self.folder, self.record)

    def planned(self, settings: Sequence[int], *, final: bool = False) -> Runs:
        """Return the runs of some settings, known ones with what they have reached."""
        return planned_runs(self.settler, {**self.stored, **self.record.runs}, settings, final=final)

    def search(self) -> None:
        """Train round after round until the strategy, the budget or a signal ends the search.

        Rounds that an earlier start has trained are repeated from their scores, even if the time is over.
        """
        played: list[Played] = []
        while not self.signals:
            propose = next_optuna_round if self.record.study.chosen_strategy == OPTUNA else next_round
            found = propose(self.record.study, self.record.seeds[0], self.record.tried, played)
            if found is None:
                break
            before = self.record
            tried, rounds = (*self.record.tried, *found.added), (*self.record.rounds, found.round)
            self.update(tried=tried, rounds=rounds)
            runs = self.planned(found.round.settings)
            if self.out_of_time and (left := self.unreached(runs, found.round.fraction)):
                if len(left) == len(runs):  # the round was never begun
                    self.update(tried=before.tried, rounds=before.rounds, runs=before.runs)
                break
            part = "" if found.round.fraction == 1 else f", up to {found.round.fraction:.0%} of their steps"
            settings = counted(len(found.round.settings), "setting", "settings")
            self.say(f"round {len(rounds)}: {settings}, {counted(len(runs), 'run', 'runs')}{part}")
            self.train(runs, found.round.fraction)
            done = sum(self.is_complete(number, found.round.fraction) for number in found.round.settings)
            if self.out_of_time:
                self.say(f"the budget of {self.record.study.budget} ended: {done} of {settings} of this round were trained")
            if self.signals or not all(self.has_ended(number, found.round.fraction) for number in found.round.settings):
                break
            played.append(
                Played(found.round, {number: self.score(number, found.round.fraction) for number in found.round.settings})
            )

    def train(self, runs: Runs, fraction: float) -> None:
        """Train runs up to a fraction, as many at a time as the executor takes."""
        tasks = self.unreached(runs, fraction)
        self.is_search, self.num_tasks, self.told = any(run.fold for run, _ in runs.values()), len(tasks), time.monotonic()
        run_tasks(tasks, self.executor, self.signals, self)

    def may_start(self) -> bool:
        """Return whether more runs may start: the time of the search is not over."""
        return not (self.is_search and self.out_of_time)

    def started(self, task: Task) -> None:
        """Say nothing about a single run."""

    def tick(self, num_waiting: int, num_running: int) -> None:
        """Say every ten seconds how many runs are done."""
        if time.monotonic() - self.told > 10:
            self.told = time.monotonic()
            self.say(f"{self.num_tasks - num_waiting - num_running:,} of {self.num_tasks:,} runs done, {num_running} running")

    def unreached(self, runs: Runs, fraction: float) -> list[Task]:
        """Note all runs of a round, and return the tasks of those that have not reached a fraction."""
        noted, tasks = dict(self.record.runs), []
        for name, (run, given) in runs.items():
            noted[name] = run
            if not (run.settled or run.scores_at(fraction)):
                task = task_of(self.folder, name, given, fraction)
                if done := found_done(task.folder, name, fraction):
                    noted[name] = reached(run, done, fraction)
                else:
                    tasks.append(task)
                    path = task.folder.with_suffix(".toml")
                    if not path.exists():
                        write_settings(path, task.given)
        self.update(runs=noted)
        return tasks

    def ended(self, task: Task, done: Done) -> None:
        """Write the result of a run to the record."""
        run = reached(self.record.runs[done.name], done, task.fraction)
        self.update(runs={**self.record.runs, done.name: run}, seconds=self.elapsed)
        if run.status == FAILED:
            name = setting_name(self.record.tried[run.setting])
            self.say(f"failed: {name}, seed {run.seed} (exit status {run.exit_code}): {' '.join(run.error)}")

    def score(self, number: int, fraction: float) -> tuple[float, float]:
        """Return the mean selection score of a setting, higher is better, and the negative mean loss for equal ones."""
        runs = [*self.record.runs_of(number).values()]
        return fmean(self.goodness(run, fraction) for run in runs), -fmean(
            (run.scores_at(fraction) or {}).get(LOSS, WORST_LOSS) for run in runs
        )

    def goodness(self, run: SeedRecord, fraction: float) -> float:
        """Return the score of a run. One that failed counts like always giving the most frequent answer."""
        sign, scores = (1 if self.record.greater_is_better else -1), run.scores_at(fraction)
        if scores and self.record.metric in scores:
            return sign * scores[self.record.metric]
        baselines = [other.baseline for other in self.record.runs.values() if self.record.metric in other.baseline]
        worst = 0.0 if self.record.greater_is_better else WORST_LOSS
        return sign * (baselines[0][self.record.metric] if baselines else worst)

    def choose(self) -> None:
        """Choose the setting with the best mean on the selection split, among those that were trained furthest."""
        complete = [
            (part.fraction, number)
            for part in self.record.rounds
            for number in part.settings
            if self.is_complete(number, part.fraction)
        ]
        if not complete:
            self.update(status=FAILED, seconds=self.elapsed)
            raise nothing_trained(self.record, self.folder)
        furthest = max(fraction for fraction, _ in complete)
        numbers = list(dict.fromkeys(number for fraction, number in complete if fraction == furthest))
        best = max(numbers, key=lambda number: self.score(number, furthest))
        self.update(chosen=best)
        self.say(
            f"chosen on the {SELECTION} split, by mean {self.record.metric}: {setting_name(self.record.tried[best])} "
            f"({self.score(best, furthest)[0] * (1 if self.record.greater_is_better else -1):.4f})"
        )

    def is_complete(self, number: int, fraction: float) -> bool:
        """Return whether all runs of a setting have reached a fraction or failed, and at least one has a score."""
        runs = [*self.record.runs_of(number).values()]
        return self.has_ended(number, fraction) and any(run.scores_at(fraction) for run in runs)

    def has_ended(self, number: int, fraction: float) -> bool:
        """Return whether all runs of a setting have reached a fraction or failed."""
        runs = [*self.record.runs_of(number).values()]
        return bool(runs) and all(run.scores_at(fraction) or run.status == FAILED for run in runs)


def nothing_trained(record: StudyRecord, folder: Path) -> GlassloopError:
    """Return why a study has no setting to choose: all its runs failed, or the budget was too small."""
    failed = [*record.failed.values()]
    if not failed:
        return SettingsError("the budget ended before one setting was trained", "raise --budget and start again")
    which = f"all {len(failed):,} runs" if len(failed) > 1 else "the only run"
    problem, *remedy = failed[0].error or (f"exit status {failed[0].exit_code}",)
    if all(out_of_memory(run) for run in failed):
        return ResourceError(
            f"{which} ran out of memory: {problem}",
            "lower per_device_train_batch_size or max_length, or use a smaller model, and start again in another folder; or "
            f"train fewer runs at a time: glassloop study --resume {folder} --at_once 1",
        )
    codes = {run.exit_code for run in failed}
    kind = KINDS.get(codes.pop() or 1, GlassloopError) if len(codes) == 1 else GlassloopError
    return kind(
        f"{which} failed, so there is no setting to choose. First error: {problem}",
        f"{' '.join(remedy) or 'correct it'}; the logs are in {folder}",
    )


def out_of_memory(run: SeedRecord) -> bool:
    """Return whether a run failed because memory ran out: it says so, or the system killed its process."""
    return run.exit_code == KILLED or (run.exit_code == ResourceError.exit_code and "memory" in " ".join(run.error).lower())


def reached(run: SeedRecord, done: Done, fraction: float) -> SeedRecord:
    """Return the record of a run with what a worker answered."""
    run = replace(run, seconds=run.seconds + done.seconds, preparing=run.preparing + done.preparing)
    if done.status in (FAILED, STOPPED):
        status = FAILED if done.status == FAILED else WAITING
        return replace(run, status=status, exit_code=done.exit_code, error=done.error)
    run = replace(run, rungs={**run.rungs, **done.rungs}, exit_code=None, error=(), fraction=fraction)
    run = replace(run, measures=done.measures, rows=done.rows)
    if done.status == PAUSED:
        return replace(run, status=PAUSED)
    return replace(run, status=FINISHED, fraction=1.0, **split_scores(done, has_selection=run.fold is not None))  # type: ignore[arg-type]


def split_scores(done: Done, *, has_selection: bool) -> dict[str, dict[str, float]]:
    """Return the scores of a finished run by split. Those of the selection split have no prefix, if it has one."""
    prefix = "validation_"
    later = any(name.startswith(prefix) for name in done.evaluation)
    if not later:
        scores = {"selection": done.evaluation} if has_selection else {"validation": done.evaluation}
        return {**scores, "baseline": done.baseline}
    first = {name: value for name, value in done.evaluation.items() if not name.startswith(prefix)}
    validation, baseline = (
        {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        for found in (done.evaluation, done.baseline)
    )
    return {"selection": first, "validation": validation, "baseline": baseline}
