"""Flat storage: all weights in one block of memory, all gradients in another, and only the word vectors that occur."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from glassloop.base.errors import SettingsError
from glassloop.data.interfaces import Model, Rows
from glassloop.data.rows import Repeats, RowReader, arrow_rows, numbers_of, repeats_of

if TYPE_CHECKING:
    from glassloop.backends.fast.encoder_parts import LayerParts

MAX_USED_SHARE = 0.9  # if more of the word vectors are used, a smaller table saves nothing
READ_ROWS = 10_000
ALIGNED = 64  # groups of weights start at a multiple of this; within a group there is no gap, so it can be used as one


class ReducedVocabulary:
    """The used rows of the full table of word vectors, in their order, and the new id of each token."""

    def __init__(self, used: np.ndarray, size: int, device: torch.device) -> None:
        self.used = torch.from_numpy(used).to(device)
        new_ids = np.full(size, -1, dtype=np.int32)
        new_ids[used] = np.arange(len(used), dtype=np.int32)
        self.new_ids = torch.from_numpy(new_ids)

    def select(self, full: torch.Tensor) -> torch.Tensor:
        return full.index_select(0, self.used.to(full.device))

    def expand(self, small: torch.Tensor) -> torch.Tensor:
        """Return a full table with the used rows, and zeros elsewhere: unused rows have no gradient and no moments."""
        return small.new_zeros(len(self.new_ids), *small.shape[1:]).index_copy_(0, self.used, small)


def choose_vocabulary(model: Model, data_sets: Sequence[Rows], weight_decay: float) -> ReducedVocabulary | None:
    """Return the word vectors that occur in the data; None to train all of them."""
    # All of them if rows change between reads, with weight decay, which changes every vector, and if most vectors are used.
    if any(repeats_of(rows) is not Repeats.SAME for rows in data_sets):
        return None
    embedding = model.get_input_embeddings()
    used = used_ids(data_sets, embedding.num_embeddings, embedding.padding_idx or 0)
    if weight_decay > 0 or len(used) > MAX_USED_SHARE * embedding.num_embeddings:
        return None
    return ReducedVocabulary(used, embedding.num_embeddings, embedding.weight.device)


def used_ids(data_sets: Iterable[Rows], size: int, padding: int) -> np.ndarray:
    """Return the token ids that occur in encoded data sets, in order, and always the padding token."""
    seen = np.zeros(size, dtype=bool)
    seen[padding] = True
    for ids in (ids for rows in data_sets for ids in token_ids(rows)):
        if len(ids) and not 0 <= (wrong := int(ids.min() if ids.min() < 0 else ids.max())) < size:
            problem = f"a row has the token id {wrong:,}, but the vocabulary of the model has only {size:,} tokens"
            raise SettingsError(problem, "use the model's own tokenizer")
        seen[ids] = True
    return np.flatnonzero(seen)


def token_ids(rows: Rows) -> Iterator[np.ndarray]:
    """Yield the token ids of a data set: of many rows at a time if it is an Arrow file, else of one row."""
    if isinstance(rows, RowReader) and not rows.in_memory:
        rows.survey()
        yield np.array(sorted(rows.words), dtype=np.int64)
    elif (stored := arrow_rows(rows)) is None:
        yield from (np.asarray(rows[number]["input_ids"]) for number in range(len(rows)))
    else:
        for start in range(0, len(rows), READ_ROWS):
            yield numbers_of(stored[start : start + READ_ROWS]["input_ids"].combine_chunks().flatten())


class Memory:
    """Tensors by name. A training that gets the memory of an earlier one has its tensors at the same addresses."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def zeros(self, name: str, *shape: int, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensor of this name, filled with zeros; on the device and, by default, of the type of another one."""
        if (found := self.tensors.get(name)) is not None:
            return found.zero_()
        return self.tensors.setdefault(name, like.new_zeros(shape, dtype=dtype))


class Region(NamedTuple):
    """A stretch of the flat storage that is updated in one pass."""

    start: int
    stop: int
    decays: bool
    in_layers: bool  # the matrices of fast layers, which have a copy in the dtype of matrix multiplications

    @property
    def span(self) -> slice:
        return slice(self.start, self.stop)


def is_frozen(weights: Sequence[torch.Tensor]) -> bool:
    return not any(weight.requires_grad for weight in weights)


# Weights are fp32 with a bf16 copy of the matrices, which AdamW writes. The residual stream and the head stay fp32, as
# under autocast.
class FlatStorage:
    """Weights, gradients and moments, each in one block; every parameter becomes a view of its stretch."""

    # The matrices of fast layers come first, so that one copy in `matmul_dtype` holds them all; with `low_precision_gradients`
    # their gradients have that type, too. `no_decay` and `tables`, of which only some rows are trained, go by parameter id.
    # `embedding_vectors` are the norm of the embeddings, whose gradients the kernels write like those of the layers' vectors.
    # Unless it `trains`, only what layers read in one piece is copied. A `memory` that was used before must be that of a model
    # of the same structure.
    def __init__(
        self, model: nn.Module, layers: Sequence[LayerParts], no_decay: set[int], *,
        embedding_vectors: list[torch.Tensor] | None = None, tables: dict[int, ReducedVocabulary] | None = None,
        matmul_dtype: torch.dtype = torch.float32, low_precision_gradients: bool = False, trains: bool = True,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self.memory = memory or Memory()
        self.tables, self.trains = tables or {}, trains
        self.matmul_dtype, self.low_precision_gradients = matmul_dtype, low_precision_gradients
        self.views: dict[tuple[int, ...], torch.Tensor] = {}  # cached: a step asks for hundreds of them
        self.written: set[int] = set()  # the ids of parameters that got a gradient since the last step
        self.gradients_exposed = False  # whether the user's code may write into gradients
        matrices = [group for layer in layers for group in layer.matrices]
        vectors = [*([embedding_vectors] if embedding_vectors else []), *(layer.vectors for layer in layers)]
        # Of frozen weights, only what is read in one piece is copied. They have neither a gradient nor moments.
        joined = [*matrices, *([layer.query.bias, layer.key.bias, layer.value.bias] for layer in layers)]
        self.frozen = [group for group in joined if is_frozen(group)] if trains else []
        self.pieces: dict[int, tuple[torch.Tensor, int]] = {}  # by weight: the copy of its group, and where it starts there
        self.num_frozen_values = 0  # at least as many as the kernels write for the vectors of one frozen layer
        if trains:
            sizes = [len(weight) for group in vectors if is_frozen(group) for weight in group]
            self.num_frozen_values = 3 * max(sizes, default=0)
            matrices, vectors = ([group for group in groups if not is_frozen(group)] for groups in (matrices, vectors))
        self.vectors = [weight for group in vectors for weight in group]
        known = {id(weight) for group in (*matrices, self.vectors) for weight in group}
        rest = [weight for weight in model.parameters() if id(weight) not in known and trains and weight.requires_grad]
        sections: list[tuple[list[list[torch.Tensor]], bool, bool]] = [
            (matrices, True, True),
            ([[weight] for weight in rest if id(weight) not in no_decay], True, False),
            (vectors + [[weight] for weight in rest if id(weight) in no_decay], False, False),
        ]
        self.parameters = [weight for section, _, _ in sections for group in section for weight in group]
        values = {id(weight): weight.detach() for weight in self.parameters}
        values |= {number: table.select(values[number]) for number, table in self.tables.items() if number in values}
        self.locations: dict[int, tuple[int, torch.Size]] = {}
        self.regions: list[Region] = []
        place = 0
        for section, decays, in_layers in sections:
            start = place
            for group in section:
                for weight in group:
                    self.locations[id(weight)] = (place, values[id(weight)].shape)
                    place += values[id(weight)].numel()
                place = -(-place // ALIGNED) * ALIGNED
            if section:
                self.regions.append(Region(start, place, decays, in_layers))
        self.num_matrix_values = self.regions[0].stop if matrices else 0
        self.first_vector, self.num_vector_values = place, 0
        if self.vectors:
            self.first_vector = self.locations[id(self.vectors[0])][0]
            self.num_vector_values = self.locations[id(self.vectors[-1])][0] + self.vectors[-1].numel() - self.first_vector
        first = next(model.parameters())
        self.weights = self.memory.zeros("weights", place, like=first, dtype=torch.float32)
        self.low_matrices: torch.Tensor | None = None
        self.low_vectors = self.weights[:0]
        if matmul_dtype is not torch.float32:
            self.low_matrices = self.memory.zeros("low matrices", self.num_matrix_values, like=first, dtype=matmul_dtype)
            self.low_vectors = self.memory.zeros("low vectors", self.num_vector_values, like=first, dtype=matmul_dtype)
        if self.parameters:
            torch._foreach_copy_([self.view(self.weights, number) for number in values], list(values.values()))
        for weight in self.parameters if trains else ():
            if id(weight) not in self.tables:
                weight.data = self.view(self.weights, id(weight))
        self.refresh_low_copies()
        self.copy_frozen()

    def copy_frozen(self) -> None:
        """Copy the frozen weights that layers read in one piece, in the dtype of matrix multiplications."""
        for group in self.frozen:
            values = [weight.detach().to(self.matmul_dtype) for weight in group]
            piece = values[0] if len(values) == 1 else torch.cat(values)
            starts = np.cumsum([0, *map(len, values)])
            self.pieces |= {id(weight): (piece, int(start)) for weight, start in zip(group, starts, strict=False)}

    def frozen_piece(self, weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return adjacent frozen weights in the dtype of matrix multiplications, joined; None for those that are trained."""
        piece, start = self.pieces.get(id(weights[0]), (None, 0))
        return piece if piece is None else piece[start : start + sum(map(len, weights))]

    def trains_weight(self, weight: torch.Tensor) -> bool:
        return id(weight) in self.locations

    def open_for_training(self) -> None:
        size, zeros = self.weights.numel(), partial(self.memory.zeros, like=self.weights)
        self.moments = (zeros("first moments", size), zeros("second moments", size))
        dtype = self.matmul_dtype if self.low_precision_gradients else torch.float32
        self.matrix_gradients = zeros("matrix gradients", self.num_matrix_values, dtype=dtype)
        self.other_gradients = zeros("other gradients", size - self.num_matrix_values)

    def view(self, block: torch.Tensor, number: int, offset: int = 0) -> torch.Tensor:
        """Return the stretch of a block that belongs to the parameter with this id, in its shape."""
        start, shape = self.locations[number]
        return block[start - offset : start - offset + shape.numel()].view(shape)

    def table_rows(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the rows of a table that the model reads: all of them, or those that are trained."""
        return self.view(self.weights, id(weight)) if id(weight) in self.locations else weight.detach()

    def gradient(self, weight: torch.Tensor) -> torch.Tensor:
        slot = self.views.get((id(weight),))
        if slot is None:
            is_matrix = self.locations[id(weight)][0] < self.num_matrix_values
            block, offset = (self.matrix_gradients, 0) if is_matrix else (self.other_gradients, self.num_matrix_values)
            slot = self.views[(id(weight),)] = self.view(block, id(weight), offset)
        return slot

    def full_gradient(self, weight: torch.Tensor) -> torch.Tensor:
        table, gradient = self.tables.get(id(weight)), self.gradient(weight).float()
        return table.expand(gradient) if table is not None else gradient

    def region_gradients(self, region: Region) -> torch.Tensor:
        if region.in_layers:
            return self.matrix_gradients
        return self.other_gradients[region.start - self.num_matrix_values : region.stop - self.num_matrix_values]

    def joined_view(self, weights: Sequence[torch.Tensor], block: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Return adjacent parameters as one: query, key and value form a matrix with three times the rows."""
        key = (block.data_ptr(), *map(id, weights))
        if key not in self.views:
            start = self.locations[id(weights[0])][0]
            last, shape = self.locations[id(weights[-1])]
            size = sum(self.locations[id(weight)][1].numel() for weight in weights)
            if last + shape.numel() - start != size:
                raise ValueError("these parameters are not adjacent in the storage")
            self.views[key] = block[start - offset : start - offset + size].view(-1, *shape[1:])
        return self.views[key]

    def matmul_weight(self, *weights: torch.Tensor) -> torch.Tensor:
        """Return matrices of a layer in the dtype of matrix multiplications; several are joined."""
        if (piece := self.frozen_piece(weights)) is not None:
            return piece
        return self.joined_view(weights, self.weights if self.low_matrices is None else self.low_matrices)

    def matmul_bias(self, *weights: torch.Tensor) -> torch.Tensor:
        """Return adjacent biases of a layer in the dtype of matrix multiplications, joined."""
        if (piece := self.frozen_piece(weights)) is not None:
            return piece
        if self.low_matrices is None:
            return self.joined_view(weights, self.weights)
        return self.joined_view(weights, self.low_vectors, self.first_vector)

    def add_matmul_gradient(self, weights: Sequence[torch.Tensor], left: torch.Tensor, right: torch.Tensor) -> None:
        """Add left^T @ right to the joined gradient of `weights`; a batch of products fills the rows one after the other.

        Does nothing for frozen weights.
        """
        if not self.trains_weight(weights[0]):
            return
        slot = self.joined_view(weights, self.matrix_gradients)
        slot = slot.view(*left.shape[:-2], -1, slot.shape[-1])
        transposed = left.mT
        if id(weights[0]) in self.written:
            slot.addmm_(transposed, right) if slot.dtype == left.dtype and slot.dim() == 2 else slot.add_(transposed @ right)
        elif slot.dtype == left.dtype:
            torch.matmul(transposed, right, out=slot)
        else:
            slot.copy_(transposed @ right)
        self.mark_written(*weights)

    def add(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        if not self.trains_weight(weight):
            return
        slot = self.gradient(weight)
        slot.add_(value) if id(weight) in self.written else slot.copy_(value)
        self.mark_written(weight)

    def mark_written(self, *weights: torch.Tensor) -> None:
        """Record that these parameters have a gradient, and expose it as `.grad`."""
        for weight in weights:
            self.written.add(id(weight))
            slot = self.gradient(weight)
            if slot.dtype == weight.dtype and slot.shape == weight.shape:
                weight.grad = slot

    def adopt_gradient(self, weight: torch.Tensor) -> None:
        """Move a gradient that autograd has just made into the storage; a second one was added there by autograd."""
        if weight.grad is not None and weight.grad.data_ptr() != self.gradient(weight).data_ptr():
            self.add(weight, weight.grad)

    def adopt_gradients(self) -> None:
        """Copy gradients that `on_gradients` has replaced into the storage; raise if it has removed one."""
        self.gradients_exposed = True
        for weight in self.parameters:
            slot = self.gradient(weight)
            if weight.grad is None and id(weight) in self.written:
                raise SettingsError("on_gradients set a gradient to None", "set it to zero instead, or use backend plain")
            if weight.grad is not None and weight.grad.data_ptr() != slot.data_ptr():
                slot.copy_(weight.grad)

    def clear_gradients(self) -> None:
        self.written.clear()
        for weight in self.parameters:
            weight.grad = None

    def zero_missing_gradients(self) -> None:
        for weight in self.parameters:
            if id(weight) not in self.written:
                self.gradient(weight).zero_()

    def refresh_low_copies(self, *, matrices: bool = True) -> None:
        """Update the copies in the dtype of matrix multiplications; without `matrices` only those of vectors."""
        if self.low_matrices is not None:
            if matrices:
                self.low_matrices.copy_(self.weights[: self.num_matrix_values])
            self.low_vectors.copy_(self.weights[self.first_vector : self.first_vector + self.num_vector_values])

    @property
    def vector_gradients(self) -> torch.Tensor:
        """Return the gradients of the layers' biases and norms, one after the other."""
        start = self.first_vector - self.num_matrix_values
        return self.other_gradients[start : start + self.num_vector_values]

    def release(self) -> None:
        """Give every parameter its own memory again; free what training needed first."""
        self.views.clear()
        self.pieces.clear()
        if not self.trains:
            return
        if hasattr(self, "moments"):  # else gradients were not ours
            for weight in self.parameters:
                weight.grad = None
            del self.moments, self.matrix_gradients, self.other_gradients
        for weight in self.parameters:
            weight.data = weight.data.clone()
        # The optimizer outlives its training as `trainer.optimizer`, and with it this object.
        self.weights = self.low_vectors = self.weights.new_empty(0)
        self.low_matrices = None
        self.memory = Memory()
