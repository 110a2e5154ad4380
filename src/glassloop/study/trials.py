"""The runs of a study: the settings of each, its name from a hash of settings and data, and how far it has come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from glassloop.base.errors import GlassloopError, ModelError, ResourceError
from glassloop.base.files import absolute_name, find_path, sha256_of, write_text
from glassloop.runs.record import (
    FAILED,
    FINISHED,
    PAUSED,
    RUNGS_NAME,
    STOPPED,
    RunRecord,
    checkpoints_in,
    is_run,
    read_run,
    step_of,
)
from glassloop.runs.study import MeasuresRecord, SeedRecord, StudyRecord, read_rungs
from glassloop.scores.metrics import short_metrics
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import MODEL, Values
from glassloop.settings.training import data_settings, training_arguments
from glassloop.study.run import SharedParts, chosen_settings, examples_for
from glassloop.training.checkpoints import open_checkpoint

RUNS_NAME = "runs"
LEAST_SIGNAL = 128  # exit statuses from here on are those of processes that a signal ended
UNHASHED = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # do not change what a run computes


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do: train a run up to a fraction of its steps.

    Attributes:
        name: Name of the run.
        given: Its settings. Their `output_dir` is its run folder.
        fraction: How much of its training to do; 1 for all.
        alone: Whether it ends like a run of `glassloop train`: with its checkpoints, a report and a model card.
        report: Whether such a run writes its report.
    """

    name: str
    given: GivenSettings
    fraction: float = 1.0
    alone: bool = False
    report: bool = True

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(str(self.given.training["output_dir"]))

    @property
    def log(self) -> Path:
        """The file with what the run prints, next to its folder."""
        return self.folder.with_name(f"{self.name}.log")


@dataclass(frozen=True)
class Done:
    """What a worker answers.

    Attributes:
        name: Name of the run.
        status: "finished", "paused", "failed", or "stopped" by a signal.
        rungs: The scores on the selection split at the fractions the run was paused at.
        evaluation: The scores of the final evaluation, without timings.
        baseline: The scores of always giving the most frequent answer.
        seconds: How long this part took.
        preparing: How long of that data and model took, before training started.
        exit_code: The exit status a failed run alone would have.
        error: What was wrong.
        measures: The names of the metrics, and the class whose F1 is reported.
        rows: A fingerprint of the rows of each split.
    """

    name: str
    status: str
    rungs: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    preparing: float = 0.0
    exit_code: int | None = None
    error: tuple[str, ...] = ()
    measures: MeasuresRecord = field(default_factory=MeasuresRecord)
    rows: dict[str, str] = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """Whether the process of the run was killed, which says nothing about the run."""
        return self.status in (FAILED, STOPPED) and (self.exit_code or 0) >= LEAST_SIGNAL

    @property
    def leaves_doubt(self) -> bool:
        """Whether the process of a failed run may be damaged: a bug, an error of the GPU, or no memory."""
        return self.status == FAILED and self.exit_code in (1, ResourceError.exit_code)


class RunSettler:
    """Returns the settings of each run, with those that the default rule chooses, and the name of its folder.

    Args:
        record: The study.
    """

    def __init__(self, record: StudyRecord) -> None:
        self.record = record
        self.shared = SharedParts(keeps=True)  # read once for all runs
        self.models = dict(record.models)

    def given(self, values: Values, seed: int, fold: str | None) -> GivenSettings:
        """Return the settings of one run. The rule chooses from the rows of the first fold, for all runs of a setting."""
        base = self.record.base
        training = {**base.training, **{name: value for name, value in values.items() if name != MODEL}}
        model = absolute_name(str(values.get(MODEL) or base.model or "quickstart"))
        searching = replace(
            base, model=model, training=training, data={**base.data, "selection_fold": self.record.study.folds[0]}
        )
        config = self.shared.config(model)
        examples = examples_for(searching, config, self.shared)  # a trained model may bring its labels
        chosen = chosen_settings(searching, training_arguments(training), examples, config)
        settled = {**training, **{name: getattr(chosen.settings, name) for name in chosen.names}, "seed": seed}
        if fold is None and needs_selection(settled):
            fold = self.record.study.folds[0]  # otherwise validation rows would decide when to stop
        data = {**base.data, **({"selection_fold": fold} if fold else {})}
        return replace(base, model=model, training=settled, data=data)

    def name_of(self, given: GivenSettings) -> str:
        """Return the name of a run: its seed, and a hash of all that its numbers depend on."""
        args = training_arguments(given.training).to_dict()
        described = {
            "training": {name: value for name, value in args.items() if name not in UNHASHED},
            "data": asdict(data_settings(given.data)),
            "rows": self.record.data,
            "model": self.model_key(str(given.model)),
            "new_head": given.new_head,
        }
        digest = sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()
        return f"seed-{args['seed']}-{digest[:12]}"

    def model_key(self, name: str) -> str:
        """Return the name of a model; for a folder, a hash of its files as well. The files are read once."""
        if name not in self.models:
            self.models[name] = model_key(name)
        return self.models[name]


def model_key(name: str) -> str:
    """Return the name of a model; for a folder, a hash of its files as well."""
    path = find_path(name)
    files = sorted(part for part in path.rglob("*") if part.is_file()) if path and path.is_dir() else []
    content = "".join(sha256_of(part) for part in files)
    return f"{name} {sha256(content.encode()).hexdigest()[:16]}" if files else name


def needs_selection(training: Mapping[str, object]) -> bool:
    """Return whether evaluations decide which weights a run ends with."""
    return bool(training.get("load_best_model_at_end") or training.get("early_stopping_patience"))


def planned_runs(
    settler: RunSettler, stored: Mapping[str, SeedRecord], settings: Iterable[int], *, final: bool = False
) -> dict[str, tuple[SeedRecord, GivenSettings]]:
    """Return the runs of some settings: for each seed and fold one, or for each seed one on all training rows."""
    record, found = settler.record, {}
    for number in settings:
        for seed in record.seeds:
            for fold in (None,) if final else record.study.folds:
                given = settler.given(record.tried[number], seed, fold)
                name = f"final-{settler.name_of(given)}" if final else settler.name_of(given)
                known = replace(stored[name], setting=number, seed=seed, fold=fold) if name in stored else None
                found[name] = (known or SeedRecord(number, seed, fold), given)
    return found


def task_of(folder: Path, name: str, given: GivenSettings, fraction: float) -> Task:
    """Return the task of training a run up to a fraction."""
    training = {**given.training, "output_dir": str((folder / RUNS_NAME / name).absolute())}
    return Task(name, replace(given, training=training), fraction)


def found_done(folder: Path, name: str, fraction: float) -> Done | None:
    """Return what a run has reached if that is enough, or None if it has to be trained."""
    rungs = read_rungs(folder)
    record = record_of(folder)
    if record and record.finished:
        return finished_done(name, record, rungs)
    if f"{fraction:g}" in rungs:
        return Done(name, PAUSED, rungs)
    return None


def finished_done(name: str, record: RunRecord, rungs: dict[str, dict[str, float]]) -> Done:
    """Return the result of a run that is finished."""
    return Done(
        name,
        FINISHED,
        rungs,
        short_metrics(record.evaluation or {}),
        dict(record.baseline or {}),
        record.seconds or 0.0,
        measures=MeasuresRecord(record.metrics, record.positive_label),
        rows={split: facts.fingerprint for split, facts in record.data.splits.items()},
    )


def record_of(folder: Path) -> RunRecord | None:
    """Return the record of a run, or None if there is none that can be read."""
    try:
        return read_run(folder) if is_run(folder) else None
    except GlassloopError:
        return None


def add_rung(folder: Path, fraction: float, scores: dict[str, float]) -> None:
    """Store the scores of a run that was paused."""
    found = {**read_rungs(folder), f"{fraction:g}": scores}
    write_text(folder / RUNGS_NAME, json.dumps(found, indent=1, allow_nan=False) + "\n")


def drop_later_checkpoints(folder: Path, step: int) -> None:
    """Remove checkpoints at or after a step whose scores are missing: the run was killed before they were stored."""
    for path in checkpoints_in(folder):
        if step_of(path) >= step:
            shutil.rmtree(path)


def drop_damaged_checkpoints(folder: Path) -> bool:
    """Remove the checkpoints of a run if none is intact, so that it starts again. Return whether there were any.

    Those of a paused run are not synced: after a loss of power they may be incomplete.
    """
    for path in checkpoints_in(folder):
        with suppress(ModelError):
            open_checkpoint(path)
            return False
    found = bool(checkpoints_in(folder))
    drop_checkpoints(folder)
    return found


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run, which cannot be resumed any more."""
    for path in checkpoints_in(folder):
        shutil.rmtree(path, ignore_errors=True)
