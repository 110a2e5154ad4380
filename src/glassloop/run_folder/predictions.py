"""Read the predictions of a run: one line per row of a split that was evaluated."""

from __future__ import annotations

import json
from pathlib import Path

from glassloop.errors import ModelError, SettingsError, listed, visible
from glassloop.records import Json
from glassloop.run_folder.layout import PREDICTIONS_SUFFIX, predictions_name


def predicted_splits(folder: Path) -> list[str]:
    """Return the splits that a run has predictions for."""
    return sorted(path.name.removesuffix(PREDICTIONS_SUFFIX) for path in folder.glob(f"*{PREDICTIONS_SUFFIX}"))


def read_predictions(folder: Path, split: str) -> list[dict[str, Json]]:
    """Return one object per row. Raise `SettingsError` if there is no such split, `ModelError` if its file is damaged."""
    if split not in (known := predicted_splits(folder)):
        remedy = f"use one of {listed(known)}" if known else f"train it to its end: glassloop train --resume {folder}"
        raise SettingsError(f"{folder} has no predictions for the split {visible(split)}", remedy)
    path, found = folder / predictions_name(split), []
    try:
        for line in path.read_bytes().removesuffix(b"\n").split(b"\n"):
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("not a JSON object")
            found.append(entry)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}, line {len(found) + 1:,}: {error}", "restore the file, or train again") from error
    return found
