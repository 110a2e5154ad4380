"""One run as the command trains it: its folder, banner, training, evaluation, record, report and card."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.backends.choose import choose_backend
from glassloop.base.collection import collection_paused
from glassloop.base.errors import LockedError, SettingsError, listed, note, printable, say
from glassloop.base.files import near_name
from glassloop.base.lock import locked
from glassloop.base.result import CommandResult
from glassloop.data.examples import Examples
from glassloop.data.sources import load_examples
from glassloop.models.interface import encoder_weights
from glassloop.models.loading import load_config
from glassloop.report.build import write_report
from glassloop.report.card import update_card
from glassloop.runs.claim import (
    cleared_unless_started,
    free_folder,
    new_folders,
    refuse_changed,
    remove_if_empty,
    resumed_folder,
)
from glassloop.runs.layout import (
    CARD_NAME,
    MODEL_NAME,
    has_checkpoint,
    is_run,
    leftovers,
    predictions_name,
    remove_leftovers,
)
from glassloop.runs.record import FINISHED, Difference, RunRecord, held_out_splits, read_run, write_run
from glassloop.scores.result import Result, facts_of
from glassloop.settings.fields import data_settings
from glassloop.settings.file import GivenSettings, write_settings
from glassloop.settings.training import training_arguments
from glassloop.study.assembly import AssembledRun, SharedParts, assemble
from glassloop.study.seeds import train_with_seeds
from glassloop.training.callbacks import Callback
from glassloop.training.evaluate import Interrupted
from glassloop.training.parts import refuse_other_model, refuse_other_request, refuse_other_run
from glassloop.training.processes import launch
from glassloop.training.results import (
    length_entries,
    prefixes,
    result_of,
    run_content,
    scored,
    show_result,
    write_predictions,
)
from glassloop.training.session import remove_manifest, resume_named, stop_if_asked, trained
from glassloop.training.signals import leave_on_signal
from glassloop.training.stage_display import show_lines


def banner(record: RunRecord, examples: Examples, folder: Path, chosen: str = "") -> Table:
    """Return a table with data, task, model, steps, learning rate, device and folder of a run.

    `chosen` says which settings the default rule chose, and from what.
    """
    args, plan, model = record.settings, record.plan, record.model
    size = f"{args.per_device_train_batch_size} rows"
    size += f" × {record.processes} processes" if record.processes > 1 else ""
    size += f" × {plan.accumulate} batches" if plan.accumulate > 1 else ""
    rows = {
        "data": f"{near_name(record.data.source)}: "
        + ", ".join(f"{fact.num_rows:,} {name}" for name, fact in examples.facts.items()),
        "task": examples.task.replace("_", " ") + (f": {listed(examples.labels.names, 8)}" if examples.labels else ""),
        "model": f"{near_name(model.name)} ({model.type}, {model.parameters / 1e6:.1f} M parameters)",
        "steps": f"{plan.max_steps:,} ({plan.steps_per_epoch:,} per epoch), {size} per step, "
        + ("no padding" if "packed batches" in record.savings else f"{record.padding:.0%} padding"),
        "learning rate": f"{args.learning_rate:g}, {args.lr_scheduler_type} schedule, {plan.warmup_steps:,} warm-up steps",
        **({"chosen": chosen} if chosen else {}),
        "device": f"{record.device}, {record.precision}, backend {record.backend}",
        **({"savings": ", ".join(record.savings)} if record.savings else {}),
        **checked(record.difference),
        "folder": str(folder),
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, Text(printable(value)))
    return table


def checked(found: Difference | None) -> dict[str, str]:
    """Return the lines about the check of a fast backend: logits, and below them gradients."""
    if found is None:
        return {}
    *first, last = found.in_words
    return dict(zip(("check", "") if first else ("check",), (*first, f"{last}, {found.rows} rows"), strict=True))


def train(
    given: GivenSettings,
    resume: str | None = None,
    *,
    restart: bool = False,
    processes: int = 1,
    seeds: int | None = None,
    seeds_at_once: int | None = None,
    with_report: bool = True,
    as_json: bool = False,
    debug: bool = False,
) -> CommandResult:
    """Train one run, in this process or in several, or one run per random seed, and return the result."""
    leave_on_signal()
    if resume is None:
        given.checked()  # a resumed run is checked together with the settings it was started with
    if seeds is not None or seeds_at_once is not None:
        return train_with_seeds(
            given, seeds, seeds_at_once, resume, restart=restart, processes=processes, with_report=with_report
        )
    if processes > 1:
        flags = {"--json": as_json, "--debug": debug, "--no_report": not with_report}
        train_in_processes(given, resume, processes, restart=restart, flags=flags)
    folder = train_run(given, resume, restart=restart, with_report=with_report)
    return CommandResult(run_content(folder, read_run(folder)))


def train_in_processes(
    given: GivenSettings, resume: str | None, processes: int, *, restart: bool, flags: Mapping[str, bool]
) -> NoReturn:
    """Run the same training in several processes and exit. Model and data are checked first, to report an error once."""
    if resume is None:
        load_config(given.model or "quickstart")
        load_examples(given.source or "quickstart", **asdict(data_settings(given.data)))
    with tempfile.TemporaryDirectory(prefix="glassloop-") as scratch:
        path = Path(scratch) / "settings.toml"
        write_settings(path, given)
        arguments = ["train", "--config", str(path)]
        arguments += [f"--resume={resume}"] if resume is not None else []
        arguments += ["--restart"] if restart else []
        arguments += [flag for flag, wanted in flags.items() if wanted]
        launch(arguments, processes)


def train_run(
    given: GivenSettings,
    resume: str | None = None,
    *,
    restart: bool = False,
    shared: SharedParts | None = None,
    with_report: bool = True,
) -> Path:
    """Train a run and return its folder.

    Args:
        given: What to train. A resumed run keeps its own settings where none are given.
        resume: Folder of a run or of one of its checkpoints, or "newest" for the run in `output_dir`.
        restart: Start the resumed run again from step 0 and move its checkpoints aside.
        shared: Keeps what later runs of this process need too.
        with_report: Whether to write report.html.
    """
    began = time.perf_counter()
    checkpoint: bool | Path | None = None
    stored: RunRecord | None = None
    if restart and resume is None:
        raise SettingsError("--restart needs a run to restart", "glassloop train --resume RUN --restart")
    if resume is not None:
        given, folder, checkpoint, stored = find_resumed(given, resume, restart=restart)
        if stored and stored.finished:
            say(f"{folder} is already complete")
            if not (folder / MODEL_NAME / CARD_NAME).exists():  # it was killed between the record and the card
                update_card(folder)
            if leftovers(folder):  # it was killed while it wrote the report, or it is writing it right now and holds the lock
                with suppress(LockedError), locked(folder, say):
                    remove_leftovers(folder)
                    if with_report:
                        write_report(folder)
            return folder
    args = training_arguments(given.training)
    if args.disable_tqdm:
        show_lines()
    backend = choose_backend(args)
    with ExitStack() as held:
        if stored is None:
            chosen = str(free_folder(args.output_dir, overwrite=args.overwrite_output_dir)) if backend.processes.is_main else ""
            folder = Path(backend.processes.gather_objects([chosen])[0])  # the main process decides
            if not args.output_dir or not folder.exists():
                held.callback(remove_if_empty, *new_folders(folder))
            args = replace(args, output_dir=str(folder), overwrite_output_dir=False)
        with collection_paused():  # transformers is imported
            run = assemble(given, args, backend, shared)
        if backend.processes.is_main:
            held.enter_context(locked(folder, run.parts.say))
            refuse_changed(folder, stored)  # by a run that held the lock until now
            if stored is None:
                held.enter_context(cleared_unless_started(folder, lambda: run.parts.state.step > 0))
                write_run(folder, run.record)
            else:
                refuse_other_run(stored, run.record, from_start=restart or not has_checkpoint(folder))
                run = replace(run, record=replace(run.record, chosen=stored.chosen))
        run_to_end(run, checkpoint, began, restart=restart)
        if backend.processes.is_main:
            update_card(folder)
            if with_report and (path := write_report(folder)):
                note(f"  report: {path}")
    return folder


def find_resumed(
    given: GivenSettings, resume: str, *, restart: bool
) -> tuple[GivenSettings, Path, bool | Path, RunRecord | None]:
    """Return the settings, the folder, the checkpoint and the record of a run to resume.

    The record is None for a run that ended before it wrote one: it starts again with the given settings.
    """
    output_dir = given.training.get("output_dir")
    folder, checkpoint = resumed_folder(resume, str(output_dir) if output_dir else None)
    given = replace(given, training={**given.training, "output_dir": str(folder)})
    if given.source is not None and not is_run(folder):
        return given, folder, checkpoint, None
    stored = read_run(folder)
    if stored.finished and restart:
        raise SettingsError(f"{folder} is finished and will not be overwritten", "train again with another --output_dir")
    if stored.finished:
        refuse_other_request(folder, stored, given)
    refuse_other_model(given.model, stored.model.name)
    started = GivenSettings(
        stored.data.source, stored.model.name, stored.settings.to_dict(), stored.data.given(), stored.model.new_head
    )
    given = replace(started.overridden_by(given), new_head=stored.model.new_head)
    return given, folder, checkpoint, stored


def run_to_end(
    run: AssembledRun,
    checkpoint: bool | Path | None,
    began: float,
    *,
    restart: bool = False,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train, save the model, evaluate it and write the record. A signal stops this anywhere without losing a step."""
    trainer, examples, record = run.trainer, run.examples, run.record
    backend, folder = trainer.backend, run.parts.folder
    console = Console(stderr=True, quiet=not backend.processes.is_main)
    console.print(banner(record, examples, folder, run.reason))
    for line in examples.notes:
        console.print(Text(f"• {printable(line)}", style="dim"))
    with trained(run.parts, checkpoint, restart=restart, callbacks=callbacks) as metrics:
        record = replace(record, result=metrics, stop_reason=trainer.state.stop_reason)
        results = evaluate_unless_stopped(run)
        if results:
            record = replace(scored(record, results), best_step=trainer.state.best_step)
        for result in results:
            show_result(console, result, result.split)
            if backend.processes.is_main:
                lengths, tokenizer = run.encoded[result.split].lengths, trainer.processing_class
                more = length_entries(examples, result.split, lengths, tokenizer, record.max_length)
                with resume_named(folder):
                    write_predictions(folder / predictions_name(result.split), examples, result, more)
        stop_if_asked(trainer.state, backend.processes, run.parts.say)
        record = replace(record, status=FINISHED, seconds=time.perf_counter() - began)
        if backend.processes.is_main:
            with resume_named(folder):
                write_run(folder, record)
            remove_manifest(folder)
        backend.processes.wait()
    console.print(Text(f"✓ {record.seconds or 0:.0f} s, {trainer.state.step:,} steps → {printable(str(folder))}"))


def evaluate_unless_stopped(run: AssembledRun) -> list[Result]:
    """Return the evaluation of a trained model on every validation split.

    A signal ends the process instead: the model is saved, and a resumed run evaluates it.
    """
    trainer = run.trainer
    splits = held_out_splits(run.examples.facts)
    results = []
    facts = facts_of(run.record, trainer.state.history, encoder_weights(trainer.model.config))
    try:
        for split, prefix in zip(splits, prefixes(splits), strict=True):
            found = trainer.evaluation(run.encoded[split].rows, prefix, interruptible=True)
            results.append(result_of(run.examples, split, found, trainer.measures, prefix, facts=facts))
    except Interrupted:
        stop_if_asked(trainer.state, trainer.backend.processes, run.parts.say)
        raise
    return results
