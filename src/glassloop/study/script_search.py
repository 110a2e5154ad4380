"""The trials of `Trainer.hyperparameter_search` in study.json, so that a search that was stopped or killed continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from glassloop.engine.versions import versions
from glassloop.errors import GlassloopError, counted, say
from glassloop.files import set_aside
from glassloop.run_folder.layout import STUDY_NAME, is_study
from glassloop.run_folder.record import FINISHED, RUNNING
from glassloop.run_folder.seeds_json import FAILED, WAITING
from glassloop.run_folder.study_json import PAUSED, BaseRecord, RoundRecord, StudyRecord, TrialRecord, read_study, write_study
from glassloop.show.study import setting_name
from glassloop.study.optuna_search import KnownTrial
from glassloop.study_settings import SCRIPT, StudySettings
from glassloop.study_space import Value, Values

OBJECTIVE = "objective"  # of several, objective, objective-1 and so on


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

    def __init__(self, folder: Path, identity: dict[str, str], seed: int, *, greater_is_better: bool, base: BaseRecord) -> None:
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
    def settled(self) -> list[TrialRecord]:
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
        self.note(name, TrialRecord(number, seed))
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
        code, lines = 1, (f"{type(error).__name__}: {error}",)
        if isinstance(error, GlassloopError):
            code, lines = error.exit_code, (error.problem, error.remedy)  # type: ignore[assignment]  # two lines, not one
        run = replace(self.record.runs[name], status=FAILED, exit_code=code, error=lines, seconds=seconds)
        self.note(name, run)
        say(f"failed: {name}, {setting_name(self.record.tried[run.setting])} (exit status {code}): {lines[0]}")

    def note(self, name: str, run: TrialRecord) -> None:
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
