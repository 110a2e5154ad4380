"""Draw rows with replacement, for many draws at once.

Rows with the same label and the same predictions are one cell, and a draw is the number of rows of each cell. A draw of
100,000 rows of two classes is therefore a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import Array
from glassloop.settings import SCORE
from glassloop.statistics.row_metrics import metric_of_counts
from glassloop.statistics.scored import ScoredRows

RESAMPLES = 2000
MANY_CELLS, RESAMPLES_OF_MANY = 20_000, 200  # enough for a standard error
CHUNK = 4_000_000  # counts in memory at a time


@dataclass(frozen=True)
class Cells:
    """The rows of one or several models, grouped.

    Attributes:
        task: The task.
        references: The label of each cell.
        predictions: The predictions of each model for each cell.
        frequencies: Number of rows of each cell.
    """

    task: str
    references: Array
    predictions: tuple[Array, ...]
    frequencies: Array

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.frequencies.sum())

    def values(self, key: str, counts: Array, positive: int | None = None) -> Array:
        """Return a metric of each model for counts of draws x cells: draws x models."""
        metrics = [metric_of_counts(key, self.task, given, self.references, positive) for given in self.predictions]
        return np.stack([metric(counts) for metric in metrics], axis=1)

    def points(self, key: str, positive: int | None = None) -> Array:
        """Return a metric of each model on the rows as they are."""
        return np.asarray(self.values(key, self.frequencies[None].astype(np.float64), positive)[0])


def cells_of(models: Sequence[ScoredRows]) -> Cells:
    """Return the rows of models that were evaluated on the same rows, grouped. Scores are not grouped."""
    task, references = models[0].task, models[0].references
    predictions = [model.predictions for model in models]
    if task == SCORE:
        return Cells(task, references, tuple(predictions), np.ones(len(references), dtype=np.int64))
    columns = np.concatenate([part.reshape(len(references), -1) for part in (references, *predictions)], axis=1)
    columns = np.ascontiguousarray(columns.astype(np.int32))
    packed = columns.view(np.dtype((np.void, columns.dtype.itemsize * columns.shape[1]))).ravel()  # faster than axis=0
    _, first, frequencies = np.unique(packed, return_index=True, return_counts=True)
    return Cells(task, references[first], tuple(part[first] for part in predictions), frequencies)


def resamples_for(cells: Cells, resamples: int | None) -> int:
    """Return the number of draws: as given, else the default for this many cells."""
    return resamples or (RESAMPLES if len(cells.frequencies) <= MANY_CELLS else RESAMPLES_OF_MANY)


def draws(cells: Cells, resamples: int | None = None, seed: int = 0) -> Iterator[Array]:
    """Yield the counts of draws x cells in chunks that fit into memory. Each draw has as many rows as the data."""
    generator, number, rows = np.random.default_rng(seed), len(cells.frequencies), cells.rows
    left, at_once = resamples_for(cells, resamples), max(1, CHUNK // max(number, 1))
    grouped = rows > 4 * number
    while left > 0:
        size = min(left, at_once)
        left -= size
        if grouped:
            yield generator.multinomial(rows, cells.frequencies / rows, size=size).astype(np.float64)
            continue
        drawn = generator.integers(0, rows, size=(size, rows))
        if rows != number:
            drawn = np.repeat(np.arange(number), cells.frequencies)[drawn]
        drawn += number * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number).astype(np.float64)


def drawn_values(cells: Cells, key: str, positive: int | None = None, *, resamples: int | None = None, seed: int = 0) -> Array:
    """Return a metric of each model on rows drawn with replacement: draws x models.

    Args:
        cells: The rows.
        key: The metric.
        positive: The class number that f1, precision and recall refer to.
        resamples: Number of draws. Default: 2,000, or 200 for very many rows.
        seed: Seed of the draws.
    """
    return np.concatenate([cells.values(key, counts, positive) for counts in draws(cells, resamples, seed)])
