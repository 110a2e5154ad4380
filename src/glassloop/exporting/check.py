"""Compare an exported model with the model of its run: logits, answers and metrics on the stored validation rows, and speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.answers import Answering
from glassloop.comparing.results import measures_of
from glassloop.data.encoded_texts import EncodedText
from glassloop.errors import ModelError, SettingsError
from glassloop.predictor import Predictor
from glassloop.records import Json
from glassloop.run_folder.export_json import MetricChange
from glassloop.run_folder.layout import predictions_name
from glassloop.run_folder.predictions import predicted_splits, read_predictions
from glassloop.run_folder.record import RunRecord
from glassloop.settings import SCORE
from glassloop.stages import stage
from glassloop.statistics.intervals import row_metrics_of
from glassloop.statistics.paired import compare
from glassloop.statistics.scored import ScoredRows, scored_rows

SPEED_ROWS, ROUNDS, MOST_SECONDS = 128, 3, 60.0


@dataclass(frozen=True)
class StoredRows:
    """The rows of a split with labels, as the run stored them with its predictions."""

    split: str
    entries: Sequence[dict[str, Json]]
    texts: tuple[str, ...]
    path: Path

    @property
    def columns(self) -> list[list[str]]:
        """The texts, or the first and the second texts of pairs."""
        return [[str(entry[name]) for entry in self.entries] for name in self.texts]

    def spread(self, most: int) -> list[int]:
        """Return at most this many places, evenly spread over the rows."""
        return [int(place) for place in np.unique(np.linspace(0, len(self.entries) - 1, most).astype(int))]


def validation_rows(folder: Path, run: RunRecord) -> StoredRows:
    """Return the stored validation rows of a run. Raises `SettingsError` or `ModelError` if they are missing."""
    split = next((name for name in predicted_splits(folder) if name.startswith("validation")), None)
    if split is None:
        problem = f"{folder}: the run has no stored predictions for validation rows, which an export is compared with"
        raise SettingsError(problem, "train it again with validation rows, for example with --validation_share 0.1")
    entries, texts = read_predictions(folder, split), run.data.columns.texts
    path = folder / predictions_name(split)
    lines = (number for number, entry in enumerate(entries, 1) if any(name not in entry for name in (*texts, "label")))
    if (line := next(lines, None)) is not None:
        raise ModelError(f"{path}, line {line:,}: there is no text or no label", "restore the file, or train the run again")
    return StoredRows(split, entries, texts, path)


@dataclass(frozen=True)
class Changes:
    """How an exported model differs from the model of its run on the same rows.

    Attributes:
        largest: The largest difference of two logits.
        largest_row: Its row, from 0.
        flipped: The rows whose answer changed, from 0. Scores have none.
        metrics: Each metric of the run, before and after.
    """

    largest: float
    largest_row: int
    flipped: tuple[int, ...]
    metrics: dict[str, MetricChange]


def changes(rows: StoredRows, run: RunRecord, answering: Answering, before: np.ndarray, after: np.ndarray) -> Changes:
    """Return how the logits of an exported model differ from those of the run's model.

    Args:
        rows: The rows, with their labels.
        run: The record of the run.
        answering: How logits become answers.
        before: The logits of the run's model.
        after: Those of the exported model.
    """
    apart = np.abs(after.astype(np.float64) - before).max(axis=1)
    answers = [np.asarray(answering.choices(logits)) for logits in (before, after)]
    differs = (answers[0] != answers[1]).reshape(len(apart), -1).any(axis=1)
    flipped = () if run.data.task == SCORE else tuple(int(row) for row in np.flatnonzero(differs))
    stored = scored_rows(rows.entries, run.data.task, run.data.labels, rows.path)
    sides = [
        {0: ScoredRows(stored.task, stored.labels, choices, stored.references, logits)}
        for choices, logits in zip(answers, (before, after), strict=True)
    ]
    measures, metrics = measures_of(run), dict[str, MetricChange]()
    for key in measures.keys:
        change = compare(sides[0], sides[1], key, measures.positive)
        old, new = (one.value for one in row_metrics_of([side[0] for side in sides], key, measures.positive))
        interval = change.interval
        metrics[key] = MetricChange(old, new, change.value, interval.low, interval.high, change.p_value, change.method)
    return Changes(float(apart.max()), int(apart.argmax()), flipped, metrics)


def speeds(
    predictors: Mapping[str, Predictor],
    rows: Sequence[EncodedText],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the rows per second of each predictor on the same encoded rows, the best of several rounds in turn.

    Args:
        predictors: What to measure, by name.
        rows: Encoded rows.
        rounds: How often each one predicts all rows, after one round to warm up. A slow model gets at least one round.
        clock: Returns the time in seconds.
    """
    best, began = dict.fromkeys(predictors, float("inf")), clock()
    with stage("measuring the speed", (rounds + 1) * len(predictors) * len(rows)):
        for turn in range(rounds + 1):
            for name, predictor in predictors.items():
                start = clock()
                predictor.forward(rows)
                if turn:
                    best[name] = min(best[name], clock() - start)
            if turn and clock() - began > MOST_SECONDS:
                break
    return {name: len(rows) / max(seconds, 1e-9) for name, seconds in best.items()}
