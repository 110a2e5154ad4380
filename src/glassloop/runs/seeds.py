"""seeds.json: the record of one training repeated with several random seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

from glassloop.base.errors import ModelError
from glassloop.base.files import write_text
from glassloop.base.records import NotARecordError, decoded, read_json
from glassloop.runs.layout import SEEDS_NAME
from glassloop.runs.record import FINISHED, RUNNING, WAITING
from glassloop.settings.file import RunSettings


@dataclass(frozen=True)
class MeasuresRecord:
    """The metrics of a run, and the class whose F1 is reported."""

    keys: tuple[str, ...] = ()
    positive: str | None = None


@dataclass(frozen=True)
class SeedRecord:
    """The run of one random seed.

    Attributes:
        status: "waiting", "finished", "failed" or "stopped".
        folder: Name of the run folder below the folder of the seeds.
        seconds: How long the run took.
        metrics: The scores of the final evaluation, without prefix and timings.
        baseline: The scores of always giving the most frequent answer.
        measures: The names of the metrics, and the class whose F1 is reported.
        rows: A fingerprint of the rows of each split.
        exit_code: The exit status of a run that failed or was stopped.
        error: The last lines of a run that failed.
    """

    status: str = WAITING
    folder: str | None = None
    seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    measures: MeasuresRecord = field(default_factory=MeasuresRecord)
    rows: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    error: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Return whether the run ended with a result."""
        return self.status == FINISHED


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
        found = [*self.finished.values()]
        return {name: [entry.metrics[name] for entry in found] for name in (found[0].metrics if found else ())}


@dataclass(frozen=True)
class StoredSeeds:
    """What seeds.json must contain for its seeds to be resumed. JSON has only text as keys."""

    settings: RunSettings
    seeds: dict[str, SeedRecord]
    status: str = RUNNING
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.seeds or not all(seed.isdecimal() for seed in self.seeds):
            raise ValueError("seeds are missing, or are not numbers")


def read_seeds(folder: Path) -> SeedsRecord:
    """Return the record in seeds.json. Raise `ModelError` if it is missing or damaged."""
    try:
        found = decoded(StoredSeeds, read_json(folder / SEEDS_NAME))
    except NotARecordError as error:
        raise ModelError(f"{folder}: no seeds to resume: {SEEDS_NAME}: {error}", "train new seeds") from error
    seeds = {int(seed): entry for seed, entry in found.seeds.items()}
    return SeedsRecord(found.settings, seeds, folder, found.status, found.versions)


def write_seeds(record: SeedsRecord) -> None:
    """Replace seeds.json, with the mean and standard deviation of the seeds that are finished."""
    content = asdict(record)
    del content["folder"]
    for name in ("seed", "output_dir"):
        del content["settings"]["training"][name]
    content |= {"mean": record.mean, "standard_deviation": record.standard_deviation, "baseline": record.baseline}
    write_text(record.folder / SEEDS_NAME, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
