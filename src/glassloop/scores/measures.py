"""Which metrics to compute, which class F1 refers to, and how each metric is called in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, did_you_mean, listed, visible
from glassloop.runs.record import TIMINGS, is_timing
from glassloop.scores.metrics import AVERAGED, CORRELATIONS, TASKS, Metric, decide, metrics_for, one_of
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

LOSS = "loss"
LOWER_IS_BETTER = (LOSS, "mse")

# Names of two classes that only mean no and yes: F1 is that of the second.
# F1 refers to a class that somebody chose. An order of names, as in ClassLabel or --labels, is not a choice.
NUMBERED = (("0", "1"), ("false", "true"), ("label_0", "label_1"))

COMPUTED = {
    CLASSES: ("accuracy", *AVERAGED, "f1_macro", "matthews_correlation"),
    SEVERAL: ("f1_micro", "f1_macro", "f1_samples", "exact_match"),
    SCORE: (*CORRELATIONS, "mse"),
}

TITLES = {f"f1_{average}": f"f1 ({average})" for average in ("micro", "macro", "samples")}


@dataclass(frozen=True)
class Measures:
    """The keys of the metrics, and the name of the class that `f1` refers to."""

    keys: tuple[str, ...]
    positive: str | None = None

    def title(self, key: str) -> str:
        """Return a metric's name for a person: `f1 (equivalent)`, `f1 (macro)`, `accuracy, mismatched`."""
        split, name = self.parted(key)
        shown = f"{name} ({self.positive})" if name in AVERAGED and self.positive else TITLES.get(name, name)
        return f"{shown}, {split}" if split else shown

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
    # The loss alone does not show how good a model is, so a Trainer computes metrics that fit the task if none are
    # given.
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
        raise SettingsError(
            f"positive_label is {visible(positive)}, not one of {listed(names)}{did_you_mean(positive, names)}",
            "name one of the labels",
        )
    kept = [key for key in measures.keys if key != "f1" and (key != "f1_macro" or len(names) > 2)]
    place = kept.index("accuracy") + 1 if "accuracy" in kept else len(kept)
    return Measures((*kept[:place], "f1", *kept[place:]), positive)


def only_measures(measures: Measures, wanted: Sequence[str], task: str) -> Measures:
    """Return the metrics that a user names instead of `measures`, with the same class for F1, precision and recall.

    Raises `SettingsError` if a metric does not fit the task, or if it needs a class and none is chosen.
    """
    for name in wanted:
        one_of(name, COMPUTED[task], f"metric of {task}")
    of_class = [name for name in wanted if name in AVERAGED]
    if of_class and measures.positive is None:
        raise SettingsError(
            f"{of_class[0]} is the score of one class, but none is chosen", "add --positive_label CLASS, or use f1_macro"
        )
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
    name = (wanted or LOSS).removeprefix("eval_")
    if name in (LOSS, *TIMINGS, *measures.keys):
        return
    remedy = f"use one of {listed((LOSS, *measures.keys))}"
    if name == "f1" and "f1_macro" in measures.keys:
        remedy = "set positive_label to the class whose F1 counts, or use f1_macro"
    raise SettingsError(
        f"metric_for_best_model is {visible(wanted)}, but an evaluation computes {listed((LOSS, *measures.keys))}", remedy
    )


def short_metrics(metrics: Mapping[str, float], prefix: str = "eval") -> dict[str, float]:
    """Return the numbers of an evaluation without their prefix and without timings: `accuracy` for `eval_accuracy`."""
    return {
        name.removeprefix(f"{prefix}_"): value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not is_timing(name)
    }


def no_better(metrics: Mapping[str, float], baseline: Mapping[str, float], measures: Measures) -> list[str]:
    """Return the metrics in which a result is no better than always giving the same answer.

    If that answer has no such score (F1 of another class, a correlation), the result must exceed 0.
    """
    scored = {key: name for key in metrics if (name := measures.parted(key)[1]) in measures.keys}
    return [
        key
        for key, name in scored.items()
        if (metrics[key] >= baseline.get(key, math.inf) if name in LOWER_IS_BETTER else metrics[key] <= baseline.get(key, 0.0))
    ]


def read_scores(given: object, say_once: Callable[[str], None], best: str | None = None) -> dict[str, float]:
    """Return the result of a user's `compute_metrics`: numbers as floats, and any other value as it is.

    Report each name whose value is not a finite number, which neither the history of a run nor its report can show.

    Args:
        given: What the function returned.
        say_once: Shows a line to the user unless it was shown before.
        best: The metric that selects the best evaluation.

    Raises:
        SettingsError: If it is not a dict, or if the metric that selects the best evaluation is not a number.
    """
    if not isinstance(given, Mapping):
        raise SettingsError(f"compute_metrics returned a {type(given).__name__}", "return a dict of names and numbers")
    found: dict[str, float] = {}
    for name, value in given.items():
        number = number_of(value)
        is_best = str(name).removeprefix("eval_") == str(best).removeprefix("eval_")
        if number is None and is_best:
            problem = f"metric_for_best_model is {best}, but compute_metrics returned a {type(value).__name__} for it"
            raise SettingsError(problem, "return a number, or choose another metric")
        if number is None or not math.isfinite(number):
            what = f"a {type(value).__name__}" if number is None else str(number)
            then = ", and such an evaluation cannot be the best one" if is_best else ""
            say_once(f"compute_metrics returned {what} for {name}: history and report omit it{then}")
        found[str(name)] = value if number is None else number
    return found


def number_of(value: object) -> float | None:
    """Return a number, also one of NumPy or torch, as a float; None for anything else."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)  # type: ignore[arg-type]  # whatever has a __float__
    except (TypeError, ValueError, RuntimeError):  # torch raises the last one for several numbers
        return None
