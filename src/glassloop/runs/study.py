"""study.json and seeds.json: what a study trains, the record of each of its runs, and what it found out.

Several seeds are a study of one configuration. Their record has the same form as that of any study, in seeds.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.files import write_text
from glassloop.base.records import NotARecordError, decoded, read_json
from glassloop.runs.record import FAILED, FINISHED, RUNGS_NAME, RUNNING, SEEDS_NAME, STUDY_NAME, WAITING, seed_name
from glassloop.settings.file import GivenSettings, RunSettings
from glassloop.settings.study import SEEDS, StudySettings, Values


@dataclass(frozen=True)
class MeasuresRecord:
    """The metrics of a run, and the class whose F1 is reported."""

    keys: tuple[str, ...] = ()
    positive: str | None = None


@dataclass(frozen=True)
class SeedRecord:
    """The run of one random seed: of several seeds, or of one configuration of a study.

    Attributes:
        setting: Number of its configuration, from 0.
        seed: Its random seed.
        fold: The part of the training rows it was not trained on; None for a run on all of them.
        status: "waiting", "paused", "finished" or "failed".
        fraction: How much of its training is done.
        rungs: The scores on the selection split at each fraction it was paused at.
        selection: The scores on the selection split at its end: what configurations are chosen by.
        validation: The scores on the validation split at its end, without prefix and timings.
        baseline: The validation scores of always giving the most frequent answer.
        seconds: How long it took, over all its parts.
        preparing: How long of that data and model took, before training started.
        exit_code: The exit status of a failed run.
        error: What was wrong.
        measures: The names of the metrics, and the class whose F1 is reported.
        rows: A fingerprint of the rows of each split.
    """

    setting: int = 0
    seed: int = 0
    fold: str | None = None
    status: str = WAITING
    fraction: float = 0.0
    rungs: dict[str, dict[str, float]] = field(default_factory=dict)
    selection: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    preparing: float = 0.0
    exit_code: int | None = None
    error: tuple[str, ...] = ()
    measures: MeasuresRecord = field(default_factory=MeasuresRecord)
    rows: dict[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """The scores of the final evaluation: those on the validation split."""
        return self.validation

    @property
    def folder(self) -> str | None:
        """Name of the run folder of a finished run of several seeds."""
        return seed_name(self.seed) if self.finished else None

    @property
    def finished(self) -> bool:
        """Whether the run ended with a model and its scores."""
        return self.status == FINISHED

    @property
    def settled(self) -> bool:
        """Whether training the run again would change nothing: it is finished, or it diverged."""
        return self.finished or (self.status == FAILED and self.exit_code not in (6, 7) and (self.exit_code or 0) < 128)

    def scores_at(self, fraction: float) -> dict[str, float] | None:
        """Return the scores on the selection split after a fraction of the training, or at its earlier end.

        Args:
            fraction: How much of the training.
        """
        return self.rungs.get(f"{fraction:g}") or (self.selection if self.finished else None)


@dataclass(frozen=True)
class RoundRecord:
    """A round of the search: which settings are trained up to which fraction of their steps."""

    settings: tuple[int, ...]
    fraction: float


@dataclass(frozen=True)
class StudyRecord:
    """Everything study.json says about a study, and seeds.json about several seeds.

    Attributes:
        base: The settings that all runs share.
        study: What the study tries.
        metric: The metric that settings are chosen by, on the selection split.
        greater_is_better: Whether a higher value of the metric is better.
        seeds: The random seeds.
        tried: The value of each varied setting, by number of the setting.
        rounds: The rounds of the search so far.
        runs: The record of each run, by the name of its folder.
        chosen: Number of the chosen setting.
        results: What was found out about the chosen setting and the others; see docs/reference/json.md.
        test_evaluations: The settings that were evaluated on the test split, in this order. More than one is not honest.
        status: "running", "finished", "failed" or "stopped".
        seconds: How long the search took, over all its starts.
        threads: Number of CPU threads of each run; None for the default.
        data: A fingerprint of the rows of each split.
        models: A fingerprint of the files of each model.
        versions: The versions of Python and of the libraries used.
    """

    base: GivenSettings
    study: StudySettings
    metric: str
    greater_is_better: bool
    seeds: tuple[int, ...]
    tried: tuple[Values, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    runs: dict[str, SeedRecord] = field(default_factory=dict)
    chosen: int | None = None
    results: dict[str, object] = field(default_factory=dict)
    test_evaluations: tuple[str, ...] = ()
    status: str = RUNNING
    seconds: float = 0.0
    threads: int | None = None
    data: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def runs_of(self, setting: int, *, final: bool = False) -> dict[str, SeedRecord]:
        """Return the runs of a setting: those of the search, or the final ones.

        Args:
            setting: Number of the setting.
            final: Whether to return the final runs.
        """
        return {name: run for name, run in self.runs.items() if run.setting == setting and (run.fold is None) == final}

    @property
    def failed(self) -> dict[str, SeedRecord]:
        """The runs that failed."""
        return {name: run for name, run in self.runs.items() if run.status == FAILED}


@dataclass(frozen=True)
class SeedsRecord:
    """The result of one training repeated with several random seeds.

    Attributes:
        settings: What was trained. Its `seed` and `output_dir` are not used.
        seeds: The record of each random seed.
        folder: The folder of the runs, below which each seed has its own.
        status: "running", "finished", "failed" or "stopped".
        versions: The versions of Python and of the libraries used.
    """

    settings: RunSettings
    seeds: Mapping[int, SeedRecord]
    folder: Path
    status: str = RUNNING
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> dict[int, SeedRecord]:
        """Return the seeds that ended with a result."""
        return {seed: entry for seed, entry in self.seeds.items() if entry.finished}

    @property
    def unfinished(self) -> list[int]:
        """Return the seeds that have no result yet."""
        return [seed for seed, entry in self.seeds.items() if not entry.finished]

    @property
    def mean(self) -> dict[str, float]:
        """Return the mean of each metric over the finished seeds."""
        return {name: mean(values) for name, values in self.values().items()}

    @property
    def standard_deviation(self) -> dict[str, float] | None:
        """Return the sample standard deviation (n - 1) of each metric, or None for fewer than two finished seeds."""
        return {name: stdev(values) for name, values in self.values().items()} if len(self.finished) > 1 else None

    @property
    def baseline(self) -> dict[str, float]:
        """Return the scores of always giving the most frequent answer, which all seeds share."""
        return next((entry.baseline for entry in self.finished.values()), {})

    def values(self) -> dict[str, list[float]]:
        """Return the scores of the finished seeds by metric."""
        finished = [*self.finished.values()]
        return {name: [entry.metrics[name] for entry in finished] for name in (finished[0].metrics if finished else ())}


def read_study(folder: Path, name: str = STUDY_NAME) -> StudyRecord:
    """Return the record in study.json. Raise `ModelError` if it is missing or damaged."""
    try:
        return decoded(StudyRecord, read_json(folder / name))
    except NotARecordError as error:
        raise ModelError(f"{folder}: not a study: {name}: {error}", "name the folder of a study") from error


def write_study(folder: Path, record: StudyRecord, name: str = STUDY_NAME) -> None:
    """Replace study.json, completely or not at all."""
    write_text(folder / name, json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_seeds(folder: Path) -> SeedsRecord:
    """Return the seeds in seeds.json. Raise `ModelError` if it is missing or damaged."""
    try:
        record = read_study(folder, SEEDS_NAME)
        if not record.runs:
            raise SettingsError("there are none", "")
        settings = record.base.checked()
    except (ModelError, SettingsError) as error:
        problem = error.problem.rpartition(f"{SEEDS_NAME}: ")[2]
        raise ModelError(f"{folder}: no seeds to resume: {SEEDS_NAME}: {problem}", "train new seeds") from error
    seeds = {run.seed: run for run in record.runs.values()}
    return SeedsRecord(settings, seeds, folder, record.status, record.versions)


def write_seeds(record: SeedsRecord) -> None:
    """Replace seeds.json: the record of a study of one configuration, with mean and standard deviation as its results."""
    base = record.settings.given()
    training = {name: value for name, value in base.training.items() if name not in ("seed", "output_dir")}
    study = StudyRecord(
        replace(base, training=training),
        StudySettings(seeds=len(record.seeds), strategy=SEEDS),
        metric="",
        greater_is_better=True,
        seeds=tuple(record.seeds),
        tried=({},),
        runs={seed_name(seed): replace(entry, seed=seed) for seed, entry in record.seeds.items()},
        results={"mean": record.mean, "standard_deviation": record.standard_deviation, "baseline": record.baseline},
        status=record.status,
        seconds=sum(entry.seconds for entry in record.seeds.values()),
        versions=record.versions,
    )
    write_study(record.folder, study, SEEDS_NAME)


def read_rungs(run: Path) -> dict[str, dict[str, float]]:
    """Return the scores of a run at the steps it was paused at; empty if there are none."""
    try:
        found = read_json(run / RUNGS_NAME)
    except NotARecordError:
        return {}
    return found if isinstance(found, dict) else {}  # type: ignore[return-value]  # only Glassloop writes it
