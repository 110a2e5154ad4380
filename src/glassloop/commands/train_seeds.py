"""`glassloop train --seeds`: the same run with several random seeds, then a table of their scores."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from glassloop.arguments import training_arguments
from glassloop.assembly import chosen_settings, examples_for
from glassloop.backends.choose import launched_processes
from glassloop.claim import resumed_folder
from glassloop.command_result import CommandResult
from glassloop.defaults import has_own_settings
from glassloop.engine.identity import differences
from glassloop.errors import SettingsError, counted, note
from glassloop.files import absolute_name, user_path
from glassloop.models.loading import load_config
from glassloop.report.build import write_report
from glassloop.run_folder.layout import has_checkpoint, is_checkpoint_name, is_run, is_seeds_folder, seed_name
from glassloop.run_folder.seeds_json import FAILED, SeedsRecord, read_seeds
from glassloop.seeds import log_of, resume_hint, resume_seeds, train_seeds
from glassloop.settings import data_settings
from glassloop.settings_file import GivenSettings, RunSettings
from glassloop.sharing.card_file import update_card
from glassloop.show.contents import seeds_content
from glassloop.show.seeds import show_seeds


def train_with_seeds(
    given: GivenSettings, count: int | None, at_once: int | None, resume: str | None, *, restart: bool, processes: int
) -> CommandResult:
    """Train `count` seeds, or resume those of a folder, and print their scores. A failed seed gives the exit status."""
    if count is None:
        raise SettingsError("--seeds_at_once needs --seeds", "set the number of seeds, for example --seeds 5")
    if processes > 1 or launched_processes() > 1:
        raise SettingsError(
            "--seeds and several processes cannot be combined", "omit --processes: each seed trains in one process"
        )
    if restart:
        problem = "--seeds and --restart cannot be combined"
        raise SettingsError(problem, "restart the run of one seed: --resume RUN/seed-1 --restart")
    if resume is not None and given.source is not None and not any_run(folder := seeds_folder(resume, given)):
        # as for a single run: the same command starts seeds and continues them, for example in a job that is requeued
        given, resume = replace(given, training={**given.training, "output_dir": str(folder)}), None
    if resume is None:
        settings = settled(given)
        first = settings.training.seed
        record = train_seeds(settings, range(first, first + count), at_once=at_once)
    else:
        stored = stored_seeds(resume, given)
        first, num_stored = min(stored.seeds), len(stored.seeds)
        if given.training.get("seed", first) != first or count < num_stored:
            problem = f"{stored.folder} was started with {counted(num_stored, 'seed', 'seeds')}, starting at {first}"
            raise SettingsError(problem, f"use --seeds {num_stored}, or a larger number to add seeds")
        added = range(max(stored.seeds) + 1, max(stored.seeds) + 1 + count - num_stored)
        record = resume_seeds(stored.folder, seeds=added, at_once=at_once)
    show_seeds(record)
    for seed in record.finished:
        update_card(record.folder / seed_name(seed))  # with the results of all seeds
    if path := write_report(record.folder):
        note(f"  report: {path}")
    return CommandResult(seeds_content(record), report_failures(record))


def settled(given: GivenSettings) -> RunSettings:
    """Return the settings that all seeds share, with those that the default rule chooses, and report its choice."""
    settings = given.checked()
    if has_own_settings(given.source):
        return settings
    config = load_config(given.model or "quickstart")
    chosen = chosen_settings(given, settings.training, examples_for(given, config), config)
    if chosen.reason:
        note(f"chosen {chosen.reason}")
    return replace(settings, training=chosen.settings)


def seeds_folder(resume: str, given: GivenSettings) -> Path:
    """Return the folder that --resume names."""
    output_dir = given.training.get("output_dir")
    return resumed_folder(resume, str(output_dir) if output_dir else None)[0]


def any_run(folder: Path) -> bool:
    """Return whether a folder contains a run, seeds or a checkpoint."""
    return is_run(folder) or is_seeds_folder(folder) or has_checkpoint(folder)


def stored_seeds(resume: str, given: GivenSettings) -> SeedsRecord:
    """Return the seeds to resume. Raise `SettingsError` for a single run, and for settings that differ from theirs."""
    folder = seeds_folder(resume, given)
    if is_run(folder) or is_checkpoint_name(user_path(resume).name):
        raise SettingsError(
            f"{resume} contains a single run, not one run per seed", f"resume it alone: glassloop train --resume {resume}"
        )
    record = read_seeds(folder)
    stored = record.settings
    then: dict[str, object] = {"source": stored.source, "model": stored.model, "new_head": stored.new_head}
    now: dict[str, object] = {
        "source": absolute_name(given.source) if given.source else stored.source,
        "model": absolute_name(given.model) if given.model else stored.model,
        "new_head": given.new_head or stored.new_head,
    }
    then |= {**stored.training.to_dict(), **asdict(stored.data)}
    now |= training_arguments({**stored.training.to_dict(), **given.training}).to_dict()
    now |= asdict(data_settings({**asdict(stored.data), **given.data}).with_absolute_paths())
    for name in ("seed", "output_dir"):
        del then[name], now[name]
    if changed := differences(then, now):
        raise SettingsError(
            f"{folder} was started with different settings: {'; '.join(changed)}",
            f"use only --seeds and --resume {folder}",
        )
    return record


def report_failures(record: SeedsRecord) -> int:
    """Print the error of each seed that failed and how to resume. Return the exit status of the first one, else 0."""
    failed = {seed: entry for seed, entry in record.seeds.items() if entry.status == FAILED}
    for seed, entry in failed.items():
        note(f"seed {seed} failed with exit status {entry.exit_code} (log: {log_of(record, seed)}):")
        for line in entry.error:
            note(f"  {line}")
    if failed:
        note(resume_hint(record))
    return next((entry.exit_code or 1 for entry in failed.values()), 0)
