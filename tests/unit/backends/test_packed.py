"""The int8 backend: it measures, then quantizes; what it cannot run it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from families import BY_MODULES, VOCABULARY, tiny_model, weights_hash
from packs import lively, needs_kernels, packed_logits, padded_inputs, quantized, token_rows

from glassloop.backends import packed as int8
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import PackedBatches
from glassloop.backends.fast.storage import choose_vocabulary
from glassloop.backends.packed import PackedBackend, why_not_int8, with_few_shapes
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.training.interfaces import TrainingUse

ROWS = token_rows((7, 2, 11, 5, 9, 9, 3))


@needs_kernels
def test_quantized_logits_are_near_those_of_the_model() -> None:
    model = lively().eval()
    with torch.inference_mode():
        wanted = model(**padded_inputs(ROWS)).logits
    found = packed_logits(quantized(model, ROWS), model, ROWS)
    assert not torch.allclose(found, wanted, atol=1e-6), "it is not fp32"
    torch.testing.assert_close(found, wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)


def test_what_cannot_run_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(BY_MODULES[0])
    assert why_not_int8(model) == f"{type(model).__name__} has layers without an int8 form"
    model = tiny_model()
    model.base_model.encoder.layer[0].output.dense.register_forward_hook(lambda *args: None)
    assert "has hooks" in str(why_not_int8(model))
    monkeypatch.setattr(int8, "why_no_kernels", lambda: "its int8 kernels compute wrong results")
    assert why_not_int8(tiny_model()) == "this CPU: its int8 kernels compute wrong results"
    assert PackedBackend(int8=True).why_not(tiny_model()) is None


OPTIONS: dict[str, Any] = {"weight_decay": 0.0, "betas": (0.9, 0.999), "epsilon": 1e-8, "fused": True}


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return Dataset.from_dict({"input_ids": [row.tolist() for row in token_rows()], "labels": [0, 1, 0, 1]})


def started(model: Any, rows: Any, decay: float = 0.0, **use: bool) -> PackedBackend:
    backend = PackedBackend()
    make = backend.start_training(model, TrainingUse([rows], decay, **use))
    make(model, 1e-3, **OPTIONS | {"weight_decay": decay})
    return backend


def test_a_training_has_its_savings_and_leaves_none(rows: Dataset) -> None:
    model = tiny_model()
    before = weights_hash(model)
    backend = started(model, rows)
    assert isinstance(backend.optimizer, FlatAdamW)
    assert "forward" in vars(model)
    backend.end_training()
    assert (backend.savings, backend.optimizer, backend.use.data_sets) == (None, None, ())
    assert "forward" not in vars(model)
    assert weights_hash(model) == before
    backend.end_training()  # a second call does nothing
    with pytest.raises(ModelError, match="backend packed: no training was started"):
        PackedBackend().make_optimizer(tiny_model(), 1e-3, **OPTIONS)


@pytest.mark.parametrize(("decay", "read", "small"), [(0.0, False, True), (0.01, False, False), (0.0, True, False)])
def test_only_used_words_are_trained_if_exact_and_not_read(rows: Dataset, decay: float, read: bool, small: bool) -> None:
    model = tiny_model()
    backend = started(model, rows, decay, reads_gradients=read)
    assert (backend.savings.vocabulary is not None) == small
    words = model.get_input_embeddings().weight
    assert (len(backend.savings.storage.gradient(words)) < len(words)) == small
    backend.end_training()


@pytest.mark.parametrize(
    ("device", "read", "added", "low"),
    [("cuda", False, False, True), ("cuda", True, False, False), ("cuda", False, True, False), ("cpu", False, False, False)],
)
def test_gradients_read_or_added_up_have_full_precision(rows: Dataset, device: str, read: bool, added: bool, low: bool) -> None:
    """And on a CPU, whose AdamW takes no others."""
    model, backend = tiny_model(), PackedBackend("cpu", "bf16")
    backend.device = torch.device(device)
    backend.start_training(model, TrainingUse([rows], 0.0, reads_gradients=read, adds_gradients=added))
    assert backend.savings.storage.matrix_gradients.dtype == (torch.bfloat16 if low else torch.float32)
    backend.end_training()


def test_batches_of_known_rows_are_packed_and_others_stay_padded_or_have_few_shapes(rows: Dataset, tiny_tokenizer) -> None:
    model = tiny_model()
    backend = started(model, rows)
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 2)
    assert isinstance(backend.adapt_batches(batches, rows), PackedBatches)
    words, table = model.get_input_embeddings().weight, backend.savings.storage
    table.view(table.weights, id(words)).fill_(3.0)
    assert backend.adapt_batches(batches, rows.select([0])) is batches, "another data set may hold other words"
    assert (words == 3.0).any(), "and is asked of trained words"
    backend.end_training()
    assert backend.adapt_batches(batches, rows) is batches
    for found, expected in zip(with_few_shapes(batches).epoch(), batches.epoch(), strict=True):
        width = expected.inputs["input_ids"].shape[1]
        assert found.inputs["input_ids"].shape[1] == 32
        assert torch.equal(found.inputs["input_ids"][:, :width], expected.inputs["input_ids"])
        assert found.inputs["attention_mask"].sum() == expected.inputs["attention_mask"].sum()
    assert batches.collate.multiple == 1, "the batches that were given are left alone"
    own = with_few_shapes(Batches(rows, PaddingCollator(tiny_tokenizer, pad_to_multiple_of=24), 2))
    assert own.collate.multiple == 96  # of 24, and of the 32 that graphs are captured for


def test_a_loss_of_a_packed_batch_gives_gradients_norm_and_step(rows: Dataset, tiny_tokenizer) -> None:
    model = tiny_model(dropout=0.0)
    before = weights_hash(model)
    backend = started(model, rows)
    (batch,) = backend.adapt_batches(Batches(rows, PaddingCollator(tiny_tokenizer), 4), rows).epoch()
    with backend.forward(model):
        loss = torch.nn.functional.cross_entropy(model(**backend.move(batch.inputs)).logits, batch.labels)
    backend.backward(loss)
    norm = backend.clip(model, 1.0)
    backend.step(backend.optimizer)
    backend.end_training()
    other, plain = tiny_model(dropout=0.0), PlainBackend()
    (batch,) = Batches(rows, PaddingCollator(tiny_tokenizer), 4).epoch()
    torch.nn.functional.cross_entropy(other(**batch.inputs).logits, batch.labels).backward()
    assert float(norm) == pytest.approx(float(plain.clip(other, 1.0)), rel=1e-5)
    assert weights_hash(model) != before


@pytest.mark.parametrize("read", [False, True])
def test_the_model_has_its_words_after_every_step_if_a_callback_reads_weights(rows: Dataset, read: bool) -> None:
    model = tiny_model()
    backend = started(model, rows, reads_weights=read)
    words, store = model.get_input_embeddings().weight, backend.savings.storage
    store.view(store.weights, id(words)).fill_(3.0)
    backend.clip(model, 0.0)
    backend.step(backend.optimizer)
    assert (words == 3.0).any() == read
    backend.end_training()
    assert (words == 3.0).any()


def test_a_pass_has_savings_for_its_time_or_those_of_a_training(rows: Dataset, tiny_tokenizer) -> None:
    model, backend = tiny_model(), PackedBackend()
    with backend.evaluation_context(model):
        assert backend.savings.vocabulary is None, "any words may come"
        assert "forward" in vars(model)
    assert "forward" not in vars(model)
    with pytest.raises(RuntimeError, match="in the middle"), backend.evaluation_context(model):
        raise RuntimeError("in the middle")
    assert backend.savings is None
    assert "forward" not in vars(model)
    model = tiny_model()
    backend = started(model, rows)
    savings = backend.savings
    with backend.evaluation_context(model):
        assert backend.savings is savings
    assert backend.savings is savings
    backend.end_training()
    model, backend = tiny_model(), PackedBackend()
    model.base_model.encoder.layer[0].register_forward_hook(lambda module, args, output: None)
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 2)
    with backend.evaluation_context(model):
        assert backend.adapt_batches(batches, rows) is batches


def test_savings_have_names_and_rows_that_differ_between_reads_train_all_word_vectors() -> None:
    rows = [[{"input_ids": [2, 7, 7, 9, 3], "labels": 1}]]  # one data set of one row
    words = f"5 of {len(VOCABULARY)} word vectors"  # those four, and that of padding
    use = TrainingUse(rows, 0.0)
    usual = ["packed batches", "last layer for first tokens only", "one-pass AdamW"]
    assert PackedBackend().describe_savings(tiny_model(), use) == [*usual, words]
    assert PackedBackend().describe_savings(tiny_model(), TrainingUse(rows, 0.01)) == usual
    assert PackedBackend("cpu", "bf16").describe_savings(tiny_model(), use) == [*usual, words, "bf16 copies of weights"]
    assert PackedBackend().describe_savings(tiny_model("modernbert"), use) == ["packed batches", "one-pass AdamW"]
    assert PackedBackend().describe_savings(tiny_model("deberta-v2"), use) == ["one-pass AdamW"]

    class Drawn:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"input_ids": [2, int(torch.randint(5, 20, ())), 3], "labels": 0}

    assert choose_vocabulary(tiny_model(), [[Drawn()[0]]], 0.0) is not None
    assert choose_vocabulary(tiny_model(), [[Drawn()[0]], Drawn()], 0.0) is None


def test_rows_that_are_predicted_at_once_keep_their_order() -> None:
    backend, model = PackedBackend(), lively().eval()
    given = [{"input_ids": row.tolist()} for row in ROWS]
    with backend.evaluation_context(model):
        together = backend.logits_of(given)
        alone = [backend.logits_of([row]) for row in given]
    torch.testing.assert_close(torch.tensor(together), torch.cat([*map(torch.tensor, alone)]), atol=1e-5, rtol=0)
    assert abs(together[0] - together[1]).max() > 0.01, "a wrong order would show"
