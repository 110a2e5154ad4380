"""The summary of a run, printed before its first step."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from glassloop.data.examples import Examples
from glassloop.errors import listed, printable
from glassloop.files import near_name
from glassloop.run_folder.record import Difference, RunRecord


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
