"""The metrics of the `evaluate` library without its downloads, and which of them a run computes and how they are called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassloop.base.errors import DataError, ModelError, SettingsError, did_you_mean, listed, visible
from glassloop.runs.record import TIMINGS, is_timing
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = "npt.ArrayLike | Tensor | Sequence[Tensor]"
Chosen: TypeAlias = Sequence[int] | None  # classes
Option: TypeAlias = str | int | Chosen
Pair = tuple[Array, Array]  # predictions, references
Value = Callable[..., float]  # of a key, rows, notes to extend, and options

# Kinds of rows: number of dimensions, what one row is, what to do about another shape, and about another value.
KINDS = {
    "classes": (1, "one class number per row", "take argmax(axis=-1) first", "use whole numbers: 0, 1, 2"),
    "multilabel": (2, "rows of 0 and 1", "use one row per example", "compare with a threshold first"),
    "scores": (1, "one finite number per row", "take squeeze(-1) first", "check how this row was computed"),
}
AVERAGES = ("binary", "micro", "macro", "weighted", "samples")
AVERAGED = ("f1", "precision", "recall")
OPTIONS = ("average", "pos_label", "labels")  # of these
MULTILABEL = ("accuracy", *AVERAGED)  # metrics that can also be computed for several labels per row
CORRELATIONS = ("pearson", "pearsonr", "spearman", "spearmanr")
LOSS = "loss"
LOWER_IS_BETTER = (LOSS, "mse")

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
CONFIGS = {"glue": tuple(GLUE), **{name: (*(AVERAGES if name in AVERAGED else ()), "multilabel") for name in MULTILABEL}}
# By task: the kind of its rows and the metrics of a run by default, and all metrics that a run may compute.
TASKS = {
    CLASSES: ("classes", ("accuracy", "f1_macro")),
    SEVERAL: ("multilabel", ("f1_micro", "f1_macro", "exact_match")),
    SCORE: ("scores", ("pearson", "spearmanr", "mse")),
}
COMPUTED = {
    CLASSES: ("accuracy", *AVERAGED, "f1_macro", "matthews_correlation"),
    SEVERAL: ("f1_micro", "f1_macro", "f1_samples", "exact_match"),
    SCORE: (*CORRELATIONS, "mse"),
}
TITLES = {f"f1_{average}": f"f1 ({average})" for average in ("micro", "macro", "samples")}
# Names of two classes that only mean no and yes: F1 is that of the second.
# F1 refers to a class that somebody chose. An order of names, as in ClassLabel or --labels, is not a choice.
NUMBERED = (("0", "1"), ("false", "true"), ("label_0", "label_1"))


def one_of(name: str, known: Iterable[str], what: str) -> None:
    if name not in (known := list(known)):
        problem = f"{visible(name)} is not a known {what}{did_you_mean(str(name).lower(), known)}"
        raise SettingsError(problem, f"choose one of: {listed(known, 20)}" if known else "omit it: there are none")


# --- rows ----------------------------------------------------------------------------------------------------------------
def numbers_of(values: Numbers, what: str) -> Array:
    """Return numbers, lists, arrays, or tensors of any device and precision as an array."""
    if isinstance(values, list | tuple) and len(values) and hasattr(values[0], "detach"):
        values = [numbers_of(value, what) for value in values]
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if "bfloat16" in str(values.dtype) else values).numpy()  # NumPy has no bfloat16
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"the {what} are rows of different lengths", "make all rows the same length") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"the {what} are not numbers: {visible(values)}", "convert names to numbers first: 0, 1, 2")
    return array


def checked_rows(values: Numbers, what: str, kind: str, name: str, earlier: Sequence[Pair] = ()) -> Array:
    """Return a copy of `values` as rows of `kind`. Raise with the number of the first wrong row, counting `earlier` rows."""
    dimensions, wanted, reshape, revalue = KINDS[kind]
    given = np.atleast_1d(numbers_of(values, what))
    if len(given) and (given.ndim != dimensions or not given.size):
        if kind == "classes" and given.dtype.kind != "f" and name in MULTILABEL:
            reshape += ', or load the metric with "multilabel" if these are rows of 0 and 1'
        raise DataError(f"{what} have the shape {given.shape}, but {name} takes {wanted}", reshape)
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
            raise DataError(f"{place} is -100, the label that a loss ignores", "remove these rows first")
        raise DataError(f"{place} is {given[first]}, but {name} takes {wanted}", revalue)
    return rows


# --- values --------------------------------------------------------------------------------------------------------------
def rows_right(predictions: Array, references: Array) -> Array:
    """Return whether each row is predicted correctly. Of several labels, all must be right."""
    equal = predictions == references
    return np.asarray(equal.all(axis=1) if equal.ndim == 2 else equal)


def ratio(over: Array, under: Array, empty: float = 0.0) -> Array:
    """Return quotients, which are `empty` where there is nothing to count."""
    over = np.asarray(over, dtype=np.float64)
    without = np.full(np.broadcast(over, under).shape, empty)
    return np.asarray(np.divide(over, under, out=without, where=np.asarray(under) > 0))


def mean_ranks(groups: Array) -> Array:
    """Return the rank of each row from the number of its value in order. Equal values have the mean of their ranks."""
    sizes = np.bincount(groups)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[groups])


def class_counts(predictions: Array, references: Array, size: int = 0) -> tuple[Array, Array, Array]:
    """Return how many rows of each class are right, predicted and true. There are at least `size` classes."""
    if predictions.ndim == 2:
        return (predictions * references).sum(axis=0), predictions.sum(axis=0), references.sum(axis=0)
    # One number per row: a row of 0 and 1 for each of thousands of classes would need much memory.
    size = max(size, int(predictions.max()) + 1, int(references.max()) + 1)
    right = references[predictions == references]
    hits, predicted, true = (np.bincount(part, minlength=size) for part in (right, predictions, references))
    return hits, predicted, true


def counts_of(rows: Pair, chosen: Array | None = None) -> tuple[Array, Array, Array]:
    """Return the counts of the `chosen` classes, or of those that occur. Classes may be any whole numbers."""
    classes = np.unique(np.concatenate(rows if chosen is None else (*rows, chosen)))
    predictions, references, wanted = (
        np.searchsorted(classes, part) for part in (*rows, classes if chosen is None else chosen)
    )
    hits, predicted, true = class_counts(predictions, references, len(classes))
    return hits[wanted], predicted[wanted], true[wanted]


def mean(key: str, rows: Pair, notes: list[str]) -> float:
    """Return the share of rows that are right, or the mean squared error."""
    return float((np.square(rows[0] - rows[1]) if key == "mse" else rows_right(*rows)).mean())


def correlation(key: str, rows: Pair, notes: list[str]) -> float:
    """Return Matthews', Pearson's or Spearman's correlation, which is undefined if one side does not vary."""
    for what, side in zip(("predictions", "references"), rows, strict=True):
        if (side == side[0]).all():
            notes.append(f"{key} is undefined if all {what} are equal; reported as 0")
            return 0.0
    if key == "matthews_correlation":
        return matthews(rows)
    if key.startswith("spearman"):
        rank_rows = [mean_ranks(np.unique(side, return_inverse=True)[1]) for side in rows]
        return float(np.corrcoef(rank_rows)[0, 1])
    directions = []
    for side in rows:
        apart = side - side.mean()
        largest = np.abs(apart).max()
        directions.append(apart / (largest * np.linalg.norm(apart / largest)))  # squares of very large numbers overflow
    found = float(np.clip(directions[0] @ directions[1], -1.0, 1.0))
    return found if len(rows[0]) > 2 else float(np.round(found))  # two points lie on a line


def matthews(rows: Pair) -> float:
    hits, predicted, true = (part.astype(np.float64) for part in counts_of(rows))
    total = float(len(rows[0]))
    spread = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float((hits.sum() * total - true @ predicted) / np.sqrt(spread))


def averaged(
    key: str, rows: Pair, notes: list[str], average: str = "binary", pos_label: int | None = None, labels: Chosen = None
) -> float:
    """Return F1, precision or recall. A class with nothing to count is 0, with a note if that makes a difference."""
    one_of(average, AVERAGES, "average")
    predictions, references = rows
    wide, width, binary = references.ndim == 2, references.shape[-1], average == "binary"
    if average == ("binary" if wide else "samples"):
        wanted = KINDS["multilabel" if wide else "classes"][1]
        raise SettingsError(f'average="{average}" does not fit {wanted}', 'use average="macro"')
    if (labels if binary else pos_label) is not None:
        notes.append(f'{"labels" if binary else "pos_label"} is not used with average="{average}"')
    positive = 1 if pos_label is None else pos_label
    if binary:
        labels = [positive]
    chosen = None if labels is None else checked_rows(labels, "labels", "classes", key)
    if chosen is not None and (not len(chosen) or (wide and not {*chosen.tolist()} <= {*range(width)})):
        raise SettingsError(f"labels={chosen.tolist()} does not name labels of the rows", "name some of them, or omit it")
    if binary and len(others := np.setdiff1d(rows, [positive])) > 1:
        problem = f'average="binary" compares class {positive} with one other class, but there are {listed(others)}'
        raise SettingsError(problem, f'use average="macro": load_metric("{key}", "macro")')
    if wide:
        predictions, references = (side if chosen is None else side[:, chosen] for side in rows)
        by_row = average == "samples"
        hits, predicted, true = class_counts(*((predictions.T, references.T) if by_row else (predictions, references)))
    else:
        hits, predicted, true = counts_of(rows, chosen)
    if average == "micro":
        hits, predicted, true = (part.sum(keepdims=True) for part in (hits, predicted, true))
    measure = key.partition("_")[0]
    over, under = {"precision": (hits, predicted), "recall": (hits, true)}.get(measure, (2 * hits, predicted + true))
    weights = true if average == "weighted" and true.any() else None
    value, other = (float(np.average(ratio(over, under, empty), weights=weights)) for empty in (0.0, 1.0))
    if value != other:
        where = {"binary": f"class {positive}", "micro": "labels", "samples": "a row"}.get(average, "a class")
        lack = {"precision": "no prediction", "recall": "no reference"}.get(key, "no prediction and no reference")
        notes.append(f"{key} is undefined for {where} with {lack}; {'counted' if value else 'reported'} as 0")
    return value


VALUES: dict[str, Value] = {
    **dict.fromkeys(("accuracy", "exact_match", "mse"), mean),
    **dict.fromkeys(("matthews_correlation", *CORRELATIONS), correlation),
    **dict.fromkeys(AVERAGED, averaged),
    **{f"f1_{average}": partial(averaged, average=average) for average in ("micro", "macro", "samples")},
}


# --- a metric of the user's rows -----------------------------------------------------------------------------------------
class Metric:
    """Collects predictions and references, and scores them together. `load_metric` and `metrics_for` make one.

    Attributes:
        name: The name of the metric or of the task.
        config_name: The configuration, such as a GLUE task or an average.
        notes: What was undefined in the last `compute`.
    """

    def __init__(
        self, name: str, config_name: str | None, kind: str, keys: Iterable[str], values: Mapping[str, Value] = VALUES
    ) -> None:
        self.name, self.config_name, self._kind = name, config_name, kind
        self.notes: list[str] = []
        self._values = {key: values.get(key, VALUES[key]) for key in keys}
        self._batches: list[Pair] = []

    def add(self, *, prediction: Numbers, reference: Numbers) -> None:
        """Add one row: a prediction and its reference."""
        row, true = numbers_of(prediction, "predictions"), numbers_of(reference, "references")
        self.add_batch(predictions=row[None], references=true[None])

    def add_batch(self, *, predictions: Numbers, references: Numbers) -> None:
        """Add rows: predictions and as many references. If they are refused, nothing is added."""
        self._batches += self._checked(predictions, references)

    def compute(
        self, *, predictions: Numbers | None = None, references: Numbers | None = None, **options: Option
    ) -> dict[str, float]:
        """Score all rows that were added, then forget them. A `compute` that fails changes nothing.

        Args:
            predictions: More predictions.
            references: As many references.
            **options: For f1, precision and recall: `average`, `pos_label` and `labels`, as in scikit-learn.

        Returns:
            The values by name.

        Raises:
            DataError: If there are no rows, or a row cannot be scored.
            SettingsError: If an option is unknown or does not fit the rows.
        """
        for option in options:
            one_of(option, OPTIONS if self.name in AVERAGED else (), f"option of {self.name}")
        batches = list(self._batches)
        if predictions is not None or references is not None:
            batches += self._checked(predictions, references)
        if not batches:
            raise DataError(f"{self.name} has no rows to score", "call add_batch, or pass predictions and references")
        predicted, true = map(np.concatenate, zip(*batches, strict=True))
        if self.name == "glue" and (true == -1).all():
            raise DataError("every reference is -1: GLUE hides the labels of its test split", "evaluate another split")
        notes: list[str] = []
        with np.errstate(all="ignore"):  # a value that is not finite is an error below
            values = {key: value(key, (predicted, true), notes, **options) for key, value in self._values.items()}
        if not all(map(math.isfinite, values.values())):
            raise DataError(f"{self.name} is too large for a float", "check the data for values that are far too large")
        self._batches, self.notes = [], notes
        return values

    def _checked(self, predictions: Numbers | None, references: Numbers | None) -> list[Pair]:
        """Return both as a batch of rows that fit each other and the rows before; no batch if there are no rows."""
        if predictions is None or references is None:
            raise SettingsError(f"{self.name} got only one of predictions and references", "give both")
        predicted = checked_rows(predictions, "predictions", self._kind, self.name, self._batches)
        true = checked_rows(references, "references", self._kind, self.name, self._batches)
        if len(predicted) != len(true):
            problem = f"there are {len(predicted):,} predictions and {len(true):,} references"
            raise DataError(problem, "pass one reference per prediction")
        batch = [(predicted, true)] if len(true) else []
        widths = {rows.shape[1:] for pair in batch + self._batches[:1] for rows in pair}
        if len(widths) > 1:
            different = listed(width[0] for width in sorted(widths))
            raise DataError(f"{self.name} got rows of different widths: {different}", "give every row the same labels")
        return batch


def load_metric(path: str, config_name: str | None = None) -> Metric:
    """Return a metric by its name, without downloading anything.

    Args:
        path: The name of a metric, such as "accuracy", or "glue" for the metrics of a GLUE task.
        config_name: With "glue", the task. With f1, precision and recall, the average. With these and accuracy, "multilabel"
            for rows of 0 and 1.

    Returns:
        A metric with `add`, `add_batch` and `compute`, like those of the `evaluate` library.

    Raises:
        SettingsError: If there is no such metric or configuration.
    """
    one_of(path, ("glue", *PLAIN), "metric")
    if config_name is not None:
        one_of(config_name, CONFIGS.get(path, ()), "GLUE task" if path == "glue" else f"configuration of {path}")
    if path == "glue":
        if config_name is None:
            raise SettingsError('"glue" needs a task: load_metric("glue", "mrpc")', f"choose one of: {listed(GLUE, 20)}")
        return Metric(path, config_name, "scores" if config_name == "stsb" else "classes", GLUE[config_name])
    keys = COMPUTED[SEVERAL] if path == "multilabel_f1" else (path,)
    kind = "multilabel" if config_name in ("multilabel", "samples") else PLAIN[path]
    values = {path: partial(averaged, average=config_name)} if config_name in AVERAGES else VALUES
    return Metric(path, config_name, kind, keys, values)


def metrics_for(task: str, num_labels: int, *, keys: tuple[str, ...] | None = None, positive: int | None = None) -> Metric:
    """Return the metrics of a task.

    Args:
        task: single_label_classification, multi_label_classification or regression.
        num_labels: Number of outputs of the model.
        keys: The names of the metrics. By default, those that suit the task.
        positive: The class whose F1, precision and recall count. By default, macro-F1 is used: the mean over all classes.

    Returns:
        A metric that computes all of them.

    Raises:
        SettingsError: If the task is unknown, or the arguments do not fit each other.
    """
    one_of(task, TASKS, "task")
    kind, usual = TASKS[task]
    if not _fits(task, num_labels):
        raise SettingsError(f"{task} cannot have num_labels={num_labels}", "choose a metric with load_metric")
    if positive is None:
        return Metric(task, None, kind, keys or usual)
    if task != CLASSES or not 0 <= positive < num_labels:
        raise SettingsError(f"positive={positive} is not a class of {task} with num_labels={num_labels}", "omit it")
    of_class = dict.fromkeys(AVERAGED, partial(averaged, average="macro", labels=[positive]))
    return Metric(task, None, kind, keys or ("accuracy", "f1"), of_class)


# --- decisions and probabilities -----------------------------------------------------------------------------------------
def _fits(task: str, outputs: int) -> bool:
    return outputs == 1 if task == SCORE else outputs >= (2 if task == CLASSES else 1)


def decide(logits: Numbers, task: str, threshold: float = 0.5) -> Array:
    """Return predictions from logits.

    Args:
        logits: One row of outputs per example.
        task: single_label_classification, multi_label_classification or regression.
        threshold: For several labels: the smallest probability of a label that is predicted.

    Returns:
        The class with the largest logit, 0 or 1 for each label, or the score.

    Raises:
        DataError: If the logits do not fit the task, or contain NaN.
        SettingsError: If the task is unknown, or the threshold is not between 0 and 1.
    """
    one_of(task, TASKS, "task")
    if not 0 < threshold < 1:
        raise SettingsError(f"threshold={threshold} is not a probability", "use a number between 0 and 1, such as 0.5")
    rows = numbers_of(logits, "logits")
    if task == SCORE and rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or not _fits(task, rows.shape[1]):
        raise DataError(f"logits of the shape {rows.shape} do not fit {task}", "pass one row of outputs per example")
    if len(wrong := np.argwhere(np.isnan(rows))):
        raise DataError(f"logits row {wrong[0][0]:,} (from 0) contains NaN", "find the step where the loss became NaN")
    if task == SCORE:
        return rows[:, 0]
    if task == CLASSES:
        return np.asarray(rows.argmax(axis=-1))
    from scipy.special import expit

    return np.asarray(expit(rows.astype(np.float64)) >= threshold, dtype=np.int64)


def probabilities(logits: Array, task: str) -> Array:
    """Return the probability of each label for rows of logits of a classifier."""
    rows = np.asarray(logits, dtype=np.float64)
    if task == SEVERAL:
        return np.asarray(np.exp(-np.logaddexp(0, -rows)))
    if rows.ndim == 2 and rows.shape[1] <= 8:  # NumPy is slow for rows of a few numbers, so these go by column
        highest = np.maximum.reduce([rows[:, place] for place in range(rows.shape[1])])[:, None]
    else:
        highest = rows.max(axis=-1, keepdims=True)
    shifted = np.exp(rows - highest)
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


# --- the metrics of a run ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measures:
    """The keys of the metrics, and the name of the class that `f1` refers to."""

    keys: tuple[str, ...]
    positive: str | None = None

    def title(self, key: str) -> str:
        """Return a metric's name for a person: `f1 (equivalent)`, `f1 (macro)`, `accuracy, mismatched`."""
        split, name = self.parted(key)
        title = f"{name} ({self.positive})" if name in AVERAGED and self.positive else TITLES.get(name, name)
        return f"{title}, {split}" if split else title

    def metric(self, task: str, names: Sequence[str]) -> Metric:
        """Return the metric that computes these keys for a model with the labels `names`."""
        positive = [*names].index(self.positive) if self.positive else None
        return metrics_for(task, len(names), keys=self.keys, positive=positive)

    def scores(self, logits: np.ndarray, labels: np.ndarray | None, task: str, names: Sequence[str]) -> dict[str, float]:
        """Return these metrics of a model's logits for rows with `labels`."""
        return self.metric(task, names).compute(predictions=decide(logits, task), references=labels)

    def parted(self, key: str) -> tuple[str, str]:
        """Return the split that a key begins with, if any, and the metric."""
        known = sorted((*self.keys, LOSS), key=len, reverse=True)
        name = next((name for name in known if key == name or key.endswith(f"_{name}")), key)
        return key[: -len(name) - 1], name


def default_measures(task: str, names: Sequence[str]) -> Measures:
    """Return the default metrics of a task: with F1 of the class 1 (or true) if there is one, else macro-F1."""
    # The loss alone does not show how good a model is, so a Trainer computes these if it is given no others.
    lowered = [name.lower() for name in names]
    pair = next((pair for pair in NUMBERED if sorted(lowered) == [*pair]), None)
    if task == CLASSES and pair:
        return Measures(("accuracy", "f1"), names[lowered.index(pair[1])])
    return Measures(TASKS[task][1])


def chosen_measures(given: Measures | None, task: str, names: Sequence[str], positive: str | None) -> Measures:
    """Return the metrics `given`, else the default ones, with the F1 of the class `positive` if one is chosen."""
    measures = given or default_measures(task, names)
    if positive is None:
        return measures
    if task != CLASSES:
        raise SettingsError(f"positive_label is set, but the task is {task}", "omit it: there is no class to choose")
    if positive not in names:
        problem = f"positive_label is {visible(positive)}, not one of {listed(names)}{did_you_mean(positive, names)}"
        raise SettingsError(problem, "name one of the labels")
    keys = [key for key in measures.keys if key != "f1" and (key != "f1_macro" or len(names) > 2)]
    keys.insert(keys.index("accuracy") + 1 if "accuracy" in keys else len(keys), "f1")
    return Measures(tuple(keys), positive)


def only_measures(measures: Measures, wanted: Sequence[str], task: str) -> Measures:
    """Return the metrics that a user names instead of `measures`, with the same class for F1, precision and recall."""
    for name in wanted:
        one_of(name, COMPUTED[task], f"metric of {task}")
    of_class = [name for name in wanted if name in AVERAGED]
    if of_class and measures.positive is None:
        problem = f"{of_class[0]} is the score of one class, but none is chosen"
        raise SettingsError(problem, "add --positive_label CLASS, or use f1_macro")
    return Measures(tuple(dict.fromkeys(wanted)), measures.positive if of_class else None) if wanted else measures


def recorded_measures(keys: tuple[str, ...], positive: str | None, task: str, names: Sequence[str]) -> Measures:
    """Return the metrics that the record of a run names. Raise `ModelError` if they do not fit its model."""
    if not {*keys} <= {*COMPUTED[task]} or ("f1" in keys) != (positive is not None) or positive not in (None, *names):
        raise ModelError(
            f"the run's record lists metrics that do not fit its model: {listed(keys)}, positive_label {visible(positive)}",
            "restore run.json from a copy, or evaluate the model alone: glassloop evaluate RUN/model DATA",
        )
    return Measures(keys, positive) if keys else default_measures(task, names)


def refuse_unknown_metric(wanted: str | None, measures: Measures) -> None:
    """Raise if the metric that decides which evaluation is best is not computed."""
    name, keys = (wanted or LOSS).removeprefix("eval_"), listed((LOSS, *measures.keys))
    if name in (LOSS, *TIMINGS, *measures.keys):
        return
    remedy = f"use one of {keys}"
    if name == "f1" and "f1_macro" in measures.keys:
        remedy = "set positive_label to the class whose F1 counts, or use f1_macro"
    raise SettingsError(f"metric_for_best_model is {visible(wanted)}, but an evaluation computes {keys}", remedy)


def short_metrics(metrics: Mapping[str, float], prefix: str = "eval") -> dict[str, float]:
    """Return the numbers of an evaluation without their prefix and without timings: `accuracy` for `eval_accuracy`."""
    return {
        name.removeprefix(f"{prefix}_"): value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not is_timing(name)
    }


def no_better(metrics: Mapping[str, float], baseline: Mapping[str, float], measures: Measures) -> list[str]:
    """Return the metrics in which a result is no better than always giving the same answer."""

    def is_no_better(key: str, name: str) -> bool:
        if name in LOWER_IS_BETTER:
            return metrics[key] >= baseline.get(key, math.inf)
        return metrics[key] <= baseline.get(key, 0.0)  # an answer without such a score: F1 of another class, a correlation

    return [key for key in metrics if (name := measures.parted(key)[1]) in measures.keys and is_no_better(key, name)]


def read_scores(given: object, say_once: Callable[[str], None], best: str | None = None) -> dict[str, float]:
    """Return the result of a user's `compute_metrics`: numbers as floats, and other values, which are reported, as they are."""
    if not isinstance(given, Mapping):
        raise SettingsError(f"compute_metrics returned a {type(given).__name__}", "return a dict of names and numbers")
    scores: dict[str, float] = {}
    for name, value in given.items():
        number: float | None = None
        with suppress(TypeError, ValueError, RuntimeError):  # a number of NumPy or torch; torch raises the last for several
            number = None if isinstance(value, str | bytes) else float(value)
        is_best = str(name).removeprefix("eval_") == str(best).removeprefix("eval_")
        if number is None and is_best:
            problem = f"metric_for_best_model is {best}, but compute_metrics returned a {type(value).__name__} for it"
            raise SettingsError(problem, "return a number, or choose another metric")
        if number is None or not math.isfinite(number):
            what = f"a {type(value).__name__}" if number is None else str(number)
            then = ", and such an evaluation cannot be the best one" if is_best else ""
            say_once(f"compute_metrics returned {what} for {name}: history and report omit it{then}")
        scores[str(name)] = value if number is None else number
    return scores
