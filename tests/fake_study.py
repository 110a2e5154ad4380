"""A study whose runs only pretend to train: an executor that answers with the scores a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import drawn_rows, write_drawn_run

from glassloop.runs.study import RoundRecord, SeedRecord, StudyRecord
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings, Values
from glassloop.study import study as module
from glassloop.study.study import RunSettler, StudyRunner
from glassloop.study.tasks import Task


class FakeExecutor:
    """Answers at once. `score` returns the selection accuracy of values and fraction, or an exit status of a failure."""

    def __init__(self, score: Callable[[Mapping[str, object], float], float | int], slots: int = 2) -> None:
        self.score, self.slots = score, slots
        self.started: list[Task] = []
        self.waiting: list[Task] = []
        self.stops = 0

    def start(self, task: Task) -> None:
        assert len(self.waiting) < self.slots
        self.started.append(task)
        self.waiting.append(task)

    def wait(self) -> list[tuple[str, SeedRecord]]:
        task = self.waiting.pop(0)
        return [(task.name, self.answer(task, self.score(task.given.training, task.fraction)))]

    def answer(self, task: Task, score: float | int) -> SeedRecord:
        if isinstance(score, int):
            return SeedRecord(status="failed", seconds=1.0, exit_code=score, error=("it broke", "mend it"))
        scores = {"accuracy": score, "loss": 1 - score}
        if task.fraction < 1:
            return SeedRecord(status="paused", rungs={f"{task.fraction:g}": scores}, seconds=1.0)
        ended = SeedRecord(status="finished", validation=scores, baseline={"accuracy": 0.5}, seconds=2.0)
        if "selection_fold" not in task.given.data:
            return ended
        both = {**scores, **{f"validation_{name}": value - 0.01 for name, value in scores.items()}}
        return replace(ended, validation=both, baseline={"accuracy": 0.4, "validation_accuracy": 0.5})

    def stop(self) -> None:
        self.stops += 1


class FakeSettler(RunSettler):
    """Settings and names of runs without data and model."""

    def given(self, values: Values, seed: int, fold: str | None) -> GivenSettings:
        data = {"selection_fold": fold} if fold else {}
        return GivenSettings("data.csv", "tiny", {**self.record.base.training, **values, "seed": seed}, data)

    def name_of(self, given: GivenSettings) -> str:
        values = "-".join(str(given.training[name]) for name in (*self.record.study.vary, "seed"))
        return f"{values}-{str(given.data.get('selection_fold', 'all')).replace('/', 'of')}"


def record_for(study: StudySettings, **changes: object) -> StudyRecord:
    seeds = tuple(range(1, study.seeds + 1))
    return StudyRecord(GivenSettings("data.csv", "tiny", {"save_strategy": "no"}), study, "accuracy", True, seeds, **changes)


def run_fake(
    folder: Path, record: StudyRecord, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, signals: list[int] | None = None
) -> tuple[StudyRecord, list[str]]:
    """Run a study; its record and the lines it said."""
    monkeypatch.setattr(module, "RunSettler", FakeSettler)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    runner = StudyRunner(folder, record, {}, executor, [] if signals is None else signals, lines.append)
    return runner.run(), lines


def drawn_study(folder: Path) -> StudyRecord:
    """A finished study of three settings, one of them stopped early, with drawn predictions: nothing is trained."""
    study = StudySettings({"learning_rate": "1e-5,1e-4,1e-3"}, seeds=2)
    tried = tuple({"learning_rate": rate} for rate in (1e-5, 1e-4, 1e-3))
    runs: dict[str, SeedRecord] = {}
    for number, skill in ((0, 0.2), (1, 1.0)):
        for seed in (1, 2):
            name = f"seed-{seed}-{number}"
            write_drawn_run(folder / "runs" / name, drawn_rows(120, skill, seed), seed)
            scores = {"accuracy": skill / 3, "loss": 0.5}
            runs[name] = SeedRecord(number, seed, "1/10", "finished", 1.0, {}, scores, scores, {"accuracy": 0.5}, 1.0)
    runs["seed-1-2"] = SeedRecord(2, 1, "1/10", "paused", 0.25, {"0.25": {"accuracy": 0.1, "loss": 2.0}})
    runs["seed-2-2"] = SeedRecord(2, 2, "1/10", "failed", exit_code=5, error=("the loss | is nan", "lower it"))
    for seed in (1, 2):
        name = f"final-seed-{seed}"
        write_drawn_run(folder / "runs" / name, drawn_rows(120, 1.0, seed + 5), seed)
        runs[name] = SeedRecord(1, seed, None, "finished", 1.0, validation={"accuracy": 0.9}, baseline={"accuracy": 0.5})
    rounds = (RoundRecord((0, 1, 2), 0.25), RoundRecord((0, 1), 1.0))
    return record_for(study, tried=tried, rounds=rounds, runs=runs, chosen=1, status="finished", seconds=12.0)
