"""The tables of scores: metrics beside the baseline, the scores of each class, and nothing that controls the terminal."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from glassloop import load_examples
from glassloop.data.examples import Examples
from glassloop.engine.evaluate import Evaluation
from glassloop.measures import Measures
from glassloop.outcomes import Outcome, labels_of, outcome_of
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


def test_of_many_classes_those_with_the_most_rows_are_shown() -> None:
    names = [f"c{number:02}" for number in range(40)]
    examples = examples_of(names * 2, [*names, "c33"])
    lines = shown(examples, [*range(40), 33])
    assert (len(lines), lines[5].split()[0], lines[-1]) == (21, "c33", "and 25 more")


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
