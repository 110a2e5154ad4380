"""A Trainer of small rows with the usual settings of these tests, and a ledger that is empty before and after a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families import tiny_model

from glassloop import Trainer, TrainingArguments
from glassloop.compat.substitution import LEDGER

USUAL = {"max_steps": 4, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}


@pytest.fixture
def make(few: Any, tiny_tokenizer: Any, tmp_path: Path) -> Any:
    """Make a Trainer: its class, its folder, other arguments of it, and settings."""

    def made(kind: Any = Trainer, folder: str = "out", parts: Any = None, **settings: Any) -> Any:
        args = TrainingArguments(tmp_path / folder, **USUAL | settings)
        rows = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tiny_tokenizer}
        model = {} if "model_init" in (parts or {}) else {"model": tiny_model(dropout=0.0)}
        return kind(args=args, **model | rows | (parts or {}))

    return made


@pytest.fixture
def ledger() -> Iterator[Any]:
    """What was substituted and skipped: nothing at first."""
    LEDGER.substitutions.clear()
    LEDGER.skipped.clear()
    yield LEDGER
    LEDGER.substitutions.clear()
    LEDGER.skipped.clear()
