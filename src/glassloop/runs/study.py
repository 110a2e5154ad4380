"""study.json and seeds.json, which have the same form: what a study trains, the record of each run, and what it found out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.files import write_text
from glassloop.base.records import NotARecordError, decoded, described, entry, read_json
from glassloop.runs.record import FAILED, FINISHED, RUNGS_NAME, RUNNING, SEEDS_NAME, STUDY_NAME, WAITING, seed_name
from glassloop.settings.file import GivenSettings, RunSettings
from glassloop.settings.study import SEEDS, StudySettings, Values


@dataclass(frozen=True)
class MeasuresRecord:
    """The metrics of a run, and the class whose F1 is reported."""

    keys: tuple[str, ...] = ()
    positive: str | None = None


@described
@dataclass(frozen=True)
class SeedRecord:
    """The run of one random seed: of several seeds, or of one configuration of a study."""

    setting: int = entry(0, "Number of its configuration, from 0.")
    seed: int = entry(0, "Its random seed.")
    fold: str | None = entry(None, "The part of the training rows it was not trained on; None for a run on all of them.")
    status: str = entry(WAITING, '"waiting", "paused", "finished" or "failed".')
    fraction: float = entry(0.0, "How much of its training is done.")
    rungs: dict[str, dict[str, float]] = entry({}, "The scores on the selection split at each fraction it was paused at.")
    selection: dict[str, float] = entry({}, "The scores on the selection split at its end: what configurations are chosen by.")
    validation: dict[str, float] = entry({}, "The scores on the validation split at its end, without prefix and timings.")
    baseline: dict[str, float] = entry({}, "The validation scores of always giving the most frequent answer.")
    seconds: float = entry(0.0, "How long it took, over all its parts.")
    preparing: float = entry(0.0, "How long of that data and model took, before training started.")
    exit_code: int | None = entry(None, "The exit status of a failed run.")
    error: tuple[str, ...] = entry((), "What was wrong.")
    measures: MeasuresRecord = entry(MeasuresRecord(), "The metrics, and the class of F1.")
    rows: dict[str, str] = entry({}, "A fingerprint of the rows of each split.")

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
        """Return the scores on the selection split after a `fraction` of the training, or at its earlier end."""
        return self.rungs.get(f"{fraction:g}") or (self.selection if self.finished else None)


@dataclass(frozen=True)
class RoundRecord:
    """A round of the search: which settings are trained up to which fraction of their steps."""

    settings: tuple[int, ...]
    fraction: float


@described
@dataclass(frozen=True)
class StudyRecord:
    """Everything study.json says about a study, and seeds.json about several seeds."""

    base: GivenSettings = field(metadata={"help": "The settings that all runs share."})
    study: StudySettings = field(metadata={"help": "What the study tries."})
    metric: str = field(metadata={"help": "The metric that settings are chosen by, on the selection split."})
    greater_is_better: bool = field(metadata={"help": "Whether a higher value of the metric is better."})
    seeds: tuple[int, ...] = field(metadata={"help": "The random seeds."})
    tried: tuple[Values, ...] = entry((), "The value of each varied setting, by number of the setting.")
    rounds: tuple[RoundRecord, ...] = entry((), "The rounds of the search so far.")
    runs: dict[str, SeedRecord] = entry({}, "The record of each run, by its folder.")
    chosen: int | None = entry(None, "Number of the chosen setting.")
    results: dict[str, object] = entry({}, "What was found out about the chosen setting and the others.")
    test_evaluations: tuple[str, ...] = entry((), "The settings evaluated on the test split; more than one is not honest.")
    status: str = entry(RUNNING, '"running", "finished", "failed" or "stopped".')
    seconds: float = entry(0.0, "How long the search took, over all its starts.")
    threads: int | None = entry(None, "Number of CPU threads of each run; None for the default.")
    data: dict[str, str] = entry({}, "A fingerprint of the rows of each split.")
    models: dict[str, str] = entry({}, "A fingerprint of the files of each model.")
    versions: dict[str, str] = entry({}, "The versions of Python and libraries.")

    def runs_of(self, setting: int, *, final: bool = False) -> dict[str, SeedRecord]:
        """Return the runs of a `setting` by its number: those of the search, or the `final` ones."""
        return {name: run for name, run in self.runs.items() if run.setting == setting and (run.fold is None) == final}

    @property
    def failed(self) -> dict[str, SeedRecord]:
        """The runs that failed."""
        return {name: run for name, run in self.runs.items() if run.status == FAILED}


@described
@dataclass(frozen=True)
class SeedsRecord:
    """The result of one training repeated with several random seeds."""

    settings: RunSettings = field(metadata={"help": "What was trained. Its `seed` and `output_dir` are not used."})
    seeds: Mapping[int, SeedRecord] = field(metadata={"help": "The record of each random seed."})
    folder: Path = field(metadata={"help": "The folder of the runs, below which each seed has its own."})
    status: str = entry(RUNNING, '"running", "finished", "failed" or "stopped".')
    versions: dict[str, str] = entry({}, "The versions of Python and libraries.")

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
    return SeedsRecord(settings, {run.seed: run for run in record.runs.values()}, folder, record.status, record.versions)


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
