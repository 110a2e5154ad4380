"""Losses of scripts on a GPU: packed steps that are not captured, with the numbers of plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import tiny_model
from packs import token_rows
from torch.nn import functional

from glassloop import Trainer, TrainingArguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


class Weighted(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs.logits.float(), labels, weight=torch.tensor([0.5, 2.0], device=labels.device))
        return (loss, outputs) if return_outputs else loss


class Mixed(Weighted):
    """In training some calls run padded."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        more = model(**inputs, output_hidden_states=True).hidden_states[1][:, 0] if model.training else torch.zeros(1)
        loss = super().compute_loss(model, inputs, return_outputs)
        return loss if return_outputs else loss + more.float().square().mean().to(loss.device)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [Weighted, Mixed])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_a_loss_of_a_script_has_the_numbers_of_plain(
    family: str, kind: Any, precision: str, tiny_tokenizer, tmp_path: Path
) -> None:
    lengths = tuple(int(length) for length in np.random.default_rng(1).integers(3, 30, 64))
    ids = [row.tolist() for row in token_rows(lengths)]
    rows = Dataset.from_dict({"input_ids": ids, "labels": [number % 2 for number in range(64)]})
    found = {}
    for backend in ("auto", "plain"):
        settings = {"max_steps": 12, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "logging_steps": 1}
        quiet = {"device": "cuda", "precision": precision, "save_strategy": "no", "disable_tqdm": True, "backend": backend}
        args = TrainingArguments(tmp_path / backend, learning_rate=1e-3, **settings, **quiet)
        trainer = kind(tiny_model(family, dropout=0.0), args, train_dataset=rows, processing_class=tiny_tokenizer)
        trainer.train()
        assert trainer.backend.name == {"auto": "graphs", "plain": "plain"}[backend]
        found[backend] = [entry["loss"] for entry in trainer.state.history if "loss" in entry]
    assert found["auto"] == pytest.approx(found["plain"], rel=2e-4 if precision == "fp32" else 3e-2)
