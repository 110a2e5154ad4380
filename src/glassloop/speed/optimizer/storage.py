"""Flat storage: all weights in one block of memory, their gradients in another that is never given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from glassloop.errors import SettingsError
from glassloop.speed.encoders.parts import LayerParts
from glassloop.speed.optimizer.vocabulary import ReducedVocabulary

ALIGNED = 64  # weights start at a multiple of so many numbers; neighbours that are used as one have no gap between them


@dataclass(frozen=True)
class Region:
    """A stretch of the flat storage that is updated in one go."""

    start: int
    stop: int
    decays: bool
    in_layers: bool  # the matrices of fast layers: products of low precision, if any, read a copy of these

    @property
    def part(self) -> slice:
        return slice(self.start, self.stop)


class FlatStorage:
    """Weights, gradients and moments, each in one block; every parameter becomes a view of its stretch.

    `tables` names the parameters of which only some rows are trained (see vocabulary.py). `low`: the precision of matrix
    products, of which the layers' matrices get a copy; `low_gradients`: their gradients are kept in it as well. With `trains`
    False the parameters stay where they are, and only what layers read in one piece is copied.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[LayerParts],
        no_decay: set[int],
        *,
        embedding_vectors: list[nn.Parameter] | None = None,
        tables: dict[int, ReducedVocabulary] | None = None,
        low: torch.dtype = torch.float32,
        low_precision_gradients: bool = False,
        trains: bool = True,
    ) -> None:
        self.tables = tables or {}
        named = list(model.parameters())
        matrices = [group for layer in layers for group in layer.matrices]
        vectors = [*([embedding_vectors] if embedding_vectors else []), *(layer.vectors for layer in layers)]
        known = {id(weight) for group in (*matrices, *vectors) for weight in group}
        rest = [weight for weight in named if id(weight) not in known and trains]
        sections: list[tuple[list[list[nn.Parameter]], bool, bool]] = [
            (matrices, True, True),
            ([[weight] for weight in rest if id(weight) not in no_decay], True, False),
            (vectors + [[weight] for weight in rest if id(weight) in no_decay], False, False),
        ]
        self.parameters = [weight for section, _, _ in sections for group in section for weight in group]
        values = {id(weight): self.trained_values(weight) for weight in self.parameters}
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
        device = named[0].device
        self.num_matrix_values = self.regions[0].stop if matrices else 0
        self.weights = torch.zeros(place, device=device)
        self.low, self.low_precision_gradients = low, low_precision_gradients
        self.low_matrices: torch.Tensor | None = None
        if low is not torch.float32:
            self.low_matrices = torch.zeros(self.num_matrix_values, dtype=low, device=device)
        self.vectors = [weight for group in vectors for weight in group]
        self.first_vector = self.locations[id(self.vectors[0])][0] if vectors else place
        last = self.vectors[-1] if vectors else None
        self.num_vector_values = self.locations[id(last)][0] + last.numel() - self.first_vector if last is not None else 0
        self.low_vectors = self.weights[:0]
        if low is not torch.float32:
            self.low_vectors = torch.zeros(self.num_vector_values, dtype=low, device=device)
        self.views: dict[tuple[int, ...], torch.Tensor] = {}  # made once: a step asks for hundreds
        self.written: set[int] = set()  # the parameters that have a gradient since the last step
        self.gradients_exposed = False  # others write into gradients too
        self.trains = trains
        if self.parameters:
            torch._foreach_copy_([self.view(self.weights, number) for number in values], list(values.values()))
        for weight in self.parameters if trains else ():
            if id(weight) not in self.tables:
                weight.data = self.view(self.weights, id(weight))
        self.refresh_low_copies()

    def trained_values(self, weight: nn.Parameter) -> torch.Tensor:
        """What is trained of a parameter: all of it, or the rows that are used."""
        table = self.tables.get(id(weight))
        return table.small(weight.detach()) if table is not None else weight.detach()

    def open_for_training(self) -> None:
        """Room for gradients and moments."""
        device, size, inside = self.weights.device, self.weights.numel(), self.num_matrix_values
        self.moments = (torch.zeros(size, device=device), torch.zeros(size, device=device))
        kind = self.low if self.low_precision_gradients else torch.float32
        self.matrix_gradients = torch.zeros(inside, dtype=kind, device=device)
        self.other_gradients = torch.zeros(size - inside, device=device)

    def view(self, block: torch.Tensor, number: int, offset: int = 0) -> torch.Tensor:
        """A parameter's stretch of a block, in its shape."""
        start, shape = self.locations[number]
        return block[start - offset : start - offset + shape.numel()].view(shape)

    def table_rows(self, weight: torch.Tensor) -> torch.Tensor:
        """The rows of a table that are read: all of it, or those that are trained."""
        return self.view(self.weights, id(weight)) if id(weight) in self.locations else weight.detach()

    def gradient(self, weight: nn.Parameter) -> torch.Tensor:
        """Where a parameter's gradient is kept."""
        found = self.views.get((id(weight),))
        if found is None:
            inside = self.locations[id(weight)][0] < self.num_matrix_values
            block, offset = (self.matrix_gradients, 0) if inside else (self.other_gradients, self.num_matrix_values)
            found = self.views[(id(weight),)] = self.view(block, id(weight), offset)
        return found

    def full_gradient(self, weight: nn.Parameter) -> torch.Tensor:
        """A parameter's gradient in its own shape and precision, whatever is kept smaller here."""
        table, found = self.tables.get(id(weight)), self.gradient(weight).float()
        return table.full(found) if table is not None else found

    def joined(self, weights: Sequence[nn.Parameter], block: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Neighbours in the storage as one: query, key and value are one matrix with three times the rows."""
        key = (block.data_ptr(), *map(id, weights))
        if key in self.views:
            return self.views[key]
        start = self.locations[id(weights[0])][0]
        shapes = [self.locations[id(weight)][1] for weight in weights]
        size = sum(shape.numel() for shape in shapes)
        together = block[start - offset : start - offset + size]
        last = self.locations[id(weights[-1])][0] + shapes[-1].numel()
        if last - start != size:
            raise ValueError("these weights are not neighbours")
        self.views[key] = together.view(-1, *shapes[0][1:])
        return self.views[key]

    def matmul_weight(self, *weights: nn.Parameter) -> torch.Tensor:
        """Matrices of a layer in the precision of products, joined where several are asked for."""
        return self.joined(weights, self.weights if self.low_matrices is None else self.low_matrices)

    def add_product(self, weights: Sequence[nn.Parameter], left: torch.Tensor, right: torch.Tensor) -> None:
        """Add left^T @ right to the joined gradient of `weights`; where both are several, each to its share of the rows."""
        slot = self.joined(weights, self.matrix_gradients)
        slot = slot.view(*left.shape[:-2], -1, slot.shape[-1])
        product = left.mT
        if id(weights[0]) in self.written:
            slot.addmm_(product, right) if slot.dtype == left.dtype and slot.dim() == 2 else slot.add_(product @ right)
        elif slot.dtype == left.dtype:
            torch.matmul(product, right, out=slot)
        else:
            slot.copy_(product @ right)
        self.mark_written(*weights)

    def add(self, weight: nn.Parameter, value: torch.Tensor) -> None:
        """Add to a parameter's gradient."""
        slot = self.gradient(weight)
        slot.add_(value) if id(weight) in self.written else slot.copy_(value)
        self.mark_written(weight)

    def mark_written(self, *weights: nn.Parameter) -> None:
        """Note that these have a gradient, and show it to whoever looks at `.grad`."""
        for weight in weights:
            self.written.add(id(weight))
            slot = self.gradient(weight)
            if slot.dtype == weight.dtype and slot.shape == weight.shape:
                weight.grad = slot

    def adopt_gradient(self, weight: Any) -> None:
        """Move a gradient that autograd has just made into its place; a second one was added there already."""
        if weight.grad.data_ptr() != self.gradient(weight).data_ptr():
            self.add(weight, weight.grad)

    def adopt_gradients(self) -> None:
        """Take gradients that were put in the place of ours; one that was taken away cannot be."""
        self.gradients_exposed = True
        for weight in self.parameters:
            slot = self.gradient(weight)
            if weight.grad is None and id(weight) in self.written:
                raise SettingsError("on_gradients has set a gradient to None", "use backend plain, or set it to zero")
            if weight.grad is not None and weight.grad.data_ptr() != slot.data_ptr():
                slot.copy_(weight.grad)

    def clear_gradients(self) -> None:
        """Forget all gradients; their memory stays."""
        self.written.clear()
        for weight in self.parameters:
            weight.grad = None

    def zero_missing_gradients(self) -> None:
        """Zero the gradients of parameters that got none in this step."""
        for weight in self.parameters:
            if id(weight) not in self.written:
                self.gradient(weight).zero_()

    def refresh_low_copies(self) -> None:
        """Copy the matrices into their low precision."""
        if self.low_matrices is not None:
            self.low_matrices.copy_(self.weights[: self.num_matrix_values])
        self.refresh_low_vectors()

    def refresh_low_vectors(self) -> None:
        if self.low_matrices is not None:
            self.low_vectors.copy_(self.weights[self.first_vector : self.first_vector + self.num_vector_values])

    def matmul_bias(self, *weights: nn.Parameter) -> torch.Tensor:
        """Neighbouring biases of a layer in the precision of products."""
        if self.low_matrices is None:
            return self.joined(weights, self.weights)
        return self.joined(weights, self.low_vectors, self.first_vector)

    @property
    def vector_gradients(self) -> torch.Tensor:
        """The gradients of the layers' biases and norms, one after the other."""
        start = self.first_vector - self.num_matrix_values
        return self.other_gradients[start : start + self.num_vector_values]

    def release(self) -> None:
        """Give every parameter memory of its own again; what a training needed is given back first."""
        self.views.clear()
        if not self.trains:
            return
        if hasattr(self, "moments"):  # else gradients are somebody else's
            for weight in self.parameters:
                weight.grad = None
            del self.moments, self.matrix_gradients, self.other_gradients
        for weight in self.parameters:
            weight.data = weight.data.clone()
