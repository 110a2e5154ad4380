"""Attention over short packed sequences on a GPU: one program a sequence and head, one kernel forward and one back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from glassloop.speed.kernels import kept_of
from glassloop.speed.packing import Packing

LONGEST = 128  # a whole row of scores is held at once


@triton.jit
def attend_kernel(
    heads, bounds, out, sums, seed_at, salt, rate, scale, number, width,
    DROPS: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr, ASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start = tl.load(bounds + tl.program_id(0))
    length = tl.load(bounds + tl.program_id(0) + 1) - start
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    token = tl.arange(0, LONG)
    column = tl.arange(0, WIDE)
    there = (token < length)[:, None] & (column < width)[None, :]
    stride = 3 * number * width
    at = heads + (start + token)[:, None] * stride + (head * width + column)[None, :]
    keys = tl.load(at + number * width, mask=there, other=0.0)
    values = tl.load(at + 2 * number * width, mask=there, other=0.0)
    for first in range(0, length, ASKED):
        row = first + tl.arange(0, ASKED)
        asks = (row < length)[:, None] & (column < width)[None, :]
        places = (start + row)[:, None]
        query = tl.load(heads + places * stride + (head * width + column)[None, :], mask=asks, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scale
        scores = tl.where((token < length)[None, :], scores, float("-inf"))
        most = tl.max(scores, 1)
        chances = tl.exp(scores - most[:, None])
        total = tl.sum(chances, 1)
        chances = chances / total[:, None]
        tl.store(sums + (start + row) * number + head, most + tl.log(total), mask=row < length)
        if DROPS:
            chances *= kept_of(tl.load(seed_at), salt, (places * number + head) * LONG + token[None, :], rate)
        found = tl.dot(chances.to(values.dtype), values, input_precision=precision)
        tl.store(out + places * number * width + (head * width + column)[None, :], found.to(out.dtype.element_ty), mask=asks)


@triton.jit
def attend_backward_kernel(
    grad, heads, bounds, sums, found, parts, columns, bias_at, seed_at, salt, rate, scale, number, width, sequences,
    DROPS: tl.constexpr, ADDS: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr, ASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Also sums each sequence's gradients by column: the first stage of the gradients of the biases."""
    which = tl.program_id(0)
    head = tl.program_id(1)
    here = which < sequences
    start = tl.load(bounds + which, mask=here, other=0)
    length = tl.load(bounds + which + 1, mask=here, other=0) - start
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    token = tl.arange(0, LONG)
    column = tl.arange(0, WIDE)
    fits = column < width
    there = (token < length)[:, None] & fits[None, :]
    stride = 3 * number * width
    where = (start + token)[:, None] * stride + (head * width + column)[None, :]
    keys = tl.load(heads + where + number * width, mask=there, other=0.0)
    values = tl.load(heads + where + 2 * number * width, mask=there, other=0.0)
    by_keys = tl.zeros([LONG, WIDE], tl.float32)
    by_values = tl.zeros([LONG, WIDE], tl.float32)
    query_sum = tl.zeros([WIDE], tl.float32)
    for first in range(0, length, ASKED):
        row = first + tl.arange(0, ASKED)
        asks = (row < length)[:, None] & fits[None, :]
        places = (start + row)[:, None]
        at = places * stride + (head * width + column)[None, :]
        query = tl.load(heads + at, mask=asks, other=0.0)
        back = tl.load(grad + places * number * width + (head * width + column)[None, :], mask=asks, other=0.0)
        total = tl.load(sums + (start + row) * number + head, mask=row < length, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scale
        good = (row < length)[:, None] & (token < length)[None, :]
        chances = tl.where(good, tl.exp(scores - total[:, None]), 0.0)
        by_chances = tl.dot(back, tl.trans(values), input_precision=precision)
        dropped = chances
        if DROPS:
            kept = kept_of(tl.load(seed_at), salt, (places * number + head) * LONG + token[None, :], rate)
            by_chances *= kept
            dropped = chances * kept
        by_values += tl.dot(tl.trans(dropped.to(values.dtype)), back, input_precision=precision)
        slope = tl.sum(chances * by_chances, 1)
        by_scores = (chances * (by_chances - slope[:, None]) * scale).to(keys.dtype)
        by_query = tl.dot(by_scores, keys, input_precision=precision)
        by_keys += tl.dot(tl.trans(by_scores), query, input_precision=precision)
        tl.store(found + at, by_query.to(found.dtype.element_ty), mask=asks)
        query_sum += tl.sum(by_query, 0)
    tl.store(found + where + number * width, by_keys.to(found.dtype.element_ty), mask=there)
    tl.store(found + where + 2 * number * width, by_values.to(found.dtype.element_ty), mask=there)
    at_sum = parts + which * columns + bias_at + head * width + column
    key_sum = tl.sum(by_keys, 0)
    value_sum = tl.sum(by_values, 0)
    if ADDS:
        query_sum += tl.load(at_sum, mask=fits, other=0.0)
        key_sum += tl.load(at_sum + number * width, mask=fits, other=0.0)
        value_sum += tl.load(at_sum + 2 * number * width, mask=fits, other=0.0)
    tl.store(at_sum, query_sum, mask=fits)
    tl.store(at_sum + number * width, key_sum, mask=fits)
    tl.store(at_sum + 2 * number * width, value_sum, mask=fits)


def is_short(packing: Packing, width: int) -> bool:
    """Whether these kernels take a batch."""
    return packing.longest <= LONGEST and width <= 128


def measures(packing: Packing, heads: torch.Tensor) -> dict[str, Any]:
    long = max(triton.next_power_of_2(packing.longest), 16)
    wide = max(triton.next_power_of_2(heads.shape[-1]), 16)
    exact = heads.dtype is torch.float32
    asked = min(long, 32 if exact or wide > 64 else 64)
    return {"LONG": long, "WIDE": wide, "ASKED": asked, "EXACT": exact, "num_warps": 8 if long > 64 else 4}


def attend_short(
    heads: torch.Tensor, packing: Packing, rate: float, seed: torch.Tensor, salt: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attended values [tokens, heads, width] of `heads` [tokens, 3, heads, width], and logarithms of sums of scores."""
    tokens, _, number, width = heads.shape
    out = torch.empty(tokens, number, width, dtype=heads.dtype, device=heads.device)
    sums = torch.empty(tokens, number, device=heads.device)
    attend_kernel[(packing.sequences, number)](
        heads,
        packing.bounds,
        out,
        sums,
        seed,
        salt,
        rate,
        width**-0.5,
        number,
        width,
        DROPS=rate > 0,
        **measures(packing, heads),
    )
    return out, sums


def attend_short_backward(
    grad: torch.Tensor, heads: torch.Tensor, sums: torch.Tensor, packing: Packing, rate: float, seed: torch.Tensor, salt: int,
    site: tuple[Any, ...], lines: int,
) -> torch.Tensor:  # fmt: skip
    """The gradient of `heads`, [tokens, 3 * heads * width]. `site`: where the sums of its columns go, `lines` of them."""
    tokens, _, number, width = heads.shape
    found = torch.empty(tokens, 3 * number * width, dtype=heads.dtype, device=heads.device)
    parts, columns, bias_at, adds = site
    attend_backward_kernel[(lines, number)](
        grad, heads, packing.bounds, sums, found, parts, columns, bias_at, seed, salt, rate, width**-0.5, number, width,
        packing.sequences, DROPS=rate > 0, ADDS=adds, **measures(packing, heads),
    )  # fmt: skip
    return found
