"""A copy of a training between two steps: weights, optimizer state, random states, and plain values as JSON holds them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import torch

from glassloop.engine.identity import Identity
from glassloop.engine.interfaces import Optimizer, OptimizerState, Tensors
from glassloop.engine.optimizer import unwrap_optimizer
from glassloop.errors import ModelError

OTHER_MODEL = "the checkpoint belongs to another model"
PlainRandom: TypeAlias = list[Any]  # the random states of Python and of NumPy


class OptimizerSettings(TypedDict):
    """The settings of each group of an optimizer's parameters, such as its learning rate."""

    groups: list[dict[str, Any]]


class PlainValues(TypedDict):
    """Everything about a training that is not a tensor; state.json of a checkpoint holds it."""

    state: dict[str, Any]
    optimizer: OptimizerSettings
    scheduler: dict[str, Any]
    scaler: dict[str, Any]
    random: list[PlainRandom]  # one per process
    processes: int
    versions: dict[str, str]
    tensors: NotRequired[dict[str, dict[str, str]]]  # shape and type of each tensor in each file


@dataclass(frozen=True)
class Snapshot:
    """A training between two steps, copied to main memory, so that it can continue while the copy is written."""

    model: Tensors
    optimizer: Tensors
    best: Tensors  # the weights of the best evaluation
    randoms: list[Tensors]  # one per process
    rows: torch.Tensor  # a hash of each training row
    plain: PlainValues
    identity: Identity  # what must not change when the run is resumed
    texts: Mapping[str, str] = field(default_factory=dict)  # files for other programs, by name

    @property
    def step(self) -> int:
        """Return the number of steps that were taken."""
        return int(self.plain["state"]["step"])

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensors."""
        tensors = [*self.model.values(), *self.optimizer.values(), *self.best.values(), self.rows]
        return sum(tensor.nbytes for tensor in tensors)


def optimizer_tensors(
    model: torch.nn.Module, optimizer: Optimizer, gathered: OptimizerState | None = None
) -> tuple[Tensors, OptimizerSettings]:
    """Return the optimizer's state by the names of the parameters, and its settings.

    `gathered` is used in place of the optimizer's own state, of which a process may hold only a part.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = unwrap_optimizer(optimizer)
    own: Mapping[Any, Mapping[str, Any]] = inner.torch_state() if hasattr(inner, "torch_state") else inner.state
    tensors = {}
    for parameter, values in (own if gathered is None else gathered).items():
        for key, value in values.items():
            if value is not None:  # as SGD without momentum has it
                tensors[f"{key}/{names[id(parameter)]}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    return tensors, {"groups": groups}


def restore_optimizer(model: torch.nn.Module, optimizer: Optimizer, tensors: Tensors, settings: OptimizerSettings) -> None:
    """Restore what `optimizer_tensors` returned; raise `ModelError` if it does not fit the model."""
    inner, parameters = unwrap_optimizer(optimizer), dict(model.named_parameters())
    inner.state.clear()
    for name, value in tensors.items():
        key, _, parameter_name = name.partition("/")
        if parameter_name not in parameters:
            raise ModelError(f"optimizer.safetensors: {name} does not belong to a parameter of the model", OTHER_MODEL)
        parameter = parameters[parameter_name]
        if value.dim() == parameter.dim() and value.shape != parameter.shape:  # Adafactor keeps rows and columns
            raise ModelError(f"optimizer.safetensors: {name} has the shape {tuple(value.shape)}", OTHER_MODEL)
        where = "cpu" if key == "step" and not inner.defaults.get("fused") else parameter.device
        inner.state[parameter][key] = value.to(where)
    if hasattr(inner, "load_torch_state"):
        inner.load_torch_state()
    for group, stored in zip(inner.param_groups, settings["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})


def random_tensors(device: torch.device) -> tuple[Tensors, PlainRandom]:
    """Return the random states of this process: torch's as tensors, Python's and NumPy's as plain values."""
    tensors = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    kind, numpy_keys, *rest = np.random.get_state()
    return tensors, [random.getstate(), [kind, np.asarray(numpy_keys).tolist(), *rest]]


def restore_random(tensors: Tensors, plain: PlainRandom, device: torch.device) -> None:
    """Restore what `random_tensors` returned."""
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)
    version, values, gauss = plain[0]
    random.setstate((version, tuple(values), gauss))
    kind, numpy_keys, *rest = plain[1]
    np.random.set_state((kind, np.array(numpy_keys, dtype=np.uint32), *rest))
