"""Which models the fast paths accept: known classes, as transformers builds them, with every weight in a known place."""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from glassloop.models.families import FAMILIES, Family
from glassloop.speed.encoder_parts import embeddings_of, layers_of
from glassloop.transformers_types import Model

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
MAY_CHANGE = ("training", "p", "inplace", "gradient_checkpointing")  # attributes that a fast path reads in each step


def is_from_transformers(kind: type) -> bool:
    """Return whether a class belongs to a model of transformers."""
    return kind.__module__.startswith("transformers.models.")


def family_of(model: Model) -> Family | None:
    """Return the family of a model; None if its class is not exactly the classifier of a family."""
    kind = type(model)
    family = FAMILIES.get(model.config.model_type) if is_from_transformers(kind) else None
    return family if family is not None and family.classifier == kind.__name__ else None


def has_replaceable_layers(model: Model) -> bool:
    """Return whether this is a classifier whose layers have a fast form."""
    family = family_of(model)
    return family is not None and family.packing == "layers"


def packs_own_layers(model: Model) -> bool:
    """Return whether this is a classifier whose own layers accept packed tokens."""
    family = family_of(model)
    return family is not None and family.packing == "modules"


def why_not_packed(model: Model) -> str | None:
    """Return why a model cannot take packed batches; None if it can."""
    kind = type(model).__name__
    if not (has_replaceable_layers(model) or packs_own_layers(model)):
        return f"{kind} is not a classifier that can be packed"
    if (changed := why_not_unmodified(model)) is not None:
        return changed
    if has_replaceable_layers(model):
        if not layers_of(model):
            return f"{kind} has layers without a fast form"
        tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
        if embeddings_of(model) is None or not all(map(is_plain_table, tables)):
            return f"{kind} has embeddings without a fast form"
        if "position_ids" not in inspect.signature(type(model).forward).parameters:
            return f"{kind} does not accept position_ids"
        if (weight := unread_weight(model)) is not None:
            return f"the weight {weight} is not part of a known layer or embedding table"
    return None


def why_not_unmodified(model: Model) -> str | None:
    """Return how a model differs from what transformers builds from its config; None if it does not.

    A fast path reads weights without calling their modules, and a captured CUDA graph calls no Python at all: a part that was
    replaced, patched or hooked would be ignored.
    """
    kind = type(model)
    if not is_from_transformers(kind):
        return f"{kind.__name__} is not a class of transformers"
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        return "hooks are registered for all modules"
    built = blueprints_of(model)
    found = dict(model.named_modules())
    for name in [*found, *built]:
        part, wanted = found.get(name), built.get(name)
        if part is None or wanted is None or not wanted.is_like(part):
            return f"{name or kind.__name__} differs from what transformers builds"
        if any(vars(part).get(hooks) for hooks in HOOKS):
            return f"{name or kind.__name__} has hooks"
        if "forward" in vars(part) or not has_library_forward(type(part)):
            return f"the forward method of {name or kind.__name__} was replaced"
    return None


def why_not_flat(model: Model) -> str | None:
    """Return why the weights of a model cannot be stored flat; None if they can."""
    if frozen := sum(not weight.requires_grad for weight in model.parameters()):
        return f"{frozen:,} weights are frozen"
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        return "the weights are not fp32"
    if any(type(weight) is not nn.Parameter or weight._backward_hooks for weight in model.parameters()):
        return "weights have hooks or a type of their own"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing is on"
    return None


def is_plain_table(table: nn.Embedding) -> bool:
    """Return whether an embedding has no option that changes its gradients or its values."""
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def unread_weight(model: Model) -> str | None:
    """Return the name of an encoder weight that no fast layer and no fast table reads; None if there is none."""
    tables, family = embeddings_of(model), FAMILIES.get(model.config.model_type)
    known = {id(weight) for layer in layers_of(model) for group in (*layer.matrices, layer.vectors) for weight in group}
    if tables is not None:
        known |= {id(weight) for weight in (*tables.tables, *tables.vectors)}
    run_as_they_are = tuple(f"{part}." for part in family.unpacked) if family is not None else ()
    for name, weight in model.base_model.named_parameters():
        if id(weight) not in known and not name.startswith(run_as_they_are):
            return str(name)
    return None


@dataclass(frozen=True)
class Blueprint:
    """What a module is, without the values of its weights: its class, plain attributes, and the shapes of its weights."""

    kind: type
    attributes: dict[str, object]
    weights: dict[str, torch.Size | None]

    @classmethod
    def of(cls, part: nn.Module) -> Blueprint:
        """Return the blueprint of a module."""
        plain = (int, float, str, bool, type(None))
        attributes = {
            name: value
            for name, value in vars(part).items()
            if type(value) in plain and not name.startswith("_") and name not in MAY_CHANGE
        }
        return cls(type(part), attributes, weight_shapes(part))

    def is_like(self, part: nn.Module) -> bool:
        """Return whether a module has this class, these weights and these attributes; it may have more attributes."""
        return (
            type(part) is self.kind
            and weight_shapes(part) == self.weights
            and all(vars(part).get(name, ...) == value for name, value in self.attributes.items())
        )


def weight_shapes(part: nn.Module) -> dict[str, torch.Size | None]:
    """Return the shapes of the weights and buffers that a module holds itself."""
    held = {**part._parameters, **part._buffers}
    return {name: None if value is None else value.shape for name, value in held.items()}


BLUEPRINTS: WeakKeyDictionary[nn.Module, tuple[dict[str, object], dict[str, Blueprint]]] = WeakKeyDictionary()


def blueprints_of(model: Model) -> dict[str, Blueprint]:
    """Return every module of a model as its class builds it from its config, without memory for weights; cached."""
    settings = model.config.to_dict()
    if model not in BLUEPRINTS or BLUEPRINTS[model][0] != settings:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            fresh = type(model)(deepcopy(model.config))
        BLUEPRINTS[model] = (settings, {name: Blueprint.of(part) for name, part in fresh.named_modules()})
    return BLUEPRINTS[model][1]


def has_library_forward(kind: type) -> bool:
    """Return whether torch or transformers defined the forward method of a class, or of its parent."""
    forward: object = getattr(kind, "forward", None)
    owner = next((parent for parent in kind.__mro__ if "forward" in vars(parent)), None)
    if owner is None or not owner.__module__.startswith(("torch.nn.", "transformers.")):
        return False
    named = getattr(forward, "__qualname__", ""), getattr(forward, "__module__", "")
    return named == (f"{owner.__qualname__}.forward", owner.__module__) or owner is nn.Module
