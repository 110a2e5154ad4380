"""What a predictor is asked and what it answers: texts and pairs, labels, probabilities, as its calibration says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from glassloop.base.errors import DataError, ModelError, SettingsError, listed, visible
from glassloop.data.interfaces import Texts
from glassloop.data.readers import refuse_half_character
from glassloop.data.writers import Row as FileRow
from glassloop.runs.record import Calibration, Columns, RunRecord, read_calibration
from glassloop.scores.metrics import decide, probabilities
from glassloop.scores.result import label_of
from glassloop.settings.training import SCORE, SEVERAL

# One text, a pair of texts, or a dict with the text columns of the run (or "text" and "text_pair").
Given: TypeAlias = str | Sequence[str] | Mapping[str, str]
FORMS = "give a text, a pair (first, second), or a dict with the text columns"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text or pair."""

    label: str | list[str] | float  # the name of a class, the names of several labels, or a score
    scores: dict[str, float]  # the probability of each label by its name; empty if the model predicts a score
    logits: list[float]  # the outputs of the model

    @property
    def cells(self) -> FileRow:
        """The columns of a file of predictions."""
        return {"prediction": self.label, **{f"score_{name}": round(value, 6) for name, value in self.scores.items()}}


@dataclass(frozen=True)
class Answering:
    """How logits become answers."""

    task: str
    names: tuple[str, ...]
    temperature: float = 1.0  # what logits are divided by before probabilities are computed
    # The probability from which a label is chosen. Several labels: 0.5 for a label without one. Classes: a class with a
    # threshold is chosen if it reaches it; else the most likely class without one, or of all.
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise SettingsError(f"temperature is {self.temperature}, not a positive number", "use 1 for no change")
        if unknown := [name for name in self.thresholds if name not in self.names or self.task == SCORE]:
            known = listed(self.names) if self.task != SCORE else "none: the model predicts a score"
            raise SettingsError(f"there is a threshold for {visible(unknown[0])}, which is not a label", f"labels: {known}")
        if wrong := [value for value in self.thresholds.values() if not 0 <= value <= 1]:
            raise SettingsError(f"a threshold is {wrong[0]}, not a probability", "use a number from 0 to 1")

    def shares(self, logits: np.ndarray) -> np.ndarray:
        return np.asarray(probabilities(np.atleast_2d(logits).astype(np.float64) / self.temperature, self.task))

    def choices(self, logits: np.ndarray) -> list[float] | list[list[float]]:
        """Return the chosen class, the chosen labels as 0 and 1, or the score of each row."""
        if not self.thresholds:
            return decide(logits, self.task).tolist()  # type: ignore[no-any-return]
        shares = self.shares(logits)
        limits = np.array([self.thresholds.get(name, 0.5) for name in self.names])
        if self.task == SEVERAL:
            return (shares >= limits).astype(int).tolist()  # type: ignore[no-any-return]
        limited = np.array([name in self.thresholds for name in self.names])
        reached = np.where(limited & (shares >= limits), shares, -1.0)
        others = np.where(limited & ~limited.all(), -1.0, shares)
        return np.where(reached.max(1) >= 0, reached.argmax(1), others.argmax(1)).tolist()  # type: ignore[no-any-return]

    def describe(self, logits: np.ndarray) -> list[Prediction]:
        """Return rows of logits as labels and probabilities."""
        names = None if self.task == SCORE else self.names
        labels = [label_of(choice, names) for choice in self.choices(logits)]
        shares = self.shares(logits).tolist() if names and len(logits) else [[]] * len(logits)
        rows = zip(labels, shares, logits.astype(np.float64).tolist(), strict=True)
        return [Prediction(label, dict(zip(names or (), share, strict=True)), row) for label, share, row in rows]


def finite(logits: np.ndarray) -> np.ndarray:
    if not (sound := np.isfinite(logits).all(axis=1)).all():
        problem = f"row {int(np.argmin(sound)) + 1:,}: the prediction of the model is not finite"
        raise ModelError(problem, "download the model again: its weights are damaged")
    return logits


def columns_of(items: Iterable[Given], columns: Columns | None, first: int = 0) -> Texts:
    """Return texts, pairs and dicts, which may name the `columns` of the run, as one or two lists of texts."""
    rows = [texts_of(item, columns, f"text {number:,}") for number, item in enumerate(items, first + 1)]
    for number, row in enumerate(rows, first + 1):
        if len(row) != len(rows[0]):
            kinds = {1: "a text", 2: "a pair"}
            problem = f"text {number:,} is {kinds[len(row)]}, but text {first + 1:,} is {kinds[len(rows[0])]}"
            raise DataError(problem, "predict texts and pairs in two calls")
    return [[*column] for column in zip(*rows, strict=True)]


def texts_of(item: Given, columns: Columns | None, where: str) -> tuple[str, ...]:
    texts: tuple[object, ...] = (item,)
    if isinstance(item, Mapping):
        names = columns.texts if columns and columns.text in item else ("text", "text_pair")
        texts = tuple(item[name] for name in names if name in item)
        if names[0] not in item:
            raise DataError(f"{where} has the keys {listed(item) or 'none'}, but no {visible(names[0])}", FORMS)
    elif isinstance(item, Sequence) and not isinstance(item, str):
        texts = tuple(item)
        if len(item) not in (1, 2):
            raise DataError(f"{where} has {len(item):,} parts, but a pair has two", FORMS)
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{where} is {visible(text)}, not text", "give strings")
        refuse_half_character(text, where)
    return tuple(map(str, texts))


def answering_of(
    model: Path,
    run: RunRecord | None,
    task: str,
    names: Sequence[str],
    temperature: float | None,
    thresholds: Mapping[str, float] | None,
) -> tuple[Answering, Calibration | None]:
    """Return how logits become answers, and the calibration that is used; None if there is none."""
    # The temperature of a caller replaces the whole calibration: its thresholds are probabilities at another temperature.
    found = read_calibration(model, run.files if run else None) if temperature is None else None
    if found is not None:
        temperature, thresholds = found.temperature, found.thresholds if thresholds is None else thresholds
    return Answering(task, tuple(names), 1.0 if temperature is None else temperature, thresholds or {}), found


def calibration_note(found: Calibration, answering: Answering) -> str:
    """Return one line that says which temperature and thresholds are used."""
    limits = [f"threshold {value:.4f} for {name}" for name, value in answering.thresholds.items()]
    more = f" and {len(limits) - 3:,} more" if len(limits) > 3 else ""
    parts = [f"temperature {answering.temperature:.4g}", *limits[:3]]
    return f"calibrated on {found.num_rows:,} rows of {found.split}: {', '.join(parts)}{more}"
