"""One training repeated with several random seeds: a study of one configuration, trained by its workers."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from glassloop.base.errors import GlassloopError, SettingsError, counted
from glassloop.base.files import absolute_name, locked, user_path
from glassloop.base.output import CommandResult, note
from glassloop.base.records import differences, versions
from glassloop.markup.terminal import bare_table, text
from glassloop.report.build import write_report
from glassloop.report.card import update_card
from glassloop.report.study import seeds_verdict
from glassloop.runs import record as records
from glassloop.runs.record import BaselineRecord
from glassloop.runs.status import free_folder, new_folders, refuse_taken, remove_if_empty, resumed_folder
from glassloop.runs.study import SeedRecord, SeedsRecord, read_seeds, write_seeds
from glassloop.scores.metrics import Measures, no_better
from glassloop.scores.result import CONSTANTS
from glassloop.settings.file import GivenSettings, RunSettings, write_settings
from glassloop.settings.training import FROZEN, data_settings, launched_processes, training_arguments
from glassloop.study.tasks import KINDS, Check, LocalWorkers, Task, Watcher, reached, run_tasks, seed_places, stored_answer
from glassloop.training.callbacks import leave, noted_signals
from glassloop.training.evaluate import baseline_name, baselines_table, figures, seeds_content, values_of
from glassloop.training.progress import SeedsProgress


# --- from Python ---------------------------------------------------------------------------------------------------------
def train_seeds(
    settings: RunSettings, seeds: Iterable[int], *, output_dir: str | Path | None = None, at_once: int | None = None,
    report: bool = True,
) -> SeedsRecord:  # fmt: skip
    """Train the same run once for each random seed, and return the scores of all of them.

    Each seed ends with the same weights as `glassloop train` with that seed. A failed seed does not stop the others; its
    record contains the error.

    Args:
        settings: What to train. Its `training.seed` is replaced by each of `seeds`.
        seeds: The random seeds.
        output_dir: New or empty folder for the runs. Default: `settings.training.output_dir`, else the next free
            runs/run-001.
        at_once: How many seeds to train at the same time. Default: one on a CPU; one on each GPU, or more if the runs are long
            and fit into its memory.
        report: Whether to write the report of each run.

    Returns:
        The record of every seed, with mean and standard deviation. It is also stored as seeds.json.

    Raises:
        SettingsError: A setting or a seed is not allowed, or the folder is already in use.
        DataError: The data cannot be used. No seed is started.
        ModelError: The model cannot be used. No seed is started.
        KeyboardInterrupt: Ctrl-C stopped the seeds. `resume_seeds` continues them.
    """
    return start_seeds(settings.given(), seeds, output_dir=output_dir, at_once=at_once, report=report)


def start_seeds(
    given: GivenSettings, seeds: Iterable[int], *, output_dir: str | Path | None = None, at_once: int | None = None,
    report: bool = True, chooses: bool = False,
) -> SeedsRecord:  # fmt: skip
    """Train seeds in a new folder. With `chooses`, the default rule chooses the settings that are not given, for all seeds."""
    settings = given.checked()
    chosen = output_dir or settings.training.output_dir
    entries = {seed: SeedRecord(seed=seed) for seed in checked_seeds(settings, seeds)}
    if not entries:
        raise SettingsError("no random seeds were given", "pass at least one, for example seeds=range(5)")
    if len(entries) > 1 and settings.training.method == FROZEN:
        problem = "several seeds with method frozen: the frozen encoder does not depend on the seed"
        raise SettingsError(problem, "omit --seeds, or use method fine_tune")
    if chosen and records.is_seeds_folder(user_path(chosen)):
        remedy = f"resume them: --seeds {len(entries)} --resume {chosen}; or choose another folder"
        raise SettingsError(f"output_dir {chosen} already contains seeds", remedy)
    folder = free_folder(str(chosen) if chosen else None)
    # So that they mean the same from any working directory.
    source, model = (name and absolute_name(name) for name in (settings.source, settings.model))
    settings = replace(settings, source=source, model=model, data=settings.data.with_absolute_paths())
    try:
        record = SeedsRecord(settings, entries, folder, versions=versions())
        return run_seeds(record, at_once, is_new=True, report=report, given=given if chooses else None)
    except GlassloopError:
        if not chosen:
            remove_if_empty(*new_folders(folder))
        raise


def resume_seeds(
    output_dir: str | Path, *, seeds: Iterable[int] = (), at_once: int | None = None, report: bool = True
) -> SeedsRecord:
    """Train the seeds of a folder that are not finished yet, with the settings stored there.

    Args:
        output_dir: The folder of an earlier `train_seeds`.
        seeds: Random seeds to add.
        at_once: How many seeds to train at the same time. Default: one on a CPU; one on each GPU, or more if the runs are long
            and fit into its memory.
        report: Whether to write the report of each run.

    Returns:
        The record of every seed, with mean and standard deviation.

    Raises:
        ModelError: The folder contains no seeds, or their record is damaged.
        SettingsError: A seed is not allowed.
        KeyboardInterrupt: Ctrl-C stopped the seeds.
    """
    folder = user_path(output_dir)
    record = read_seeds(folder)
    entries = {seed: SeedRecord(seed=seed) for seed in (*record.seeds, *checked_seeds(record.settings, seeds))}
    for seed, entry in entries.items():
        if answer := stored_answer(folder / records.seed_name(seed), 1.0):
            entries[seed] = reached(entry, answer, 1.0)
    return run_seeds(replace(record, seeds=entries, versions=versions()), at_once, is_new=False, report=report)


def checked_seeds(settings: RunSettings, seeds: Iterable[int]) -> list[int]:
    """Return the seeds without repetitions. Raise `SettingsError` if one of them is not allowed."""
    return [replace(settings.training, seed=seed).seed for seed in dict.fromkeys(seeds)]


def run_seeds(
    record: SeedsRecord, at_once: int | None, *, is_new: bool, report: bool, given: GivenSettings | None = None
) -> SeedsRecord:
    """Train all unfinished seeds of a record and return it with their results. The rule chooses what `given` does not have."""
    folder, unfinished = record.folder, record.unfinished
    for seed in record.finished:
        note(f"seed {seed}: already finished, in {folder / records.seed_name(seed)}")
    with LocalWorkers() as workers:
        num_steps = 0
        if unfinished:
            checked = workers.check(Check(given or record.settings.given(), unfinished[0], chooses=given is not None))
            if checked.reason:
                note(f"chosen {checked.reason}")
            if given is not None:
                record = replace(record, settings=replace(record.settings, training=checked.given.checked().training))
            workers.spread(seed_places(checked, len(unfinished), at_once))
            num_steps = checked.num_steps
        with locked(folder, note), noted_signals() as signals:
            if is_new:
                refuse_taken(folder)  # by a run that held the lock until now
            write_seeds(record)
            if len(unfinished) > 1:
                note(f"{counted(len(unfinished), 'seed', 'seeds')}, {workers.slots} at a time → {folder}")
            tasks = tasks_for(record, report=report)
            with workers, closing(SeedsRunner(record, num_steps)) as runner:
                run_tasks(tasks, workers, signals, runner)
                record = runner.record
            ended = records.FINISHED if not record.unfinished else records.STOPPED if signals else records.FAILED
            record = replace(record, status=ended)
            write_seeds(record)
    if record.status == records.STOPPED:
        note(f"stopped by {signal.Signals(signals[0]).name}; {resume_hint(record)}")
        leave(signals[0])
    return record


def tasks_for(record: SeedsRecord, *, report: bool) -> list[Task]:
    """Return the task of each unfinished seed, and write its settings beside its folder."""
    tasks = []
    for seed in record.unfinished:
        run = record.folder.absolute() / records.seed_name(seed)
        training = replace(record.settings.training, seed=seed, output_dir=str(run))
        tasks.append(Task(run.name, replace(record.settings, training=training).given(), alone=True, report=report))
        if not records.is_run(run):
            write_settings(run.with_suffix(".toml"), tasks[-1].given)
    return tasks


class SeedsRunner(Watcher):
    """Records the seeds that workers train, and shows a line for each start and end, and their progress."""

    def __init__(self, record: SeedsRecord, num_steps: int) -> None:
        self.record = record
        self.ended_seeds = set[int]()
        runs = {seed: record.folder / records.seed_name(seed) for seed in record.unfinished}
        self.progress = SeedsProgress(runs, len(record.finished), num_steps, plain=record.settings.training.disable_tqdm)
        self.say = self.progress.line
        self.close = self.progress.close

    def started(self, task: Task) -> None:
        self.say(f"seed {task.given.training['seed']}: started, log in {self.record.folder / task.log.name}")

    def ended(self, task: Task, answer: SeedRecord) -> None:
        seed = int(str(task.given.training["seed"]))
        entry = reached(self.record.seeds[seed], answer, 1.0)
        line = f"seed {seed}: {answer.status}"
        if entry.finished:
            title = Measures(entry.measures.keys, entry.measures.positive).title
            scores = "  ".join(f"{title(name)} {value:.4f}" for name, value in entry.metrics.items())
            line += f" in {entry.seconds:.0f} s, {scores} → {self.record.folder / task.name}"
        self.say(line)
        self.ended_seeds.add(seed)
        self.record = replace(self.record, seeds={**self.record.seeds, seed: entry})
        write_seeds(self.record)

    def tick(self, num_waiting: int, num_running: int) -> None:
        self.progress.update(self.ended_seeds)


def resume_hint(record: SeedsRecord) -> str:
    return f"resume with: glassloop train --seeds {len(record.seeds)} --resume {shlex.quote(str(record.folder))}"


# --- from the command ----------------------------------------------------------------------------------------------------
def train_with_seeds(
    given: GivenSettings, count: int | None, at_once: int | None, resume: str | None, *, restart: bool, processes: int,
    with_report: bool = True,
) -> CommandResult:  # fmt: skip
    """Train `count` seeds, or resume those of a folder, and print their scores. A failed seed gives the exit status."""
    if count is None:
        raise SettingsError("--at_once needs --seeds", "set the number of seeds, for example --seeds 5")
    if processes > 1 or launched_processes() > 1:
        problem = "--seeds and several processes cannot be combined"
        raise SettingsError(problem, "omit --processes: each seed trains in one process")
    if restart:
        problem = "--seeds and --restart cannot be combined"
        raise SettingsError(problem, "restart the run of one seed: --resume RUN/seed-1 --restart")
    if resume is not None:
        output_dir = given.training.get("output_dir")
        folder = resumed_folder(resume, str(output_dir) if output_dir else None)[0]
        started = records.is_run(folder) or records.is_seeds_folder(folder) or records.has_checkpoint(folder)
        if given.source is not None and not started:
            # as for a single run: the same command starts seeds and continues them, for example in a job that is requeued
            given, resume = replace(given, training={**given.training, "output_dir": str(folder)}), None
    if resume is None:
        first = given.checked().training.seed
        record = start_seeds(given, range(first, first + count), at_once=at_once, report=with_report, chooses=True)
    else:
        if records.is_run(folder) or records.is_checkpoint_name(user_path(resume).name):
            problem = f"{resume} contains a single run, not one run per seed"
            raise SettingsError(problem, f"resume it alone: glassloop train --resume {resume}")
        stored = read_seeds(folder)
        refuse_other_settings(stored, given)
        first, num_stored = min(stored.seeds), len(stored.seeds)
        if given.training.get("seed", first) != first or count < num_stored:
            problem = f"{folder} was started with {counted(num_stored, 'seed', 'seeds')}, starting at {first}"
            raise SettingsError(problem, f"use --seeds {num_stored}, or a larger number to add seeds")
        added = range(max(stored.seeds) + 1, max(stored.seeds) + 1 + count - num_stored)
        record = resume_seeds(folder, seeds=added, at_once=at_once, report=with_report)
    show_seeds(record)
    if verdict := seeds_verdict(record.folder):
        note(f"• {verdict}")
    for seed in record.finished:
        update_card(record.folder / records.seed_name(seed))  # with the results of all seeds
    if with_report and (path := write_report(record.folder)):
        note(f"  report: {path}")
    content = seeds_content(record, shared_baselines(record))
    return CommandResult({**content, "verdict": verdict}, report_failures(record))


def refuse_other_settings(record: SeedsRecord, given: GivenSettings) -> None:
    """Raise `SettingsError` for settings that differ from those that the seeds were started with."""
    stored = record.settings
    then: dict[str, object] = {"source": stored.source, "model": stored.model, "new_head": stored.new_head}
    then |= {**stored.training.to_dict(), **asdict(stored.data)}
    source, model = (name and absolute_name(name) for name in (given.source, given.model))
    now: dict[str, object] = {"source": source or stored.source, "model": model or stored.model}
    now["new_head"] = given.new_head or stored.new_head
    now |= training_arguments({**stored.training.to_dict(), **given.training}).to_dict()
    now |= asdict(data_settings({**asdict(stored.data), **given.data}).with_absolute_paths())
    for name in ("seed", "output_dir"):
        del then[name], now[name]
    if changed := differences(then, now):
        problem = f"{record.folder} was started with different settings: {'; '.join(changed)}"
        raise SettingsError(problem, f"use only --seeds and --resume {record.folder}")


def shared_baselines(record: SeedsRecord) -> tuple[BaselineRecord, ...]:
    """Return the baselines that all seeds share, from the run of the first one; none of a run that was deleted or damaged."""
    with suppress(GlassloopError, StopIteration):
        return records.read_run(record.folder / records.seed_name(next(iter(record.finished)))).baselines
    return ()


def show_seeds(
    record: SeedsRecord, console: Console | None = None, title: str = "", together: dict[str, float] | None = None,
    baselines: Sequence[BaselineRecord] | None = None,
) -> None:  # fmt: skip
    """Print one row per finished seed, then the mean, the sample standard deviation and the baseline, and two remarks.

    A second table has the `baselines` with their intervals; by default, those of the run of the first seed.
    """
    finished = record.finished
    if not record.mean:
        return
    first = next(iter(finished.values()))
    measures = Measures(first.measures.keys, first.measures.positive)
    baseline = baseline_name(measures)
    rows = {f"seed {seed}": entry.metrics for seed, entry in finished.items()}
    rows |= {f"mean of {len(finished)}": record.mean}
    rows |= {"standard deviation": deviation} if (deviation := record.standard_deviation) else {}
    rows |= {**({"all seeds as one model": together} if together else {}), baseline: record.baseline}
    fitted = shared_baselines(record) if baselines is None else baselines
    rows |= {one.name: values_of(one.scores) for one in fitted if one.name not in CONSTANTS}
    table = bare_table(title, *map(measures.title, record.mean), right=1, no_wrap=True)
    for name, values in rows.items():
        table.add_row(name, *figures([values.get(metric) for metric in record.mean]))
    console = console or Console(stderr=True)
    tables = [table, *([baselines_table(fitted, measures, "baselines")] if fitted else [])]
    for table in tables:
        console.width = max(console.width, console.measure(table).maximum)  # so that no number is cut
        console.print(table)
    lost = Counter(key for entry in finished.values() for key in no_better(entry.metrics, entry.baseline, measures))
    if lost:
        counts = ", ".join(f"{measures.title(key)} ({number} of {len(finished)} seeds)" for key, number in lost.items())
        console.print(text(f"• no better than the {baseline}: {counts}"))
    if any(entry.rows != first.rows for entry in finished.values()):
        console.print(text("• the data changed between seeds, so their scores are for different rows"))


def report_failures(record: SeedsRecord) -> int:
    """Print the error of each seed that failed and how to resume. Return the exit status of the first one, else 0."""
    failed = {seed: entry for seed, entry in record.seeds.items() if entry.status == records.FAILED}
    for seed, entry in failed.items():
        log = record.folder / f"{records.seed_name(seed)}.log"
        note(f"seed {seed} failed with exit status {entry.exit_code} (log: {log}):")
        kind = KINDS.get(entry.exit_code or 1)
        for line in str(kind(*entry.error)).splitlines() if kind and len(entry.error) == 2 else entry.error:
            note(f"  {line}")
    if failed:
        note(resume_hint(record))
    return next((entry.exit_code or 1 for entry in failed.values()), 0)
