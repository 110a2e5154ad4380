"""The backends that save work: put in place for a training or a pass, taken away after it, and plain where they cannot be."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import VOCABULARY, tiny_model, weights_hash
from packs import token_rows

from glassloop.backends.graphs import GraphsBackend
from glassloop.backends.packed import PackedBackend, with_few_shapes
from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.speed.capture.graph_step import GraphStep
from glassloop.speed.optimizer.adamw import FlatAdamW
from glassloop.speed.packing.packed_batches import PackedBatches

OPTIONS: dict[str, Any] = {"weight_decay": 0.0, "betas": (0.9, 0.999), "epsilon": 1e-8, "fused": True}


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return Dataset.from_dict({"input_ids": [row.tolist() for row in token_rows()], "labels": [0, 1, 0, 1]})


def opened(model: Any, rows: Any, decay: float = 0.0, shown: bool = False, adds: bool = False) -> PackedBackend:
    backend = PackedBackend()
    make = backend.open(model, [rows], decay, shown=shown, adds=adds)
    make(model, 1e-3, **OPTIONS | {"weight_decay": decay})
    return backend


# --- a training --------------------------------------------------------------------------------------------------


def test_a_training_has_its_savings_and_leaves_none(rows: Dataset) -> None:
    model = tiny_model()
    before = weights_hash(model)
    backend = opened(model, rows)
    assert isinstance(backend.optimizer, FlatAdamW)
    assert "forward" in vars(model)
    backend.close()
    assert (backend.savings, backend.optimizer, backend.known) == (None, None, [])
    assert "forward" not in vars(model)
    assert weights_hash(model) == before
    backend.close()  # a second time is no harm


@pytest.mark.parametrize(("decay", "shown", "small"), [(0.0, False, True), (0.01, False, False), (0.0, True, False)])
def test_only_used_words_are_trained_where_that_is_exact_and_nobody_looks(
    rows: Dataset, decay: float, shown: bool, small: bool
) -> None:
    model = tiny_model()
    backend = opened(model, rows, decay, shown)
    assert (backend.savings.vocabulary is not None) == small
    words = model.get_input_embeddings().weight
    assert (len(backend.savings.storage.gradient(words)) < len(words)) == small
    backend.close()


@pytest.mark.parametrize(
    ("device", "shown", "adds", "low"),
    [("cuda", False, False, True), ("cuda", True, False, False), ("cuda", False, True, False), ("cpu", False, False, False)],
)
def test_gradients_are_whole_where_they_are_looked_at_or_added_up(
    rows: Dataset, device: str, shown: bool, adds: bool, low: bool
) -> None:
    """And on a CPU, whose AdamW takes no others."""
    model, backend = tiny_model(), PackedBackend("cpu", "bf16")
    backend.device = torch.device(device)
    backend.open(model, [rows], 0.0, shown=shown, adds=adds)
    assert backend.savings.storage.matrix_gradients.dtype == (torch.bfloat16 if low else torch.float32)
    backend.close()


def test_batches_of_known_rows_are_packed_and_others_stay_padded(rows: Dataset, tiny_tokenizer) -> None:
    model = tiny_model()
    backend = opened(model, rows)
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 2)
    assert isinstance(backend.batches(batches, rows), PackedBatches)
    words, table = model.get_input_embeddings().weight, backend.savings.storage
    table.view(table.weights, id(words)).fill_(3.0)
    assert backend.batches(batches, rows.select([0])) is batches, "another data set may hold other words"
    assert (words == 3.0).any(), "and is asked of trained words"
    backend.close()
    assert backend.batches(batches, rows) is batches


def test_a_loss_of_a_packed_batch_gives_gradients_norm_and_step(rows: Dataset, tiny_tokenizer) -> None:
    model = tiny_model(dropout=0.0)
    before = weights_hash(model)
    backend = opened(model, rows)
    (batch,) = backend.batches(Batches(rows, PaddingCollator(tiny_tokenizer), 4), rows).epoch()
    with backend.forward(model):
        loss = torch.nn.functional.cross_entropy(model(**backend.move(batch.inputs)).logits, batch.labels)
    backend.backward(loss)
    norm = backend.clip(model, 1.0)
    backend.step(backend.optimizer)
    backend.close()
    other, plain = tiny_model(dropout=0.0), PlainBackend()
    (batch,) = Batches(rows, PaddingCollator(tiny_tokenizer), 4).epoch()
    torch.nn.functional.cross_entropy(other(**batch.inputs).logits, batch.labels).backward()
    assert float(norm) == pytest.approx(float(plain.clip(other, 1.0)), rel=1e-5)
    assert weights_hash(model) != before


@pytest.mark.parametrize("watched", [False, True])
def test_words_are_in_the_module_after_every_step_where_somebody_may_look(rows: Dataset, watched: bool) -> None:
    model = tiny_model()
    backend = opened(model, rows)
    backend.watched = watched
    words, store = model.get_input_embeddings().weight, backend.savings.storage
    store.view(store.weights, id(words)).fill_(3.0)
    backend.clip(model, 0.0)
    backend.step(backend.optimizer)
    assert (words == 3.0).any() == watched
    backend.close()
    assert (words == 3.0).any()


# --- a pass ------------------------------------------------------------------------------------------------------


def test_a_pass_alone_has_savings_for_its_time(rows: Dataset) -> None:
    model, backend = tiny_model(), PackedBackend()
    with backend.equipped(model):
        assert backend.savings.vocabulary is None, "any words may come"
        assert "forward" in vars(model)
    assert "forward" not in vars(model)
    with pytest.raises(RuntimeError, match="in the middle"), backend.equipped(model):
        raise RuntimeError("in the middle")
    assert backend.savings is None
    assert "forward" not in vars(model)


def test_a_pass_within_a_training_keeps_the_trainings_savings(rows: Dataset) -> None:
    model = tiny_model()
    backend = opened(model, rows)
    savings = backend.savings
    with backend.equipped(model):
        assert backend.savings is savings
    assert backend.savings is savings
    backend.close()


def test_a_model_that_was_changed_since_is_passed_over_as_it_is(rows: Dataset, tiny_tokenizer) -> None:
    model, backend = tiny_model(), PackedBackend()
    model.base_model.encoder.layer[0].register_forward_hook(lambda module, args, output: None)
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 2)
    with backend.equipped(model):
        assert backend.batches(batches, rows) is batches


# --- words, shapes, graphs ---------------------------------------------------------------------------------------


def test_savings_have_names() -> None:
    rows = [[{"input_ids": [2, 7, 7, 9, 3], "labels": 1}]]  # one data set of one row
    words = f"5 of {len(VOCABULARY)} word vectors"  # those four, and that of padding
    usual = ["packed batches", "last layer for first tokens only", "one-pass AdamW"]
    assert PackedBackend().saved_names(tiny_model(), rows, 0.0) == [*usual, words]
    assert PackedBackend().saved_names(tiny_model(), rows, 0.01) == usual
    assert PackedBackend("cpu", "bf16").saved_names(tiny_model(), rows, 0.0) == [*usual, words, "bf16 copies of weights"]
    assert PackedBackend().saved_names(tiny_model("modernbert"), rows, 0.0) == ["packed batches", "one-pass AdamW"]
    assert PackedBackend().saved_names(tiny_model("deberta-v2"), rows, 0.0) == ["one-pass AdamW"]


def test_padded_batches_of_few_shapes_hold_the_same(rows: Dataset, tiny_tokenizer) -> None:
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 2)
    for found, expected in zip(with_few_shapes(batches).epoch(), batches.epoch(), strict=True):
        width = expected.inputs["input_ids"].shape[1]
        assert found.inputs["input_ids"].shape[1] == 32
        assert torch.equal(found.inputs["input_ids"][:, :width], expected.inputs["input_ids"])
        assert found.inputs["attention_mask"].sum() == expected.inputs["attention_mask"].sum()
    assert batches.collate.multiple == 1, "the batches that were given are left alone"


def test_what_is_no_tensor_is_not_moved() -> None:
    moved = PackedBackend().move({"packed": torch.ones(2), "rows": 3, "filled": False})
    assert (moved["rows"], moved["filled"]) == (3, False)
    assert torch.equal(moved["packed"], torch.ones(2))


@pytest.mark.parametrize("shown", [False, True])
def test_steps_are_captured_unless_somebody_looks_at_gradients(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called in a step would not be called when the step is replayed."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    backend = GraphsBackend("cpu", "fp32")
    backend.shown = shown
    runner = backend.runner(lambda group, scheduler: torch.zeros(2), None, None, print)
    assert isinstance(runner, GraphStep) != shown


def test_a_model_that_cannot_be_packed_can_still_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    backend = GraphsBackend("cpu", "fp32")
    assert backend.why_not(tiny_model("deberta-v2")) is None
    assert PackedBackend().why_not(tiny_model("deberta-v2")) is not None
    frozen = tiny_model()
    frozen.base_model.requires_grad_(False)
    assert backend.why_not(frozen) == "39 weights are frozen"


@pytest.mark.parametrize("change", ["hook", "forward", "class"])
def test_a_model_that_is_not_as_transformers_builds_it_is_not_captured(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed graph calls no Python: what a hook or a patched method does would happen once."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    model = tiny_model("deberta-v2")
    if change == "hook":
        model.deberta.encoder.register_forward_hook(lambda module, args, output: None)
    elif change == "forward":
        model.forward = model.forward
    else:
        model = type("Mine", (type(model),), {})(model.config)
    assert GraphsBackend("cpu", "fp32").why_not(model) is not None


@pytest.mark.parametrize("fails", [False, True])
def test_what_comes_after_a_training_waits_for_its_stream(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not: with a busy GPU an evaluation read weights that were still on their way, and found what lay there before."""
    happened: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: str = "own") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            happened.append((self.name, other.name))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("outer"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    backend = GraphsBackend("cpu", "fp32")

    def train() -> None:
        with backend.stage():
            happened.append(("work", "done"))
            if fails:
                raise ValueError("oh")

    with pytest.raises(ValueError, match="oh") if fails else nullcontext():
        train()
    assert happened == [("own", "outer"), ("work", "done"), ("outer", "own")]


def test_rows_that_differ_between_reads_train_all_word_vectors() -> None:
    class Drawn:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"input_ids": [2, int(torch.randint(5, 20, ())), 3], "labels": 0}

    backend = PackedBackend()
    assert backend.vocabulary_of(tiny_model(), [[Drawn()[0]]], 0.0) is not None
    assert backend.vocabulary_of(tiny_model(), [[Drawn()[0]], Drawn()], 0.0) is None
