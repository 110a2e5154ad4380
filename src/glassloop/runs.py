"""A run from a name of data to a folder: load, say what will happen, train, evaluate, write everything down."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.arguments import TrainingArguments
from glassloop.config import DataSettings, data_settings
from glassloop.data.batches import padding_waste
from glassloop.data.encoding import encode, notes_on
from glassloop.data.examples import Examples
from glassloop.data.labels import LabelSet
from glassloop.data.sources import load_examples
from glassloop.devices import choose_backend
from glassloop.engine.backends import PlainBackend
from glassloop.engine.recorder import versions
from glassloop.errors import ModelError, SettingsError, listed, printable, say
from glassloop.files import replacing_dir, user_path
from glassloop.lock import LOCK_NAME, locked, refuse_held
from glassloop.measures import refuse_unknown_metric
from glassloop.modeling import carried_labels, load_config, load_model, load_tokenizer, longest_input
from glassloop.results import final_outcomes, scored, show_outcome, validation_names, write_predictions
from glassloop.run_folder import (
    CHECKPOINTS_NAME,
    FINISHED,
    MODEL_NAME,
    RUN_NAME,
    RUNNING,
    ColumnsRecord,
    DataRecord,
    DifferenceRecord,
    ModelRecord,
    PlanRecord,
    RunRecord,
    SplitRecord,
    is_run,
    predictions_name,
    read_run,
    write_run,
)
from glassloop.speed.admission import proof_of
from glassloop.trainer import Trainer

RUNS_DIR = Path("runs")


def train_run(
    data: str | None,
    model: str | None,
    training: dict[str, Any],
    data_given: dict[str, Any],
    *,
    new_head: bool = False,
    resume: str | None = None,
) -> Path:
    """Train `model` on `data` and return the run folder. `resume`: "newest", or the folder of a run or a checkpoint."""
    began = time.perf_counter()
    checkpoint: bool | Path | None = None
    if resume:
        folder, checkpoint = resumed_folder(resume, training.get("output_dir"))
        training["output_dir"] = str(folder)
        started = data is None or is_run(folder)  # else it died before its first line and starts again as given
    if resume and started:
        stored = read_run(folder)
        if stored.finished:
            say(f"{folder} is already complete")
            return folder
        refuse_other_model(model, stored.model.name)
        training = {**stored.settings.to_dict(), **training}
        data_given = {**stored.data.given(), **data_given}
        data, model, new_head = data or stored.data.source, stored.model.name, stored.model.new_head
    args = TrainingArguments(**training)
    backend = choose_backend(args)
    if not (resume and started):
        folder = free_folder(args.output_dir, backend.is_main)
        args = TrainingArguments(**{**args.to_dict(), "output_dir": str(folder)})
    data, model = data or "quickstart", model or "quickstart"
    console = Console(stderr=True, quiet=not backend.is_main)
    trainer, examples, record = assemble(data, model, args, data_given, new_head, backend)
    with locked(folder, trainer.say) if backend.is_main else nullcontext():
        trainer.holds_lock = True
        if backend.is_main and not (resume and started):  # else what the run was started with stands until it is finished
            write_run(folder, record)
        console.print(banner(record, examples, trainer, folder))
        for note in examples.notes:
            console.print(Text(f"• {printable(note)}", style="dim"))
        trained = trainer.train(resume_from_checkpoint=checkpoint)
        record = replace(record, result=trained.metrics, stop_reason=trainer.state.stop_reason)
        outcomes = final_outcomes(trainer, examples, record.max_length)
        if outcomes:
            record = replace(scored(record, outcomes), best_step=trainer.state.best_step)
        for outcome in outcomes:
            show_outcome(console, outcome, outcome.split)
        if backend.is_main:
            with replacing_dir(folder / MODEL_NAME, replace=True) as writing:
                trainer.write_model(writing)
            for outcome in outcomes:
                write_predictions(folder / predictions_name(outcome.split), examples, outcome.split, outcome.found)
            record = replace(record, status=FINISHED, seconds=time.perf_counter() - began)
            write_run(folder, record)
        backend.wait()
    console.print(Text(f"✓ {record.seconds or 0:.0f} s, {trained.global_step:,} steps → {printable(str(folder))}"))
    return folder


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
    record = RunRecord(
        status=RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data_record(data, data_settings(data_given), examples),
        model=ModelRecord(model, config.model_type, sum(weight.numel() for weight in network.parameters()), new_head),
        settings=args,
        max_length=max_length,
        class_weights=weights if (weights := trainer.class_weights()) is None else tuple(weights),
        plan=PlanRecord(**asdict(trainer.make_plan(batches))),
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
    )
    return trainer, examples, record


def kept_labels(config: Any, settings: DataSettings, new_head: bool) -> LabelSet | None:
    """The labels that a model carries, unless it gets a new head or the user gives other ones."""
    carried = None if new_head else carried_labels(config)
    return LabelSet(carried) if carried and {*(settings.label_names or carried)} == {*carried} else None


def free_folder(chosen: str | None, is_main: bool) -> Path:
    """The folder to write to: the one chosen if it is empty or new, else the next free number below runs/."""
    if not chosen:
        taken = [int(path.name[4:]) for path in RUNS_DIR.glob("run-*") if path.name[4:].isdigit()]
        return RUNS_DIR / f"run-{max(taken, default=0) + 1:03d}"
    folder = user_path(chosen)
    if is_main and folder.exists():
        if not folder.is_dir():
            raise SettingsError(f"output_dir {folder} is a file", "choose an empty or a new folder")
        refuse_held(folder)
        if is_run(folder):
            raise SettingsError(
                f"output_dir {folder} holds a run already", f"go on with it: --resume {folder}; or choose another"
            )
        if any(path.name != LOCK_NAME and not path.name.startswith(f".{RUN_NAME}.") for path in folder.iterdir()):
            raise SettingsError(f"output_dir {folder} holds files that are not of a run", "choose an empty or a new folder")
    return folder


def resumed_folder(resume: str, output_dir: str | None) -> tuple[Path, bool | Path]:
    """The run folder to go on with, and the checkpoint: True for the newest."""
    if resume == "newest":
        if not output_dir:
            raise SettingsError("resume which run?", "glassloop train --resume RUN, or name it with --output_dir")
        return user_path(output_dir), True
    path = user_path(resume)
    if path.parent.name == CHECKPOINTS_NAME:
        return path.parent.parent, path
    return path, True


def refuse_other_model(given: str | None, stored: str) -> None:
    """Raise where a run would go on with a model of another name."""
    if given and given != stored and not (Path(given).exists() and Path(given).resolve() == Path(stored).resolve()):
        raise ModelError(f"the run was started with other settings: model: {stored} then, {given} now", "leave --model away")


def data_record(source: str, settings: DataSettings, examples: Examples) -> DataRecord:
    """What is written down about the data."""
    return DataRecord(
        source=source,
        settings=replace(settings, data_dir=settings.data_dir and str(settings.data_dir)),
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
        "data": f"{record.data.source}: " + ", ".join(f"{fact.num_rows:,} {name}" for name, fact in examples.facts.items()),
        "task": examples.task.replace("_", " ") + (f": {listed(examples.labels.names, 8)}" if examples.labels else ""),
        "model": f"{model.name} ({model.type}, {model.parameters / 1e6:.1f} M parameters)",
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
