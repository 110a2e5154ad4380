"""AdamW over flat storage: the numbers of torch's AdamW, with clipping and decay, and the same state under the same names."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from packs import storage_of

from glassloop.backends.fast.optimizer import FlatAdamW, piecewise_norms
from glassloop.backends.fast.storage import ReducedVocabulary
from glassloop.base.errors import SettingsError
from glassloop.training.checkpoints import optimizer_tensors, restore_optimizer
from glassloop.training.optimizer import decay_groups

OPTIONS: dict[str, Any] = {"lr": 3e-3, "betas": (0.85, 0.97), "eps": 1e-7}


class Flat:
    """A model with flat storage and its optimizer."""

    def __init__(self, model: Any, decay: float, used: np.ndarray | None = None) -> None:
        self.model, groups = model, decay_groups(model, decay)
        words = model.get_input_embeddings().weight
        tables = {} if used is None else {id(words): ReducedVocabulary(used, len(words), torch.device("cpu"))}
        spared = {id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]}
        self.storage = storage_of(model, spared, tables=tables)
        self.optimizer = FlatAdamW(groups, self.storage, **OPTIONS)

    def step(self, gradients: dict[str, torch.Tensor], max_norm: float) -> float:
        for name, weight in self.model.named_parameters():
            table = self.storage.tables.get(id(weight))
            self.storage.add(weight, gradients[name] if table is None else table.select(gradients[name]))
        norm = self.optimizer.clip(max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)


class Plain:
    def __init__(self, model: Any, decay: float) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(decay_groups(model, decay), fused=True, **OPTIONS)

    def step(self, gradients: dict[str, torch.Tensor], max_norm: float) -> float:
        for name, weight in self.model.named_parameters():
            weight.grad = gradients[name].clone()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm or float("inf"))
        self.optimizer.step()
        return float(norm)


def gradients_of(model: Any, step: int, used: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(step)
    found = {name: torch.randn(weight.shape, generator=source) * 0.01 for name, weight in model.named_parameters()}
    if used is not None:
        name = next(name for name, weight in model.named_parameters() if weight is model.get_input_embeddings().weight)
        kept = torch.zeros_like(found[name])
        kept[used] = found[name][used]
        found[name] = kept
    return found


def same_weights(first: Any, second: Any) -> None:
    for (name, mine), other in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1000.0])
def test_twenty_steps_of_torchs_adamw(decay: float, max_norm: float) -> None:
    mine, other = Flat(tiny_model(), decay), Plain(tiny_model(), decay)
    for step in range(20):
        gradients = gradients_of(other.model, step)
        rate = 3e-3 * (1 - step / 20)
        for group in (*mine.optimizer.param_groups, *other.optimizer.param_groups):
            group["lr"] = rate
        norms = mine.step(gradients, max_norm), other.step(gradients, max_norm)
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 0.5, "the small limit was in force"
    same_weights(mine.model, other.model)
    assert (mine.model.classifier.weight - tiny_model().classifier.weight).abs().max() > 0.01


def test_decay_is_for_matrices_only() -> None:
    flat = Flat(tiny_model(), 0.5)
    before = copy.deepcopy(flat.model.state_dict())
    flat.step({name: torch.zeros_like(weight) for name, weight in flat.model.named_parameters()}, 0.0)
    for name, weight in flat.model.named_parameters():
        expected = before[name] * (1 - 3e-3 * 0.5) if weight.dim() > 1 else before[name]
        torch.testing.assert_close(weight.detach(), expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("used", [None, np.array([0, *range(4, 60)])], ids=["all words", "used words only"])
@pytest.mark.parametrize("starts", ["flat", "plain"])
def test_either_optimizer_resumes_from_the_state_of_the_other(starts: str, used: np.ndarray | None) -> None:
    reference = Plain(tiny_model(), 0.0)
    first = Flat(tiny_model(), 0.0, used) if starts == "flat" else Plain(tiny_model(), 0.0)
    for step in range(4):
        for trained in (first, reference):
            trained.step(gradients_of(reference.model, step, used), 1.0)
    if isinstance(first, Flat):
        for weight in first.storage.parameters:
            if id(weight) in first.storage.tables:
                table = first.storage.tables[id(weight)]
                weight.data.index_copy_(0, table.used, first.storage.view(first.storage.weights, id(weight)))
    loaded = tiny_model()
    loaded.load_state_dict(first.model.state_dict())
    second: Any = Plain(loaded, 0.0) if starts == "flat" else Flat(loaded, 0.0, used)
    restore_optimizer(loaded, second.optimizer, *optimizer_tensors(first.model, first.optimizer))
    assert second.optimizer.param_groups[0]["betas"] == (0.85, 0.97)
    for step in range(4, 8):
        for trained in (second, reference):
            trained.step(gradients_of(reference.model, step, used), 1.0)
    expected, _ = optimizer_tensors(reference.model, reference.optimizer)
    found, _ = optimizer_tensors(second.model, second.optimizer)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-8, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert found["step/classifier.weight"] == 8


def test_a_weight_without_a_gradient_does_not_keep_the_last_one_and_one_that_is_frozen_is_refused() -> None:
    flat = Flat(tiny_model(), 0.0)
    flat.step(gradients_of(flat.model, 0), 0.0)
    flat.storage.add(flat.model.classifier.bias, torch.ones(2))
    assert flat.optimizer.clip(0.0) == pytest.approx(2**0.5)
    # Frozen weights would still change, because the storage is updated as a whole.
    flat.model.classifier.requires_grad_(False)
    with pytest.raises(SettingsError, match="weights were frozen during training"):
        flat.step(gradients_of(flat.model, 1), 1.0)
    flat.model.classifier.requires_grad_(True)
    assert flat.optimizer.steps == 1


def test_the_norm_of_millions_is_right_to_seven_digits() -> None:
    source = torch.Generator().manual_seed(0)
    block = torch.randn(5_000_003, generator=source) * torch.rand(5_000_003, generator=source) ** 3
    found = torch.linalg.vector_norm(piecewise_norms(block))
    wanted = pytest.approx(float(block.double().norm()), rel=1e-6)
    assert float(found) == wanted != float(torch.linalg.vector_norm(block)), "as one sum it is not"
