"""The types of rows, columns and collators in signatures.

A user's data set may be a `datasets.Dataset`, a list of dicts or any object with `len()` and `[number]`: `Rows` names what the
code really needs. Importing this module loads neither torch nor datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# The cells of one row by column name. A cell is a number, or a list, array or tensor of numbers: these have no common type.
Row: TypeAlias = Mapping[str, Any]
# The cells of several rows by column name.
CellColumns: TypeAlias = "Mapping[str, Sequence[Any] | np.ndarray]"
# The texts to tokenize: one list with a text for each row, or two for pairs.
Texts: TypeAlias = list[list[str]]
# The tensors of a batch by the name under which a model takes them; "labels" among them where rows have labels.
Inputs: TypeAlias = "Mapping[str, Tensor]"
# Makes a batch of rows: pads them and turns them into tensors.
Collator: TypeAlias = Callable[[Sequence[Row]], Inputs]


class Rows(Protocol):
    """Encoded rows that are read by number, in any order: input_ids, optional other inputs, and labels."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Row: ...
