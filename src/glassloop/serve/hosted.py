"""The models of a server before the first request: loaded, checked against their stored predictions, and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, listed, no_memory, visible
from glassloop.base.files import user_path
from glassloop.base.network import is_hub_name
from glassloop.base.records import Json
from glassloop.data.encoding import EncodedText
from glassloop.predictor import Predictor, SeedsPredictor, has_seeds
from glassloop.runs.export import REFERENCE_NAME, is_export, read_record, read_reference
from glassloop.runs.record import is_run, predicted_splits, predictions_name, read_predictions
from glassloop.scores.statistics import stored_logits

CHECKED_ROWS = 16
ALLOWED = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2, "int8": 5e-2}  # difference of logits, relative to the largest
SIZES = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
ENOUGH = 0.95  # of the largest number of tokens per second
MEASURED_SECONDS = 3.0
ROW_TOKENS = 64


@dataclass(frozen=True)
class Hosted:
    """One model of a server, under the name of its folder."""

    name: str
    predictor: Predictor
    pairs: bool | None  # whether it was trained on pairs; None if that is not known
    checked: int  # how many stored predictions it repeated at the start

    def info(self) -> dict[str, Json]:
        predictor, run, used = self.predictor, self.predictor.run, self.predictor.calibration
        names: dict[str, Json] = {str(number): name for number, name in enumerate(predictor.names)}
        numbers: dict[str, Json] = {name: number for number, name in enumerate(predictor.names)}
        source = run.model.name if run else None
        if source and (Path(source).is_absolute() or not is_hub_name(source)):
            source = Path(source).name  # clients do not learn the paths of this machine
        calibration: dict[str, Json] | None = None
        if used:
            target = str(used.target) if used.target else None
            calibration = {"target": target, "split": used.split, "rows": used.num_rows, "written": used.written}
        return {
            "model_id": self.name,
            "model_sha": None,
            "model_dtype": "float32",
            "model_type": {"classifier": {"id2label": names, "label2id": numbers}},
            "max_input_length": predictor.max_length,
            "task": predictor.task,
            "pairs": self.pairs,
            "trained_from": source,
            "device": str(predictor.backend.device),
            "backend": predictor.backend.name,
            "temperature": predictor.answering.temperature,
            "thresholds": {**predictor.answering.thresholds},
            "calibration": calibration,
            "checked_rows": self.checked,
            "warnings": [*predictor.warnings],
        }


def load_hosted(folders: Sequence[str], device: str, precision: str = "auto") -> list[Hosted]:
    """Return the models of runs, exports and several seeds. Raise if names repeat or predictions do not."""
    names = [user_path(folder).resolve().name for folder in folders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"two runs have the name {visible(twice[0])}", "rename one of the folders")
    models = []
    for name, folder in zip(names, map(user_path, folders), strict=True):
        kind = SeedsPredictor if has_seeds(folder) else Predictor
        predictor = kind(folder, device=device, precision=precision)
        pairs = predictor.run.data.columns.text_pair is not None if predictor.run else predictor.towers or None
        models.append(Hosted(name, predictor, pairs, check_predictions(folder, predictor)))
    return models


def check_predictions(folder: Path, predictor: Predictor) -> int:
    """Predict some stored rows and return their number. Raise if a logit differs from the stored one by more than rounding."""
    # A damaged file, another version of a library or a wrong tokenizer would otherwise be found by users.
    if predictor.agreement is not None:  # in int8 they were compared already
        return predictor.agreement.rows
    if predictor.run is None:
        return 0
    if is_export(folder):
        split, stored, path = "reference rows", read_reference(folder), folder / REFERENCE_NAME
        precision = read_record(folder).precision
    else:
        splits = predicted_splits(folder) if is_run(folder) else []
        if not splits:
            return 0
        split = next((name for name in splits if name.startswith("validation")), splits[0])
        stored, path = read_predictions(folder, split), folder / predictions_name(split)
        precision = predictor.run.precision
    if not stored:
        return 0
    places = np.unique(np.linspace(0, len(stored) - 1, CHECKED_ROWS).astype(int))
    rows = [stored[int(place)] for place in places]
    columns = [[str(row.get(name, "")) for row in rows] for name in predictor.run.data.columns.texts]
    wanted = stored_logits(stored, len(predictor.names), path)[places]
    differences = np.abs(predictor.logits(*columns) - wanted).max(1) / max(float(np.abs(wanted).max()), 1e-6)
    allowed = ALLOWED.get(precision, ALLOWED["bf16"])
    if not (differences <= allowed).all():
        wrong = listed([row.get("row", "?") for row, apart in zip(rows, differences, strict=True) if not apart <= allowed], 5)
        apart = f"(rows {wrong}): logits differ by {differences.max():.1e}"
        problem = f"{folder}: the model does not repeat its own predictions for {split} {apart}"
        raise ModelError(problem, "do not serve it: evaluate it again with glassloop evaluate, or train it again")
    return len(rows)


def measured_budget(predictor: Predictor, clock: Callable[[], float] = time.perf_counter) -> int:
    """Return the smallest number of tokens of a batch with almost the highest speed: larger ones only add waiting time."""
    row = sample_row(predictor)
    speeds: dict[int, float] = {}
    began = clock()
    for size in SIZES:
        rows = [row] * max(1, size // max(1, row.num_tokens))
        times = []
        try:
            for _ in range(3):
                start = clock()
                predictor.forward(rows)
                times.append(clock() - start)
        except Exception as error:
            if not speeds or not no_memory(error):
                raise
            break
        speeds[size] = len(rows) * row.num_tokens / max(min(times), 1e-9)
        if clock() - began > MEASURED_SECONDS or speeds[size] < 0.8 * max(speeds.values()):
            break
    return next(size for size, speed in speeds.items() if speed >= ENOUGH * max(speeds.values()))


def warm_up(predictor: Predictor, budget: int) -> None:
    """Run batches of many sizes up to the budget, so that kernels are compiled before the first request."""
    row = sample_row(predictor)
    for tokens in (*range(16, 129, 16), *range(192, min(budget, 1_024) + 1, 64)):
        whole, rest = divmod(tokens, row.num_tokens)
        short = [sample_row(predictor, rest)] if rest > predictor.towers else []
        predictor.forward([row] * whole + short)


def sample_row(predictor: Predictor, length: int = ROW_TOKENS) -> EncodedText:
    """Return a row with so many tokens, or as many as the model takes: a text, or for two towers two texts of equal length."""
    length, texts = min(length, predictor.max_length), 1 + predictor.towers
    row = predictor.encoded([["a " * length]] * texts).rows[0]
    places = [text * (row.num_tokens // texts) + token for text in range(texts) for token in range(length // texts)]
    return EncodedText({name: [cells[place] for place in places] for name, cells in row.inputs.items()})
