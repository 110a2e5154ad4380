"""The states of an optimizer and of random generators are restored bit for bit."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from families import tiny_model

from glassloop.base.errors import ModelError
from glassloop.training.checkpoints import Snapshot, optimizer_tensors, random_tensors, restore_optimizer, restore_random

CPU = torch.device("cpu")


def stepped(model: torch.nn.Module, fused: bool = True) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("fused", [True, False])
def test_the_optimizer_comes_back_bit_for_bit(fused: bool) -> None:
    first, second = tiny_model(), tiny_model()
    one, two = stepped(first, fused), torch.optim.AdamW(second.parameters(), lr=0.5, fused=fused)
    second.load_state_dict(first.state_dict())
    tensors, plain = optimizer_tensors(first, one)
    restore_optimizer(second, two, tensors, json.loads(json.dumps(plain)))
    for model, optimizer in ((first, one), (second, two)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_random_states_come_back() -> None:
    tensors, plain = random_tensors(CPU)
    expected = (random.random(), np.random.rand(), torch.rand(3).tolist())
    restore_random(tensors, json.loads(json.dumps(plain)), CPU)
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected


def test_the_step_and_the_size_of_a_snapshot() -> None:
    weights = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)}
    snapshot = Snapshot(weights, {"c": torch.zeros(1)}, {}, [], torch.zeros(5), {"state": {"step": 7}}, {})
    assert (snapshot.step, snapshot.num_bytes) == (7, 12 + 16 + 4 + 20)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"exp_avg/unknown": torch.zeros(2)}, "exp_avg/unknown does not belong to a parameter of the model"),
        ({"exp_avg/classifier.bias": torch.zeros(7)}, "exp_avg/classifier.bias has the shape"),
    ],
)
def test_the_state_of_another_models_optimizer_is_refused(tensors: dict[str, torch.Tensor], problem: str) -> None:
    model = tiny_model()
    with pytest.raises(ModelError, match=problem):
        restore_optimizer(model, stepped(model), tensors, {"groups": []})
