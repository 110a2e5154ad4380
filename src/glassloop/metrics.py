"""Metrics without a network: `evaluate` downloads its definitions when it runs; these are the same ones, kept here.

Rows are checked as they come and scored all together by scikit-learn and SciPy, so no result depends on the batches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.settings import CLASSES, SCORE, SEVERAL

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]  # predictions, references

# The kinds of row: the dimensions of many, what one is, what to do about another shape, and about another value.
KINDS = {
    "classes": (1, "one class number per row", "take argmax(axis=-1) first", "give whole numbers: 0, 1, 2"),
    "multilabel": (2, "rows of 0 and 1", "give every example a row", "compare with a threshold first"),
    "scores": (1, "one finite number per row", "take squeeze(-1) first", "look at what made that row"),
}
AVERAGES = ("binary", "micro", "macro", "weighted", "samples")
OPTIONS: dict[str, Any] = {"average": "binary", "pos_label": 1, "labels": None}
AVERAGED = ("f1", "precision", "recall")
CORRELATIONS = ("pearson", "pearsonr", "spearman", "spearmanr")
GLUE = {
    **dict.fromkeys(("cola", "ax"), ("matthews_correlation",)),
    **dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1")),
    **dict.fromkeys(("sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "hans"), ("accuracy",)),
    "stsb": ("pearson", "spearmanr"),
}
PLAIN = {
    **dict.fromkeys(("accuracy", *AVERAGED, "matthews_correlation"), "classes"),
    **dict.fromkeys((*CORRELATIONS, "mse"), "scores"),
    "multilabel_f1": "multilabel",
}
CONFIGS = {"glue": tuple(GLUE), "accuracy": ("multilabel",), **dict.fromkeys(AVERAGED, (*AVERAGES, "multilabel"))}
TASKS = {
    CLASSES: ("classes", ("accuracy", "f1_macro")),
    SEVERAL: ("multilabel", ("f1_micro", "f1_macro", "exact_match")),
    SCORE: ("scores", ("pearson", "spearmanr", "mse")),
}


class Metric:
    """Rows added piece by piece and scored by `compute`; `notes` says what was undefined the last time."""

    def __init__(
        self,
        name: str,
        config_name: str | None,
        kind: str,
        keys: tuple[str, ...],
        values: Mapping[str, Callable[..., float]] | None = None,
        **defaults: Any,
    ) -> None:
        self.name, self.config_name = name, config_name
        self.notes: list[str] = []
        self._kind, self._defaults = kind, defaults
        self._values = {key: (values or {}).get(key, VALUES[key]) for key in keys}
        self._batches: list[Pair] = []

    def add(self, *, prediction: Any, reference: Any) -> None:
        """Add one row."""
        row, true = _numbers(prediction, "predictions"), _numbers(reference, "references")
        self.add_batch(predictions=row[None], references=true[None])

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        """Add as many rows as both have; where they are refused, nothing is added."""
        self._batches += self._checked(predictions, references)

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> dict[str, float]:
        """Score every row added so far, and these; then forget them. A `compute` that fails changes nothing."""
        for option in options:
            _one_of(option, OPTIONS if self.name in AVERAGED else (), f"option of {self.name}")
        batches = list(self._batches)
        if predictions is not None or references is not None:
            batches += self._checked(predictions, references)
        if not batches:
            raise DataError(f"{self.name} has no rows to score", "call add_batch, or give predictions and references")
        predicted, true = map(np.concatenate, zip(*batches, strict=True))
        if self.name == "glue" and (true == -1).all():
            raise DataError("every reference is -1: GLUE hides the labels of its test split", "score another split")
        notes: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What they would say is in the notes.
            pairs, chosen = (predicted, true), self._defaults | options
            values = {key: value(key, pairs, notes, **chosen) for key, value in self._values.items()}
        if not all(map(math.isfinite, values.values())):
            raise DataError(f"{self.name} is beyond the largest float", "look for values that are far too large")
        self._batches, self.notes = [], notes
        return values

    def _checked(self, predictions: Any, references: Any) -> list[Pair]:
        """Both as a batch of rows, as many and as wide as each other and those before; no batch where they are none."""
        if predictions is None or references is None:
            raise SettingsError(f"{self.name} got only one of predictions and references", "give both")
        predicted = _rows(predictions, "predictions", self._kind, self.name, self._batches)
        true = _rows(references, "references", self._kind, self.name, self._batches)
        if len(predicted) != len(true):
            raise DataError(f"{len(predicted):,} predictions came with {len(true):,} references", "give one for each")
        batch = [(predicted, true)] if len(true) else []
        widths = {rows.shape[1:] for pair in batch + self._batches[:1] for rows in pair}
        if len(widths) > 1:
            found = listed(width[0] for width in sorted(widths))
            raise DataError(f"{self.name} got rows of different widths: {found}", "give every row the same labels")
        return batch


def load_metric(path: str, config_name: str | None = None) -> Metric:
    """The metric named `path`, or with "glue" the metrics of the task `config_name`; results are keyed by name.

    f1, precision and recall take an average for `config_name`; they and accuracy take "multilabel": rows of 0 and 1.
    """
    _one_of(path, ("glue", *PLAIN), "metric")
    if config_name is not None:
        _one_of(config_name, CONFIGS.get(path, ()), "GLUE task" if path == "glue" else f"configuration of {path}")
    elif path == "glue":
        raise SettingsError('"glue" needs a task: load_metric("glue", "mrpc")', f"choose one of: {listed(GLUE, 20)}")
    if path == "glue":
        return Metric(path, config_name, "scores" if config_name == "stsb" else "classes", GLUE[str(config_name)])
    keys = ("f1_micro", "f1_macro", "f1_samples", "exact_match") if path == "multilabel_f1" else (path,)
    kind = "multilabel" if config_name in ("multilabel", "samples") else PLAIN[path]
    defaults: dict[str, Any] = {"average": config_name} if config_name in AVERAGES else {}
    return Metric(path, config_name, kind, keys, **defaults)


def metrics_for(task: str, num_labels: int, *, keys: tuple[str, ...] | None = None, positive: int | None = None) -> Metric:
    """What a model of `task` with `num_labels` outputs is scored by.

    `keys` names the metrics. By default classes are scored by accuracy and by the F1 of the class `positive`; where none is
    chosen, by macro-F1, the mean over all classes.
    """
    _one_of(task, TASKS, "task")
    kind, usual = TASKS[task]
    if not _fits(task, num_labels):
        raise SettingsError(f"no metric is made for {task} with num_labels={num_labels}", "name one with load_metric")
    if positive is None:
        return Metric(task, None, kind, keys or usual)
    if task != CLASSES or not 0 <= positive < num_labels:
        raise SettingsError(f"positive={positive} is not a class of {task} with num_labels={num_labels}", "omit it")
    chosen = {"f1": partial(_averaged, average="macro", labels=[positive])}
    return Metric(task, None, kind, keys or ("accuracy", "f1"), values=chosen)


def decide(logits: Array, task: str, threshold: float = 0.5) -> Array:
    """Predictions from rows of `logits`: the largest, each sigmoid of `threshold` or more, or the number itself."""
    _one_of(task, TASKS, "task")
    if not 0 < threshold < 1:
        raise SettingsError(f"threshold={threshold} is no probability", "give a number between 0 and 1, such as 0.5")
    logits = _numbers(logits, "logits")
    if task == SCORE and logits.ndim == 1:
        logits = logits[:, None]
    if logits.ndim != 2 or not _fits(task, logits.shape[1]):
        raise DataError(f"logits of the shape {logits.shape} do not fit {task}", "give every example a row of outputs")
    if len(wrong := np.argwhere(np.isnan(logits))):
        raise DataError(f"logits row {wrong[0][0]:,} (from 0) holds nan", "look for the step where the loss became nan")
    if task == SCORE:
        return logits[:, 0]
    if task == CLASSES:
        return np.asarray(logits.argmax(axis=-1))
    from scipy.special import expit

    return np.asarray(expit(logits.astype(np.float64)) >= threshold, dtype=np.int64)


def _fits(task: str, outputs: int) -> bool:
    return outputs == 1 if task == SCORE else outputs >= (2 if task == CLASSES else 1)


def _one_of(name: str, known: Iterable[str], what: str) -> None:
    if name not in (known := list(known)):
        problem = f"{visible(name)} is no {what}{did_you_mean(str(name).lower(), known)}"
        raise SettingsError(problem, f"choose one of: {listed(known, 20)}" if known else "leave it out: there is none")


def _numbers(values: Any, what: str) -> Array:
    """`values` as an array of numbers: from numbers, lists, tuples, arrays, and tensors of any device and precision."""
    if isinstance(values, list | tuple) and len(values) and hasattr(values[0], "detach"):
        values = [_numbers(value, what) for value in values]
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if "bfloat16" in str(values.dtype) else values).numpy()  # NumPy has no bfloat16.
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"the {what} are rows of different lengths", "give rows of one length") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"the {what} are not numbers: {visible(values)}", "give numbers: encode names as 0, 1, 2 first")
    return array


def _rows(values: Any, what: str, kind: str, name: str, earlier: list[Pair]) -> Array:
    """A copy of `values` as rows of `kind`, or an error that names the first wrong one, counting those `earlier`."""
    dimensions, wanted, reshape, revalue = KINDS[kind]
    given = np.atleast_1d(_numbers(values, what))
    if len(given) and (given.ndim != dimensions or not given.size):
        if kind == "classes" and given.dtype.kind != "f" and "multilabel" in CONFIGS.get(name, ()):
            reshape += ', or load the metric with "multilabel" where these are rows of 0 and 1'
        raise DataError(f"{what} have the shape {given.shape}, and {name} takes {wanted}", reshape)
    with np.errstate(all="ignore"):
        rows = given.astype(np.float64 if kind == "scores" else np.int64)
    wrong = ~np.isfinite(rows) if kind == "scores" else rows != given
    if kind == "multilabel":
        wrong |= (rows != 0) & (rows != 1)
    if kind == "classes" and what == "references":
        wrong |= rows == -100
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        place = f"{what} row {first[0] + sum(len(batch) for batch, _ in earlier):,} (from 0)"
        if rows[first] == -100 and what == "references":
            raise DataError(f"{place} holds -100, the label that a loss leaves out", "leave such rows out first")
        raise DataError(f"{place} holds {given[first]}, and {name} takes {wanted}", revalue)
    return rows


def _mean(key: str, rows: Pair, notes: list[str]) -> float:
    """The share of rows that are right, or the mean squared error."""
    from sklearn.metrics import accuracy_score, mean_squared_error

    return float((mean_squared_error if key == "mse" else accuracy_score)(*rows))


def _correlation(key: str, rows: Pair, notes: list[str]) -> float:
    """Matthews', Pearson's or Spearman's, undefined where one side does not vary; each is the same either way round."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import matthews_corrcoef

    for what, side in zip(("predictions", "references"), rows, strict=True):
        if (side == side[0]).all():
            notes.append(f"{key} is undefined where all {what} are equal; reported as 0")
            return 0.0
    if key == "matthews_correlation":
        return float(matthews_corrcoef(*rows))
    return float((pearsonr if key.startswith("pearson") else spearmanr)(*rows).statistic)


def _averaged(key: str, rows: Pair, notes: list[str], **options: Any) -> float:
    """F1, precision or recall; what has nothing to count is 0, with a note where that made a difference."""
    import sklearn.metrics

    average, pos_label, labels = (OPTIONS | options).values()
    _one_of(average, AVERAGES, "average")
    predictions, references = rows
    wide, width, binary = references.ndim == 2, references.shape[-1], average == "binary"
    if average == ("binary" if wide else "samples"):
        wanted = KINDS["multilabel" if wide else "classes"][1]
        raise SettingsError(f'average="{average}" is not made for {wanted}', 'use average="macro"')
    unused = "labels" if binary else "pos_label"
    if options.get(unused) is not None:
        notes.append(f'{unused} is not used where average="{average}"')
    if wide:  # A column more that `labels` leaves out: scikit-learn takes rows of one column for classes.
        predictions, references = (np.pad(side, ((0, 0), (0, 1))) for side in rows)
        labels = range(width) if labels is None else labels
    elif binary:
        labels = [pos_label]
    if labels is not None:
        labels = _rows(labels, "labels", "classes", key, [])
        if not len(labels) or (wide and not set(labels.tolist()) <= set(range(width))):
            raise SettingsError(f"labels={labels.tolist()} is not a choice of the labels", "name some, or leave it out")
    if binary and len(others := np.setdiff1d(rows, labels)) > 1:
        problem = f'average="binary" sets class {pos_label} against one other, and others came: {listed(others)}'
        raise SettingsError(problem, f'use average="macro": load_metric("{key}", "macro")')
    measure = getattr(sklearn.metrics, f"{key.partition('_')[0]}_score")
    fixed = {"labels": labels, "average": "macro" if binary else average}
    value, other = (float(measure(references, predictions, zero_division=empty, **fixed)) for empty in (0.0, 1.0))
    if value != other:
        where = {"binary": f"class {pos_label}", "micro": "labels", "samples": "a row"}.get(average, "a class")
        lack = {"precision": "no prediction", "recall": "no reference"}.get(key, "no prediction and no reference")
        notes.append(f"{key} is undefined for {where} with {lack}; {'counted' if value else 'reported'} as 0")
    return value


VALUES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("accuracy", "exact_match", "mse"), _mean),
    **dict.fromkeys(("matthews_correlation", *CORRELATIONS), _correlation),
    **dict.fromkeys(AVERAGED, _averaged),
    **{f"f1_{average}": partial(_averaged, average=average) for average in ("micro", "macro", "samples")},
}
