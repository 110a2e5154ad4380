"""Rows that need no tokenizer: they are padded already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from glassloop.data.interfaces import Row
from glassloop.data.row_labels import LABEL_KEYS, labels_among
from glassloop.errors import SettingsError


def stacked(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Return a batch of rows that all have the same length; texts and other cells without numbers are dropped."""
    if not isinstance(rows[0], Mapping):
        rows = [vars(row) for row in rows]
    batch = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name in LABEL_KEYS or cells[0] is None or isinstance(cells[0], str):
            continue
        if len({np.shape(cell) for cell in cells}) > 1:
            problem = f"the rows have different lengths of {name}, and there is no tokenizer to pad them"
            raise SettingsError(problem, "pass processing_class=tokenizer or data_collator=")
        batch[name] = torch.stack([torch.as_tensor(cell) for cell in cells])
    labels = labels_among({name: [row[name] for row in rows] for name in LABEL_KEYS if name in rows[0]})
    if labels is not None:
        batch["labels"] = torch.from_numpy(labels)
    return batch
