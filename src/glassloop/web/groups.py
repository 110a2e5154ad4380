"""Folders with several runs that answer one question: the seeds of a training, and studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassloop.errors import GlassloopError, counted
from glassloop.lock import Holder, holder
from glassloop.measures import Measures
from glassloop.run_folder.layout import SEEDS_NAME, STUDY_NAME, is_study
from glassloop.run_folder.listing import listed_run, listed_seeds
from glassloop.run_folder.record import FINISHED, RUNNING
from glassloop.run_folder.seeds_json import STOPPED
from glassloop.run_folder.status import DAMAGED, KILLED
from glassloop.run_folder.study_json import read_study
from glassloop.run_folder.summary import RunSummary, state_of

SEEDS, STUDY = "seeds", "study"


@dataclass(frozen=True)
class GroupSummary:
    """What the files of several seeds or of a study say.

    Attributes:
        name: Its path below the folder that is watched.
        folder: The folder.
        kind: "seeds" or "study".
        status: As that of a run; of several seeds, the most urgent of theirs.
        done: Number of finished runs.
        number: Number of all runs that are known so far.
        value: The main result, to sort by; None if there is none yet.
        result: The main result in words.
        source: The data.
        model: The model.
        started: When its first run was started.
        seconds: How long its runs took.
        problem: Why it is damaged.
        runs: The names of its runs.
        version: Another value for every other content.
    """

    name: str
    folder: Path
    kind: str
    status: str
    done: int = 0
    number: int = 0
    value: float | None = None
    result: str = ""
    source: str = ""
    model: str = ""
    started: str = ""
    seconds: float | None = None
    problem: str = ""
    runs: tuple[str, ...] = ()
    version: object = None

    @property
    def progress(self) -> str:
        """Return `2 of 3 runs`."""
        return f"{self.done:,} of {counted(self.number, 'run', 'runs')}" if self.number else ""


def group_of(name: str, folder: Path, runs: Sequence[RunSummary]) -> GroupSummary:
    """Return the summary of a folder, given the runs in it. A damaged file is part of the result."""
    kind = STUDY if is_study(folder) else SEEDS
    version = (str(folder), state_of(folder / (STUDY_NAME if kind == STUDY else SEEDS_NAME)), *(run.version for run in runs))
    try:
        return (study_of if kind == STUDY else seeds_of)(name, folder, runs, version)
    except GlassloopError as error:
        return GroupSummary(name, folder, kind, DAMAGED, problem=error.problem, runs=names_of(runs), version=version)


def names_of(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return the names of runs in their order, seed-2 before seed-10."""
    return tuple(sorted((run.name for run in runs), key=lambda name: (len(name), name)))


def seeds_of(name: str, folder: Path, runs: Sequence[RunSummary], version: object) -> GroupSummary:
    """Return the summary of several seeds: the mean of their first metric and its standard deviation."""
    found = listed_seeds(name, folder, map(listed_run, runs))
    key = next(iter(found.metrics), None)
    result = ""
    if key is not None:
        spread = f" ± {found.deviation[key]:.4f}" if key in found.deviation else ""
        result = f"{Measures((key,), found.positive_label).title(key)} {found.metrics[key]:.4f}{spread}"
    record = next((run.record for run in runs if run.record), None)
    return GroupSummary(
        name,
        folder,
        SEEDS,
        found.status,
        done=sum(seed.status == FINISHED for seed in found.seeds),
        number=len(found.seeds),
        value=found.metrics[key] if key is not None else None,
        result=result,
        source=record.data.source if record else "",
        model=record.model.name if record else "",
        started=found.started,
        seconds=found.seconds,
        problem=found.problem,
        runs=names_of(runs),
        version=version,
    )


def study_of(name: str, folder: Path, runs: Sequence[RunSummary], version: object) -> GroupSummary:
    """Return the summary of a study: the score of its chosen setting. Raises `ModelError` if study.json is damaged."""
    record = read_study(folder)
    status, held = record.status, holder(folder)
    if status == RUNNING and held in (Holder.DEAD, Holder.NOBODY):
        status = KILLED if held is Holder.DEAD else STOPPED
    final = record.results.get("final")
    scores = [one.get("mean") for one in final.values() if isinstance(one, Mapping)] if isinstance(final, Mapping) else []
    value = next((score for score in scores if isinstance(score, float)), None)
    return GroupSummary(
        name,
        folder,
        STUDY,
        status,
        done=sum(run.finished for run in record.runs.values()),
        number=len(record.runs),
        value=value,
        result=f"{record.results.get('metric', record.metric)} {value:.4f}" if value is not None else "",
        source=record.base.source or "quickstart",
        model=record.base.model or "quickstart",
        started=min((run.started for run in runs if run.started), default=""),
        seconds=record.seconds or None,
        runs=names_of(runs),
        version=version,
    )
