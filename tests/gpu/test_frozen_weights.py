"""LoRA and frozen weights on a GPU: captured steps with the numbers of plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import tiny_model
from packs import token_rows

from glassloop import Trainer, TrainingArguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def adapted(family: str, **options: Any) -> Any:
    peft = pytest.importorskip("peft")
    model = tiny_model(family, dropout=0.0, initializer_range=0.3)
    torch.manual_seed(5)
    settings = {"r": 4, "lora_dropout": 0.0, "target_modules": "all-linear", "init_lora_weights": False, **options}
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **settings))


def frozen(*parts: str) -> Any:
    model = tiny_model(dropout=0.0, initializer_range=0.3)
    for name, weight in model.named_parameters():
        weight.requires_grad = not any(part in name for part in parts)
    return model


MODELS = {
    "bert": lambda: adapted("bert"),
    "query and value": lambda: adapted("bert", target_modules=["query", "value"]),
    "albert": lambda: adapted("albert"),
    "modernbert": lambda: adapted("modernbert"),
    "lower layers": lambda: frozen("embeddings", "layer.0"),
    "a layer in between": lambda: frozen("layer.0"),
    "the encoder": lambda: frozen("bert"),
    "matrices": lambda: frozen("embeddings", "dense.weight", "query.weight", "key.weight", "value.weight"),
}


@pytest.fixture
def train(tiny_tokenizer: Any, tmp_path: Path):
    lengths = tuple(int(length) for length in np.random.default_rng(1).integers(3, 30, 64))
    ids = [row.tolist() for row in token_rows(lengths)]
    rows = Dataset.from_dict({"input_ids": ids, "labels": [number % 2 for number in range(64)]})

    def made(model: Any, backend: str, precision: str, **given: Any) -> Trainer:
        settings = {"max_steps": 16, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "logging_steps": 1}
        quiet = {"device": "cuda", "precision": precision, "save_strategy": "no", "disable_tqdm": True, "backend": backend}
        args = TrainingArguments(tmp_path / backend, learning_rate=1e-3, **settings | quiet | given)
        trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer)
        trainer.train()
        return trainer

    return made


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_frozen_weights_have_the_numbers_of_plain(name: str, precision: str, train) -> None:
    found = {}
    for backend in ("auto", "plain"):
        trainer = train(MODELS[name](), backend, precision)
        assert trainer.backend.name == {"auto": "graphs", "plain": "plain"}[backend]
        found[backend] = [entry["loss"] for entry in trainer.state.history if "loss" in entry]
    assert found["auto"] == pytest.approx(found["plain"], rel=3e-4 if precision == "fp32" else 5e-2)


def test_an_adapter_draws_other_masks_in_every_replay(train) -> None:
    losses = []
    for seed in (1, 1, 2):
        trainer = train(adapted("bert", lora_dropout=0.5), "auto", "bf16", seed=seed, data_seed=1, learning_rate=0.0)
        losses.append([entry["loss"] for entry in trainer.state.history if "loss" in entry])
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert len({*losses[0][:4]}) == 4
