"""The parts of an encoder that fast layers read, and which models have a fast form."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
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
from glassloop.models import pooled
from glassloop.models.adapters import (
    AdaptedLinear,
    LinearPart,
    adapted_linear,
    is_adapter,
    modules_of,
    why_not_adapter,
)
from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS
from glassloop.models.interface import base_of, is_adapted
from glassloop.models.pooled import PooledClassifier


@dataclass(frozen=True, eq=False)
class LayerParts:
    """Attention (query, key, value, out), a sum and its norm; feed-forward (up, GELU, down), a sum and its norm."""

    module: nn.Module
    query: LinearPart
    key: LinearPart
    value: LinearPart
    out: LinearPart
    out_norm: nn.LayerNorm
    up: LinearPart
    down: LinearPart
    down_norm: nn.LayerNorm
    heads: int
    gelu_approximate: str
    dropouts: Sequence[nn.Dropout | None]  # of attention probabilities, after `out`, after `down`; None: the family has none

    @property
    def dropout_rates(self) -> list[float]:
        return [float(part.p) if part is not None else 0.0 for part in self.dropouts]

    @property
    def matrices(self) -> list[list[torch.Tensor]]:
        """Return groups of weights that are multiplied as one matrix: query, key and value are."""
        groups = [[self.query, self.key, self.value], [self.out], [self.up], [self.down]]
        adapters = [[matrix] for part in self.adapters for matrix in (part.shrink, part.expand)]
        return [*([part.weight for part in group] for group in groups), *adapters]

    @property
    def adapters(self) -> list[AdaptedLinear]:
        parts = (self.query, self.key, self.value, self.out, self.up, self.down)
        return [part for part in parts if isinstance(part, AdaptedLinear)]

    @property
    def anchor(self) -> torch.Tensor:
        """Return a weight that is trained, so that autograd calls the backward method of the layer; any other if none is."""
        weights = [weight for group in (*self.matrices, self.vectors) for weight in group]
        return next((weight for weight in weights if weight.requires_grad), weights[0])

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
    norm: nn.LayerNorm
    dropout: nn.Dropout
    types: nn.Embedding | None
    uncounted: int | None  # the id that positions start after and skip; None if they start at 0

    @property
    def tables(self) -> list[torch.Tensor]:
        return [table.weight for table in (self.words, self.positions, self.types) if table is not None]

    @property
    def vectors(self) -> list[torch.Tensor]:
        return [self.norm.weight, self.norm.bias]

    @property
    def limits(self) -> tuple[int, int]:
        """Return the most tokens of a row, and the number of word vectors."""
        unused = 0 if self.uncounted is None else self.uncounted + 1
        return self.positions.num_embeddings - unused, self.words.num_embeddings


HeadParts = tuple[nn.Linear, Callable[[torch.Tensor], torch.Tensor], nn.Linear]  # of first tokens, its activation, outputs


def encoder_in(model: Model) -> Model:
    """Return what takes packed tokens as one long row: a classifier of transformers itself, or the encoder of a pooled one."""
    return model.base_model if isinstance(model, PooledClassifier) else model


def reads_first_tokens(model: Model) -> bool:
    """Return whether the head of a model with fast layers reads only the first token of each row."""
    return not isinstance(model, PooledClassifier) or model.pooling.mode == "cls"


def layers_of(model: Model) -> list[LayerParts]:
    """Return each layer of an encoder once (ALBERT runs one several times); an empty list if it has no fast form."""
    config, family = model.config, FAMILIES.get(model.config.model_type)
    approximate = GELU_APPROXIMATIONS.get(str(getattr(config, "hidden_act", getattr(config, "activation", ""))))
    usual = getattr(config, "position_embedding_type", None) in (None, "absolute") and not getattr(config, "is_decoder", False)
    if approximate is None or family is None or family.layout is None or not usual:
        return []
    layout = family.layout
    parts_of = attrgetter(
        *(layout.query, layout.key, layout.value, layout.attention_output, layout.attention_norm),
        *(layout.up, layout.down, layout.feed_forward_norm, layout.num_heads),
    )
    layers, found = [model.base_model], []
    with contextlib.suppress(AttributeError):  # a version of transformers that builds this family in another way
        for path in layout.layers:
            layers = [layer for start in layers for layer in attrgetter(path)(start)]
        for layer in layers:
            dropouts = [attrgetter(path)(layer) if path else None for path in layout.dropouts]
            parts = [adapted_linear(part) if is_adapter(part) else part for part in parts_of(layer)]
            found.append(LayerParts(*[layer, *parts, approximate, dropouts]))
        return found
    return []


def layer_calls(model: Model) -> list[int]:
    """Return the layers that a forward pass goes through, by their place in `layers_of`: ALBERT's run several times."""
    config = model.config
    number, inner = int(config.num_hidden_layers), int(getattr(config, "inner_group_num", 1))
    groups = int(getattr(config, "num_hidden_groups", number))
    return [int(place / (number / groups)) * inner + part for place in range(number) for part in range(inner)]


def embeddings_of(model: Model) -> EmbeddingParts | None:
    family = FAMILIES.get(model.config.model_type)
    if family is None or family.layout is None:
        return None
    layout = family.layout
    parts_of = attrgetter(layout.words, layout.positions, layout.embeddings_norm, layout.embeddings_dropout)
    with contextlib.suppress(AttributeError):  # as above
        module = attrgetter(layout.embeddings)(model.base_model)
        return EmbeddingParts(module, *parts_of(module), getattr(module, layout.token_types, None), uncounted_token_of(model))
    return None


def head_of(model: Model) -> HeadParts | None:
    family = FAMILIES.get(model.config.model_type)
    if family is None or family.head is None:
        return None
    dense, outputs = linear_at(model, family.head.dense), linear_at(model, family.head.outputs)
    return (dense, getattr(nn.functional, family.head.activation), outputs) if dense and outputs else None


def projection_of(model: Model) -> nn.Linear | None:
    """Return the linear layer between the embeddings and the first layer; None if a model has none."""
    family = FAMILIES.get(model.config.model_type)
    return linear_at(model, family.projection) if family is not None and family.projection is not None else None


def linear_at(model: Model, path: str) -> nn.Linear | None:
    """Return the linear layer at an attribute path that starts at a classifier or at its encoder; None if there is none."""
    for start in (model, model.base_model):
        with contextlib.suppress(AttributeError):
            part = attrgetter(path)(start)
            return part if isinstance(part, nn.Linear) else None
    return None


def uncounted_token_of(model: Model) -> int | None:
    """Return the id of the padding token if positions start after this number and skip the token; None if they start at 0."""
    family = FAMILIES.get(model.config.model_type)
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return int(padding) if family is not None and family.positions_after_padding and padding is not None else None


def weight_ids(layers: Sequence[LayerParts], embeddings: EmbeddingParts) -> set[int]:
    """Return the ids of the weights that fast layers and fast tables read, and whose gradients they write."""
    groups = [group for layer in layers for group in (*layer.matrices, layer.vectors)]
    return {id(weight) for group in (*groups, embeddings.tables, embeddings.vectors) for weight in group}


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Where the code of torch and transformers is, that of the context managers they write as methods, and that of our own parts.
LIBRARIES = (
    *(f"{os.path.dirname(str(spec.origin))}{os.sep}" for spec in map(find_spec, ("torch", "transformers")) if spec),  # noqa: PTH120
    contextlib.__file__,
    f"{os.path.dirname(pooled.__file__)}{os.sep}",  # noqa: PTH120
)
MAY_CHANGE = ("training", "embeds", "p", "inplace", "gradient_checkpointing")  # attributes that a fast path reads in each step


def packing_form(model: Model) -> str:
    """Return how a model runs packed batches: by fast "layers", by its own "modules", or by "none"."""
    family, is_pooled = FAMILIES.get(model.config.model_type), type(model) is PooledClassifier
    kind = type(model.base_model) if is_pooled else type(model)
    of_transformers = kind.__module__.startswith(("transformers.models.", "glassloop.models."))
    name = pooled.encoder_class(model.base_model) if is_pooled else kind.__name__
    known = family is not None and name == (family.encoder if is_pooled else family.classifier)
    return family.packing if family is not None and of_transformers and known else "none"


def why_not_packed(model: Model) -> str | None:
    """Return why a model cannot take packed batches; None if it can."""
    # What is supported is listed, not what is excluded: a gap in a list of exclusions would be a wrong result without
    # an error. The tree built on the meta device takes 10 to 30 ms and no memory.
    given, model = model, base_of(model)
    kind, form = type(model).__name__, packing_form(model)
    if form == "none":
        return f"{kind} is not a classifier that can be packed"
    if (changed := why_not_unmodified(given)) is not None or form == "modules":
        return changed
    layers, embeddings = layers_of(model), embeddings_of(model)
    if not layers:
        return f"{kind} has layers without a fast form"
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    # Options that change the gradients or the values of a table.
    changes = any(table.max_norm is not None or table.sparse or table.scale_grad_by_freq for table in tables)
    if embeddings is None or changes:
        return f"{kind} has embeddings without a fast form"
    if "position_ids" not in inspect.signature(type(encoder_in(model)).forward).parameters:
        return f"{kind} does not accept position_ids"
    known = weight_ids(layers, embeddings)
    run_as_they_are = tuple(f"{part}." for part in FAMILIES[model.config.model_type].unpacked)
    for name, weight in model.base_model.named_parameters():
        if id(weight) not in known and not name.startswith(run_as_they_are):
            return f"the weight {name} is not part of a known layer or embedding table"
    groups = [group for layer in layers for group in (*layer.matrices, layer.vectors)]
    for group in (*groups, [*embeddings.tables, *embeddings.vectors]):
        if len({weight.requires_grad for weight in group}) > 1:
            return "some weights of a layer are frozen and others are not"
    return None


def why_not_unmodified(model: Model) -> str | None:
    """Return how a model differs from what transformers builds from its config; None if it does not."""
    # A fast path reads weights without calling their modules, and a captured CUDA graph calls no Python at all: a part that
    # was replaced, patched or hooked would be ignored.
    if adapted := is_adapted(model):
        if {str(settings.peft_type.value) for settings in model.peft_config.values()} != {"LORA"}:
            return "the adapter is not plain LoRA"
        if reason := next(filter(None, (why_not_adapter(part) for part in model.modules() if is_adapter(part))), None):
            return reason
        model = base_of(model)
    kind = type(model)
    if not kind.__module__.startswith("transformers.models.") and kind is not PooledClassifier:
        return f"{kind.__name__} is not a class of transformers"
    if any(getattr(torch_module, f"_global{name}", None) for name in HOOKS):
        return "hooks are registered for all modules"
    built, shared = blueprints_of(model)
    parts = modules_of(model) if adapted else dict(model.named_modules())
    methods = {kind: replaced_method(kind) for kind in {*map(type, parts.values())}}
    if adapted and any(vars(part).get(hooks) for part in model.modules() for hooks in HOOKS):
        return f"{kind.__name__} has hooks"
    for name in [*parts, *built]:
        part, wanted, title = parts.get(name), built.get(name), name or kind.__name__
        if part is None or wanted is None or not wanted.is_like(part):
            return f"{title} differs from what transformers builds"
        if any(vars(part).get(hooks) for hooks in HOOKS):
            return f"{title} has hooks"
        added = (name for name, value in vars(part).items() if callable(value) and name not in wanted.functions)
        if method := next((name for name in added if hasattr(type(part), name)), None) or methods[type(part)]:
            return f"the {method} method of {title} was replaced"
    if different := {*shared_weights(parts if adapted else dict(model.named_modules(remove_duplicate=False)))} ^ {*shared}:
        return f"{min(min(names) for names in different)} is shared differently than transformers builds it"
    return None


def why_not_flat(model: Model) -> str | None:
    """Return why the weights of a model cannot be stored flat; None if they can."""
    weights = [*model.parameters()]
    if any(weight.dtype != torch.float32 for weight in weights):
        return "the weights are not fp32"
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")  # called with a gradient before or after it is added
    if any(type(weight) is not nn.Parameter or any(getattr(weight, name, None) for name in hooks) for weight in weights):
        return "weights have hooks or a type of their own"
    spans = sorted((weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in weights)
    if any(stop > start for (_, stop), (start, _) in pairwise(spans)):
        return "weights share memory"
    return "gradient checkpointing is on" if getattr(model, "is_gradient_checkpointing", False) else None


class Blueprint:
    """What a module is, without the values of its weights."""

    def __init__(self, part: nn.Module) -> None:
        values = {name: value for name, value in vars(part).items() if not name.startswith("_") and name not in MAY_CHANGE}
        self.kind, self.weights = type(part), weight_shapes(part)
        self.attributes = {name: value for name, value in values.items() if type(value) in (int, float, str, bool, type(None))}
        self.functions = {name for name, value in vars(part).items() if callable(value)}

    def is_like(self, part: nn.Module) -> bool:
        """Return whether a module has this class, these weights and these attributes; it may have more attributes."""
        alike = type(part) is self.kind and weight_shapes(part) == self.weights
        return alike and all(vars(part).get(name, ...) == value for name, value in self.attributes.items())


def weight_shapes(part: nn.Module) -> dict[str, torch.Size | None]:
    return {name: None if value is None else value.shape for name, value in {**part._parameters, **part._buffers}.items()}


def shared_weights(parts: dict[str, nn.Module]) -> list[frozenset[str]]:
    names = defaultdict(list)
    for place, part in parts.items():
        for name, weight in part.named_parameters(recurse=False, remove_duplicate=False):
            names[id(weight)].append(f"{place}.{name}" if place else name)
    return [frozenset(group) for group in names.values() if len(group) > 1]


Built: TypeAlias = tuple[dict[str, Blueprint], list[frozenset[str]]]
BLUEPRINTS: WeakKeyDictionary[nn.Module, tuple[dict[str, object], Built]] = WeakKeyDictionary()


def blueprints_of(model: Model) -> Built:
    """Return every module of a model as its class builds it from its config, and which weights are shared; cached."""
    settings = model.config.to_dict()
    if model not in BLUEPRINTS or BLUEPRINTS[model][0] != settings:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # without memory for weights
            fresh = type(model)(deepcopy(model.config))
        built = {name: Blueprint(part) for name, part in fresh.named_modules()}
        BLUEPRINTS[model] = (settings, (built, shared_weights(dict(fresh.named_modules(remove_duplicate=False)))))
    return BLUEPRINTS[model][1]


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
            # from_pretrained runs before a model exists, so it cannot change a step; `glassloop run` wraps it.
            while isinstance(method, FunctionType) and name != "from_pretrained":
                if not method.__code__.co_filename.startswith(LIBRARIES):
                    return name
                method = getattr(method, "__wrapped__", None)
    return None
