"""The module `evaluate`, and `load_metric` of `datasets`, as scripts call them: computed here, without a download."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from glassloop.errors import SettingsError
from glassloop.metric_values import Numbers, Option
from glassloop.metrics import PLAIN
from glassloop.metrics import Metric as OwnMetric
from glassloop.metrics import load_metric as own_metric
from glassloop.scripts.ledger import LEDGER

__version__ = "0.4"
NO_DOWNLOAD = "computes the metric without a download"


class Metric:
    """A metric that also takes its rows by place, as old versions did.

    Args:
        metric: The metric of Glassloop.
    """

    def __init__(self, metric: OwnMetric) -> None:
        self.own = metric
        self.name, self.config_name = metric.name, metric.config_name

    def add(self, prediction: Numbers = None, reference: Numbers = None, **named: Numbers) -> None:  # type: ignore[assignment]
        """Add one row.

        Args:
            prediction: The prediction.
            reference: The true value.
            **named: Both under the names predictions and references.
        """
        predicted = named.get("predictions", prediction)
        self.own.add(prediction=predicted, reference=named.get("references", reference))

    def add_batch(self, predictions: Numbers, references: Numbers) -> None:
        """Add rows.

        Args:
            predictions: The predictions.
            references: The true values.
        """
        self.own.add_batch(predictions=predictions, references=references)

    def compute(
        self, predictions: Numbers | None = None, references: Numbers | None = None, **options: Option
    ) -> dict[str, float]:
        """Return the values of all rows by name, then forget the rows.

        Args:
            predictions: More predictions.
            references: As many true values.
            **options: Options of the metric, such as `average`.
        """
        return self.own.compute(predictions=predictions, references=references, **options)


class Combined:
    """Several metrics of the same rows.

    Args:
        metrics: The metrics.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = [*metrics]

    def add(self, prediction: Numbers, reference: Numbers) -> None:
        """Add one row to each metric.

        Args:
            prediction: The prediction.
            reference: The true value.
        """
        for metric in self.metrics:
            metric.add(prediction, reference)

    def add_batch(self, predictions: Numbers, references: Numbers) -> None:
        """Add rows to each metric.

        Args:
            predictions: The predictions.
            references: The true values.
        """
        for metric in self.metrics:
            metric.add_batch(predictions, references)

    def compute(
        self, predictions: Numbers | None = None, references: Numbers | None = None, **options: Option
    ) -> dict[str, float]:
        """Return the values of all metrics by name.

        Args:
            predictions: More predictions.
            references: As many true values.
            **options: Options of the metrics.
        """
        found: dict[str, float] = {}
        for metric in self.metrics:
            fitting = options if metric.name not in ("accuracy", "matthews_correlation") else {}
            found |= metric.compute(predictions, references, **fitting)
        return found


def load(path: str, config_name: str | None = None, *more: object, **named: object) -> Metric:
    """Return a metric by its name.

    Args:
        path: The name, such as "accuracy", or "glue".
        config_name: The GLUE task.
        *more: Accepted for compatibility.
        **named: Accepted for compatibility: they concern downloads and several processes.

    Raises:
        SettingsError: If Glassloop has no such metric, and the package `evaluate` is not installed.
    """
    return metric_of("evaluate.load", path, config_name, *more, **named)


def load_metric(path: str, config_name: str | None = None, *more: object, **named: object) -> Metric:
    """Return a metric by its name, as `datasets.load_metric` did.

    Args:
        path: The name, such as "accuracy", or "glue".
        config_name: The GLUE task.
        *more: Accepted for compatibility.
        **named: Accepted for compatibility: they concern downloads and several processes.

    Raises:
        SettingsError: If Glassloop has no such metric, and the package `evaluate` is not installed.
    """
    return metric_of("load_metric", path, config_name, *more, **named)


def metric_of(function: str, path: str, config_name: str | None, *more: object, **named: object) -> Metric:
    """Return a metric of Glassloop, or that of the installed `evaluate` if Glassloop has none."""
    name = Path(path).stem if path.endswith(".py") else path.rpartition("/")[2]
    try:
        found = Metric(own_metric(name, config_name))
    except SettingsError:
        if (evaluate := installed_evaluate()) is None:
            raise
        theirs: Metric = evaluate.load(path, config_name, *more, **named)  # type: ignore[attr-defined]
        return theirs
    called = f'{function}("{path}"' + (f', "{config_name}")' if config_name else ")")
    LEDGER.note(called, "glassloop.load_metric", NO_DOWNLOAD)
    return found


def installed_evaluate() -> object | None:
    """Return the package `evaluate` if it is installed, else None."""
    try:
        found = import_module("evaluate")
    except ModuleNotFoundError:
        return None
    return None if found is sys.modules[__name__] else found


def combine(evaluations: Iterable[str | Metric], force_prefix: bool = False) -> Combined:
    """Return several metrics as one.

    Args:
        evaluations: Their names, or the metrics.
        force_prefix: Accepted for compatibility.
    """
    return Combined(load(one) if isinstance(one, str) else one for one in evaluations)


def list_evaluation_modules(*arguments: object, **named: object) -> list[str]:
    """Return the names of the metrics.

    Args:
        *arguments: Accepted for compatibility.
        **named: Accepted for compatibility.
    """
    return ["glue", *PLAIN]


def list_metrics(*arguments: object, **named: object) -> list[str]:
    """Return the names of the metrics.

    Args:
        *arguments: Accepted for compatibility.
        **named: Accepted for compatibility.
    """
    return list_evaluation_modules()
