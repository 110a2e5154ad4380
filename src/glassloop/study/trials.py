"""The runs of a study: the settings of each, its name from a hash of settings and data, and what a worker is asked to do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from glassloop.arguments import training_arguments
from glassloop.assembly import chosen_settings, examples_for
from glassloop.errors import ResourceError
from glassloop.files import absolute_name, find_path, sha256_of
from glassloop.run_folder.seeds_json import FAILED, STOPPED
from glassloop.run_folder.study_json import StudyRecord, TrialRecord
from glassloop.settings import data_settings
from glassloop.settings_file import GivenSettings
from glassloop.shared_parts import SharedParts
from glassloop.study_space import MODEL, Values

RUNS_NAME = "runs"
LEAST_SIGNAL = 128  # exit statuses from here on are those of processes that a signal ended
UNHASHED = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # do not change what a run computes


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do: train a run up to a fraction of its steps.

    Attributes:
        name: Name of the run.
        folder: Its run folder.
        source, model, training, data, new_head: Its settings.
        fraction: How much of its training to do; 1 for all.
    """

    name: str
    folder: str
    source: str | None
    model: str | None
    training: dict[str, object]
    data: dict[str, object]
    new_head: bool
    fraction: float

    def given(self) -> GivenSettings:
        """Return the settings of the run."""
        return GivenSettings(self.source, self.model, self.training, self.data, self.new_head)


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
        """Return the settings of one run. The rule chooses from the rows of the first fold, for all runs of a setting.

        Args:
            values: The value of each varied setting.
            seed: The random seed.
            fold: The part of the training rows to hold out; None for a final run.
        """
        base = self.record.base.given()
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
    settler: RunSettler, stored: Mapping[str, TrialRecord], settings: Iterable[int], *, final: bool = False
) -> dict[str, tuple[TrialRecord, GivenSettings]]:
    """Return the runs of some settings: for each seed and fold one, or for each seed one on all training rows.

    Args:
        settler: Knows the study.
        stored: The runs that are known from an earlier start, by name.
        settings: Numbers of the settings.
        final: Whether to train on all training rows.
    """
    record, found = settler.record, {}
    for number in settings:
        for seed in record.seeds:
            for fold in (None,) if final else record.study.folds:
                given = settler.given(record.tried[number], seed, fold)
                name = f"final-{settler.name_of(given)}" if final else settler.name_of(given)
                known = replace(stored[name], setting=number, seed=seed, fold=fold) if name in stored else None
                found[name] = (known or TrialRecord(number, seed, fold), given)
    return found


def task_of(folder: Path, name: str, given: GivenSettings, fraction: float) -> Task:
    """Return the task of training a run up to a fraction."""
    run = str((folder / RUNS_NAME / name).absolute())
    training = {**given.training, "output_dir": run}
    return Task(name, run, given.source, given.model, training, dict(given.data), given.new_head, fraction)
