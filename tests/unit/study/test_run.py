"""The banner: one row per fact of a run, in plain terms, and no name that controls the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from run_folders import RECORD

from glassloop.runs.record import Difference, RunRecord
from glassloop.study.run import banner


def rows_of(record: RunRecord) -> dict[str, str]:
    examples: Any = SimpleNamespace(
        task=record.data.task, labels=SimpleNamespace(names=record.data.labels), facts=record.data.splits
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(banner(record, examples, Path("out")))
    return {line[:15].strip(): line[15:].rstrip() for line in captured.get().splitlines()}


def test_one_row_per_fact() -> None:
    assert rows_of(RECORD) == {
        "data": "rows.csv: 27 train",
        "task": "single label classification: a, b, c",
        "model": "quickstart (bert, 0.0 M parameters)",
        "steps": "8 (4 per epoch), 8 rows per step, no padding",
        "learning rate": "0.0001, linear schedule, 0 warm-up steps",
        "device": "cpu, fp32, backend plain",
        "savings": "packed batches",
        "folder": "out",
    }


def test_processes_accumulation_padding_and_the_check() -> None:
    check = Difference(4, 1e-6, 2e-6, 1e-3, 1e-3)
    plan = replace(RECORD.plan, accumulate=2, warmup_steps=3)
    rows = rows_of(replace(RECORD, processes=2, plan=plan, savings=(), padding=0.25, difference=check))
    assert rows["steps"] == "8 (4 per epoch), 8 rows × 2 processes × 2 batches per step, 25% padding"
    assert rows["learning rate"].endswith(", 3 warm-up steps")
    assert rows["check"] == "logits differ from the plain model by 1.0e-06 of the largest logit (allowed: 1.0e-03)"
    assert rows[""] == "gradients by 2.0e-06 of a weight's gradient norm (allowed: 1.0e-03), 4 rows"
    assert "savings" not in rows


def test_a_name_cannot_control_the_terminal() -> None:
    assert rows_of(replace(RECORD, data=replace(RECORD.data, source="\x1b[31m")))["data"] == r"\x1b[31m: 27 train"
