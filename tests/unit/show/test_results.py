"""The tables of scores: metrics beside the baseline, the scores of each class, and nothing that controls the terminal."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from glassloop import load_examples
from glassloop.data.examples import Examples
from glassloop.runs.record import ClassRecord
from glassloop.scores.measures import Measures
from glassloop.training.evaluate import Evaluation
from glassloop.training.results import Outcome, TrainingFacts, class_table, labels_of, outcome_of, show_outcome


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Examples:
    splits = {"train": train, "validation": validation}
    return load_examples(
        {
            name: [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            for name, labels in splits.items()
        },
        **settings,
    )


def shown(
    examples: Examples, answers: list[int], measures: Measures | None = None, facts: TrainingFacts | None = None
) -> list[str]:
    """The lines printed about a model that gives these answers."""
    logits = np.eye(examples.num_labels)[answers]
    references = labels_of(examples, "validation")
    measures = measures or examples.measures
    names = examples.labels.names if examples.labels else ()
    values = measures.metric(examples.task, names).compute(predictions=np.array(answers), references=references)
    metrics = {"eval_loss": 0.5, **{f"eval_{key}": value for key, value in values.items()}, "eval_runtime": 1.0}
    found = Evaluation(logits, references, 0.5, 1.0, metrics)
    screen = io.StringIO()
    outcome = outcome_of(examples, "validation", found, measures, facts=facts)
    show_outcome(Console(file=screen, width=110), outcome, "validation")
    return [line.rstrip() for line in screen.getvalue().splitlines()]


# --- the tables --------------------------------------------------------------------------------------------------

TRAIN, VALIDATION = ["ok"] * 50 + ["complaint"], ["ok"] * 8 + ["complaint"] * 2


def test_metrics_balanced_accuracy_and_the_scores_of_each_class_are_shown_with_what_they_mean() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    assert shown(examples, [1] * 8 + [1, 0]) == [
        "validation         this run  majority baseline",
        "loss                 0.5000                  -",
        "accuracy             0.9000             0.8000",
        "f1 (macro)           0.8039             0.4444",
        "balanced accuracy    0.7500             0.5000",
        "",
        "class      precision  recall      f1  rows",
        "complaint     1.0000  0.5000  0.6667     2",
        "ok            0.8889  1.0000  0.9412     8",
        "",
        '• accuracy 0.9000: 0.1000 above always answering "ok" (0.8000)',
    ]


def test_a_result_no_better_than_the_baseline_is_called_so() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    facts = TrainingFacts(68, 7, 5e-5, 1.4e-4, (0.7, 0.69), {"ok": 50, "complaint": 1}, 51)
    lines = shown(examples, [1] * 10, facts=facts)
    assert lines[-4:] == [
        '• accuracy 0.8000: no better than always answering "ok" (0.8000); the model answers "ok" for every row',
        '  try --class_weights balanced: "complaint" has only 1 of 51 training rows',
        "  try --num_train_epochs 20: 68 steps are few",
        "  try --learning_rate 0.00014: 5e-05 is low for this model",
    ]


def test_a_score_that_does_not_beat_the_baseline_is_named_beside_one_that_does() -> None:
    examples = examples_of(TRAIN, ["ok"] * 8 + ["complaint"] * 2)
    lines = shown(examples, [1] * 8 + [1, 0], Measures(("accuracy", "f1"), "ok"))
    assert lines[-1] == '• accuracy 0.9000: 0.1000 above always answering "ok" (0.8000)'
    better = shown(examples, [0] * 8 + [0, 0], Measures(("f1",), "complaint"))
    assert better[-1].startswith('• accuracy 0.2000: no better than always answering "ok" (0.8000)')


def test_the_chosen_class_is_named() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    lines = shown(examples, [1] * 10, Measures(("accuracy", "f1"), "complaint"))
    assert lines[3] == "f1 (complaint)       0.0000                  -"
    assert shown(examples, [1] * 10, Measures(("accuracy", "f1"), "ok"))[3] == "f1 (ok)              0.8889             0.8889"


def test_of_many_classes_the_largest_and_the_worst_are_shown() -> None:
    names = [f"c{number:02}" for number in range(40)]
    examples = examples_of(names * 2, [*names, "c33"])
    answers = [*range(40), 33]
    answers[20], answers[21] = 19, 19
    lines = shown(examples, answers)
    table = lines[lines.index("class                    precision  recall      f1  rows") + 1 :]
    assert table[0].split() == ["c33", "1.0000", "1.0000", "1.0000", "2"]
    assert [line.split()[0] for line in table[8:12]] == ["lowest", "c20", "c21", "c19"]
    assert table[16].rstrip() == "and 25 more"


@pytest.mark.parametrize("number", [2, 5000])
def test_long_names_and_thousands_of_classes_stay_readable_at_80_columns(number: int) -> None:
    classes = {f"{place} {'long ' * 30}": ClassRecord(0.5, 0.0, 0.0, place % 3) for place in range(number)}
    screen = io.StringIO()
    Console(file=screen, width=80).print(class_table(classes))
    lines = screen.getvalue().splitlines()
    assert len(lines) == (3 if number == 2 else 18)
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].rstrip().endswith("…     0.5000  0.0000  0.0000     " + ("0" if number == 2 else "2"))
    assert number == 2 or lines[-1].rstrip() == "and 4,985 more (3,318 with f1 0, 1,667 without rows)"


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
