"""Small real data for the promises about the numbers: generated pairs, encoded for the tiny models, and Trainers of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families import rows_for

from glassloop import Trainer, TrainingArguments, encode, load_examples

SPLITS = {"train_dataset": "train", "eval_dataset": "validation"}
PARTS = (*SPLITS, "loss", "callbacks", "on_gradients")


@pytest.fixture(scope="session")
def pairs(session_cache):
    """Sixty-one generated pairs for training (no multiple of any batch size), ten each for validation and test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        return load_examples("quickstart", rows=61, split_seed=3)


@pytest.fixture(scope="session")
def encoded(pairs, tiny_tokenizer, session_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        return encode(pairs, tiny_tokenizer, 64)


@pytest.fixture
def trainer_of(encoded, tiny_tokenizer, tmp_path: Path):
    """Makes a Trainer of the small data with a backend; parts are given by name, all else are settings."""

    def make(model: Any, backend: Any = "auto", *, family: str = "bert", **given: Any) -> Trainer:
        rows = {name: rows_for(family, encoded[split].rows) for name, split in SPLITS.items()}
        parts = rows | {name: given.pop(name) for name in PARTS if name in given}
        name = backend if isinstance(backend, str) else backend.name
        usual = {"max_steps": 6, "per_device_train_batch_size": 8, "logging_steps": 1, "learning_rate": 1e-3}
        quiet = {"device": "cpu", "precision": "fp32", "save_strategy": "no", "disable_tqdm": True, "output_dir": name}
        settings = usual | quiet | given
        args = TrainingArguments(backend=name, **settings | {"output_dir": tmp_path / settings["output_dir"]})
        chosen = None if isinstance(backend, str) else backend
        return Trainer(model, args, processing_class=tiny_tokenizer, backend=chosen, **parts)

    return make
