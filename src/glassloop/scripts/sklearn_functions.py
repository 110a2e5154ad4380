"""Functions of scikit-learn with the arguments they had in 2020."""

from __future__ import annotations

import numpy as np

from glassloop.metric_values import Array
from glassloop.scripts.ledger import LEDGER


def compute_class_weight(class_weight: object, *positional: object, **named: object) -> Array:
    """Return the weight of each class, from arguments by place or by name.

    Args:
        class_weight: "balanced", weights by class, or None.
        *positional: The classes and the labels, which scikit-learn only takes by name since 1.0.
        **named: The arguments by name.
    """
    from sklearn.utils.class_weight import compute_class_weight as today

    if positional:
        LEDGER.note("compute_class_weight(weight, classes, y)", "classes=, y=", "by name only since scikit-learn 1.0")
        named |= dict(zip(("classes", "y"), positional, strict=False))
    return np.asarray(today(class_weight, **named))


def mean_squared_error(true: object, predicted: object, *, squared: bool = True, **named: object) -> float | Array:
    """Return the mean squared error, or its root.

    Args:
        true: The true values.
        predicted: The predicted values.
        squared: False for the root, which scikit-learn computes with root_mean_squared_error since 1.6.
        **named: Further arguments of scikit-learn.
    """
    from sklearn import metrics

    if not squared:
        LEDGER.note("mean_squared_error(squared=False)", "root_mean_squared_error", "removed in scikit-learn 1.6")
    function = metrics.mean_squared_error if squared else metrics.root_mean_squared_error
    found: float | Array = function(true, predicted, **named)
    return found


def plot_confusion_matrix(estimator: object, rows: object, true: object, **named: object) -> object:
    """Draw the confusion matrix of an estimator.

    Args:
        estimator: The estimator.
        rows: What it predicts.
        true: The true classes.
        **named: Further arguments of `ConfusionMatrixDisplay`.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    return ConfusionMatrixDisplay.from_estimator(estimator, rows, true, **named)
