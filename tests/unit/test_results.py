"""What a run found out: the baseline of the most frequent answer, the table of scores, and labels as a person reads them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from glassloop import load_examples
from glassloop.results import labels_of, majority_baseline, named, results_table


def shown(table: Any, width: int = 100) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(table)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Any:
    splits = {"train": train, "validation": validation}
    return load_examples(
        {
            name: [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            for name, labels in splits.items()
        },
        **settings,
    )


def test_the_baseline_is_the_answer_most_frequent_in_training() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    assert majority_baseline(examples, "validation") == {"accuracy": 0.25, "f1": pytest.approx(0.4)}
    assert labels_of(examples, "validation").tolist() == [0, 0, 0, 1]


def test_the_baseline_of_scores_is_their_mean() -> None:
    examples = examples_of([1.0, 2.0, 6.0], [3.0, 5.0], task="regression")
    assert majority_baseline(examples, "validation") == {"pearson": 0.0, "spearmanr": 0.0, "mse": 2.0}


def test_the_baseline_of_several_labels_are_those_that_half_the_rows_have() -> None:
    examples = examples_of(["a|b", "a", "b|c", "a"], ["a|b", "a|b", "c"], label_separator="|")
    assert labels_of(examples, "train").tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 0]]
    found = majority_baseline(examples, "validation")
    assert found["exact_match"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("choice", "names", "read"),
    [(1, ("a", "b"), "b"), ([1, 0, 1], ("a", "b", "c"), ["a", "c"]), ([0.0, 0.0], ("a", "b"), []), (0.25, None, 0.25)],
)
def test_choices_as_a_person_reads_them(choice: Any, names: Any, read: Any) -> None:
    assert named(choice, names) == read


def test_the_table_of_results() -> None:
    metrics = {"eval_loss": 0.5, "eval_f1_macro": 0.25, "eval_runtime": 1.0, "eval_samples_per_second": 9.0}
    assert shown(results_table(metrics, {"f1_macro": 0.125}, "validation")) == [
        "validation  this run  majority baseline",
        "loss          0.5000",
        "f1_macro      0.2500             0.1250",
    ]


def test_names_of_splits_and_figures_cannot_control_the_terminal() -> None:
    """A figure may be named after a label, and a label may be anything."""
    header, row = shown(results_table({"eval_f1 of [red]\x1b[31m": 0.5}, {}, "part \x1b[2J"))
    assert header.startswith(r"part \x1b[2J")
    assert row.startswith(r"f1 of [red]\x1b[31m")
