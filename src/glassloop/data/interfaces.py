"""The types of rows, collators, models and tokenizers in signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor
    from transformers import PretrainedConfig as Config
    from transformers import PreTrainedModel as Model
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Model = Tokenizer = Config = object

__all__ = ["Config", "LogitsOutput", "Model", "Tokenizer"]

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


@dataclass(frozen=True)
class LogitsOutput:
    """What a model of Glassloop returns: `logits`, and the `loss` if there are labels, as classifiers of transformers do."""

    logits: Tensor
    loss: Tensor | None = None


# What examples are loaded from: a name, a file, a folder, one object with rows, or several by split.
Data: TypeAlias = "str | Path | Rows | pd.DataFrame | Mapping[str, Rows | pd.DataFrame]"
