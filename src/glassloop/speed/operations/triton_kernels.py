"""Triton kernels of what lies between a layer's matrix products: few launches, each value read once."""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that are "not specialized" differ from launch to launch: a kernel would be compiled anew for each kind of them.


@triton.jit
def mixed(x):
    """32 bits that hang on all bits of x: if one of these changes, each of those does with a chance of one half."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def kept_of(seed, salt, places, rate):
    """1 / (1 - rate) where a value is kept, 0 where it is dropped: drawn by place, so that it can be drawn again.

    Two rounds of mixing, under two keys of the site and step: a tenth of the work of Triton's own generator.
    """
    first = mixed((seed + salt).to(tl.uint32))
    second = mixed(first + 0x9E3779B9)
    drawn = mixed(mixed(places.to(tl.uint32) + first) ^ second)
    least = tl.minimum(rate * 4294967296.0, 4294967040.0).to(tl.uint32)
    return tl.where((drawn >= least) & (rate < 1.0), 1.0 / (1.0 - rate), 0.0)


@triton.jit(do_not_specialize=["salt"])
def norm_kernel(
    product, bias, residual, gain, shift, y, low_y, normed, spread, seed_at, salt, rate, eps, width,
    DROPS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < width
    place = row * width + column
    value = tl.load(product + place, mask=there, other=0.0).to(tl.float32) + tl.load(bias + column, mask=there, other=0.0)
    if DROPS:
        value = value * kept_of(tl.load(seed_at), salt, place, rate)
    total = tl.load(residual + place, mask=there, other=0.0) + value
    mean = tl.sum(total, 0) / width
    centred = tl.where(there, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    xhat = centred * scale
    found = xhat * tl.load(gain + column, mask=there, other=0.0) + tl.load(shift + column, mask=there, other=0.0)
    tl.store(y + place, found, mask=there)
    if LOW:
        tl.store(low_y + place, found.to(low_y.dtype.element_ty), mask=there)
    tl.store(normed + place, xhat, mask=there)
    tl.store(spread + row, scale)


@triton.jit(do_not_specialize=["salt"])
def embed_kernel(
    words, positions, types, ids, places, kinds, gain, shift, y, low_y, normed, spread, seed_at, salt, rate, eps, width,
    TYPES: tl.constexpr, DROPS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < width
    total = tl.load(words + tl.load(ids + row).to(tl.int64) * width + column, mask=there, other=0.0)
    if TYPES:
        total += tl.load(types + tl.load(kinds + row) * width + column, mask=there, other=0.0)
    total += tl.load(positions + tl.load(places + row) * width + column, mask=there, other=0.0)
    mean = tl.sum(total, 0) / width
    centred = tl.where(there, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    xhat = centred * scale
    found = xhat * tl.load(gain + column, mask=there, other=0.0) + tl.load(shift + column, mask=there, other=0.0)
    place = row * width + column
    if DROPS:
        found = found * kept_of(tl.load(seed_at), salt, place, rate)
    tl.store(y + place, found, mask=there)
    if LOW:
        tl.store(low_y + place, found.to(low_y.dtype.element_ty), mask=there)
    tl.store(normed + place, xhat, mask=there)
    tl.store(spread + row, scale)


@triton.jit(do_not_specialize=["salt", "rows"])
def norm_backward_kernel(
    grad, more, normed, spread, gain, by_residual, by_product, parts, columns, bias_at, gain_at, shift_at,
    seed_at, salt, rate, rows, width,
    MORE: tl.constexpr, DROPS: tl.constexpr, FIRST: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With FIRST (the embedding) dropout comes after the norm; else it comes before it, on the product alone."""
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    fits = column < width
    weight = tl.load(gain + column, mask=fits, other=0.0)
    by_gain = tl.zeros([BLOCK], tl.float32)
    by_shift = tl.zeros([BLOCK], tl.float32)
    by_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(0)):
        place = row * width + column
        dy = tl.load(grad + place, mask=fits, other=0.0)
        xhat = tl.load(normed + place, mask=fits, other=0.0)
        if MORE:
            dy += tl.load(more + place, mask=fits, other=0.0).to(tl.float32)
        if FIRST and DROPS:
            dy *= kept_of(tl.load(seed_at), salt, place, rate)
        scaled = dy * weight
        slope = tl.sum(scaled * xhat, 0) / width
        mean = tl.sum(scaled, 0) / width
        dz = (scaled - mean - xhat * slope) * tl.load(spread + row)
        tl.store(by_residual + place, dz, mask=fits)
        by_gain += dy * xhat
        by_shift += dy
        if not FIRST:
            dx = dz
            if DROPS:
                dx = dz * kept_of(tl.load(seed_at), salt, place, rate)
            tl.store(by_product + place, dx.to(by_product.dtype.element_ty), mask=fits)
            by_bias += tl.where(fits, dx, 0.0)
    at = parts + part * columns + column
    if ADDS:
        by_gain += tl.load(at + gain_at, mask=fits, other=0.0)
        by_shift += tl.load(at + shift_at, mask=fits, other=0.0)
    tl.store(at + gain_at, by_gain, mask=fits)
    tl.store(at + shift_at, by_shift, mask=fits)
    if not FIRST:
        if ADDS:
            by_bias += tl.load(at + bias_at, mask=fits, other=0.0)
        tl.store(at + bias_at, by_bias, mask=fits)


@triton.jit(do_not_specialize=["count", "padding"])
def rows_kernel(grad, keys, order, slot, count, width, padding, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the gradients of equal keys, which lie together in `order`: always in the same order, so never by chance."""
    place = tl.program_id(0)
    key = tl.load(keys + tl.load(order + place))
    before = tl.load(keys + tl.load(order + tl.maximum(place - 1, 0)))
    if ((place == 0) | (key != before)) & (key != padding):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = column < width
        total = tl.zeros([BLOCK], tl.float32)
        if ADDS:
            total += tl.load(slot + key.to(tl.int64) * width + column, mask=there, other=0.0)
        now = key
        while now == key:
            total += tl.load(grad + tl.load(order + place) * width + column, mask=there, other=0.0)
            place += 1
            now = tl.load(keys + tl.load(order + place, mask=place < count, other=0), mask=place < count, other=-1)
        tl.store(slot + key.to(tl.int64) * width + column, total, mask=there)


@triton.jit
def gelu_kernel(raised, bias, active, width, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    x = tl.load(raised + place, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias + place % width, mask=there, other=0.0)
    if TANH:
        half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        half = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476))
    tl.store(active + place, (x * half).to(active.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def gelu_backward_kernel(
    grad, raised, bias, found, parts, columns, bias_at, rows, width,
    TANH: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    offset = tl.load(bias + column, mask=there, other=0.0)
    by_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(1)):
        place = row * width + column
        x = tl.load(raised + place, mask=there, other=0.0).to(tl.float32) + offset
        if TANH:
            half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            slope = half + x * half * (1.0 - half) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            slope = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        dx = tl.load(grad + place, mask=there, other=0.0).to(tl.float32) * slope
        tl.store(found + place, dx.to(found.dtype.element_ty), mask=there)
        by_bias += tl.where(there, dx, 0.0)
    start = parts + part * columns + bias_at + column
    if ADDS:
        by_bias += tl.load(start, mask=there, other=0.0)
    tl.store(start, by_bias, mask=there)


@triton.jit(do_not_specialize=["rows", "num_joined"])
def join_kernel(
    first, second, third, joined, parts, columns, bias_at, rows, width, num_joined,
    ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(1)
    part = tl.program_id(2)
    source = first
    if which == 1:
        source = second
    if which == 2:
        source = third
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    by_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(2)):
        value = tl.load(source + row * width + column, mask=there, other=0.0)
        tl.store(joined + row * num_joined * width + which * width + column, value, mask=there)
        by_bias += value.to(tl.float32)
    start = parts + part * columns + bias_at + which * width + column
    if ADDS:
        by_bias += tl.load(start, mask=there, other=0.0)
    tl.store(start, by_bias, mask=there)
