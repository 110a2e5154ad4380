"""Read the predictions of a run: one line per row of a split that was evaluated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from glassloop.base.collection import collection_paused
from glassloop.base.errors import ModelError, SettingsError, listed, visible
from glassloop.base.records import Json
from glassloop.runs.layout import PREDICTIONS_SUFFIX, predictions_name

RESTORE = "restore the file, or train again"


def predicted_splits(folder: Path) -> list[str]:
    """Return the splits that a run has predictions for."""
    return sorted(path.name.removesuffix(PREDICTIONS_SUFFIX) for path in folder.glob(f"*{PREDICTIONS_SUFFIX}"))


def read_predictions(folder: Path, split: str) -> list[dict[str, Json]]:
    """Return one object per row. Raise `SettingsError` if there is no such split, `ModelError` if its file is damaged."""
    if split not in (known := predicted_splits(folder)):
        remedy = f"use one of {listed(known)}" if known else f"train it to its end: glassloop train --resume {folder}"
        raise SettingsError(f"{folder} has no predictions for the split {visible(split)}", remedy)
    path = folder / predictions_name(split)
    try:
        content = path.read_bytes().removesuffix(b"\n")
    except OSError as error:
        raise ModelError(f"{path}: {error}", RESTORE) from error
    return objects_in(content.split(b"\n"), path)


def objects_in(lines: Sequence[bytes], path: Path) -> list[dict[str, Json]]:
    """Return the JSON object of each line. Raise `ModelError` with the first line of the file that is none."""
    try:
        with collection_paused():  # it would walk over all rows many times
            found = json.loads(b"[" + b",".join(lines) + b"]")  # at once, in half the time
        if len(found) == len(lines) and all(isinstance(entry, dict) for entry in found):
            return list(found)
    except (ValueError, RecursionError):
        pass
    for number, line in enumerate(lines, 1):
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}, line {number:,}: {error}", RESTORE) from error
    raise ModelError(f"{path}: the lines are not JSON objects", RESTORE)
