"""The parts of an encoder that fast layers read, and which models have a fast form."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from operator import attrgetter
from types import FunctionType
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from glassloop.data.interfaces import Model
from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS, EncoderLayout, Family, head_activation


@dataclass(frozen=True, eq=False)
class LayerParts:
    """Attention (query, key, value, out), a sum and its norm; feed-forward (up, GELU, down), a sum and its norm."""

    module: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    out_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    down_norm: nn.LayerNorm
    heads: int
    gelu_approximate: str
    # Of the attention probabilities, after `out`, after `down`; None if the family has none.
    dropouts: tuple[nn.Dropout | None, nn.Dropout | None, nn.Dropout | None]

    @property
    def dropout_rates(self) -> tuple[float, float, float]:
        rates = [float(part.p) if part is not None else 0.0 for part in self.dropouts]
        return rates[0], rates[1], rates[2]

    @property
    def matrices(self) -> list[list[torch.Tensor]]:
        """Return groups of weights that are multiplied as one matrix: query, key and value are."""
        groups = [[self.query, self.key, self.value], [self.out], [self.up], [self.down]]
        return [[part.weight for part in group] for group in groups]

    @property
    def vectors(self) -> list[torch.Tensor]:
        """Return biases and norms, in the order in which the kernels write their gradients."""
        return [
            self.query.bias, self.key.bias, self.value.bias, self.out.bias, self.out_norm.weight, self.out_norm.bias,
            self.up.bias, self.down.bias, self.down_norm.weight, self.down_norm.bias,
        ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class EmbeddingParts:
    """The tables of word, position and token type vectors, the norm of their sum, and its dropout."""

    module: nn.Module
    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    norm: nn.LayerNorm
    dropout: nn.Dropout

    @property
    def tables(self) -> list[torch.Tensor]:
        return [table.weight for table in (self.words, self.positions, self.types) if table is not None]

    @property
    def vectors(self) -> list[torch.Tensor]:
        return [self.norm.weight, self.norm.bias]


@dataclass(frozen=True, eq=False)
class HeadParts:
    """The classification head: a layer on the first token, its activation, and the outputs."""

    dense: nn.Linear
    activate: Callable[[torch.Tensor], torch.Tensor]
    outputs: nn.Linear

    def __call__(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of rows from the vectors of their first tokens."""
        found: torch.Tensor = self.outputs(self.activate(self.dense(first_tokens)))
        return found


def layout_of(model: Model) -> EncoderLayout | None:
    """Return where the parts of a model's encoder are; None if its family has no fast layers."""
    family = FAMILIES.get(model.config.model_type)
    return family.layout if family is not None else None


def layers_of(model: Model) -> list[LayerParts]:
    """Return each layer of an encoder once (ALBERT runs one several times); an empty list if it has no fast form."""
    config, layout = model.config, layout_of(model)
    approximate = GELU_APPROXIMATIONS.get(str(getattr(config, "hidden_act", getattr(config, "activation", ""))))
    if approximate is None or layout is None or getattr(config, "is_decoder", False):
        return []
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return []
    try:
        layers = [model.base_model]
        for path in layout.layers:
            layers = [layer for start in layers for layer in attrgetter(path)(start)]
        return [layer_parts(layer, layout, approximate) for layer in layers]
    except AttributeError:  # a version of transformers that builds this family in another way
        return []


def layer_parts(layer: nn.Module, layout: EncoderLayout, approximate: str) -> LayerParts:
    query, key, value = attrgetter(layout.query, layout.key, layout.value)(layer)
    out, out_norm = attrgetter(layout.attention_output, layout.attention_norm)(layer)
    up, down, down_norm = attrgetter(layout.up, layout.down, layout.feed_forward_norm)(layer)
    heads = attrgetter(layout.num_heads)(layer)
    of_attention, after_out, after_down = (attrgetter(path)(layer) if path else None for path in layout.dropouts)
    return LayerParts(
        layer, query, key, value, out, out_norm, up, down, down_norm, heads, approximate, (of_attention, after_out, after_down)
    )


def layer_calls(model: Model) -> list[int]:
    """Return the layers that a forward pass goes through, by their place in `layers_of`: ALBERT's run several times."""
    config = model.config
    number, inner = int(config.num_hidden_layers), int(getattr(config, "inner_group_num", 1))
    groups = int(getattr(config, "num_hidden_groups", number))
    return [int(place / (number / groups)) * inner + part for place in range(number) for part in range(inner)]


def embeddings_of(model: Model) -> EmbeddingParts | None:
    """Return the embedding tables of a model; None if they have no fast form."""
    layout = layout_of(model)
    if layout is None:
        return None
    try:
        module = attrgetter(layout.embeddings)(model.base_model)
        words, positions, norm, dropout = attrgetter(
            layout.words, layout.positions, layout.embeddings_norm, layout.embeddings_dropout
        )(module)
    except AttributeError:  # a version of transformers that builds this family in another way
        return None
    return EmbeddingParts(module, words, positions, getattr(module, layout.token_types, None), norm, dropout)


def head_of(model: Model) -> HeadParts | None:
    """Return the classification head of a model; None if it is not known."""
    family = FAMILIES.get(model.config.model_type)
    if family is None or family.head is None:
        return None
    dense, outputs = linear_at(model, family.head.dense), linear_at(model, family.head.outputs)
    return HeadParts(dense, head_activation(family.head.activation), outputs) if dense and outputs else None


def projection_of(model: Model) -> nn.Linear | None:
    """Return the linear layer between the embeddings and the first layer; None if a model has none."""
    family = FAMILIES.get(model.config.model_type)
    return linear_at(model, family.projection) if family is not None and family.projection is not None else None


def linear_at(model: Model, path: str) -> nn.Linear | None:
    """Return the linear layer at an attribute path that starts at a classifier or at its encoder; None if there is none."""
    for start in (model, model.base_model):
        with suppress(AttributeError):
            found = attrgetter(path)(start)
            return found if isinstance(found, nn.Linear) else None
    return None


def uncounted_token_of(model: Model) -> int | None:
    """Return the id of the padding token if positions start after this number and skip the token; None if they start at 0."""
    family = FAMILIES.get(model.config.model_type)
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return int(padding) if family is not None and family.positions_after_padding and padding is not None else None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
# Where the code of torch and transformers is, and that of the context managers they write as methods.
LIBRARIES = (
    *(f"{os.path.dirname(str(spec.origin))}{os.sep}" for spec in map(find_spec, ("torch", "transformers")) if spec),  # noqa: PTH120
    contextlib.__file__,
)
MAY_CHANGE = ("training", "p", "inplace", "gradient_checkpointing")  # attributes that a fast path reads in each step


def is_from_transformers(kind: type) -> bool:
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
    # What is supported is listed, not what is excluded: a gap in a list of exclusions would be a wrong result without
    # an error. The tree built on the meta device takes 10 to 30 ms and no memory.
    kind = type(model).__name__
    if not (has_replaceable_layers(model) or packs_own_layers(model)):
        return f"{kind} is not a classifier that can be packed"
    if (changed := why_not_unmodified(model)) is not None:
        return changed
    if has_replaceable_layers(model):
        if not layers_of(model):
            return f"{kind} has layers without a fast form"
        tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
        # Options that change the gradients or the values of a table.
        changes = any(table.max_norm is not None or table.sparse or table.scale_grad_by_freq for table in tables)
        if embeddings_of(model) is None or changes:
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
    built, shared = blueprints_of(model)
    found, methods = dict(model.named_modules()), {part: replaced_method(part) for part in {*map(type, model.modules())}}
    for name in [*found, *built]:
        part, wanted, title = found.get(name), built.get(name), name or kind.__name__
        if part is None or wanted is None or not wanted.is_like(part):
            return f"{title} differs from what transformers builds"
        if any(vars(part).get(hooks) for hooks in HOOKS):
            return f"{title} has hooks"
        if method := wanted.method_replaced_in(part) or methods[type(part)]:
            return f"the {method} method of {title} was replaced"
    if different := {*shared_weights(model)} ^ {*shared}:
        return f"{min(min(names) for names in different)} is shared differently than transformers builds it"
    return None


def why_not_flat(model: Model) -> str | None:
    """Return why the weights of a model cannot be stored flat; None if they can."""
    if frozen := sum(not weight.requires_grad for weight in model.parameters()):
        return f"{frozen:,} weights are frozen"
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        return "the weights are not fp32"
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")  # called with a gradient before or after it is added
    if any(
        type(weight) is not nn.Parameter or any(getattr(weight, name, None) for name in hooks) for weight in model.parameters()
    ):
        return "weights have hooks or a type of their own"
    spans = sorted((weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in model.parameters())
    if any(stop > start for (_, stop), (start, _) in pairwise(spans)):
        return "weights share memory"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing is on"
    return None


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
    """What a module is, without the values of its weights: its class, plain attributes, and the shapes of its weights.

    `functions` are the names of attributes that can be called.
    """

    kind: type
    attributes: dict[str, object]
    weights: dict[str, torch.Size | None]
    functions: frozenset[str]

    @classmethod
    def of(cls, part: nn.Module) -> Blueprint:
        plain = (int, float, str, bool, type(None))
        attributes = {
            name: value
            for name, value in vars(part).items()
            if type(value) in plain and not name.startswith("_") and name not in MAY_CHANGE
        }
        functions = frozenset(name for name, value in vars(part).items() if callable(value))
        return cls(type(part), attributes, weight_shapes(part), functions)

    def method_replaced_in(self, part: nn.Module) -> str | None:
        """Return the name of a method of the class for which a module has a function of its own; None if there is none."""
        added = (name for name, value in vars(part).items() if callable(value) and name not in self.functions)
        return next((name for name in added if hasattr(type(part), name)), None)

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


def shared_weights(model: nn.Module) -> list[frozenset[str]]:
    """Return the names of each weight that has several."""
    names = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    return [frozenset(group) for group in names.values() if len(group) > 1]


Built: TypeAlias = tuple[dict[str, Blueprint], list[frozenset[str]]]
BLUEPRINTS: WeakKeyDictionary[nn.Module, tuple[dict[str, object], Built]] = WeakKeyDictionary()


def blueprints_of(model: Model) -> Built:
    """Return every module of a model as its class builds it from its config, and which weights are shared; cached."""
    settings = model.config.to_dict()
    if model not in BLUEPRINTS or BLUEPRINTS[model][0] != settings:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # without memory for weights
            fresh = type(model)(deepcopy(model.config))
        built = {name: Blueprint.of(part) for name, part in fresh.named_modules()}
        BLUEPRINTS[model] = (settings, (built, shared_weights(fresh)))
    return BLUEPRINTS[model][1]


LOADING = "from_pretrained"  # runs before a model exists, so it cannot change a step; `glassloop run` wraps it


def replaced_method(kind: type) -> str | None:
    """Return the name of a method of a class that neither torch nor transformers wrote; None if there is none."""
    forward: object = getattr(kind, "forward", None)
    owner = next((parent for parent in kind.__mro__ if "forward" in vars(parent)), kind)
    named = getattr(forward, "__qualname__", ""), getattr(forward, "__module__", "")
    if named != (f"{owner.__qualname__}.forward", owner.__module__) and owner is not nn.Module:
        return "forward"  # that of another class
    for parent in kind.__mro__:
        for name, value in vars(parent).items():
            method = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(method, FunctionType) and name != LOADING and not is_library_code(method):
                return name
    return None


def is_library_code(function: FunctionType) -> bool:
    """Return whether torch or transformers wrote a function, and all functions that it wraps."""
    wrapped: object = function
    while isinstance(wrapped, FunctionType):
        if not wrapped.__code__.co_filename.startswith(LIBRARIES):
            return False
        wrapped = getattr(wrapped, "__wrapped__", None)
    return True
