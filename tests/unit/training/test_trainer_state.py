"""trainer_state.json of a checkpoint, as transformers reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from small_training import trained
from transformers import AutoModelForSequenceClassification, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from glassloop.runs.layout import checkpoints_in, step_of
from glassloop.runs.record import is_timing
from glassloop.training.session import best_checkpoint, log_history


def test_the_step_comes_last_in_the_history() -> None:
    assert [*log_history([{"step": 1, "loss": 2.0}])[0]] == ["loss", "step"]


def test_the_best_checkpoint_exists(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-0").mkdir()
    assert best_checkpoint(tmp_path, None) is None
    assert best_checkpoint(tmp_path, 2) is None
    assert best_checkpoint(tmp_path, 0) == str(tmp_path / "checkpoint-0")


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_transformers_reads_a_checkpoint(strategy: str, rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 1, "save_strategy": strategy}
    trainer = trained(tmp_path, rows, tiny_tokenizer, **given | {"load_best_model_at_end": True})
    last = Path(str(get_last_checkpoint(str(tmp_path))))
    best = trainer.state.best_step
    assert {*map(step_of, checkpoints_in(tmp_path))} == {best, step_of(last)}
    state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    assert (state.global_step, state.max_steps, state.best_global_step) == (step_of(last), 12, best)
    assert state.best_model_checkpoint == trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    seen = [{name: value for name, value in entry.items() if not is_timing(name)} for entry in trainer.state.log_history]
    seen = [{**entry, "epoch": round(entry["epoch"], 4)} for entry in seen]
    assert state.log_history == seen[: len(state.log_history)]
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert (loaded.classifier.weight == trainer.model.classifier.weight).all()
    assert type(tiny_tokenizer).from_pretrained(last).vocab_size == tiny_tokenizer.vocab_size
