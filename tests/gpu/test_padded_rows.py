"""On a GPU, rows that are already padded train with captured steps, with the numbers of the plain backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model

from glassloop import Trainer, TrainingArguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def padded_rows(number: int, *, masked: bool) -> list[dict[str, Any]]:
    rows = []
    for place in range(number):
        ids = [2, *(5 + (place * spot) % 40 for spot in range(1, 4 + place % 23)), 3]
        rest = [0] * (32 - len(ids))
        mask = {"attention_mask": [1] * len(ids) + rest} if masked else {}
        rows.append({"input_ids": ids + rest, **mask, "labels": place % 2})
    return rows


class OwnStep(Trainer):
    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        return torch.nn.functional.cross_entropy(logits.float(), labels), logits, labels


@pytest.mark.parametrize("kind", [Trainer, OwnStep])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_padded_rows_train_with_captured_steps(tmp_path, family: str, masked: bool, kind: Any) -> None:
    rows, found = padded_rows(48, masked=masked), {}
    for backend in ("auto", "plain"):
        usual = {"max_steps": 12, "precision": "fp32", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
        args = TrainingArguments(tmp_path / backend, backend=backend, eval_strategy="steps", eval_steps=4, **usual)
        trainer = kind(tiny_model(family, dropout=0.0), args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        names = ("loss", "eval_loss")
        found[trainer.backend.name] = [entry[name] for entry in trainer.state.history for name in names if name in entry]
    assert [*found] == ["graphs", "plain"]
    assert found["graphs"] == pytest.approx(found["plain"], rel=1e-3)
