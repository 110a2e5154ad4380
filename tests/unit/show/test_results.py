"""What a run found out: the baseline of the most frequent answer, the tables of scores, and labels as a person reads them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from glassloop import load_examples
from glassloop.data.examples import Examples
from glassloop.engine.evaluate import Evaluation
from glassloop.measures import Measures
from glassloop.outcomes import (
    Outcome,
    class_scores,
    labels_of,
    majority_baseline,
    named,
    outcome_of,
    prefixes,
    validation_names,
)
from glassloop.run_folder.record import ClassRecord
from glassloop.show.results import show_outcome


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Examples:
    splits = {"train": train, "validation": validation}
    return load_examples(
        {
            name: [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            for name, labels in splits.items()
        },
        **settings,
    )


def shown(examples: Examples, answers: list[int], measures: Measures | None = None) -> list[str]:
    """The lines printed about a model that gives these answers."""
    logits = np.eye(examples.num_labels)[answers]
    references = labels_of(examples, "validation")
    measures = measures or examples.measures
    names = examples.labels.names if examples.labels else ()
    values = measures.metric(examples.task, names).compute(predictions=np.array(answers), references=references)
    metrics = {"eval_loss": 0.5, **{f"eval_{key}": value for key, value in values.items()}, "eval_runtime": 1.0}
    found = Evaluation(logits, references, 0.5, 1.0, metrics)
    screen = io.StringIO()
    show_outcome(Console(file=screen, width=100), outcome_of(examples, "validation", found, measures), "validation")
    return [line.rstrip() for line in screen.getvalue().splitlines()]


# --- the majority ------------------------------------------------------------------------------------------------


def test_the_baseline_is_the_answer_most_frequent_in_training() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    assert majority_baseline(examples, "validation", examples.measures) == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    chosen = Measures(("accuracy", "f1"), "b")
    assert majority_baseline(examples, "validation", chosen) == {"accuracy": 0.25, "f1": pytest.approx(0.4)}
    assert labels_of(examples, "validation").tolist() == [0, 0, 0, 1]


def test_a_baseline_that_does_not_exist_is_left_out() -> None:
    """Always answering b gives no F1 of a, and a constant has no correlation."""
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    measures = Measures(("accuracy", "f1", "matthews_correlation"), "a")
    assert majority_baseline(examples, "validation", measures) == {"accuracy": 0.25}


def test_the_baseline_of_scores_is_their_mean() -> None:
    examples = examples_of([1.0, 2.0, 6.0], [3.0, 5.0], task="regression")
    assert majority_baseline(examples, "validation", examples.measures) == {"mse": 2.0}


def test_the_baseline_of_several_labels_are_those_that_half_the_rows_have() -> None:
    examples = examples_of(["a|b", "a", "b|c", "a"], ["a|b", "a|b", "c"], label_separator="|")
    assert labels_of(examples, "train").tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 0]]
    found = majority_baseline(examples, "validation", examples.measures)
    assert found["exact_match"] == pytest.approx(2 / 3)


# --- the tables --------------------------------------------------------------------------------------------------

TRAIN, VALIDATION = ["ok"] * 50 + ["complaint"], ["ok"] * 8 + ["complaint"] * 2


def test_without_a_chosen_class_there_is_macro_f1_with_the_scores_of_each_class() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    assert shown(examples, [1] * 8 + [1, 0]) == [
        "validation  this run  majority baseline",
        "loss          0.5000                  -",
        "accuracy      0.9000             0.8000",
        "f1 (macro)    0.8039             0.4444",
        "class      precision  recall      f1  rows",
        "complaint     1.0000  0.5000  0.6667     2",
        "ok            0.8889  1.0000  0.9412     8",
    ]


def test_a_result_no_better_than_the_baseline_is_called_so() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    lines = shown(examples, [1] * 10)
    assert lines[-3:] == [
        "complaint          -  0.0000  0.0000     2",
        "ok            0.8000  1.0000  0.8889     8",
        "• no better than the majority baseline: accuracy, f1 (macro)",
    ]


def test_the_chosen_class_is_named() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    assert shown(examples, [1] * 10, Measures(("accuracy", "f1"), "complaint")) == [
        "validation      this run  majority baseline",
        "loss              0.5000                  -",
        "accuracy          0.8000             0.8000",
        "f1 (complaint)    0.0000                  -",
        "• no better than the majority baseline: accuracy, f1 (complaint)",
    ]
    assert shown(examples, [1] * 10, Measures(("accuracy", "f1"), "ok"))[3] == "f1 (ok)       0.8889             0.8889"


def test_labels_numbered_by_the_user_have_a_positive_class() -> None:
    numbered = examples_of([0, 1, 0, 1], [0, 1])
    assert numbered.measures == Measures(("accuracy", "f1"), "1")
    assert examples_of([0, 1, 0, 1], [0, 1], labels="ham,spam").measures == Measures(("accuracy", "f1"), "spam")
    assert examples_of([True, False], [True]).measures == Measures(("accuracy", "f1"), "true")
    words = examples_of(["spam", "ham"], ["ham"], labels="ham,spam")
    assert words.measures == Measures(("accuracy", "f1_macro"))


def test_of_many_classes_those_with_the_most_rows_are_shown() -> None:
    names = [f"c{number:02}" for number in range(40)]
    examples = examples_of(names * 2, [*names, "c33"])
    lines = shown(examples, [*range(40), 33])
    assert (len(lines), lines[5].split()[0], lines[-1]) == (21, "c33", "and 25 more")


def test_scores_by_class() -> None:
    found = class_scores(np.array([0, 1, 1, 1]), np.array([0, 1, 0, 0]), ("a", "b", "c"))
    assert found == {
        "a": ClassRecord(1.0, pytest.approx(1 / 3), 0.5, 3),
        "b": ClassRecord(pytest.approx(1 / 3), 1.0, 0.5, 1),
        "c": ClassRecord(None, None, None, 0),
    }
    several = class_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 1], [0, 1]]), ("a", "b"))
    assert several == {"a": ClassRecord(0.5, 1.0, pytest.approx(2 / 3), 1), "b": ClassRecord(1.0, 0.5, pytest.approx(2 / 3), 2)}


# --- splits ------------------------------------------------------------------------------------------------------


def test_every_validation_split_with_labels_is_evaluated() -> None:
    rows = [{"text": f"{'good' if number % 2 else 'bad'} {number}", "label": number % 2} for number in range(12)]
    secret = [{**row, "label": -1} for row in rows]
    assert validation_names(load_examples(rows)) == ["validation"]
    assert validation_names(load_examples({"train": rows, "dev": rows})) == ["validation"]
    every = {"train": rows, "validation_c": secret, "validation_b": rows, "validation_a": rows}
    assert validation_names(load_examples(every)) == ["validation_b", "validation_a"]
    assert validation_names(load_examples({"train": rows, "validation": secret})) == []
    assert validation_names(load_examples({"test": rows})) == []


def test_the_metrics_of_further_splits_have_the_split_in_their_names() -> None:
    assert prefixes(["validation_matched", "validation_mismatched"]) == ["eval", "eval_mismatched"]
    assert (prefixes(["validation"]), prefixes([])) == (["eval"], [])


@pytest.mark.parametrize(
    ("choice", "names", "read"),
    [(1, ("a", "b"), "b"), ([1, 0, 1], ("a", "b", "c"), ["a", "c"]), ([0.0, 0.0], ("a", "b"), []), (0.25, None, 0.25)],
)
def test_choices_as_a_person_reads_them(choice: Any, names: Any, read: Any) -> None:
    assert named(choice, names) == read


def test_names_of_splits_and_labels_cannot_control_the_terminal() -> None:
    """A figure is named after a label, and a label may be anything."""
    name = "[red]\x1b[31m"
    found = Evaluation(np.eye(2), np.array([0, 1]), 0.5, 1.0, {"eval_f1": 0.5})
    outcome = Outcome("part", "eval", found, {}, {name: ClassRecord(None, None, None, 0)}, Measures(("f1",), name))
    screen = io.StringIO()
    show_outcome(Console(file=screen, width=100), outcome, "part \x1b[2J")
    assert "\x1b" not in screen.getvalue()
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith(r"part \x1b[2J")
    assert lines[1].startswith(r"f1 ([red]\x1b[31m)")
