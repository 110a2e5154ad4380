"""Triton kernels of the operations around matrix multiplications: few launches, and each value is read once."""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments in `do_not_specialize` differ from launch to launch. Triton would compile a kernel again for 1 and multiples of 16.


@triton.jit
def mix_bits(x):
    """Return 32 bits that depend on all bits of x: each changes with probability one half if one bit of x changes."""
    # Two rounds of integer mixing instead of Philox, which took half the time of the normalization kernel. Shares and
    # correlations of the masks are those of chance (tests/gpu).
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def dropout_factor(seed, salt, indices, rate):
    """Return 1 / (1 - rate) for values that are kept, 0 for dropped ones; the backward pass can draw the same again."""
    # Two keys from the seed of the pass and the salt of the dropout: a tenth of the work of Triton's own generator.
    first = mix_bits((seed + salt).to(tl.uint32))
    second = mix_bits(first + 0x9E3779B9)
    random_bits = mix_bits(mix_bits(indices.to(tl.uint32) + first) ^ second)
    threshold = tl.minimum(rate * 4294967296.0, 4294967040.0).to(tl.uint32)
    return tl.where((random_bits >= threshold) & (rate < 1.0), 1.0 / (1.0 - rate), 0.0)


@triton.jit(do_not_specialize=["salt"])
def add_and_norm_kernel(
    product, bias, residual, gain, shift, y, low_y, normed, inverse_std, seed_pointer, salt, rate, eps, width,
    HAS_DROPOUT: tl.constexpr, HAS_LOW_COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute norm(residual + dropout(product + bias)) of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    index = row * width + column
    value = tl.load(product + index, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + column, mask=inside, other=0.0)
    if HAS_DROPOUT:
        value = value * dropout_factor(tl.load(seed_pointer), salt, index, rate)
    total = tl.load(residual + index, mask=inside, other=0.0) + value
    mean = tl.sum(total, 0) / width
    centered = tl.where(inside, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 0) / width + eps)
    xhat = centered * scale
    found = xhat * tl.load(gain + column, mask=inside, other=0.0) + tl.load(shift + column, mask=inside, other=0.0)
    tl.store(y + index, found, mask=inside)
    if HAS_LOW_COPY:
        tl.store(low_y + index, found.to(low_y.dtype.element_ty), mask=inside)
    tl.store(normed + index, xhat, mask=inside)
    tl.store(inverse_std + row, scale)


@triton.jit(do_not_specialize=["salt"])
def embed_kernel(
    words, positions, types, ids, position_ids, type_ids, gain, shift, y, low_y, normed, inverse_std, seed_pointer, salt,
    rate, eps, width,
    HAS_TYPES: tl.constexpr, HAS_DROPOUT: tl.constexpr, HAS_LOW_COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dropout(norm(word + type + position)) of one token."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.load(words + tl.load(ids + row).to(tl.int64) * width + column, mask=inside, other=0.0)
    if HAS_TYPES:
        total += tl.load(types + tl.load(type_ids + row) * width + column, mask=inside, other=0.0)
    total += tl.load(positions + tl.load(position_ids + row) * width + column, mask=inside, other=0.0)
    mean = tl.sum(total, 0) / width
    centered = tl.where(inside, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 0) / width + eps)
    xhat = centered * scale
    found = xhat * tl.load(gain + column, mask=inside, other=0.0) + tl.load(shift + column, mask=inside, other=0.0)
    index = row * width + column
    if HAS_DROPOUT:
        found = found * dropout_factor(tl.load(seed_pointer), salt, index, rate)
    tl.store(y + index, found, mask=inside)
    if HAS_LOW_COPY:
        tl.store(low_y + index, found.to(low_y.dtype.element_ty), mask=inside)
    tl.store(normed + index, xhat, mask=inside)
    tl.store(inverse_std + row, scale)


@triton.jit(do_not_specialize=["salt", "rows"])
def norm_backward_kernel(
    grad, extra_grad, normed, inverse_std, gain, grad_residual, grad_product, partial_sums, num_columns,
    bias_start, gain_start, shift_start, seed_pointer, salt, rate, rows, width,
    HAS_EXTRA_GRAD: tl.constexpr, HAS_DROPOUT: tl.constexpr, DROPOUT_AFTER_NORM: tl.constexpr, ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a norm for every n-th row; those of its parameters are summed in one row of partial sums."""
    # With DROPOUT_AFTER_NORM (embeddings) dropout follows the norm; else it precedes it, on the product alone.
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = tl.load(gain + column, mask=inside, other=0.0)
    grad_gain = tl.zeros([BLOCK], tl.float32)
    grad_shift = tl.zeros([BLOCK], tl.float32)
    grad_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        index = row * width + column
        dy = tl.load(grad + index, mask=inside, other=0.0)
        xhat = tl.load(normed + index, mask=inside, other=0.0)
        if HAS_EXTRA_GRAD:
            dy += tl.load(extra_grad + index, mask=inside, other=0.0).to(tl.float32)
        if DROPOUT_AFTER_NORM and HAS_DROPOUT:
            dy *= dropout_factor(tl.load(seed_pointer), salt, index, rate)
        scaled = dy * weight
        slope = tl.sum(scaled * xhat, 0) / width
        mean = tl.sum(scaled, 0) / width
        dz = (scaled - mean - xhat * slope) * tl.load(inverse_std + row)
        tl.store(grad_residual + index, dz, mask=inside)
        grad_gain += dy * xhat
        grad_shift += dy
        if not DROPOUT_AFTER_NORM:
            dx = dz
            if HAS_DROPOUT:
                dx = dz * dropout_factor(tl.load(seed_pointer), salt, index, rate)
            tl.store(grad_product + index, dx.to(grad_product.dtype.element_ty), mask=inside)
            grad_bias += tl.where(inside, dx, 0.0)
    at = partial_sums + program * num_columns + column
    if ACCUMULATE:
        grad_gain += tl.load(at + gain_start, mask=inside, other=0.0)
        grad_shift += tl.load(at + shift_start, mask=inside, other=0.0)
    tl.store(at + gain_start, grad_gain, mask=inside)
    tl.store(at + shift_start, grad_shift, mask=inside)
    if not DROPOUT_AFTER_NORM:
        if ACCUMULATE:
            grad_bias += tl.load(at + bias_start, mask=inside, other=0.0)
        tl.store(at + bias_start, grad_bias, mask=inside)


@triton.jit(do_not_specialize=["count", "padding"])
def table_gradient_kernel(grad, keys, order, slot, count, width, padding, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the gradients of equal keys, which are adjacent in `order`, always in the same sequence."""
    position = tl.program_id(0)
    key = tl.load(keys + tl.load(order + position))
    previous_key = tl.load(keys + tl.load(order + tl.maximum(position - 1, 0)))
    if ((position == 0) | (key != previous_key)) & (key != padding):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros([BLOCK], tl.float32)
        if ACCUMULATE:
            total += tl.load(slot + key.to(tl.int64) * width + column, mask=inside, other=0.0)
        next_key = key
        while next_key == key:
            total += tl.load(grad + tl.load(order + position) * width + column, mask=inside, other=0.0)
            position += 1
            next_key = tl.load(
                keys + tl.load(order + position, mask=position < count, other=0), mask=position < count, other=-1
            )
        tl.store(slot + key.to(tl.int64) * width + column, total, mask=inside)


@triton.jit
def gelu_kernel(pre_activation, bias, activation, width, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute gelu(pre_activation + bias)."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    x = tl.load(pre_activation + index, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias + index % width, mask=inside, other=0.0)
    if TANH:
        half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        half = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476))
    tl.store(activation + index, (x * half).to(activation.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gelu_backward_kernel(
    grad, pre_activation, bias, found, partial_sums, num_columns, bias_start, rows, width,
    TANH: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of `pre_activation` for every n-th row; that of the bias is summed in one row of partial sums."""
    program = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    bias_value = tl.load(bias + column, mask=inside, other=0.0)
    grad_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(1)):
        index = row * width + column
        x = tl.load(pre_activation + index, mask=inside, other=0.0).to(tl.float32) + bias_value
        if TANH:
            half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            slope = half + x * half * (1.0 - half) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            slope = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        dx = tl.load(grad + index, mask=inside, other=0.0).to(tl.float32) * slope
        tl.store(found + index, dx.to(found.dtype.element_ty), mask=inside)
        grad_bias += tl.where(inside, dx, 0.0)
    start = partial_sums + program * num_columns + bias_start + column
    if ACCUMULATE:
        grad_bias += tl.load(start, mask=inside, other=0.0)
    tl.store(start, grad_bias, mask=inside)


@triton.jit(do_not_specialize=["rows", "num_joined"])
def join_gradients_kernel(
    first, second, third, joined, partial_sums, num_columns, bias_start, rows, width, num_joined,
    ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy gradients side by side; those of their biases are summed in one row of partial sums."""
    source_number = tl.program_id(1)
    program = tl.program_id(2)
    source = first
    if source_number == 1:
        source = second
    if source_number == 2:
        source = third
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    grad_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(2)):
        value = tl.load(source + row * width + column, mask=inside, other=0.0)
        tl.store(joined + row * num_joined * width + source_number * width + column, value, mask=inside)
        grad_bias += value.to(tl.float32)
    start = partial_sums + program * num_columns + bias_start + source_number * width + column
    if ACCUMULATE:
        grad_bias += tl.load(start, mask=inside, other=0.0)
    tl.store(start, grad_bias, mask=inside)


@triton.jit
def squares_kernel(values, size, sums, BLOCK: tl.constexpr):
    """Sum the squares of a block; each program takes every n-th piece and stores its own sum."""
    program = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        value = tl.load(values + index, mask=index < size, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + program, tl.sum(total, 0))


@triton.jit
def scalars_kernel(powers, learning_rate, norm, max_norm, scalars, CLIPS: tl.constexpr):
    """Store the clipping factor, the learning rate over the first bias correction, and the root of the second."""
    factor = 1.0
    if CLIPS:
        factor = tl.minimum(tl.div_rn(1.0, tl.load(norm) + 1e-6) * max_norm, 1.0)
    tl.store(scalars, factor)
    tl.store(scalars + 1, tl.div_rn(tl.load(learning_rate), 1.0 - tl.load(powers)))
    tl.store(scalars + 2, tl.sqrt_rn(1.0 - tl.load(powers + 1)))


@triton.jit
def update_kernel(
    weights, first, second, gradients, low_copy, learning_rate, scalars, size, beta1, beta2, eps, decay,
    HAS_LOW_COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update weights as torch's AdamW does, operation by operation: bit-identical for the same gradients and norm."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    grad = tl.load(gradients + index, mask=inside, other=0.0).to(tl.float32) * tl.load(scalars)
    weight = tl.load(weights + index, mask=inside, other=0.0)
    m = tl.load(first + index, mask=inside, other=0.0)
    v = tl.load(second + index, mask=inside, other=0.0)
    weight = tl.fma(-(tl.load(learning_rate) * decay), weight, weight)
    square = grad * grad
    m = tl.fma(beta1, m, tl.fma(-beta1, grad, grad))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    weight -= tl.div_rn(tl.load(scalars + 1) * m, tl.div_rn(tl.sqrt_rn(v), tl.load(scalars + 2)) + eps)
    tl.store(weights + index, weight, mask=inside)
    tl.store(first + index, m, mask=inside)
    tl.store(second + index, v, mask=inside)
    if HAS_LOW_COPY:
        tl.store(low_copy + index, weight.to(low_copy.dtype.element_ty), mask=inside)
