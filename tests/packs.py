"""Rows of token ids, packed and padded, and twins of a model: for the tests of the fast paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of, uncounted_token_of
from glassloop.backends.fast.inference_model import why_no_kernels
from glassloop.backends.fast.operations import DropoutMasks
from glassloop.backends.fast.packing import Packing, join_rows, pack
from glassloop.backends.fast.storage import FlatStorage
from glassloop.backends.packed import PackedBackend

LENGTHS = (7, 2, 11, 5)


def token_rows(lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> list[np.ndarray]:
    """Rows of token ids, none of them padding; words come more than once."""
    source = np.random.default_rng(seed)
    return [source.integers(1, 30, length) for length in lengths]


def packed_rows(rows: list[np.ndarray], types: Any, padding: int | None, multiple: int = 1, vocabulary: Any = None) -> dict:
    """`multiple` 1 is a CPU's way, any other a GPU's."""
    steps = (multiple, max(multiple, 8)) if multiple > 1 else None
    return pack(join_rows(rows), None if types is None else np.concatenate(types), padding, steps, vocabulary)


def inputs_of(model: Any, rows: list[np.ndarray], multiple: int = 1, types: Any = None, vocabulary: Any = None) -> dict:
    """The packed inputs of a model."""
    inputs = packed_rows(rows, types, uncounted_token_of(model), multiple, vocabulary)
    return inputs | {"packed": torch.from_numpy(inputs["packed"])}


def packing_of(rows: list[np.ndarray], padding: int | None = None, multiple: int = 1, **more: Any) -> Packing:
    inputs = packed_rows(rows, more.get("types"), padding, multiple, more.get("vocabulary"))
    return Packing(torch.from_numpy(inputs["packed"]), *(inputs[name] for name in ("tokens", "rows", "longest", "has_filler")))


def padded_inputs(rows: list[np.ndarray], types: Any = None) -> dict[str, torch.Tensor]:
    """What the same rows are to an unmodified model."""
    columns = {"input_ids": rows, "attention_mask": [np.ones_like(row) for row in rows]}
    columns |= {} if types is None else {"token_type_ids": types}
    pad = torch.nn.utils.rnn.pad_sequence
    return {name: pad([torch.from_numpy(row) for row in column], batch_first=True) for name, column in columns.items()}


def lively(family: str = "bert", dropout: float = 0.0, **options: Any) -> Any:
    """A tiny model with weights large enough, and norms uneven enough, that a wrong term shows."""
    model = tiny_model(family, dropout=dropout, initializer_range=0.2, **options)
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=source) * 0.2)
            elif "embedding" in name:
                weight[0].normal_(0.0, 0.2, generator=source)  # the padding row: rounding rows of a grid read it
    return model


def storage_of(model: Any, spared: set[int] | None = None, **options: Any) -> FlatStorage:
    """The weights of a model in one block, open for training."""
    vectors = embeddings_of(model).vectors
    storage = FlatStorage(model, layers_of(model), spared or set(), embedding_vectors=vectors, **options)
    storage.open_for_training()
    return storage


def masks_of(seed: int = 1) -> DropoutMasks:
    """Dropout masks on a CPU after a seed."""
    torch.manual_seed(seed)
    masks = DropoutMasks(torch.device("cpu"))
    masks.start()
    return masks


def weighed(logits: torch.Tensor) -> torch.Tensor:
    """A sum in which every logit has a weight of its own."""
    return (logits * torch.linspace(-1.0, 2.0, logits.numel()).view_as(logits)).sum()


def plain_gradients(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The gradients autograd finds."""
    model.zero_grad()
    weighed(model(**inputs).logits).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


needs_kernels = pytest.mark.skipif(why_no_kernels() is not None, reason=f"no int8 on this CPU: {why_no_kernels()}")


def packed_logits(backend: PackedBackend, model: Any, rows: list[np.ndarray]) -> torch.Tensor:
    """The logits of rows on a backend."""
    with torch.inference_mode(), backend.evaluation_context(model):
        found: torch.Tensor = model(**inputs_of(model, rows)).logits
    return found


def quantized(model: Any, rows: list[np.ndarray]) -> PackedBackend:
    """A backend that has measured a model on rows and runs it in int8."""
    backend = PackedBackend(int8=True)
    packed_logits(backend, model, rows)
    backend.quantize()
    return backend
