"""A run from a name of data to a folder: load, say what will happen, train, evaluate, write everything down."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.arguments import TrainingArguments
from glassloop.claim import cleared_unless_started, free_folder, refuse_changed, remove_if_empty, resumed_folder
from glassloop.config import DataSettings, data_settings
from glassloop.data.batches import padding_waste
from glassloop.data.encoding import encode, notes_on, tokenizer_key
from glassloop.data.examples import Examples
from glassloop.data.labels import LabelSet
from glassloop.data.sources import load_examples
from glassloop.devices import choose_backend
from glassloop.engine.backends import PlainBackend
from glassloop.engine.evaluate import Interrupted
from glassloop.engine.identity import weights_fingerprint
from glassloop.engine.recorder import versions
from glassloop.errors import SettingsError, listed, printable, say
from glassloop.files import absolute_name, near_name, user_path
from glassloop.lock import locked
from glassloop.measures import refuse_unknown_metric
from glassloop.modeling import carried_labels, load_config, load_model, load_tokenizer, longest_input
from glassloop.results import Outcome, final_outcomes, scored, show_outcome, validation_names, write_predictions
from glassloop.resuming import Request, identity_of, refuse_other_model, refuse_other_request, refuse_other_run
from glassloop.run_folder import (
    FINISHED,
    RUNNING,
    TRAINED_NAME,
    ColumnsRecord,
    DataRecord,
    DifferenceRecord,
    ModelRecord,
    PlanRecord,
    RunRecord,
    SplitRecord,
    has_checkpoint,
    is_run,
    predictions_name,
    read_run,
    write_run,
)
from glassloop.session import retry_named, stop_if_asked
from glassloop.speed.admission import proof_of
from glassloop.trainer import Trainer
from glassloop.training import interruptible


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
            chosen = str(free_folder(args.output_dir, overwrite=args.overwrite_output_dir)) if backend.is_main else ""
            folder = Path(backend.gather_objects([chosen])[0])  # the main process decides
            if not args.output_dir or not folder.exists():
                held.callback(remove_if_empty, folder)
            args = TrainingArguments(**{**args.to_dict(), "output_dir": str(folder), "overwrite_output_dir": False})
        data, model = absolute_name(data or "quickstart"), absolute_name(model or "quickstart")
        trainer, examples, record = assemble(data, model, args, data_given, new_head, backend)
        if backend.is_main:
            held.enter_context(locked(folder, trainer.say))
            refuse_changed(folder, stored)  # by a run that held the lock until now
            if stored is None:
                held.enter_context(cleared_unless_started(folder, lambda: trainer.state.step > 0))
                write_run(folder, record)
            else:
                refuse_other_run(stored, record, from_start=restart or not has_checkpoint(folder))
        run_to_end(trainer, examples, record, checkpoint, restart, began)
    return folder


def run_to_end(
    trainer: Trainer, examples: Examples, record: RunRecord, checkpoint: bool | Path | None, restart: bool, began: float
) -> None:
    """Train, save the model, evaluate it, and write everything down. A signal stops this anywhere and loses nothing."""
    backend, folder = trainer.backend, trainer.folder
    console = Console(stderr=True, quiet=not backend.is_main)
    console.print(banner(record, examples, trainer, folder))
    for note in examples.notes:
        console.print(Text(f"• {printable(note)}", style="dim"))
    trainer.in_run = True
    with trainer.training(checkpoint, restart=restart) as trained:
        record = replace(record, result=trained.metrics, stop_reason=trainer.state.stop_reason)
        outcomes = evaluated(trainer, examples, record.max_length)
        if outcomes:
            record = replace(scored(record, outcomes), best_step=trainer.state.best_step)
        for outcome in outcomes:
            show_outcome(console, outcome, outcome.split)
            if backend.is_main:
                with retry_named(folder):
                    write_predictions(folder / predictions_name(outcome.split), examples, outcome.split, outcome.found)
        stop_if_asked(trainer)
        record = replace(record, status=FINISHED, seconds=time.perf_counter() - began)
        if backend.is_main:
            with retry_named(folder):
                write_run(folder, record)
            (folder / TRAINED_NAME).unlink(missing_ok=True)
        backend.wait()
    console.print(Text(f"✓ {record.seconds or 0:.0f} s, {trained.global_step:,} steps → {printable(str(folder))}"))


def evaluated(trainer: Trainer, examples: Examples, max_length: int) -> list[Outcome]:
    """Evaluate the trained model, unless a signal asks to stop: the model is saved, and a resumed run evaluates it."""
    try:
        with interruptible(trainer):
            return final_outcomes(trainer, examples, max_length)
    except Interrupted:
        stop_if_asked(trainer)
        raise


def assemble(
    data: str, model: str, args: TrainingArguments, data_given: dict[str, Any], new_head: bool, backend: PlainBackend
) -> tuple[Trainer, Examples, RunRecord]:
    """Everything a run needs, and its record before the first step."""
    config = load_config(model)
    with backend.main_first():
        examples = load_examples(data, outputs=kept_labels(config, data_settings(data_given), new_head), **data_given)
        tokenizer = load_tokenizer(model)
        max_length = args.max_length or longest_input(tokenizer, config)
        encoded = encode(examples, tokenizer, max_length)
        examples = replace(examples, notes=[*examples.notes, *notes_on(encoded)])
    if "train" not in encoded:
        raise SettingsError("the data set has no train split", "glassloop evaluate scores a trained model on other data")
    network = load_model(model, labels=examples.labels, task=examples.task, new_head=new_head, seed=args.seed)
    weights = weights_fingerprint(network) if backend.is_main else ""
    held_out = next(iter(validation_names(examples)), None)
    trainer = Trainer(
        network,
        args,
        train_dataset=encoded["train"].rows,
        eval_dataset=encoded[held_out].rows if held_out else None,
        processing_class=tokenizer,
        backend=backend,
        measures=examples.measures,
    )
    refuse_unknown_metric(args.metric_for_best_model, trainer.measures)
    trainer.prove()
    batches = trainer.batches(trainer.train_dataset, training=True)
    plan = trainer.make_plan(batches)
    record = RunRecord(
        status=RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data_record(data, data_settings(data_given), examples),
        model=ModelRecord(model, config.model_type, sum(weight.numel() for weight in network.parameters()), new_head),
        settings=args,
        max_length=max_length,
        class_weights=None if (balance := trainer.class_weights()) is None else tuple(balance),
        plan=PlanRecord(**asdict(plan)),
        padding=padding_waste(encoded["train"].lengths, batches.plan(0), args.pad_to_multiple_of or 1),
        device=str(backend.device),
        precision=backend.precision,
        backend=trainer.backend.name,
        savings=tuple(trainer.backend.saved_names(network, trainer.known_rows, args.weight_decay)),
        difference=DifferenceRecord(**asdict(proof)) if (proof := proof_of(trainer.backend, network)) else None,
        processes=backend.num_processes,
        metrics=trainer.measures.keys,
        positive_label=trainer.measures.positive,
        versions=versions(),
        identity=identity_of(trainer, plan) | {"weights": weights, "tokenizer": tokenizer_key(tokenizer)[:16]},
    )
    return trainer, examples, record


def kept_labels(config: Any, settings: DataSettings, new_head: bool) -> LabelSet | None:
    """The labels that a model carries, unless it gets a new head or the user gives other ones."""
    carried = None if new_head else carried_labels(config)
    return LabelSet(carried) if carried and {*(settings.label_names or carried)} == {*carried} else None


def data_record(source: str, settings: DataSettings, examples: Examples) -> DataRecord:
    """What is written down about the data."""
    return DataRecord(
        source=source,
        settings=replace(settings, data_dir=settings.data_dir and str(user_path(settings.data_dir).absolute())),
        task=examples.task,
        columns=ColumnsRecord(**asdict(examples.columns)),
        labels=examples.labels.names if examples.labels else None,
        label_order=examples.labels.order if examples.labels else None,
        splits={name: SplitRecord(**asdict(fact)) for name, fact in examples.facts.items()},
        notes=tuple(examples.notes),
    )


def banner(record: RunRecord, examples: Examples, trainer: Trainer, folder: Path) -> Table:
    """What will happen, before it does."""
    args, plan, model = trainer.args, record.plan, record.model
    size = f"{args.per_device_train_batch_size} rows"
    size += f" × {record.processes} processes" if record.processes > 1 else ""
    size += f" × {plan.accumulate} batches" if plan.accumulate > 1 else ""
    rows = {
        "data": f"{near_name(record.data.source)}: "
        + ", ".join(f"{fact.num_rows:,} {name}" for name, fact in examples.facts.items()),
        "task": examples.task.replace("_", " ") + (f": {listed(examples.labels.names, 8)}" if examples.labels else ""),
        "model": f"{near_name(model.name)} ({model.type}, {model.parameters / 1e6:.1f} M parameters)",
        "steps": f"{plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), {size} a step, "
        + ("no padding" if "packed batches" in record.savings else f"{record.padding:.0%} padding"),
        "rate": f"{args.learning_rate:g}, {args.lr_scheduler_type}, {plan.warmup_steps:,} steps of warm-up",
        "run on": f"{record.device}, {record.precision}, backend {record.backend}",
        **({"saves": ", ".join(record.savings)} if record.savings else {}),
        **({"check": f"{proof} ({proof.rows} rows)"} if (proof := proof_of(trainer.backend, trainer.model)) else {}),
        "folder": str(folder),
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, Text(printable(value)))
    return table
