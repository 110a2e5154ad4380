"""Which metrics a model is scored by: of which class F1 is, what the metrics are called, and what beats the baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassloop.base.errors import ModelError, SettingsError
from glassloop.scores.metrics import (
    Measures,
    chosen_measures,
    default_measures,
    no_better,
    recorded_measures,
    refuse_unknown_metric,
    short_metrics,
)
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

MACRO = Measures(("accuracy", "f1_macro"))


@pytest.mark.parametrize(
    ("task", "names", "measures"),
    [
        (CLASSES, ("complaint", "ok"), MACRO),  # nobody has chosen a class
        (CLASSES, ("no", "yes"), MACRO),
        (CLASSES, ("0", "1"), Measures(("accuracy", "f1"), "1")),
        (CLASSES, ("1", "0"), Measures(("accuracy", "f1"), "1")),
        (CLASSES, ("False", "True"), Measures(("accuracy", "f1"), "True")),
        (CLASSES, ("LABEL_0", "LABEL_1"), Measures(("accuracy", "f1"), "LABEL_1")),
        (CLASSES, ("1", "2"), MACRO),
        (CLASSES, ("0", "1", "2"), MACRO),
        (SEVERAL, ("0", "1"), Measures(("f1_micro", "f1_macro", "exact_match"))),
        (SCORE, ("LABEL_0",), Measures(("pearson", "spearmanr", "mse"))),
    ],
)
def test_the_default(task: str, names: tuple[str, ...], measures: Measures) -> None:
    assert default_measures(task, names) == measures
    assert chosen_measures(None, task, names, None) == measures


def test_the_class_whose_f1_counts_can_be_chosen() -> None:
    names = ("complaint", "ok")
    assert chosen_measures(None, CLASSES, names, "complaint") == Measures(("accuracy", "f1"), "complaint")
    assert chosen_measures(None, CLASSES, ("0", "1"), "0") == Measures(("accuracy", "f1"), "0")
    three = chosen_measures(None, CLASSES, (*names, "other"), "ok")
    assert three == Measures(("accuracy", "f1", "f1_macro"), "ok")
    matthews = Measures(("matthews_correlation",))
    assert chosen_measures(matthews, CLASSES, names, "ok") == Measures(("matthews_correlation", "f1"), "ok")
    assert chosen_measures(matthews, CLASSES, names, None) == matthews


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (CLASSES, 'positive_label is "complaints", not one of complaint, ok; did you mean "complaint"?'),
        (SEVERAL, f"positive_label is set, but the task is {SEVERAL}"),
        (SCORE, f"positive_label is set, but the task is {SCORE}"),
    ],
)
def test_a_class_that_cannot_be_chosen(task: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        chosen_measures(None, task, ("complaint", "ok"), "complaints" if task == CLASSES else "ok")
    assert caught.value.problem == problem


def test_the_metrics_of_a_record() -> None:
    names = ("complaint", "ok")
    assert recorded_measures(("accuracy", "f1"), "ok", CLASSES, names) == Measures(("accuracy", "f1"), "ok")
    assert recorded_measures(("pearson", "spearmanr"), None, SCORE, ("LABEL_0",)) == Measures(("pearson", "spearmanr"))
    assert recorded_measures((), None, CLASSES, names) == MACRO
    wrong = [
        ("auc", None),
        ("f1", None),
        ("f1", "no"),
        ("accuracy", "ok"),
        ("accuracy", "no"),
        ("f1_macro", "no"),
        ("pearson", None),
    ]
    for keys, positive in (((key,), positive) for key, positive in wrong):
        with pytest.raises(ModelError, match="lists metrics that do not fit its model"):
            recorded_measures(keys, positive, CLASSES, names)


def test_f1_is_that_of_the_named_class() -> None:
    """1,000 ok against 20 complaint: always answering ok has an F1 of 0.99 for ok, and of 0 for complaint."""
    references, predictions = np.array([1] * 1000 + [0] * 20), np.ones(1020, dtype=int)
    names = ("complaint", "ok")

    def scored(measures: Measures) -> dict[str, float]:
        return measures.metric(CLASSES, names).compute(predictions=predictions, references=references)

    assert scored(Measures(("f1",), "ok")) == {"f1": pytest.approx(2000 / 2020)}
    assert scored(Measures(("f1",), "complaint")) == {"f1": 0.0}
    assert scored(MACRO) == {"accuracy": pytest.approx(1000 / 1020), "f1_macro": pytest.approx(1000 / 2020)}


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("f1", "f1 (equivalent)"),
        ("f1_macro", "f1 (macro)"),
        ("accuracy", "accuracy"),
        ("loss", "loss"),
        ("mismatched_accuracy", "accuracy, mismatched"),
        ("mismatched_f1", "f1 (equivalent), mismatched"),
        ("mismatched_loss", "loss, mismatched"),
        ("my_own", "my_own"),
    ],
)
def test_titles_name_the_class(key: str, title: str) -> None:
    assert Measures(("accuracy", "f1", "f1_macro"), "equivalent").title(key) == title


def test_a_title_without_a_class() -> None:
    assert Measures(("f1_micro",)).title("f1_micro") == "f1 (micro)"
    assert Measures(("f1",)).title("f1") == "f1"


def test_short_names_leave_prefix_and_timings_out() -> None:
    metrics = {
        "eval_loss": 1.0,
        "eval_mismatched_accuracy": 0.5,
        "eval_runtime": 2.0,
        "eval_mismatched_runtime": 3.0,
    }
    assert short_metrics(metrics) == {"loss": 1.0, "mismatched_accuracy": 0.5}
    assert short_metrics({"eval_b_f1": 1.0, "eval_b_runtime": 1.0}, "eval_b") == {"f1": 1.0}


@pytest.mark.parametrize(
    ("metrics", "baseline", "keys"),
    [
        ({"loss": 9.0, "accuracy": 0.7}, {"accuracy": 0.6}, []),
        ({"accuracy": 0.6, "f1": 0.1}, {"accuracy": 0.6}, ["accuracy"]),
        ({"accuracy": 0.5, "f1": 0.0}, {"accuracy": 0.6}, ["accuracy", "f1"]),
        ({"accuracy": 0.7, "b_accuracy": 0.1}, {"accuracy": 0.6, "b_accuracy": 0.2}, ["b_accuracy"]),
        ({"mse": 1.0, "pearson": 0.2}, {"mse": 2.0}, []),
        ({"mse": 2.0, "pearson": -0.2}, {"mse": 2.0}, ["mse", "pearson"]),
    ],
)
def test_what_is_no_better_than_the_baseline(metrics: dict[str, float], baseline: dict[str, float], keys: list[str]) -> None:
    assert no_better(metrics, baseline, Measures(("accuracy", "f1", "pearson", "mse"), "x")) == keys


@pytest.mark.parametrize("wanted", [None, "loss", "eval_loss", "accuracy", "eval_f1_macro", "eval_runtime"])
def test_metrics_that_can_decide(wanted: Any) -> None:
    refuse_unknown_metric(wanted, MACRO)


def test_f1_needs_a_class_before_it_can_decide() -> None:
    with pytest.raises(SettingsError) as caught:
        refuse_unknown_metric("f1", MACRO)
    assert caught.value.problem == 'metric_for_best_model is "f1", but an evaluation computes loss, accuracy, f1_macro'
    assert caught.value.remedy == "set positive_label to the class whose F1 counts, or use f1_macro"
    with pytest.raises(SettingsError) as caught:
        refuse_unknown_metric("eval_auc", MACRO)
    assert caught.value.remedy == "use one of loss, accuracy, f1_macro"
