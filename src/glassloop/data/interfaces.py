"""The types of data sources, rows, collators, models and tokenizers in signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from torch import Tensor

    from glassloop.base.records import Json
    from glassloop.data.columns import Known
    from glassloop.data.faults import BadRows


# The cells of one row by column name. A cell is a number, or a list, array or tensor of numbers: these have no common type.
Row: TypeAlias = Mapping[str, Any]


# The cells of several rows by column name.
CellColumns: TypeAlias = "Mapping[str, Sequence[Any] | np.ndarray]"


# The texts to tokenize: one list with a text for each row, or two for pairs.
Texts: TypeAlias = list[list[str]]


# The tensors of a batch by the name under which a model takes them; "labels" among them if rows have labels.
Inputs: TypeAlias = "Mapping[str, Tensor]"


# Makes a batch of rows: pads them and turns them into tensors.
Collator: TypeAlias = Callable[[Sequence[Row]], Inputs]


class Rows(Protocol):
    """Encoded rows that are read by number, in any order: input_ids, optional other inputs, and labels."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Row: ...


# What examples are loaded from: a name, a file, a folder, one object with rows, or several by split.
Data: TypeAlias = "str | Path | Rows | pd.DataFrame | Mapping[str, Rows | pd.DataFrame]"


class RawSplit(Protocol):
    """One split before its rows are checked."""

    @property
    def source(self) -> str:
        """Return what a person calls the split, such as the name of its file."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a person should know about the split."""

    @property
    def bad(self) -> BadRows | None:
        """Return the rows that were skipped because they cannot be read; None if there cannot be any."""

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in tables of a bounded size. May be called several times."""

    def row_name(self, row: int) -> str:
        """Return what a person calls a row, such as its file and its number there."""


class Source(Protocol):
    """A data set before its rows are read."""

    @property
    def known(self) -> Known:
        """Return what the source says about its columns, labels and task."""

    def key(self) -> list[Json]:
        """Return values that change whenever the content changes."""

    def splits(self, scratch: Path) -> Mapping[str, RawSplit]:
        """Return the splits by name. Files may be written to the folder `scratch`, which is removed later."""


if TYPE_CHECKING:
    from transformers import PretrainedConfig as Config
    from transformers import PreTrainedModel as Model
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Model = Tokenizer = Config = object


__all__ = ["Config", "Model", "Tokenizer"]
