"""Which models the fast paths understand: known classes, exactly as transformers builds them, every weight in a known place."""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from glassloop.speed.encoders.parts import embeddings_of, layers_of

# Classifiers of transformers, by exact type, whose forward pass is: the encoder, then the first token of each row.
FIRST_TOKEN_CLASSIFIERS = (
    "AlbertForSequenceClassification",
    "BertForSequenceClassification",
    "CamembertForSequenceClassification",
    "Data2VecTextForSequenceClassification",
    "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification",
    "ErnieForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
)
# Classifiers that are packed through their own modules: attention through transformers' interface, positions by number.
MODULE_CLASSIFIERS = ("ModernBertForSequenceClassification",)
# Parts of an encoder that run as they are, token by token or on first tokens: all other weights belong to layers and tables.
RUN_AS_MODULES = ("pooler.", "embeddings_project.", "encoder.embedding_hidden_mapping_in.")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
READ_LIVE = ("training", "p", "inplace", "gradient_checkpointing")  # attributes that a fast path reads when it needs them


def is_from_transformers(kind: type) -> bool:
    return kind.__module__.startswith("transformers.models.")


def has_replaceable_layers(model: nn.Module) -> bool:
    """Whether this is a classifier whose layers have a fast form."""
    return type(model).__name__ in FIRST_TOKEN_CLASSIFIERS and is_from_transformers(type(model))


def packs_own_layers(model: nn.Module) -> bool:
    """Whether this is a classifier whose own modules take packed tokens."""
    return type(model).__name__ in MODULE_CLASSIFIERS and is_from_transformers(type(model))


def why_not_packed(model: Any) -> str | None:
    """Why packed batches cannot be given to a model; None where they can."""
    kind = type(model).__name__
    if not (has_replaceable_layers(model) or packs_own_layers(model)):
        return f"{kind} is not one of the classifiers that can be packed"
    if (changed := why_not_unmodified(model)) is not None:
        return changed
    if has_replaceable_layers(model):
        if not layers_of(model):
            return f"{kind} has layers of another form"
        if embeddings_of(model) is None or not all(
            plain_table(part) for part in model.modules() if isinstance(part, nn.Embedding)
        ):
            return f"{kind} has embeddings of another form"
        if "position_ids" not in inspect.signature(type(model).forward).parameters:
            return f"{kind} takes no position_ids"
        if (weight := unplaced_weight(model)) is not None:
            return f"the weight {weight} is in no known layer or table"
    return None


def why_not_unmodified(model: Any) -> str | None:
    """Why a model is not exactly what transformers builds from its config; None where it is.

    A fast path reads weights without calling the modules that hold them, and a captured CUDA graph calls nothing at all:
    a part that was replaced, patched or hooked would be ignored.
    """
    kind = type(model)
    if not is_from_transformers(kind):
        return f"{kind.__name__} is not a class of transformers"
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        return "hooks are registered for all modules"
    built = built_from_config(model)
    found = dict(model.named_modules())
    for name in [*found, *built]:
        part, wanted = found.get(name), built.get(name)
        if part is None or wanted is None or not wanted.is_like(part):
            return f"{name or kind.__name__} is not as transformers builds it"
        if any(vars(part).get(hooks) for hooks in HOOKS):
            return f"{name or kind.__name__} has hooks"
        if "forward" in vars(part) or not has_own_forward(type(part)):
            return f"the forward method of {name or kind.__name__} was replaced"
    return None


def why_not_flat(model: Any) -> str | None:
    """Why the weights of a model cannot be stored flat; None where they can."""
    if frozen := sum(not weight.requires_grad for weight in model.parameters()):
        return f"{frozen:,} weights are frozen"
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        return "the weights are not fp32"
    if any(type(weight) is not nn.Parameter or weight._backward_hooks for weight in model.parameters()):
        return "weights have hooks or a type of their own"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing is on"
    return None


def plain_table(table: nn.Embedding) -> bool:
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def unplaced_weight(model: Any) -> str | None:
    """The name of an encoder weight that no fast layer and no fast table reads; None where all have their place."""
    tables, placed = embeddings_of(model), set()
    for layer in layers_of(model):
        placed |= {id(weight) for group in (*layer.matrices, layer.vectors) for weight in group}
    if tables is not None:
        placed |= {id(part.weight) for part in (tables.words, tables.positions, tables.types) if part is not None}
        placed |= {id(weight) for weight in tables.vectors}
    for name, weight in model.base_model.named_parameters():
        if id(weight) not in placed and not name.startswith(RUN_AS_MODULES):
            return str(name)
    return None


@dataclass(frozen=True)
class Built:
    """What a module is, apart from the values of its weights: its class, plain attributes, and the shapes of its weights."""

    kind: type
    attributes: dict[str, object]
    weights: dict[str, torch.Size | None]

    @classmethod
    def of(cls, part: nn.Module) -> Built:
        plain = (int, float, str, bool, type(None))
        attributes = {
            name: value
            for name, value in vars(part).items()
            if type(value) in plain and not name.startswith("_") and name not in READ_LIVE
        }
        return cls(type(part), attributes, shapes_in(part))

    def is_like(self, part: nn.Module) -> bool:
        """Whether a module has the class, the weights and the attributes; ones that were added later change nothing."""
        return (
            type(part) is self.kind
            and shapes_in(part) == self.weights
            and all(vars(part).get(name, ...) == value for name, value in self.attributes.items())
        )


def shapes_in(part: nn.Module) -> dict[str, torch.Size | None]:
    """The shapes of the weights and buffers that a module holds itself."""
    held = {**part._parameters, **part._buffers}
    return {name: None if value is None else value.shape for name, value in held.items()}


BUILT: WeakKeyDictionary[nn.Module, tuple[dict[str, object], dict[str, Built]]] = WeakKeyDictionary()


def built_from_config(model: Any) -> dict[str, Built]:
    """Every module of a model as its class builds it from its config, without memory for weights; remembered."""
    settings = model.config.to_dict()
    if model not in BUILT or BUILT[model][0] != settings:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            fresh = type(model)(deepcopy(model.config))
        BUILT[model] = (settings, {name: Built.of(part) for name, part in fresh.named_modules()})
    return BUILT[model][1]


def has_own_forward(kind: type) -> bool:
    """Whether the forward method of a class is one that torch or transformers defined for it or for a parent."""
    forward: Any = getattr(kind, "forward", None)
    owner = next((parent for parent in kind.__mro__ if "forward" in vars(parent)), None)
    if owner is None or not owner.__module__.startswith(("torch.nn.", "transformers.")):
        return False
    named = getattr(forward, "__qualname__", ""), getattr(forward, "__module__", "")
    return named == (f"{owner.__qualname__}.forward", owner.__module__) or owner is nn.Module
