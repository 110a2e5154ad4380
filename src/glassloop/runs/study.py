"""study.json: what a study tries, the record of each of its runs, and the choice it made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from glassloop.base.errors import ModelError
from glassloop.base.files import write_text
from glassloop.base.records import NotARecordError, decoded, read_json
from glassloop.runs.layout import STUDY_NAME
from glassloop.runs.record import FAILED, FINISHED, RUNNING, WAITING
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings, Values

DIVERGED = 5  # exit status of a run whose loss is not finite: training it again ends the same way


FINAL = "final"  # the role of a run on all training rows with the chosen setting


@dataclass(frozen=True)
class BaseRecord:
    """The settings that all runs of a study share."""

    source: str | None = None
    model: str | None = None
    training: dict[str, object] = field(default_factory=dict)
    data: dict[str, object] = field(default_factory=dict)
    new_head: bool = False

    def given(self) -> GivenSettings:
        """Return them as the settings of a run."""
        return GivenSettings(self.source, self.model, self.training, self.data, self.new_head)


@dataclass(frozen=True)
class TrialRecord:
    """One run of a study.

    Attributes:
        setting: Number of its setting, from 0.
        seed: Its random seed.
        fold: The part of the training rows it was not trained on; None for a final run on all of them.
        status: "waiting", "paused", "finished" or "failed".
        fraction: How much of its training is done.
        rungs: The scores on the selection split at each fraction it was paused at.
        selection: The scores on the selection split at its end: what settings are chosen by.
        validation: The scores on the validation split at its end.
        baseline: The validation scores of always giving the most frequent answer.
        seconds: How long it took, over all its parts.
        preparing: How long of that data and model took, before training started.
        exit_code: The exit status of a failed run.
        error: What was wrong.
    """

    setting: int
    seed: int
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

    @property
    def finished(self) -> bool:
        """Whether the run ended with a model and its scores."""
        return self.status == FINISHED

    @property
    def settled(self) -> bool:
        """Whether training the run again would change nothing: it is finished, or it diverged."""
        return self.finished or (self.status == FAILED and self.exit_code not in (6, 7) and (self.exit_code or 0) < 128)

    def scores_at(self, fraction: float) -> dict[str, float] | None:
        """Return the scores on the selection split after a fraction of the training, or at its earlier end."""
        return self.rungs.get(f"{fraction:g}") or (self.selection if self.finished else None)


@dataclass(frozen=True)
class RoundRecord:
    """A round of the search: which settings are trained up to which fraction of their steps."""

    settings: tuple[int, ...]
    fraction: float


@dataclass(frozen=True)
class StudyRecord:
    """Everything study.json says about a study.

    Attributes:
        base: The settings that all runs share.
        study: What the study tries.
        metric: The metric that settings are chosen by, on the selection split.
        greater_is_better: Whether a higher value of the metric is better.
        seeds: The random seeds.
        tried: The value of each varied setting, by number of the setting.
        rounds: The rounds of the search so far.
        runs: The record of each run, by the name of its folder in runs/.
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

    base: BaseRecord
    study: StudySettings
    metric: str
    greater_is_better: bool
    seeds: tuple[int, ...]
    tried: tuple[Values, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    runs: dict[str, TrialRecord] = field(default_factory=dict)
    chosen: int | None = None
    results: dict[str, object] = field(default_factory=dict)
    test_evaluations: tuple[str, ...] = ()
    status: str = RUNNING
    seconds: float = 0.0
    threads: int | None = None
    data: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def runs_of(self, setting: int, *, final: bool = False) -> dict[str, TrialRecord]:
        """Return the runs of a setting: those of the search, or the final ones.

        Args:
            setting: Number of the setting.
            final: Whether to return the final runs.
        """
        return {name: run for name, run in self.runs.items() if run.setting == setting and (run.fold is None) == final}

    @property
    def failed(self) -> dict[str, TrialRecord]:
        """The runs that failed."""
        return {name: run for name, run in self.runs.items() if run.status == FAILED}


def read_study(folder: Path) -> StudyRecord:
    """Return the record in study.json. Raise `ModelError` if it is missing or damaged."""
    try:
        return decoded(StudyRecord, read_json(folder / STUDY_NAME))
    except NotARecordError as error:
        raise ModelError(f"{folder}: not a study: {STUDY_NAME}: {error}", "name the folder of a study") from error


def write_study(folder: Path, record: StudyRecord) -> None:
    """Replace study.json, completely or not at all."""
    write_text(folder / STUDY_NAME, json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_rungs(run: Path, name: str) -> Mapping[str, dict[str, float]]:
    """Return the scores of a run at the steps it was paused at; empty if there are none."""
    try:
        found = read_json(run / name)
    except NotARecordError:
        return {}
    return found if isinstance(found, dict) else {}  # type: ignore[return-value]  # only Glassloop writes it
