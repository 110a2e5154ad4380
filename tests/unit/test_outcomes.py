"""The outcome of an evaluation: the majority baseline, the scores of each class, prefixes, labels, and the predictions file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_record import RECORD

from glassloop import load_examples
from glassloop.data.examples import Examples
from glassloop.runs.record import ClassRecord
from glassloop.scores.measures import Measures
from glassloop.training.evaluate import Evaluation
from glassloop.training.results import (
    TrainingFacts,
    class_scores,
    label_of,
    labels_of,
    length_entries,
    majority_baseline,
    outcome_of,
    prefixes,
    scored,
    validation_names,
    write_predictions,
)


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Examples:
    splits = {"train": train, "validation": validation}
    return load_examples(
        {
            name: [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            for name, labels in splits.items()
        },
        **settings,
    )


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


def test_labels_numbered_by_the_user_have_a_positive_class() -> None:
    numbered = examples_of([0, 1, 0, 1], [0, 1])
    assert numbered.measures == Measures(("accuracy", "f1"), "1")
    assert examples_of([0, 1, 0, 1], [0, 1], labels="ham,spam").measures == Measures(("accuracy", "f1"), "spam")
    assert examples_of([True, False], [True]).measures == Measures(("accuracy", "f1"), "true")
    words = examples_of(["spam", "ham"], ["ham"], labels="ham,spam")
    assert words.measures == Measures(("accuracy", "f1_macro"))


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


# --- results -----------------------------------------------------------------------------------------------------


def evaluation_of(examples: Examples, answers: list[int]) -> Evaluation:
    metrics = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    return Evaluation(np.eye(2)[answers], labels_of(examples, "validation"), 0.5, 1.0, metrics)


def test_an_outcome_has_the_baseline_unless_the_training_rows_are_unknown() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    found = evaluation_of(examples, [0, 0, 0, 0])
    outcome = outcome_of(examples, "validation", found, examples.measures)
    assert outcome.metrics == {"loss": 0.5, "accuracy": 0.75}
    assert outcome.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert outcome.classes["b"] == ClassRecord(None, 0.0, 0.0, 1)
    assert outcome_of(examples, "train", found, examples.measures).baseline is None
    other = outcome_of(examples, "train", found, examples.measures, trained_on={"a": 9, "b": 1}).baseline
    assert other is not None
    assert other["accuracy"] == pytest.approx(0.4)


def test_a_record_holds_the_results_of_all_evaluations() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    outcome = outcome_of(examples, "validation", evaluation_of(examples, [0, 0, 0, 0]), examples.measures)
    record = scored(RECORD, [outcome])
    assert record.evaluation == {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    assert record.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert record.classes == outcome.classes
    assert record.balanced_accuracy == 0.5
    assert (
        record.verdict == 'accuracy 0.7500: 0.5000 above always answering "b" (0.2500); 1 of 2 classes are never predicted: b'
    )
    assert record.advice == ()


def compared_with(examples: Examples, logits: Any, references: Any, facts: TrainingFacts | None = None) -> str:
    """The sentence about a model that gives these answers."""
    metrics = {"eval_f1_micro": 0.4, "eval_mse": 9.0}
    found = Evaluation(np.asarray(logits, dtype=float), np.asarray(references), 0.5, 1.0, metrics)
    verdict = outcome_of(examples, "validation", found, examples.measures, facts=facts).verdict
    assert verdict is not None
    return verdict.sentence


def test_scores_are_compared_with_the_mean_of_the_training_rows() -> None:
    examples = examples_of([1.0, 2.0, 6.0], [3.0, 5.0], task="regression")
    assert (
        compared_with(examples, [[3.0], [4.0]], [3.0, 5.0]) == "mse 0.5000: 1.5000 below always answering the mean 3 (2.0000)"
    )
    assert compared_with(examples, [[9.0], [4.0]], [3.0, 5.0]).startswith("mse 18.5000: no better than always answering")


def test_several_labels_are_compared_with_those_that_half_the_rows_have() -> None:
    examples = examples_of(["a|b", "a", "b|c", "a"], ["a|b", "a|b", "c"], label_separator="|")
    several = [[1, 1, -1], [-1, -1, 1], [1, -1, -1]]
    text = compared_with(examples, several, labels_of(examples, "validation"))
    assert text == 'f1 (micro) 0.4000: no better than always answering "a", "b" (0.7273)'
    rare = examples_of(["a", "b", "c"], ["a|b", "a|b", "c"], label_separator="|")
    assert "always answering no label" in compared_with(rare, several, labels_of(rare, "validation"))


def test_predictions_are_written_one_line_per_row(tmp_path: Path) -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "b"])
    write_predictions(tmp_path / "rows.jsonl", examples, "validation", evaluation_of(examples, [1, 1]))
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [
        {"row": 0, "prediction": "b", "label": "a", "logits": [0.0, 1.0], "text": "validation 0"},
        {"row": 1, "prediction": "b", "label": "b", "logits": [0.0, 1.0], "text": "validation 1"},
    ]


@pytest.mark.parametrize(
    ("choice", "names", "read"),
    [(1, ("a", "b"), "b"), ([1, 0, 1], ("a", "b", "c"), ["a", "c"]), ([0.0, 0.0], ("a", "b"), []), (0.25, None, 0.25)],
)
def test_choices_as_a_person_reads_them(choice: Any, names: Any, read: Any) -> None:
    assert label_of(choice, names) == read


def test_predictions_say_how_long_a_row_is_and_what_was_cut(tmp_path: Path, tiny_tokenizer: Any) -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "b"])
    more = length_entries(examples, "validation", np.array([3, 4]), tiny_tokenizer, 4)
    assert [entry["tokens"] for entry in more.values()] == [3, 4]
    (start, end) = more[1]["kept"]["text"]
    assert (start, "validation 1"[:end] != "validation 1") == (0, True)
    write_predictions(tmp_path / "rows.jsonl", examples, "validation", evaluation_of(examples, [1, 1]), more)
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])["kept"] == {"text": [start, end]}
    assert "kept" not in length_entries(examples, "validation", np.array([3, 4]), None, 4)[1], "without a tokenizer"
