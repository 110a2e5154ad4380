"""How each metric is computed from predictions and references, with scikit-learn and SciPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = "npt.ArrayLike | Tensor | Sequence[Tensor]"
Option: TypeAlias = str | int | Sequence[int] | None
Pair = tuple[Array, Array]  # predictions, references

# Kinds of rows: number of dimensions, what one row is, what to do about another shape, and about another value.
KINDS = {
    "classes": (1, "one class number per row", "take argmax(axis=-1) first", "use whole numbers: 0, 1, 2"),
    "multilabel": (2, "rows of 0 and 1", "use one row per example", "compare with a threshold first"),
    "scores": (1, "one finite number per row", "take squeeze(-1) first", "check how this row was computed"),
}
AVERAGES = ("binary", "micro", "macro", "weighted", "samples")
AVERAGED = ("f1", "precision", "recall")
MULTILABEL = ("accuracy", *AVERAGED)  # metrics that can also be computed for several labels per row
CORRELATIONS = ("pearson", "pearsonr", "spearman", "spearmanr")


def one_of(name: str, known: Iterable[str], what: str) -> None:
    """Raise if `name` is not one of the `known` names."""
    if name not in (known := list(known)):
        problem = f"{visible(name)} is not a known {what}{did_you_mean(str(name).lower(), known)}"
        raise SettingsError(problem, f"choose one of: {listed(known, 20)}" if known else "omit it: there are none")


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


def checked_rows(values: Numbers, what: str, kind: str, name: str, earlier: list[Pair]) -> Array:
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


def mean(key: str, rows: Pair, notes: list[str]) -> float:
    """Return the share of rows that are right, or the mean squared error."""
    from sklearn.metrics import accuracy_score, mean_squared_error

    return float((mean_squared_error if key == "mse" else accuracy_score)(*rows))


def correlation(key: str, rows: Pair, notes: list[str]) -> float:
    """Return Matthews', Pearson's or Spearman's correlation, which is undefined if one side does not vary."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import matthews_corrcoef

    for what, side in zip(("predictions", "references"), rows, strict=True):
        if (side == side[0]).all():
            notes.append(f"{key} is undefined if all {what} are equal; reported as 0")
            return 0.0
    if key == "matthews_correlation":
        return float(matthews_corrcoef(*rows))
    return float((pearsonr if key.startswith("pearson") else spearmanr)(*rows).statistic)


def averaged(
    key: str,
    rows: Pair,
    notes: list[str],
    average: str = "binary",
    pos_label: int | None = None,
    labels: Sequence[int] | None = None,
) -> float:
    """Return F1, precision or recall. A class with nothing to count is 0, with a note if that makes a difference."""
    import sklearn.metrics

    one_of(average, AVERAGES, "average")
    predictions, references = rows
    wide, width, binary = references.ndim == 2, references.shape[-1], average == "binary"
    if average == ("binary" if wide else "samples"):
        wanted = KINDS["multilabel" if wide else "classes"][1]
        raise SettingsError(f'average="{average}" does not fit {wanted}', 'use average="macro"')
    if (labels if binary else pos_label) is not None:
        notes.append(f'{"labels" if binary else "pos_label"} is not used with average="{average}"')
    positive = 1 if pos_label is None else pos_label
    if wide:  # one more column, which `labels` omits: scikit-learn would take rows of one column for classes
        predictions, references = (np.pad(side, ((0, 0), (0, 1))) for side in rows)
        labels = range(width) if labels is None else labels
    elif binary:
        labels = [positive]
    chosen = None if labels is None else checked_rows(labels, "labels", "classes", key, [])
    if chosen is not None and (not len(chosen) or (wide and not {*chosen.tolist()} <= {*range(width)})):
        raise SettingsError(f"labels={chosen.tolist()} does not name labels of the rows", "name some of them, or omit it")
    if binary and len(others := np.setdiff1d(rows, [positive])) > 1:
        problem = f'average="binary" compares class {positive} with one other class, but there are {listed(others)}'
        raise SettingsError(problem, f'use average="macro": load_metric("{key}", "macro")')
    measure = getattr(sklearn.metrics, f"{key.partition('_')[0]}_score")
    fixed = {"labels": chosen, "average": "macro" if binary else average}
    value, other = (float(measure(references, predictions, zero_division=empty, **fixed)) for empty in (0.0, 1.0))
    if value != other:
        where = {"binary": f"class {positive}", "micro": "labels", "samples": "a row"}.get(average, "a class")
        lack = {"precision": "no prediction", "recall": "no reference"}.get(key, "no prediction and no reference")
        notes.append(f"{key} is undefined for {where} with {lack}; {'counted' if value else 'reported'} as 0")
    return value


VALUES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("accuracy", "exact_match", "mse"), mean),
    **dict.fromkeys(("matthews_correlation", *CORRELATIONS), correlation),
    **dict.fromkeys(AVERAGED, averaged),
    **{f"f1_{average}": partial(averaged, average=average) for average in ("micro", "macro", "samples")},
}
