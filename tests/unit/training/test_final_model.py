"""The trained model of a run is saved first; what is saved is put back, or named when it cannot be."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import VOCABULARY, tiny_model, weights_hash
from small_training import small_rows
from transformers import BartConfig, BartForSequenceClassification

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import ModelError, ResourceError
from glassloop.training import session


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return small_rows(9)


def in_run(
    folder: Path, rows: Dataset, tokenizer: Any, resume: bool = False, make: Callable[[], Any] = tiny_model, **settings: Any
) -> Trainer:
    """A trainer after its training in a run folder."""
    chosen = {"max_steps": 3, "save_strategy": "no", "device": "cpu", "disable_tqdm": True} | settings
    folder.mkdir(exist_ok=True)
    trainer = Trainer(make(), TrainingArguments(folder, **chosen), train_dataset=rows, processing_class=tokenizer)
    trainer._quiet = trainer._in_run = True
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_training_that_took_its_last_step_is_put_back(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    first = in_run(tmp_path, rows, tiny_tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.jsonl", "model", "sessions.jsonl", "trained.json"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()}
    again = in_run(tmp_path, rows, tiny_tokenizer, resume=True)
    assert weights_hash(again.model) == weights_hash(first.model)
    assert again.state.to_dict() == first.state.to_dict()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()} == before, "not written again"


def tied_model() -> Any:
    """An encoder and a decoder that share their word vectors, which are saved once."""
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    torch.manual_seed(3)
    return BartForSequenceClassification(BartConfig(vocab_size=len(VOCABULARY), num_labels=2, **sizes, **ends))


def test_a_model_that_is_saved_under_other_names_than_it_has_is_put_back(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_run(tmp_path, rows, tiny_tokenizer, make=tied_model)
    monkeypatch.setattr(session, "train_step", lambda *args, **given: 1 / 0)
    again = in_run(tmp_path, rows, tiny_tokenizer, resume=True, make=tied_model)
    assert weights_hash(again.model) == weights_hash(first.model)
    (tmp_path / "trained.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"trained.safetensors is damaged"):
        in_run(tmp_path, rows, tiny_tokenizer, resume=True, make=tied_model)


def test_other_settings_and_rows_are_refused(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    in_run(tmp_path, rows, tiny_tokenizer)
    with pytest.raises(ModelError, match=r"learning_rate: .* then, 0.5 now"):
        in_run(tmp_path, rows, tiny_tokenizer, resume=True, learning_rate=0.5)
    with pytest.raises(ModelError, match=r"training rows: .* then"):
        in_run(tmp_path, rows.select([1, 0, *range(2, 9)]), tiny_tokenizer, resume=True)


def test_a_damaged_model_is_named_and_nothing_starts_again(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    in_run(tmp_path, rows, tiny_tokenizer)
    (tmp_path / "model" / ".DS_Store").write_text("x")
    in_run(tmp_path, rows, tiny_tokenizer, resume=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"model/config.json is damaged") as caught:
        in_run(tmp_path, rows, tiny_tokenizer, resume=True)
    assert "--restart" in caught.value.remedy
    (tmp_path / "trained.json").write_text("{")
    with pytest.raises(ModelError, match=r"trained.json is missing or damaged"):
        in_run(tmp_path, rows, tiny_tokenizer, resume=True)


@pytest.mark.parametrize(
    ("strategy", "repeats"), [("no", "trains again from the first step"), ("steps", "resumes from checkpoint-3")]
)
def test_a_full_disk_names_path_bytes_and_the_retry(
    strategy: str, repeats: str, rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer.write_model

    def full(trainer: Trainer, folder: Path, weights: Any = None) -> None:
        if weights is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "model.safetensors"))
        real(trainer, folder, weights)

    monkeypatch.setattr(Trainer, "write_model", full)
    with pytest.raises(
        ResourceError, match=r"No space left on device while writing the trained model \([\d,]+ bytes needed"
    ) as caught:
        in_run(tmp_path, rows, tiny_tokenizer, save_strategy=strategy, save_steps=3)
    assert str(tmp_path) in caught.value.problem
    assert f"glassloop train --resume {tmp_path}" in caught.value.remedy
    assert repeats in caught.value.remedy
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(Trainer, "write_model", real)
    again = in_run(tmp_path, rows, tiny_tokenizer, resume=True, save_strategy=strategy, save_steps=3)
    whole = in_run(tmp_path / "whole", rows, tiny_tokenizer)
    if strategy == "steps":
        assert weights_hash(again.model) == weights_hash(whole.model)
    assert json.loads((tmp_path / "trained.json").read_text())["step"] == 3
