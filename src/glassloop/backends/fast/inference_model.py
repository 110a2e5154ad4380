"""A model that is fast in forward passes on a CPU: with prepared weights in fp32, or with linear layers in int8."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from glassloop.backends.fast.encoder_parts import (
    LayerParts,
    embeddings_of,
    has_replaceable_layers,
    head_of,
    layer_calls,
    layers_of,
    packs_own_layers,
    projection_of,
    uncounted_token_of,
    why_not_packed,
)
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import ReducedVocabulary
from glassloop.backends.fast.training_model import ModelOutput, OwnLayers, ReplacedLayers
from glassloop.base.errors import ModelError
from glassloop.data.interfaces import Model
from glassloop.models.light import LightOutput

TYPICAL_TOKENS = 512  # a layout is chosen for about this many tokens, and works for any number


def has_prepared_form() -> bool:
    """Return whether this build of torch can store the weights of a linear layer in oneDNN's layout."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    found = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(found and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"))


def joined(parts: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    """Return one weight, or several as one matrix."""
    return torch.cat([part.detach() for part in parts]) if isinstance(parts, list) else parts.detach()


class PreparedLinear:
    """x @ weight^T + bias, with weights that are copied once."""

    def __init__(self, weight: torch.Tensor | list[torch.Tensor], bias: torch.Tensor | list[torch.Tensor]) -> None:
        weights, self.bias = joined(weight), joined(bias)
        self.prepared = has_prepared_form()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weights, TYPICAL_TOKENS) if self.prepared else weights

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.prepared:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """Return GELU(x @ weight^T + bias)."""
        if not self.prepared:
            return functional.gelu(self(x), approximate=approximate)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], approximate)  # type: ignore[no-any-return]

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias + residual."""
        if not self.prepared:
            return self(x).add_(residual)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")  # type: ignore[no-any-return]


SHORT = 64  # up to this length, plain products are faster than torch's attention kernel
# oneDNN compiles and keeps a kernel for each number of rows. Up to so many rows, the number is rounded up to such a multiple.
ROUNDED = ((1, 1), (2, 2), (4, 4), (8, 8), (128, 16), (1_024, 64), (1 << 40, 256))


def filled(x: torch.Tensor) -> torch.Tensor:
    """Return x with rows of zeros at its end, so that few different numbers of rows occur. Nothing reads their results."""
    multiple = next(multiple for most, multiple in ROUNDED if len(x) <= most)
    missing = -len(x) % multiple
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x


@dataclass(frozen=True)
class Group:
    """Adjacent sequences of one length: their tokens from `start` on form a grid without padding."""

    start: int
    rows: int
    length: int

    def grid(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of these sequences as [rows, length, …], without a copy."""
        return tokens[self.start : self.start + self.rows * self.length].view(self.rows, self.length, *tokens.shape[1:])


def groups_of(packing: Packing) -> list[Group]:
    """Return the sequences of a packed batch in groups of one length. Sorted rows form the fewest groups."""
    bounds = packing.bounds.numpy()
    lengths = np.diff(bounds)
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    stops = [*starts[1:], len(lengths)]
    return [
        Group(int(bounds[start]), int(stop - start), int(lengths[start])) for start, stop in zip(starts, stops, strict=True)
    ]


def num_tokens(groups: Sequence[Group]) -> int:
    """Return the number of tokens of all sequences; rows behind them are those of `filled`."""
    return groups[-1].start + groups[-1].rows * groups[-1].length


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of sequences of one length: [rows, heads, length, width]."""
    rows, heads, length, width = query.shape
    if length > SHORT:
        return functional.scaled_dot_product_attention(query, key, value)
    query, key, value = (part.reshape(rows * heads, length, width) for part in (query, key, value))  # copies only several rows
    scores = torch.baddbmm(query.new_empty(1), query, key.mT, beta=0, alpha=width**-0.5)
    return torch.bmm(torch.softmax(scores, -1), value).view(rows, heads, length, width)


def attended(joined: torch.Tensor, heads: int, groups: Sequence[Group]) -> torch.Tensor:
    """Return the attention within each sequence, from the queries, keys and values of all tokens in one matrix."""
    parts = joined.view(len(joined), 3, heads, -1)
    found = joined.new_empty(len(joined), heads, parts.shape[-1])
    for group in groups:
        query, key, value = group.grid(parts).permute(2, 0, 3, 1, 4)
        group.grid(found).copy_(attention(query, key, value).transpose(1, 2))
    found[num_tokens(groups) :] = 0.0
    return found.view(len(joined), -1)


class InferenceLayer:
    """One post-norm layer with prepared weights."""

    def __init__(self, parts: LayerParts) -> None:
        self.heads, self.approximate = parts.heads, parts.gelu_approximate
        self.width = parts.query.weight.shape[0]
        linears = (parts.query, parts.key, parts.value)
        self.queries_keys_values = PreparedLinear([part.weight for part in linears], [part.bias for part in linears])
        self.query = PreparedLinear(parts.query.weight, parts.query.bias)
        self.key, self.value = (part.weight.detach().view(self.heads, -1, self.width) for part in linears[1:])
        self.value_bias = parts.value.bias.detach().view(self.heads, -1)
        self.out, self.up, self.down = (PreparedLinear(part.weight, part.bias) for part in (parts.out, parts.up, parts.down))
        self.out_norm, self.down_norm = parts.out_norm, parts.down_norm

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        return self.feed_forward(self.attend(x, groups), x)

    def feed_forward(self, attended: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Return what follows attention: a sum and its norm, GELU between two linear layers, a sum and its norm."""
        hidden = self.out_norm(self.out.add(attended, source))
        found: torch.Tensor = self.down_norm(self.down.add(self.up.gelu(hidden, self.approximate), hidden))
        return found

    def attend(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        return attended(self.queries_keys_values(x), self.heads, groups)

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer only for the first token of each row, which the head reads.

        The key and value matrices are multiplied with the few queries and with what these attend to, not with all tokens:
        see `attend_first_tokens` in operations/encoder_layer.py.
        """
        number, source = len(first), filled(x.index_select(0, first))
        queries = self.query(source)[:number].view(number, self.heads, -1)
        folded = torch.bmm(queries.transpose(0, 1), self.key).transpose(0, 1)
        mixed, place = [], 0
        for group in groups:
            grid = group.grid(x)
            scores = torch.bmm(folded[place : place + group.rows], grid.mT).mul_(queries.shape[-1] ** -0.5)
            mixed.append(torch.bmm(torch.softmax(scores, -1), grid))
            place += group.rows
        values = torch.bmm(torch.cat(mixed).transpose(0, 1), self.value.mT).transpose(0, 1) + self.value_bias
        return self.feed_forward(filled(values.reshape(number, self.width)), source)[:number]


class PackedLayer(Protocol):
    """One layer over the tokens of a packed batch."""

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens."""

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer only for the first token of each row."""


class InferenceLayers:
    """A classifier that runs over packed batches in evaluation, from embeddings to logits, with weights copied once."""

    packs, vocabulary = True, None

    def __init__(self, model: Model, make_layer: Callable[[LayerParts], PackedLayer] = InferenceLayer) -> None:
        embeddings, head = embeddings_of(model), head_of(model)
        if embeddings is None or head is None:
            raise ModelError(f"{type(model).__name__} has embeddings or a head without a fast form", "use backend plain")
        self.model, self.embeddings, self.projection, self.head = model, embeddings, projection_of(model), head
        layers = [make_layer(parts) for parts in layers_of(model)]
        *self.layers, self.last_layer = [layers[number] for number in layer_calls(model)]
        self.uncounted = uncounted_token_of(model)
        most_tokens = embeddings.positions.num_embeddings - (0 if self.uncounted is None else self.uncounted + 1)
        self.limits = (most_tokens, embeddings.words.num_embeddings)
        self.plain_forward = model.forward
        model.forward = self.forward

    def remove(self) -> None:
        vars(self.model).pop("forward", None)

    def sync_to_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def sync_from_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> ModelOutput | LightOutput:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        if packed is None:
            return self.plain_forward(*args, **inputs)  # type: ignore[no-any-return]
        return LightOutput(self.run(Packing.from_inputs(packed, inputs)))

    def run(self, packing: Packing) -> torch.Tensor:
        groups, x = groups_of(packing), filled(self.embed(packing))
        for layer in self.layers:
            x = layer(x, groups)
        return self.head(self.last_layer.first_tokens(x, groups, packing.first_tokens))

    def embed(self, packing: Packing) -> torch.Tensor:
        """Return the vectors of all tokens before the first layer."""
        parts = self.embeddings
        found = functional.embedding(packing.ids, parts.words.weight)
        if parts.types is not None:
            found += functional.embedding(packing.types, parts.types.weight)
        found += functional.embedding(packing.positions, parts.positions.weight)
        hidden: torch.Tensor = parts.norm(found)
        return hidden if self.projection is None else self.projection(hidden)


def make_fast_model(
    model: Model,
    matmul_dtype: torch.dtype,
    *,
    trains: bool = True,
    no_decay: set[int] | None = None,
    vocabulary: ReducedVocabulary | None = None,
    low_precision_gradients: bool = False,
) -> ReplacedLayers | InferenceLayers | OwnLayers:
    """Return the fast form of a model: replaced layers where its family is known, else its own layers."""
    packs = why_not_packed(model) is None
    if packs and has_replaceable_layers(model):
        if not trains and matmul_dtype is torch.float32 and next(model.parameters()).device.type == "cpu":
            return InferenceLayers(model)
        return ReplacedLayers(
            model,
            matmul_dtype,
            trains=trains,
            no_decay=no_decay,
            vocabulary=vocabulary,
            low_precision_gradients=low_precision_gradients,
        )
    return OwnLayers(model, packs=packs and packs_own_layers(model), trains=trains, no_decay=no_decay)


MOST = 255  # the largest quantized input
HALF = MOST / 2
SMOOTHING = 0.5  # how much of the differences between input channels moves into the weights: 0 none, 1 all
SMALLEST = 1e-30  # no scale is 0
LEAST_SPAN = 1e-3  # of the largest: a channel that was constant may not be so in other texts
TRIAL_SECONDS = 60
ALLOWED = 1e-4  # difference from fp64 in kernels that work


class Range:
    """The smallest and the largest value of each input channel of a linear layer, over all tokens seen."""

    def __init__(self) -> None:
        self.bounds: tuple[torch.Tensor, torch.Tensor] | None = None

    def see(self, x: torch.Tensor) -> None:
        """Widen the range to the values of some tokens."""
        low, high = x.amin(0), x.amax(0)
        self.bounds = (torch.minimum(self.bounds[0], low), torch.maximum(self.bounds[1], high)) if self.bounds else (low, high)

    @property
    def low(self) -> torch.Tensor:
        return self.measured[0]

    @property
    def high(self) -> torch.Tensor:
        return self.measured[1]

    @property
    def measured(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest values. Raise `ValueError` if there are none."""
        if self.bounds is None:
            raise ValueError("no token was seen")
        return self.bounds

    def of(self, channels: torch.Tensor) -> Range:
        """Return the range of some channels."""
        found = Range()
        found.bounds = (self.low[channels], self.high[channels])
        return found


class Scales:
    """How the inputs of a linear layer become uint8.

    `scale` is what one step of the integers means, for each channel or for all, and `middle` the value that 127.5 stands for.
    """

    def __init__(self, scale: torch.Tensor, middle: torch.Tensor) -> None:
        self.scale, self.middle = scale, middle
        self.factor = 1 / scale
        self.offset = HALF - middle / scale + 0.5  # a conversion to integers cuts off the fraction

    @classmethod
    def of_channels(cls, seen: Range, weight: torch.Tensor) -> Scales:
        """Return a scale for each channel that balances the range of its values and the size of the weights that they meet."""
        spans = seen.high - seen.low
        spans = spans.clamp(min=max(LEAST_SPAN * float(spans.max()), SMALLEST))
        sizes = weight.abs().amax(0)
        sizes = sizes.clamp(min=max(LEAST_SPAN * float(sizes.max()), SMALLEST))
        shares = spans**SMOOTHING / sizes ** (1 - SMOOTHING)
        return cls(shares * (spans / shares).max() / MOST, (seen.low + seen.high) / 2)

    @classmethod
    def of_results(cls, seen: Range) -> Scales:
        """Return one scale for all channels, in which a kernel writes its results; 0 is an integer in it."""
        low, high = float(seen.low.min().clamp(max=0)), float(seen.high.max().clamp(min=0))
        scale = max((high - low) / MOST, SMALLEST)
        return cls(torch.tensor(scale), torch.tensor((HALF - round(-low / scale)) * scale))

    @property
    def zero(self) -> int:
        """The integer that stands for 0."""
        return round(float(self.offset) - 0.5)

    def quantized(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens as uint8. A value outside the range becomes the nearest value in it."""
        found = torch.addcmul(self.offset, x, self.factor).clamp_(0, MOST)
        return found.to(torch.int32).to(torch.uint8)  # a direct conversion to uint8 takes three times as long


class Int8Linear:
    """x @ weight^T + bias for quantized tokens x.

    `inputs` says how x was quantized, `limit` is the largest quantized weight, by default the largest that works on this CPU.
    """

    def __init__(
        self,
        weight: torch.Tensor | list[torch.Tensor],
        bias: torch.Tensor | list[torch.Tensor],
        inputs: Scales,
        limit: int | None = None,
    ) -> None:
        weights = joined(weight)
        rounded, self.factors = quantized_weight(weights * inputs.scale, limit or weight_limit())
        middles = weights @ inputs.middle.expand(weights.shape[1])
        self.bias = joined(bias) + middles - rounded.sum(1) * self.factors * HALF
        self.zeros = torch.zeros(len(weights), dtype=torch.int64)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), [TYPICAL_TOKENS, weights.shape[1]])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, "none", "")

    def gelu(self, x: torch.Tensor, approximate: str, results: Scales) -> torch.Tensor:
        """Return GELU(x @ weight^T + bias), quantized."""
        return self._run(x, "gelu", approximate, float(results.scale), results.zero, torch.uint8)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add x @ weight^T + bias to `residual` and return it."""
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            x, 1.0, 0, self.weight, self.factors, self.zeros, residual, self.bias, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0,
            "none", [], "",
        )  # fmt: skip
        return found

    def _run(
        self, x: torch.Tensor, after: str, form: str, scale: float = 1.0, zero: int = 0, kind: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Return the result of the kernel, after a function and in a type."""
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self.weight, self.factors, self.zeros, self.bias, scale, zero, kind, after, [], form
        )
        return found


def quantized_weight(weight: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight rounded to integers up to `limit`, and the factor of each output."""
    factors = (weight.abs().amax(1) / limit).clamp(min=SMALLEST)
    return (weight / factors[:, None]).round().clamp_(-limit, limit), factors


@cache
def weight_limit() -> int:
    """Return the largest quantized weight with which the kernels of this CPU compute right results.

    Without VNNI instructions, kernels add two products in 16 bits, which overflow unless the weights are halved. Raise
    `RuntimeError` if there are no kernels, or none that are right.
    """
    if not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        raise RuntimeError("this build of torch has no int8 kernels for it")
    for limit in (127, 63):
        if kernel_difference(limit) < ALLOWED:
            return limit
    raise RuntimeError("its int8 kernels compute wrong results")


def why_no_kernels() -> str | None:
    """Return why int8 linear layers do not work on this CPU with this build of torch; None if they do."""
    if (crash := crash_of_kernels()) is not None:
        return crash
    try:
        weight_limit()
    except (RuntimeError, AttributeError) as error:
        return str(error).splitlines()[0]
    return None


@cache
def crash_of_kernels() -> str | None:
    """Return how the kernels for AMX end a process, which a child process tries out; None if they do not.

    Some virtual machines report AMX instructions that they do not execute.
    """
    if not getattr(torch.cpu, "_is_amx_tile_supported", bool)():
        return None
    trial = f"from {__name__} import weight_limit; weight_limit()"
    try:
        code = subprocess.run([sys.executable, "-c", trial], capture_output=True, timeout=TRIAL_SECONDS, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its int8 kernels could not be tried out ({type(error).__name__})"
    return None if code >= 0 else f"its int8 kernels end the process (signal {-code})"


def kernel_difference(limit: int) -> float:
    """Return the largest relative difference between the kernels and fp64, for extreme inputs and in all three forms."""
    source = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(96, 128, generator=source), torch.randn(96, generator=source)
    x, residual = torch.rand(64, 128, generator=source) * 2 - 1, torch.randn(64, 96, generator=source)
    weight[0], weight[1], x[0], x[1] = 1.0, -1.0, 1.0, -1.0  # these overflow first
    seen, after = Range(), Range()
    seen.see(x)
    inputs = Scales.of_channels(seen, weight)
    linear, tokens = Int8Linear(weight, bias, inputs, limit), inputs.quantized(x)
    rounded, factors = quantized_weight(weight * inputs.scale, limit)
    wanted = (tokens.double() - HALF) @ (rounded * factors[:, None]).T.double() + (weight @ inputs.middle + bias).double()
    active = functional.gelu(wanted)
    after.see(active)
    results = Scales.of_results(after)
    written = (linear.gelu(tokens, "none", results).double() - results.zero) * results.scale
    apart = [linear(tokens) - wanted, linear.add_to(residual.clone(), tokens) - wanted - residual]
    largest = max(float(part.abs().max()) for part in apart)
    rounding = float((written - active).abs().max() - results.scale / 2)
    return max(largest, rounding) / float(wanted.abs().max())


WIDE_CHANNELS = 8  # of those behind GELU: the ones with the widest ranges, in fp32


@dataclass(frozen=True)
class LayerRanges:
    """The ranges of what the four linear layers of an encoder layer get."""

    joined: Range = field(default_factory=Range)
    out: Range = field(default_factory=Range)
    up: Range = field(default_factory=Range)
    down: Range = field(default_factory=Range)


Ranges = dict[nn.Module, LayerRanges]  # of the layers that run over all tokens


class MeasuredLayer(InferenceLayer):
    """A layer in fp32 that records the ranges of its values."""

    def __init__(self, parts: LayerParts, ranges: Ranges) -> None:
        super().__init__(parts)
        self.module, self.ranges = parts.module, ranges

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        seen, number = self.ranges.setdefault(self.module, LayerRanges()), num_tokens(groups)
        found = self.attend(x, groups)
        hidden = self.out_norm(self.out.add(found, x))
        inner = self.up.gelu(hidden, self.approximate)
        for values, place in ((x, seen.joined), (found, seen.out), (hidden, seen.up), (inner, seen.down)):
            place.see(values[:number])
        return self.down_norm(self.down.add(inner, hidden))  # type: ignore[no-any-return]


class Int8Layer:
    """One post-norm layer whose linear layers are quantized."""

    def __init__(self, parts: LayerParts, seen: LayerRanges) -> None:
        self.parts, self.heads, self.approximate = parts, parts.heads, parts.gelu_approximate
        self.out_norm, self.down_norm = parts.out_norm, parts.down_norm
        linears = (parts.query, parts.key, parts.value)
        weights, biases = [part.weight.detach() for part in linears], [part.bias.detach() for part in linears]
        self.inputs = Scales.of_channels(seen.joined, torch.cat(weights))
        self.queries_keys_values = Int8Linear(weights, biases, self.inputs)
        self.attended = Scales.of_channels(seen.out, parts.out.weight.detach())
        self.out = Int8Linear(parts.out.weight, parts.out.bias, self.attended)
        self.hidden = Scales.of_channels(seen.up, parts.up.weight.detach())
        self.up = Int8Linear(parts.up.weight, parts.up.bias, self.hidden)
        channels = torch.argsort(seen.down.high - seen.down.low)  # the widest range last
        others, wide = channels[:-WIDE_CHANNELS], channels[-WIDE_CHANNELS:]
        weight, bias = parts.down.weight.detach(), parts.down.bias.detach()
        self.inner = Scales.of_results(seen.down.of(others))
        self.down = Int8Linear(weight.index_fill(1, wide, 0.0), bias, self.inner)
        self.wide_up = PreparedLinear(parts.up.weight[wide], parts.up.bias[wide])
        self.wide_down = PreparedLinear(weight[:, wide].contiguous(), torch.zeros_like(bias))

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens. It overwrites x, which nothing else reads."""
        joined = self.queries_keys_values(self.inputs.quantized(x))
        found = self.attended.quantized(attended(joined, self.heads, groups))
        hidden = self.out_norm(self.out.add_to(x, found))
        inner = self.up.gelu(self.hidden.quantized(hidden), self.approximate, self.inner)
        residual = self.wide_down.add(self.wide_up.gelu(hidden, self.approximate), hidden)
        return self.down_norm(self.down.add_to(residual, inner))  # type: ignore[no-any-return]

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output only for the first token of each row, in fp32. ALBERT's last layer is one of those before it."""
        return self.plain.first_tokens(x, groups, first)

    @cached_property
    def plain(self) -> InferenceLayer:
        return InferenceLayer(self.parts)
