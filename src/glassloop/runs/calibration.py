"""Read and write calibration.json beside a model: its temperature and thresholds, what they are for, and what they gained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glassloop.base.errors import ModelError
from glassloop.base.files import sha256_of
from glassloop.base.records import NotARecordError, read_sealed, write_sealed
from glassloop.runs.layout import CALIBRATION_NAME, remove_leftovers

FORMAT = 1
F1, PRECISION, RECALL, COST = "f1", "precision", "recall", "cost"
AGAIN = "fit it again: glassloop calibrate RUN, or remove it: glassloop calibrate RUN --remove"


@dataclass(frozen=True)
class Target:
    """What thresholds are chosen for.

    Attributes:
        name: "f1", "precision", "recall" or "cost". With several labels, each label has its own threshold.
        least: The recall that is kept while precision is maximized, or the precision that is kept while recall is.
        false_positive: Cost of a label that is given but not true.
        false_negative: Cost of a label that is true but not given.
    """

    name: str
    least: float | None = None
    false_positive: float = 1.0
    false_negative: float = 1.0

    @property
    def kept(self) -> str | None:
        """The metric that `least` limits; None without one."""
        return {PRECISION: RECALL, RECALL: PRECISION}.get(self.name)

    def __str__(self) -> str:
        if self.name == COST:
            return f"least cost (false positive {self.false_positive:g}, false negative {self.false_negative:g})"
        title = "F1" if self.name == F1 else self.name
        return f"highest {title} at a {self.kept} of {self.least:g} or more" if self.kept else f"highest {title}"


@dataclass(frozen=True)
class Gain:
    """A score of rows that the calibration was not fitted on, before and after, and the interval of the change."""

    name: str
    before: float
    after: float
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float:
        """The score after minus the score before."""
        return self.after - self.before

    @property
    def standard_error(self) -> float:
        """The standard error of the change, from its 95 % interval; 0 without one."""
        return 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * 1.96)


@dataclass(frozen=True)
class Calibration:
    """How the logits of a model become probabilities and answers.

    Attributes:
        temperature: What logits are divided by.
        thresholds: The probability from which a label is chosen, by its name.
        target: What the thresholds are for; None without thresholds.
        positive_label: The class of two that scores refer to.
        split: The split whose stored predictions it was fitted on.
        num_rows: Number of its rows.
        fingerprint: Fingerprint of these rows, as in run.json.
        predictions: SHA-256 of the file with their predictions.
        folds: Number of folds that the gains are computed with.
        gains: The scores before and after, each on rows that were not used for fitting.
        weights: SHA-256 of the files with the weights of the model.
        written: When it was written.
        glassloop: The version that wrote it.
    """

    temperature: float
    thresholds: dict[str, float]
    target: Target | None
    positive_label: str | None
    split: str
    num_rows: int
    fingerprint: str
    predictions: str
    folds: int
    gains: tuple[Gain, ...]
    weights: dict[str, str] = field(default_factory=dict)
    written: str = ""
    glassloop: str = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"the temperature is {self.temperature}, not a positive number")
        if wrong := [value for value in self.thresholds.values() if not 0 <= value <= 1]:
            raise ValueError(f"a threshold is {wrong[0]}, not a probability")


def write_calibration(model: Path, found: Calibration) -> Path:
    """Replace the calibration of a model folder, completely or not at all, and return its path."""
    remove_leftovers(model)
    write_sealed(path := model / CALIBRATION_NAME, found)
    return path


def read_calibration(model: Path, known: Mapping[str, str] | None = None) -> Calibration | None:
    """Return the calibration of a model folder; None if it has none.

    Args:
        model: The folder of the model. One without safetensors, such as an export, is not compared with the weights.
        known: SHA-256 of files of the model that were just checked.

    Raises:
        ModelError: If the file is damaged, of a newer version, or was fitted for other weights.
    """
    path = model / CALIBRATION_NAME
    if not path.is_file():
        return None
    try:
        found = read_sealed(Calibration, path, FORMAT)
    except NotARecordError as error:
        raise ModelError(f"{path}: the calibration cannot be read: {error}", AGAIN) from error
    now = weights_of(model, known)
    if now and now != found.weights:
        raise ModelError(f"{path}: was fitted for other weights than those in {model}", AGAIN)
    return found


def weights_of(model: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file with weights in a model folder; `known` ones are not computed again."""
    names = sorted(path.name for path in model.glob("*.safetensors"))
    return {name: (known or {}).get(name) or sha256_of(model / name) for name in names}
