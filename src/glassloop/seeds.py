"""One training repeated with several random seeds, each in a process of its own; on a GPU, several at a time."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from glassloop.assembly import assemble
from glassloop.backends.choose import choose_backend, choose_device
from glassloop.backends.plain import PlainBackend
from glassloop.children import Child, Children
from glassloop.claim import free_folder, new_folders, refuse_taken, remove_if_empty
from glassloop.engine.signals import leave, noted_signals
from glassloop.engine.versions import versions
from glassloop.errors import GlassloopError, SettingsError, counted, note
from glassloop.files import absolute_name, user_path
from glassloop.gpu_memory import memory_need, runs_at_once
from glassloop.lock import locked
from glassloop.measures import short_metrics
from glassloop.run_folder.layout import is_run, is_seeds_folder, seed_name
from glassloop.run_folder.record import FINISHED
from glassloop.run_folder.run_json import read_run
from glassloop.run_folder.seeds_json import (
    FAILED,
    STOPPED,
    MeasuresRecord,
    SeedRecord,
    SeedsRecord,
    read_seeds,
    write_seeds,
)
from glassloop.settings_file import RunSettings, write_settings
from glassloop.show.progress import SeedsProgress
from glassloop.show.seeds import scores_line

POLL_SECONDS = 0.1


def train_seeds(
    settings: RunSettings, seeds: Iterable[int], *, output_dir: str | Path | None = None, at_once: int | None = None
) -> SeedsRecord:
    """Train the same run once for each random seed, and return the scores of all of them.

    Each seed trains in a process of its own and ends with the same weights as `glassloop train` with that seed. A failed seed
    does not stop the others; its record contains the error.

    Args:
        settings: What to train. Its `training.seed` is replaced by each of `seeds`.
        seeds: The random seeds.
        output_dir: New or empty folder for the runs. Default: `settings.training.output_dir`, else the next free
            runs/run-001.
        at_once: How many seeds to train at the same time. Default: as many as fit on the GPU; one on a CPU.

    Returns:
        The record of every seed, with mean and standard deviation. It is also stored as seeds.json.

    Raises:
        SettingsError: A setting or a seed is not allowed, or the folder is already in use.
        DataError: The data cannot be used. No seed is started.
        ModelError: The model cannot be used. No seed is started.
        KeyboardInterrupt: Ctrl-C stopped the seeds. `resume_seeds` continues them.
    """
    chosen = output_dir or settings.training.output_dir
    entries = {seed: SeedRecord() for seed in checked_seeds(settings, seeds)}
    if not entries:
        raise SettingsError("no random seeds were given", "pass at least one, for example seeds=range(5)")
    if chosen and is_seeds_folder(user_path(chosen)):
        remedy = f"resume them: --seeds {len(entries)} --resume {chosen}; or choose another folder"
        raise SettingsError(f"output_dir {chosen} already contains seeds", remedy)
    folder = free_folder(str(chosen) if chosen else None)
    record = SeedsRecord(absolute_settings(settings), entries, folder, versions=versions())
    try:
        return run_seeds(record, at_once, is_new=True)
    except GlassloopError:
        if not chosen:
            remove_if_empty(*new_folders(folder))
        raise


def resume_seeds(output_dir: str | Path, *, seeds: Iterable[int] = (), at_once: int | None = None) -> SeedsRecord:
    """Train the seeds of a folder that are not finished yet, with the settings stored there.

    Args:
        output_dir: The folder of an earlier `train_seeds`.
        seeds: Random seeds to add.
        at_once: How many seeds to train at the same time. Default: as many as fit on the GPU; one on a CPU.

    Returns:
        The record of every seed, with mean and standard deviation.

    Raises:
        ModelError: The folder contains no seeds, or their record is damaged.
        SettingsError: A seed is not allowed.
        KeyboardInterrupt: Ctrl-C stopped the seeds.
    """
    folder = user_path(output_dir)
    record = read_seeds(folder)
    numbers = dict.fromkeys([*record.seeds, *checked_seeds(record.settings, seeds)])
    entries = {seed: result_of(folder / seed_name(seed)) or SeedRecord() for seed in numbers}
    return run_seeds(replace(record, seeds=entries, versions=versions()), at_once, is_new=False)


def checked_seeds(settings: RunSettings, seeds: Iterable[int]) -> list[int]:
    """Return the seeds without repetitions. Raise `SettingsError` if one of them is not allowed."""
    return [replace(settings.training, seed=seed).seed for seed in dict.fromkeys(seeds)]


def absolute_settings(settings: RunSettings) -> RunSettings:
    """Return settings that mean the same from any working directory."""
    return replace(
        settings,
        source=settings.source and absolute_name(settings.source),
        model=settings.model and absolute_name(settings.model),
        data=settings.data.with_absolute_paths(),
    )


def run_seeds(record: SeedsRecord, at_once: int | None, *, is_new: bool) -> SeedsRecord:
    """Train all unfinished seeds of a record and return it with their results."""
    folder, unfinished = record.folder, record.unfinished
    for seed in record.finished:
        note(f"seed {seed}: already finished, in {folder / seed_name(seed)}")
    num_at_once, num_steps = 1, 0
    if unfinished:
        need, num_steps = check_run(record.settings, unfinished[0])
        num_at_once = at_once or runs_at_once(choose_device(record.settings.training.device), need)
    with locked(folder, note), noted_signals() as signals:
        if is_new:
            refuse_taken(folder)  # by a run that held the lock until now
        write_seeds(record)
        if len(unfinished) > 1:
            note(f"{counted(len(unfinished), 'seed', 'seeds')}, {num_at_once} at a time → {folder}")
        record = run_children(record, num_at_once, num_steps, signals)
        stopped = bool(signals and record.unfinished)
        record = replace(record, status=STOPPED if stopped else FAILED if record.unfinished else FINISHED)
        write_seeds(record)
    if stopped:
        note(f"stopped by {signal.Signals(signals[0]).name}; {resume_hint(record)}")
        leave(signals[0])
    return record


def check_run(settings: RunSettings, seed: int) -> tuple[float, int]:
    """Check settings, model and data once and cache the tokens. Return the GPU memory a run may need, and its steps."""
    args = replace(settings.training, seed=seed)
    if choose_device(args.device) != "cuda":  # on a GPU it would take memory from the children
        choose_backend(args)
    run = assemble(settings.given(), args, PlainBackend("cpu", "fp32"))
    rows = max(args.per_device_train_batch_size, args.per_device_eval_batch_size / 4)  # evaluation keeps no activations
    tokens = rows * int(run.encoded["train"].lengths.max())
    return memory_need(run.record.model.parameters, tokens), run.parts.plan.max_steps


def run_children(record: SeedsRecord, num_at_once: int, num_steps: int, signals: list[int]) -> SeedsRecord:
    """Train all unfinished seeds, or stop at the first signal. Return the record with their results."""
    waiting, ended, log_starts = record.unfinished, set[int](), dict[int, int]()
    runs = {seed: record.folder / seed_name(seed) for seed in waiting}
    progress = SeedsProgress(runs, len(record.finished), num_steps, plain=record.settings.training.disable_tqdm)
    try:
        with Children(signals) as children:
            while children.running or (waiting and not signals):
                while waiting and len(children.running) < num_at_once and not signals:
                    seed = waiting.pop(0)
                    log = log_of(record, seed)
                    log_starts[seed] = log.stat().st_size if log.exists() else 0
                    children.start(seed, arguments_of(record, seed), log)
                    progress.line(f"seed {seed}: started, log in {log}")
                for child in children.poll():
                    entry = ended_entry(record, child, log_starts[child.number], signals)
                    score = f" in {entry.seconds:.0f} s, {scores_line(entry)} → {runs[child.number]}" if entry.finished else ""
                    progress.line(f"seed {child.number}: {entry.status}{score}")
                    ended.add(child.number)
                    record = replace(record, seeds={**record.seeds, child.number: entry})
                    write_seeds(record)
                progress.update(ended)
                time.sleep(POLL_SECONDS)
    finally:
        progress.close()
    return record


def arguments_of(record: SeedsRecord, seed: int) -> list[str]:
    """Write the settings of one seed to a file, and return the arguments of the command that trains or resumes it."""
    run = record.folder.absolute() / seed_name(seed)
    if is_run(run):
        return ["train", "--resume", str(run)]
    training = replace(record.settings.training, seed=seed, output_dir=str(run))
    path = record.folder.absolute() / f"{seed_name(seed)}.toml"
    write_settings(path, replace(record.settings, training=training).given())
    return ["train", "--config", str(path)]


def ended_entry(record: SeedsRecord, child: Child, log_start: int, signals: list[int]) -> SeedRecord:
    """Return the record of a seed whose process has ended."""
    code = child.exit_code
    if code == 0 and (found := result_of(record.folder / seed_name(child.number))):
        return found
    if code in [128 + number for number in signals]:
        return SeedRecord(STOPPED, exit_code=code)
    return SeedRecord(FAILED, exit_code=code or 1, error=error_lines(log_of(record, child.number), log_start))


def result_of(run: Path) -> SeedRecord | None:
    """Return the result of a finished run, or None for any other."""
    try:
        found = read_run(run)
    except GlassloopError:
        return None
    if not found.finished:
        return None
    return SeedRecord(
        FINISHED,
        folder=run.name,
        seconds=found.seconds or 0.0,
        metrics=short_metrics(found.evaluation or {}),
        baseline=found.baseline or {},
        measures=MeasuresRecord(found.metrics, found.positive_label),
        rows={name: split.fingerprint for name, split in found.data.splits.items()},
    )


def error_lines(log: Path, start: int) -> tuple[str, ...]:
    """Return the two lines of an error in a log from byte `start` on, else its last lines."""
    lines = [line for line in log.read_bytes()[start:].decode("utf-8", "replace").splitlines() if line.strip()]
    remedies = [place for place, line in enumerate(lines) if line.startswith("try:  ") and place]
    return tuple(lines[remedies[-1] - 1 : remedies[-1] + 1] if remedies else lines[-5:])


def log_of(record: SeedsRecord, seed: int) -> Path:
    """Return the file with the output of one seed."""
    return record.folder / f"{seed_name(seed)}.log"


def resume_hint(record: SeedsRecord) -> str:
    """Return how to resume seeds from the command."""
    return f"resume with: glassloop train --seeds {len(record.seeds)} --resume {shlex.quote(str(record.folder))}"
