"""Layers in int8 for forward passes on a CPU, and the layers that measure the ranges of their inputs first.

Only the four linear layers of each encoder layer are quantized. Embeddings, attention, norms, sums, the last layer (which is
computed for first tokens only) and the head stay in fp32. So do a few channels behind GELU: one or two are several times larger
than all others, and one scale for all would leave few steps to the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from glassloop.speed.encoder_parts import LayerParts
from glassloop.speed.encoders.inference_layers import Group, InferenceLayer, attended, num_tokens
from glassloop.speed.operations.int8_linear import Int8Linear, Range, Scales
from glassloop.speed.operations.prepared_linear import PreparedLinear

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
    """A layer in fp32 that records the ranges of its values.

    Args:
        parts: The modules of the layer.
        ranges: Where the ranges of all layers are kept.
    """

    def __init__(self, parts: LayerParts, ranges: Ranges) -> None:
        super().__init__(parts)
        self.module, self.ranges = parts.module, ranges

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens."""
        seen, number = self.ranges.setdefault(self.module, LayerRanges()), num_tokens(groups)
        found = self.attend(x, groups)
        hidden = self.out_norm(self.out.add(found, x))
        inner = self.up.gelu(hidden, self.approximate)
        for values, place in ((x, seen.joined), (found, seen.out), (hidden, seen.up), (inner, seen.down)):
            place.see(values[:number])
        return self.down_norm(self.down.add(inner, hidden))  # type: ignore[no-any-return]


class Int8Layer:
    """One post-norm layer whose linear layers are quantized.

    Args:
        parts: The modules of the layer.
        seen: The ranges of its values.
    """

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
        channels = seen.down.by_width()
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
        """The layer in fp32."""
        return InferenceLayer(self.parts)
