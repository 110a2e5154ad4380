"""A run from a name of data to a folder: load, say what will happen, train, evaluate, write everything down."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from glassloop.arguments import TrainingArguments
from glassloop.assembly import assemble
from glassloop.backends.choose import choose_backend
from glassloop.claim import cleared_unless_started, free_folder, refuse_changed, remove_if_empty, resumed_folder
from glassloop.data.encoding import encode
from glassloop.data.examples import Examples
from glassloop.engine.evaluate import Interrupted
from glassloop.errors import SettingsError, printable, say
from glassloop.files import absolute_name
from glassloop.lock import locked
from glassloop.outcomes import Outcome, outcome_of, prefixes, scored, validation_names, write_predictions
from glassloop.run_folder.layout import TRAINED_NAME, has_checkpoint, is_run, predictions_name
from glassloop.run_folder.record import FINISHED, RunRecord
from glassloop.run_folder.run_json import read_run, write_run
from glassloop.show.banner import banner
from glassloop.show.results import show_outcome
from glassloop.trainer import Trainer
from glassloop.training.parts import TrainingParts
from glassloop.training.resuming import Request, refuse_other_model, refuse_other_request, refuse_other_run
from glassloop.training.session import resume_named, stop_if_asked


def train_run(
    data: str | None,
    model: str | None,
    training: dict[str, Any],
    data_given: dict[str, Any],
    *,
    new_head: bool = False,
    resume: str | None = None,
    restart: bool = False,
) -> Path:
    """Train `model` on `data` and return the run folder. `resume`: "newest", or the folder of a run or a checkpoint.

    `restart`: start the resumed run again from step 0, and move its checkpoints aside.
    """
    began = time.perf_counter()
    checkpoint: bool | Path | None = None
    stored: RunRecord | None = None
    if restart and not resume:
        raise SettingsError("restart is given without a run to restart", "glassloop train --resume RUN --restart")
    if resume:
        folder, checkpoint = resumed_folder(resume, training.get("output_dir"))
        training["output_dir"] = str(folder)
        if data is None or is_run(folder):  # else it died before its first line and starts again as given
            stored = read_run(folder)
    if stored is not None:
        if stored.finished and restart:
            raise SettingsError(f"{folder} is finished and is not overwritten", "train again with another --output_dir")
        if stored.finished:
            refuse_other_request(folder, stored, Request(data, model, training, data_given, new_head))
            say(f"{folder} is already complete")
            return folder
        refuse_other_model(model, stored.model.name)
        training = {**stored.settings.to_dict(), **training}
        data_given = {**stored.data.given(), **data_given}
        data, model, new_head = data or stored.data.source, stored.model.name, stored.model.new_head
    args = TrainingArguments(**training)
    backend = choose_backend(args)
    with ExitStack() as held:
        if stored is None:
            chosen = str(free_folder(args.output_dir, overwrite=args.overwrite_output_dir)) if backend.processes.is_main else ""
            folder = Path(backend.processes.gather_objects([chosen])[0])  # the main process decides
            if not args.output_dir or not folder.exists():
                held.callback(remove_if_empty, folder)
            args = TrainingArguments(**{**args.to_dict(), "output_dir": str(folder), "overwrite_output_dir": False})
        data, model = absolute_name(data or "quickstart"), absolute_name(model or "quickstart")
        trainer, parts, examples, record = assemble(data, model, args, data_given, new_head, backend)
        if backend.processes.is_main:
            held.enter_context(locked(folder, trainer.say))
            refuse_changed(folder, stored)  # by a run that held the lock until now
            if stored is None:
                held.enter_context(cleared_unless_started(folder, lambda: trainer.state.step > 0))
                write_run(folder, record)
            else:
                refuse_other_run(stored, record, from_start=restart or not has_checkpoint(folder))
        run_to_end(trainer, parts, examples, record, checkpoint, restart, began)
    return folder


def run_to_end(
    trainer: Trainer,
    parts: TrainingParts,
    examples: Examples,
    record: RunRecord,
    checkpoint: bool | Path | None,
    restart: bool,
    began: float,
) -> None:
    """Train, save the model, evaluate it, and write everything down. A signal stops this anywhere and loses nothing."""
    backend, folder = trainer.backend, trainer.folder
    console = Console(stderr=True, quiet=not backend.processes.is_main)
    console.print(banner(record, examples, folder))
    for note in examples.notes:
        console.print(Text(f"• {printable(note)}", style="dim"))
    with trainer.training(checkpoint, restart=restart, parts=parts) as trained:
        record = replace(record, result=trained.metrics, stop_reason=trainer.state.stop_reason)
        outcomes = evaluated(trainer, examples, record.max_length)
        if outcomes:
            record = replace(scored(record, outcomes), best_step=trainer.state.best_step)
        for outcome in outcomes:
            show_outcome(console, outcome, outcome.split)
            if backend.processes.is_main:
                with resume_named(folder):
                    write_predictions(folder / predictions_name(outcome.split), examples, outcome.split, outcome.found)
        stop_if_asked(trainer.state, trainer.backend.processes, trainer.say)
        record = replace(record, status=FINISHED, seconds=time.perf_counter() - began)
        if backend.processes.is_main:
            with resume_named(folder):
                write_run(folder, record)
            (folder / TRAINED_NAME).unlink(missing_ok=True)
        backend.processes.wait()
    console.print(Text(f"✓ {record.seconds or 0:.0f} s, {trained.global_step:,} steps → {printable(str(folder))}"))


def evaluated(trainer: Trainer, examples: Examples, max_length: int) -> list[Outcome]:
    """Evaluate the trained model, unless a signal asks to stop: the model is saved, and a resumed run evaluates it."""
    try:
        with trainer.interruptible():
            return final_outcomes(trainer, examples, max_length)
    except Interrupted:
        stop_if_asked(trainer.state, trainer.backend.processes, trainer.say)
        raise


def look_first(data: str, model: str, settings: dict[str, Any]) -> None:
    """Check model and data before processes start, so that an error is reported once, with its exit code."""
    from glassloop.data.sources import load_examples
    from glassloop.models.loading import load_config

    load_config(model)
    load_examples(data, **settings)


def final_outcomes(trainer: Trainer, examples: Examples, max_length: int) -> list[Outcome]:
    """Evaluate a trained model on every validation split."""
    splits, outcomes = validation_names(examples), []
    encoded = encode(examples, trainer.processing_class, max_length) if splits else {}
    for split, prefix in zip(splits, prefixes(splits), strict=True):
        found = trainer.evaluation(encoded[split].rows, prefix)
        outcomes.append(outcome_of(examples, split, found, trainer.measures, prefix))
    return outcomes
