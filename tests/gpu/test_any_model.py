"""Any model on a GPU: the numbers of plain, or plain itself; and what a captured graph would hold fast is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import ALIKE, BY_MODULES, FAST, UNPACKED, tiny_model
from packs import token_rows
from strange_models import STRANGE, MeanHead, bert, custom

from glassloop import Trainer, TrainingArguments
from glassloop.backends import packed as backends
from glassloop.backends.fast import encoder_parts as recognition
from glassloop.models.pooled import Pooling, frozen_copy
from glassloop.settings.training import POOLING_MODES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(scope="module")
def rows() -> Dataset:
    lengths = tuple(int(length) for length in np.random.default_rng(1).integers(3, 30, 64))
    ids = [row.tolist() for row in token_rows(lengths)]
    return Dataset.from_dict({"input_ids": ids, "labels": [number % 2 for number in range(64)]})


@pytest.fixture
def trainer_of(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path):
    def make(model: Any, backend: str = "auto", precision: str = "fp32", **given: Any) -> Trainer:
        settings = {"max_steps": 10, "per_device_train_batch_size": 8, "logging_steps": 1, "learning_rate": 1e-3}
        quiet = {"device": "cuda", "precision": precision, "save_strategy": "no", "disable_tqdm": True}
        args = TrainingArguments(tmp_path / f"{backend}-{precision}", backend=backend, **settings, **quiet, **given)
        return Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer)

    return make


@pytest.mark.parametrize("name", STRANGE)
def test_an_unknown_model_gets_the_numbers_of_plain(name: str, trainer_of) -> None:
    found = {}
    for backend in ("auto", "plain"):
        trainer = trainer_of(STRANGE[name](), backend)
        before = trainer.predict(trainer.eval_dataset).predictions
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.history if "loss" in entry]
        after = trainer.predict(trainer.eval_dataset).predictions
        found[backend] = [torch.tensor(values) for values in (before, losses, after)]
        print(name, trainer.backend.name, getattr(trainer.backend, "differences", {}).get(trainer.model))
    for auto, plain in zip(found["auto"], found["plain"], strict=True):
        torch.testing.assert_close(auto, plain, atol=2e-4, rtol=1e-4)
    assert found["plain"][0].std() > 1e-3, "answers that are all alike would prove nothing"


@pytest.mark.parametrize("towers", [False, True])
@pytest.mark.parametrize("mode", POOLING_MODES)
def test_a_pooled_head_is_captured_with_the_numbers_of_plain(mode: str, towers: bool, trainer_of, rows: Dataset) -> None:
    def pair_types(row: dict[str, list[int]]) -> dict[str, list[int]]:
        length = len(row["input_ids"])
        return {"token_type_ids": [int(towers and place >= length // 2) for place in range(length)]}

    found = {}
    for backend in ("graphs", "plain"):
        torch.manual_seed(0)
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
        model = frozen_copy(tiny_model("bert", **still), Pooling(mode, normalize=True, towers=towers)).train()
        trainer = trainer_of(model, backend)
        trainer.train_dataset = trainer.eval_dataset = rows.map(pair_types)
        before = trainer.predict(trainer.eval_dataset).predictions
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.history if "loss" in entry]
        after = trainer.predict(trainer.eval_dataset).predictions
        assert trainer.backend.name == backend
        found[backend] = [torch.tensor(values) for values in (before, losses, after)]
    for captured, plain in zip(found["graphs"], found["plain"], strict=True):
        torch.testing.assert_close(captured, plain, atol=2e-4, rtol=1e-4)
    assert found["plain"][0].std() > 1e-3, "answers that are all alike would prove nothing"
    assert (found["plain"][2] - found["plain"][0]).abs().max() > 1e-2, "nor would a model that does not change"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", [*FAST, *ALIKE, *BY_MODULES, *UNPACKED])
def test_every_known_family_passes(family: str, precision: str, trainer_of) -> None:
    """With small and with large weights: rounding grows with them, and is still rounding."""
    for spread in (0.02, 0.2):
        model = tiny_model(family, initializer_range=spread)
        trainer = trainer_of(model, precision=precision)
        trainer._prove()
        proof = trainer.backend.differences.get(model)
        print(family, precision, spread, trainer.backend.name, proof)
        assert trainer.backend.name == "graphs"
        assert proof.holds


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_reads_padding_is_not_padded_further(precision: str, trainer_of) -> None:
    """ConvBERT's convolutions reach into the padding: its answers depend on how wide a batch is, by less than bf16 rounds."""
    trainer = trainer_of(tiny_model("convbert", initializer_range=0.2), precision=precision)
    trainer._prove()
    assert trainer.backend.name == "plain"


def understand_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody looked at a model before it is packed and captured."""
    monkeypatch.setattr(backends, "why_not_packed", lambda model: None)
    monkeypatch.setattr(backends, "packing_form", lambda model: "layers")
    monkeypatch.setattr(backends, "why_not_unmodified", lambda model: None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_head_that_was_taken_for_a_known_one_is_found_out(precision: str, trainer_of, monkeypatch) -> None:
    understand_everything(monkeypatch)
    trainer = trainer_of(custom(MeanHead), precision=precision)
    assert trainer.backend.name == "graphs"
    trainer._prove()
    assert trainer.backend.name == "plain"


def test_a_value_that_a_graph_would_hold_fast_is_found_out(trainer_of, monkeypatch) -> None:
    """The head counts its batch on the CPU: a graph replays the number of the batch it was captured with."""

    class Counting(type(bert())):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            found = super().forward(input_ids, attention_mask, token_type_ids)
            found.logits = found.logits + self.seen[0]
            self.seen[0] += 1.0
            return found

    monkeypatch.setattr(backends, "why_not_unmodified", lambda model: None)
    model = Counting(bert().config)
    model.seen = [0.0]
    trainer = trainer_of(model)
    assert trainer.backend.name == "graphs"
    trainer._prove()
    assert trainer.backend.name == "plain"
    assert recognition.why_not_unmodified(model) is not None, "and it is recognized before"
