"""Dropout masks drop the right share, and the same random state draws the same masks."""

from __future__ import annotations

import pytest
import torch
from families import tiny_model
from packs import inputs_of, token_rows

from glassloop.backends.fast.operations import RATE_STEPS, DropoutMasks
from glassloop.backends.fast.training_model import ReplacedLayers

CPU = torch.device("cpu")


def started(seed: int = 1) -> DropoutMasks:
    torch.manual_seed(seed)
    masks = DropoutMasks(CPU)
    masks.start()
    return masks


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_and_the_rest_is_scaled_by_it(rate: float) -> None:
    mask = started().draw(torch.empty(1000, 1001), rate)
    assert mask is not None
    assert (mask == 0).float().mean() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 1e6) ** 0.5)
    part = round(rate * RATE_STEPS)
    gain = float(mask.max())
    assert set(mask.unique().tolist()) == {0.0, gain}
    assert gain == pytest.approx(RATE_STEPS / (RATE_STEPS - part), rel=1e-6)
    assert gain == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_masks_of_adjacent_places_are_independent() -> None:
    """Four masks come from one draw of 64 bits: the four must be independent of each other and of their neighbours."""
    signs = started().draw(torch.empty(1_000_000), 0.5) - 1
    for place in range(4):
        assert abs(signs[place::4].mean()) < 0.01
    for distance in (1, 2, 3, 4):
        assert abs((signs[:-distance] * signs[distance:]).mean()) < 0.005


def test_the_same_seed_gives_the_same_masks_and_calls_differ() -> None:
    like = torch.empty(50, 7)
    first, second = started(3), started(3)
    drawn = [first.draw(like, 0.3) for _ in range(3)]
    assert all(torch.equal(mask, second.draw(like, 0.3)) for mask in drawn)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], started(4).draw(like, 0.3))


def test_every_pass_draws_new_masks() -> None:
    masks, like = started(), torch.empty(50, 7)
    first = masks.draw(like, 0.3)
    masks.start()
    assert not torch.equal(first, masks.draw(like, 0.3))


def test_without_dropout_nothing_is_drawn() -> None:
    masks = DropoutMasks(CPU)
    assert masks.draw(torch.empty(3), 0.0) is None
    assert masks.generator is None


def test_dropping_everything_leaves_zeros() -> None:
    assert started().draw(torch.empty(100), 1.0).abs().sum() == 0


@pytest.mark.parametrize("training", [False, True])
def test_a_packed_evaluation_draws_nothing_from_torchs_random_state(training: bool) -> None:
    model = tiny_model(dropout=0.1).train(training)
    savings = ReplacedLayers(model)
    before = torch.get_rng_state()
    with torch.no_grad():
        answers = [model(**inputs_of(model, token_rows())).logits for _ in range(2)]
    savings.remove()
    assert torch.equal(*answers) != training
    assert torch.equal(before, torch.get_rng_state()) != training
