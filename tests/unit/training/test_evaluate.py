"""One pass over a split: every row once and in its own place, whatever the batches; the model is left as it was."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model

from glassloop.backends.plain import PlainBackend, SingleProcess
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.training.evaluate import Evaluation, run_over
from glassloop.training.losses import make_loss

LOSS = make_loss("single_label_classification")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(dropout=0.5, initializer_range=0.3)  # so that a wrong order would show


@pytest.fixture(scope="module")
def one_by_one(model, few, tiny_tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Logits and losses of plain calls of the model, a row at a time."""
    logits, losses = [], []
    model.eval()
    with torch.no_grad():
        for row in few["train"]:
            said = model(**{key: torch.tensor([value]) for key, value in row.items()})
            logits.append(said.logits[0].numpy())
            losses.append(said.loss.item())
    model.train()
    return np.stack(logits), np.array(losses)


def evaluated(model: Any, rows: Any, tokenizer: Any, batch_size: int, **options: Any) -> Any:
    return run_over(model, Batches(rows, PaddingCollator(tokenizer), batch_size, **options), PlainBackend(), LOSS)


@pytest.mark.parametrize("options", [{}, {"group_by_length": True}, {"seed": 3}], ids=["in order", "by length", "shuffled"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 29, 64])
def test_logits_are_those_of_calls(model, few, tiny_tokenizer, one_by_one, batch_size: int, options: dict[str, Any]) -> None:
    found = evaluated(model, few["train"], tiny_tokenizer, batch_size, **options)
    logits, losses = one_by_one
    np.testing.assert_allclose(found.logits, logits, atol=1e-5, rtol=0)
    assert found.labels.tolist() == few["train"]["labels"]
    assert found.loss == pytest.approx(losses.mean(), abs=1e-5)
    assert found.seconds > 0


class Share(SingleProcess):
    """One of several processes, asked in turn; `shares` holds what all before it have handed in."""

    def __init__(self, rank: int, number: int, shares: list[Any]) -> None:
        self.rank, self.num_processes, self.shares = rank, number, shares

    def gather_objects(self, rows: list[Any]) -> list[Any]:
        self.shares.extend(rows)
        return list(self.shares)


def share(model: Any, batches: Batches, *given: Any) -> Any:
    backend = PlainBackend()
    backend.processes = Share(*given)
    return run_over(model, batches, backend, LOSS)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_processes_take_whole_batches_and_the_whole_is_the_same(model, few, tiny_tokenizer, number: int) -> None:
    """The shares of all processes, put together, are bit-identical to those of one process."""
    batches = Batches(few["train"], PaddingCollator(tiny_tokenizer), 4, group_by_length=True)
    alone, shares = run_over(model, batches, PlainBackend(), LOSS), []
    found = [share(model, batches, rank, number, shares) for rank in range(number)][-1]
    assert np.array_equal(found.logits, alone.logits)
    assert np.array_equal(found.labels, alone.labels)
    assert found.loss == pytest.approx(alone.loss, abs=1e-6)
    assert sum(len(part) for share in shares for part in share[0]) == 29


def test_a_process_without_a_batch_hands_in_nothing(model, few, tiny_tokenizer) -> None:
    batches = Batches(few["train"].select(range(3)), PaddingCollator(tiny_tokenizer), 4)
    shares = [([np.array([0])], [np.zeros((1, 2))], [np.array([1])], 0.5)]
    found = share(model, batches, 1, 2, shares)
    assert shares[1:] == [([], [], [], 0.0)]
    assert (found.labels.tolist(), found.loss) == ([1], 0.5)


@pytest.mark.parametrize("training", [True, False])
def test_there_is_no_dropout_and_the_mode_comes_back_after_an_error_too(model, few, tiny_tokenizer, training: bool) -> None:
    model.train(training)
    before = torch.get_rng_state()
    first, second = (evaluated(model, few["validation"], tiny_tokenizer, 4) for _ in range(2))
    assert np.array_equal(first.logits, second.logits)
    assert torch.equal(torch.get_rng_state(), before), "no random number is drawn"
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())

    def fail(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_over(model, Batches(few["validation"], PaddingCollator(tiny_tokenizer), 4), PlainBackend(), fail)
    assert model.training is training
    model.train()


def test_rows_without_labels_or_a_loss_have_logits_alone_and_a_notebook_shows_a_table(model, few, tiny_tokenizer) -> None:
    found = evaluated(model, few["validation"].remove_columns("labels"), tiny_tokenizer, 4)
    assert (found.labels, found.loss) == (None, None)
    assert found.logits.shape == (len(few["validation"]), 2)
    found = run_over(model, Batches(few["validation"], PaddingCollator(tiny_tokenizer), 4), PlainBackend())
    assert (found.labels, found.loss) == (None, None)
    found = Evaluation(np.zeros((3, 2)), None, None, 1.0, {"eval_<b>": 0.5, "eval_runtime": 1.0})
    shown = found._repr_html_()
    assert "eval_&lt;b&gt;" in shown
    assert "0.5000" in shown
    assert "runtime" not in shown


def test_nothing_is_kept_but_logits_and_labels_as_plain_arrays(few, tiny_tokenizer) -> None:
    """A model that hands out its hidden states too: none of them outlives its batch."""

    class Generous(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
            hidden = torch.zeros(len(input_ids), 1234)
            made.add(hidden)
            return SimpleNamespace(logits=input_ids[:, :2].double(), hidden_states=hidden)

    made: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    alive: list[int] = []
    batches = Batches(few["train"], PaddingCollator(tiny_tokenizer), 4)
    whole = batches.whole

    def counted(*places: int) -> Any:
        for batch in whole(*places):
            alive.append(len(made))
            yield batch

    batches.whole = counted  # type: ignore[method-assign]
    found = run_over(Generous(), batches, PlainBackend(), LOSS)
    assert max(alive) <= 1, "the hidden states of more than one batch were alive at once"
    assert type(found.logits) is np.ndarray
    assert type(found.labels) is np.ndarray
    assert found.logits.dtype == np.float32
    assert found.logits.base is None or found.logits.base.size == found.logits.size
    assert type(found.loss) is float
