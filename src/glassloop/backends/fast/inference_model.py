"""A model that is fast in forward passes on a CPU: with prepared weights in fp32, or with linear layers in int8."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from glassloop.backends.fast.encoder_parts import LayerParts, embeddings_of, head_of, layer_calls, layers_of, projection_of
from glassloop.backends.fast.packing import Packing, positions_within
from glassloop.base.errors import ModelError
from glassloop.data.interfaces import LogitsOutput, Model
from glassloop.models.pooled import PooledClassifier

TYPICAL_TOKENS = 512  # a layout is chosen for about this many tokens, and works for any number
SHORT = 64  # up to this length, plain products are faster than torch's attention kernel
# oneDNN compiles and keeps a kernel for each number of rows. Up to so many rows, the number is rounded up to such a multiple.
ROUNDED = ((1, 1), (2, 2), (4, 4), (8, 8), (128, 16), (1_024, 64), (1 << 40, 256))
MOST = 255  # the largest quantized input
HALF = MOST / 2
SMOOTHING = 0.5  # how much of the differences between input channels moves into the weights: 0 none, 1 all
SMALLEST = 1e-30  # no scale is 0
LEAST_SPAN = 1e-3  # of the largest: a channel that was constant may not be so in other texts
WIDE_CHANNELS = 8  # of those behind GELU: the ones with the widest ranges, in fp32
TRIAL_SECONDS = 60
ALLOWED = 1e-4  # difference from fp64 in kernels that work


def has_prepared_form() -> bool:
    """Return whether this build of torch can store the weights of a linear layer in oneDNN's layout."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


class PreparedLinear:
    """x @ weight^T + bias, with weights that are copied once."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias, self.prepared = weight.detach(), bias.detach(), has_prepared_form()
        if self.prepared:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, TYPICAL_TOKENS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.prepared:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        if not self.prepared:
            return functional.gelu(self(x), approximate=approximate)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], approximate)  # type: ignore[no-any-return]

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if not self.prepared:
            return self(x).add_(residual)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")  # type: ignore[no-any-return]


def filled(x: torch.Tensor) -> torch.Tensor:
    """Return x with rows of zeros at its end, so that few different numbers of rows occur. Nothing reads their results."""
    missing = -len(x) % next(multiple for most, multiple in ROUNDED if len(x) <= most)
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x


class Group(NamedTuple):
    """Adjacent sequences of one length: their tokens from `start` on form a grid without padding."""

    start: int
    rows: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length

    def grid(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of these sequences as [rows, length, …], without a copy."""
        return tokens[self.start : self.stop].view(self.rows, self.length, *tokens.shape[1:])


def groups_of(packing: Packing) -> list[Group]:
    """Return the sequences of a packed batch in groups of one length. Sorted rows form the fewest groups."""
    return groups_of_lengths(np.diff(packing.bounds.numpy()))


def groups_of_lengths(lengths: np.ndarray) -> list[Group]:
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts, bounds = np.diff(starts, append=len(lengths)), np.cumsum(lengths) - lengths
    return [Group(int(bounds[at]), int(rows), int(lengths[at])) for at, rows in zip(starts, counts, strict=True)]


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
    found[groups[-1].stop :] = 0.0
    return found.view(len(joined), -1)


def joined_parts(parts: LayerParts) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the biases of queries, keys and values, each in one piece."""
    linears = (parts.query, parts.key, parts.value)
    return torch.cat([part.weight.detach() for part in linears]), torch.cat([part.bias.detach() for part in linears])


Ranges = dict[str, torch.Tensor]  # by linear layer, the smallest and the largest value of each input channel over all tokens


class InferenceLayer:
    """One post-norm layer with prepared weights; its calls record the ranges of values under its module in `ranges`."""

    def __init__(self, parts: LayerParts, ranges: dict[nn.Module, Ranges] | None = None) -> None:
        self.module, self.ranges = parts.module, ranges
        self.heads, self.approximate = parts.heads, parts.gelu_approximate
        self.width = parts.query.weight.shape[0]
        self.queries_keys_values = PreparedLinear(*joined_parts(parts))
        self.key, self.value = (part.weight.detach().view(self.heads, -1, self.width) for part in (parts.key, parts.value))
        self.value_bias = parts.value.bias.detach().view(self.heads, -1)
        self.query, self.out, self.up, self.down = (
            PreparedLinear(part.weight, part.bias) for part in (parts.query, parts.out, parts.up, parts.down)
        )
        self.out_norm, self.down_norm = parts.out_norm, parts.down_norm

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        seen = self.ranges.setdefault(self.module, {}) if self.ranges is not None else None
        return self.feed_forward(self.attend(x, groups), x, seen, groups[-1].stop)

    def feed_forward(self, mixed: torch.Tensor, x: torch.Tensor, seen: Ranges | None = None, tokens: int = 0) -> torch.Tensor:
        """Return what follows attention: a sum and its norm, GELU between two linear layers, a sum and its norm."""
        hidden = self.out_norm(self.out.add(mixed, x))
        inner = self.up.gelu(hidden, self.approximate)
        if seen is not None:
            for name, values in {"joined": x, "out": mixed, "up": hidden, "down": inner}.items():
                seen[name] = widened(seen.get(name), values[:tokens])
        return self.down_norm(self.down.add(inner, hidden))  # type: ignore[no-any-return]

    def attend(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        return attended(self.queries_keys_values(x), self.heads, groups)

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output only for the first token of each row, computed as in `training_model.attend_first_tokens`."""
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


def widened(seen: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Return the smallest and the largest value of each channel, of some tokens and of those seen before."""
    low, high = x.amin(0), x.amax(0)
    return torch.stack([low, high] if seen is None else [torch.minimum(seen[0], low), torch.maximum(seen[1], high)])


class Scales:
    """How the inputs of a linear layer become uint8."""

    def __init__(self, scale: torch.Tensor, middle: torch.Tensor) -> None:
        # What one step of the integers means, for each channel or for all, and the value that 127.5 stands for.
        self.scale, self.middle = scale, middle
        self.factor = 1 / scale
        self.offset = HALF - middle / scale + 0.5  # a conversion to integers cuts off the fraction

    @classmethod
    def of_channels(cls, seen: torch.Tensor, weight: torch.Tensor) -> Scales:
        """Return a scale for each channel that balances the range of its values and the size of the weights that they meet."""
        low, high = seen
        spans, sizes = (
            part.clamp(min=max(LEAST_SPAN * float(part.max()), SMALLEST)) for part in (high - low, weight.abs().amax(0))
        )
        shares = spans**SMOOTHING / sizes ** (1 - SMOOTHING)
        return cls(shares * (spans / shares).max() / MOST, (low + high) / 2)

    @classmethod
    def of_results(cls, seen: torch.Tensor) -> Scales:
        """Return one scale for all channels, in which a kernel writes its results; 0 is an integer in it."""
        low, high = float(seen[0].min().clamp(max=0)), float(seen[1].max().clamp(min=0))
        scale = max((high - low) / MOST, SMALLEST)
        return cls(torch.tensor(scale), torch.tensor((HALF - round(-low / scale)) * scale))

    @property
    def zero(self) -> int:
        return round(float(self.offset) - 0.5)

    def quantized(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens as uint8. A value outside the range becomes the nearest value in it."""
        found = torch.addcmul(self.offset, x, self.factor).clamp_(0, MOST)
        return found.to(torch.int32).to(torch.uint8)  # a direct conversion to uint8 takes three times as long


class Int8Linear:
    """x @ weight^T + bias for tokens x that `inputs` quantized; `limit` is the largest quantized weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, inputs: Scales, limit: int | None = None) -> None:
        self.inputs, weight = inputs, weight.detach()
        rounded, self.factors = quantized_weight(weight * inputs.scale, limit or weight_limit())
        middles = weight @ inputs.middle.expand(weight.shape[1])
        self.bias = bias.detach() + middles - rounded.sum(1) * self.factors * HALF
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), [TYPICAL_TOKENS, weight.shape[1]])

    # A kernel takes scale, zero and type of its results, and the function that follows.

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weights = (self.weight, self.factors, self.zeros, self.bias)
        return torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, *weights, 1.0, 0, torch.float32, "none", [], "")  # type: ignore[no-any-return]

    def gelu(self, x: torch.Tensor, approximate: str, results: Scales) -> torch.Tensor:
        """Return GELU(x @ weight^T + bias), quantized."""
        weights, kind = (self.weight, self.factors, self.zeros, self.bias), (float(results.scale), results.zero, torch.uint8)
        return torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, *weights, *kind, "gelu", [], approximate)  # type: ignore[no-any-return]

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        weights, results = (self.weight, self.factors, self.zeros, residual, self.bias), (1.0, 0, torch.float32, 1.0, 0)
        return torch.ops.onednn.qlinear_pointwise.binary(x, 1.0, 0, *weights, *results, "sum", 1.0, "none", [], "")  # type: ignore[no-any-return]


def quantized_weight(weight: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight rounded to integers up to `limit`, and the factor of each output."""
    factors = (weight.abs().amax(1) / limit).clamp(min=SMALLEST)
    return (weight / factors[:, None]).round().clamp_(-limit, limit), factors


class Int8Layer:
    """One post-norm layer whose linear layers are quantized."""

    def __init__(self, parts: LayerParts, seen: Ranges) -> None:
        self.parts, self.heads, self.approximate = parts, parts.heads, parts.gelu_approximate
        self.out_norm, self.down_norm = parts.out_norm, parts.down_norm
        weights, biases = joined_parts(parts)
        self.queries_keys_values = Int8Linear(weights, biases, Scales.of_channels(seen["joined"], weights))
        self.out, self.up = (
            Int8Linear(part.weight, part.bias, Scales.of_channels(seen[name], part.weight.detach()))
            for name, part in (("out", parts.out), ("up", parts.up))
        )
        channels = torch.argsort(seen["down"][1] - seen["down"][0])  # the widest range last
        others, wide = channels[:-WIDE_CHANNELS], channels[-WIDE_CHANNELS:]
        weight, bias = parts.down.weight.detach(), parts.down.bias.detach()
        self.down = Int8Linear(weight.index_fill(1, wide, 0.0), bias, Scales.of_results(seen["down"][:, others]))
        self.wide_up = PreparedLinear(parts.up.weight[wide], parts.up.bias[wide])
        self.wide_down = PreparedLinear(weight[:, wide].contiguous(), torch.zeros_like(bias))

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens. It overwrites x, which nothing else reads."""
        joined = self.queries_keys_values(self.queries_keys_values.inputs.quantized(x))
        mixed = self.out.inputs.quantized(attended(joined, self.heads, groups))
        hidden = self.out_norm(self.out.add_to(x, mixed))
        inner = self.up.gelu(self.up.inputs.quantized(hidden), self.approximate, self.down.inputs)
        residual = self.wide_down.add(self.wide_up.gelu(hidden, self.approximate), hidden)
        return self.down_norm(self.down.add_to(residual, inner))  # type: ignore[no-any-return]

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output only for the first token of each row, in fp32. ALBERT's last layer is one of those before it."""
        return self.in_fp32.first_tokens(x, groups, first)

    @cached_property
    def in_fp32(self) -> InferenceLayer:
        return InferenceLayer(self.parts)


class InferenceLayers:
    """A classifier that runs over packed batches in evaluation, from embeddings to logits, with weights copied once."""

    packs, vocabulary = True, None

    def __init__(self, model: Model, ranges: dict[nn.Module, Ranges] | None = None, *, quantized: bool = False) -> None:
        """Layers in fp32 fill `ranges`; then, `quantized`, those whose ranges are known run in int8."""
        embeddings, head = embeddings_of(model), head_of(model)
        self.pooled = model if isinstance(model, PooledClassifier) else None
        if embeddings is None or (head is None and self.pooled is None):
            raise ModelError(f"{type(model).__name__} has embeddings or a head without a fast form", "use backend plain")
        self.model, self.embeddings, self.projection, self.head = model, embeddings, projection_of(model), head
        self.towers = self.pooled is not None and self.pooled.pooling.towers
        layers: list[InferenceLayer | Int8Layer] = []
        for parts in layers_of(model):
            seen = ranges.get(parts.module) if ranges is not None and quantized else None  # nobody measures the last layer
            layers.append(InferenceLayer(parts, None if quantized else ranges) if seen is None else Int8Layer(parts, seen))
        *self.layers, self.last_layer = [layers[number] for number in layer_calls(model)]
        self.uncounted, self.limits = embeddings.uncounted, embeddings.limits
        self.plain_forward = model.forward
        model.forward = self.forward

    def remove(self) -> None:
        vars(self.model).pop("forward", None)

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> object:
        if packed is None:
            return self.plain_forward(*args, **inputs)
        return LogitsOutput(self.run(Packing.from_inputs(packed, inputs)))

    def run(self, packing: Packing) -> torch.Tensor:
        """Return the logits of the rows."""
        if self.pooled is not None:
            return self.pooled.classify(self.vectors(packing))
        if self.head is None:
            raise ModelError(f"{type(self.model).__name__} has a head without a fast form", "use backend plain")
        dense, activate, outputs = self.head
        logits: torch.Tensor = outputs(activate(dense(self.vectors(packing))))
        return logits

    def vectors(self, packing: Packing) -> torch.Tensor:
        """Return what the head reads of each sequence: its first token, or its pooled tokens."""
        mode = self.pooled.pooling.mode if self.pooled is not None else "cls"
        order = np.argsort(-np.diff(packing.bounds.numpy()), kind="stable") if self.towers else None
        ids, positions, types, groups = packing.ids, packing.positions, packing.types, groups_of(packing)
        if order is not None:  # the lengths of two texts differ, and sorted sequences form fewer groups
            ids, positions, types, groups = sorted_tokens(packing, order)
        parts = self.embeddings
        total = functional.embedding(ids, parts.words.weight)
        if parts.types is not None:
            total += functional.embedding(types, parts.types.weight)
        total += functional.embedding(positions, parts.positions.weight)
        hidden: torch.Tensor = parts.norm(total)
        x = filled(hidden if self.projection is None else self.projection(hidden))
        for layer in self.layers:
            x = layer(x, groups)
        if mode == "cls":
            starts = [group.start + row * group.length for group in groups for row in range(group.rows)]
            found = self.last_layer.first_tokens(x, groups, torch.tensor(starts))
        else:
            x = self.last_layer(x, groups)
            found = torch.cat([pool_grid(group.grid(x), mode) for group in groups])
        return found if order is None else found.index_select(0, torch.from_numpy(np.argsort(order)))


def pool_grid(tokens: torch.Tensor, mode: str) -> torch.Tensor:
    """Return one vector per sequence of a grid without padding."""
    return tokens[:, -1] if mode == "last" else tokens.amax(1) if mode == "max" else tokens.mean(1)


def sorted_tokens(packing: Packing, order: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Group]]:
    """Return ids, positions and types of all tokens with the sequences in another order, and the groups of these."""
    bounds = packing.bounds.numpy()
    lengths = np.diff(bounds)[order]
    tokens = torch.from_numpy(np.repeat(bounds[:-1][order], lengths) + positions_within(lengths))
    parts = [part.index_select(0, tokens) for part in (packing.ids, packing.positions, packing.types)]
    return parts[0], parts[1], parts[2], groups_of_lengths(lengths)


@cache
def weight_limit() -> int:
    """Return the largest quantized weight with which the kernels of this CPU are right; raise `RuntimeError` without one."""
    if not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        raise RuntimeError("this build of torch has no int8 kernels for it")
    for limit in (127, 63):  # without VNNI, kernels add two products in 16 bits, which overflow unless weights are halved
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
    """Return how the kernels for AMX end a process, which a child process tries out; None if they do not."""
    # Some virtual machines report AMX instructions that they do not execute.
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
    inputs = Scales.of_channels(widened(None, x), weight)
    linear, tokens = Int8Linear(weight, bias, inputs, limit), inputs.quantized(x)
    rounded, factors = quantized_weight(weight * inputs.scale, limit)
    wanted = (tokens.double() - HALF) @ (rounded * factors[:, None]).T.double() + (weight @ inputs.middle + bias).double()
    active = functional.gelu(wanted)
    results = Scales.of_results(widened(None, active))
    written = (linear.gelu(tokens, "none", results).double() - results.zero) * results.scale
    apart = [linear(tokens) - wanted, linear.add_to(residual.clone(), tokens) - wanted - residual]
    largest = max(float(part.abs().max()) for part in apart)
    rounding = float((written - active).abs().max() - results.scale / 2)
    return max(largest, rounding) / float(wanted.abs().max())
