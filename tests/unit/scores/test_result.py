"""One result of a split: class table, baseline, intervals, the verdict of a paired test, and advice with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import RECORD

from glassloop.base.errors import ModelError
from glassloop.runs.record import BASELINES_NAME, BaselineRecord, ClassRecord, SplitFacts
from glassloop.scores import result as results
from glassloop.scores.metrics import Measures
from glassloop.scores.result import (
    Result,
    baseline_scores,
    class_scores,
    constant_baseline,
    label_of,
    mean_verdict,
    split_scores,
)
from glassloop.scores.statistics import ScoredRows
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def rows(answers: Sequence[Any], labels: Sequence[Any], task: str = CLASSES, names: Sequence[str] = ("a", "b")) -> ScoredRows:
    """The rows of a model that gives these answers."""
    given = np.asarray(answers)
    logits = np.eye(len(names))[given] if task == CLASSES else 2 * given - 1 if task == SEVERAL else given[:, None]
    return results.rows_of(logits, np.asarray(labels), task, names if task != SCORE else ())


def verdict_on(answers: ScoredRows, constant: Any, facts: results.TrainingFacts | None = None) -> results.Verdict:
    """The verdict on answers next to always giving one."""
    return results.verdict_on(answers, [constant_baseline(answers, constant)], facts)


# --- the class table ---------------------------------------------------------------------------------------------------
def test_scores_by_class_and_baselines() -> None:
    assert class_scores(rows([0, 1, 1, 1], [0, 1, 0, 0], names=("a", "b", "c"))) == {
        "a": ClassRecord(1.0, pytest.approx(1 / 3), 0.5, 3),
        "b": ClassRecord(pytest.approx(1 / 3), 1.0, 0.5, 1),
        "c": ClassRecord(None, None, None, 0),
    }
    several = class_scores(rows([[1, 0], [1, 1]], [[1, 1], [0, 1]], SEVERAL))
    assert several == {"a": ClassRecord(0.5, 1.0, pytest.approx(2 / 3), 1), "b": ClassRecord(1.0, 0.5, pytest.approx(2 / 3), 2)}
    assert class_scores(rows([0.5, 1.5], [1.0, 2.0], SCORE)) == {}
    assert baseline_scores(rows([0.0, 0.0], [3.0, 5.0], SCORE), 3.0, Measures(("pearson", "mse"))) == {"mse": 2.0}
    several = rows([[0, 0, 0]] * 3, [[1, 1, 0], [1, 1, 0], [0, 0, 1]], SEVERAL, "abc")
    assert baseline_scores(several, np.array([1, 1, 0]), Measures(("exact_match",))) == {"exact_match": pytest.approx(2 / 3)}
    assert (label_of(1, ("a", "b")), label_of([0.0, 0.0], ("a", "b")), label_of(0.25, None)) == ("b", [], 0.25)
    assert label_of([1, 0, 1], ("a", "b", "c")) == ["a", "c"]
    for labels, task, answer, name in [
        ([0, 0, 1, 1, 1], CLASSES, 1, '"b"'),
        ([1.0, 2.0, 6.0], SCORE, 3.0, "the mean 3"),
        ([[1, 1], [1, 0], [0, 1], [1, 0]], SEVERAL, [1, 1], '"a", "b"'),
        ([[1, 0], [0, 1], [0, 0]], SEVERAL, [0, 0], "no label"),
    ]:
        found = results.usual_answer(np.asarray(labels), task)
        assert np.array_equal(found, answer)
        assert results.answer_name(found, () if task == SCORE else ("a", "b")) == name
    # Always answering b gives no F1 of a, and a constant has no correlation.
    for measures, scores in [
        (Measures(("accuracy", "f1_macro")), {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}),
        (Measures(("accuracy", "f1"), "b"), {"accuracy": 0.25, "f1": pytest.approx(0.4)}),
        (Measures(("accuracy", "f1", "matthews_correlation"), "a"), {"accuracy": 0.25}),
    ]:
        assert baseline_scores(rows([0, 0, 0, 0], [0, 0, 0, 1]), 1, measures) == scores


# --- metrics -----------------------------------------------------------------------------------------------------------
def test_a_result_has_each_metric_with_interval_and_baseline() -> None:
    part = rows([0] * 50 + [1] * 50, [0] * 60 + [1] * 40)
    found = Result(
        "validation", part, Measures(("accuracy", "f1_macro", "own")), {"accuracy": 0.9, "own": 7.0}, {"accuracy": 0.6}
    )
    accuracy, macro, own = found.scores
    assert (accuracy.value, accuracy.baseline, accuracy.split) == (0.9, 0.6, "validation")
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low < 0.9 < accuracy.high
    assert accuracy.interval == f"{accuracy.low:.4f} to {accuracy.high:.4f}"
    assert macro.value == pytest.approx(0.899, abs=0.001), "computed from the rows if it is not stored"
    assert (own.value, own.interval, own.note) == (7.0, "", ""), "a metric of the user"
    other = replace(found, metrics={"accuracy": 0.5}, measures=Measures(("accuracy",)))
    assert other.scores[0].interval == "", "a metric of the user that only has the name"
    splits = {"train": SplitFacts(9), "validation_matched": SplitFacts(5), "validation_mismatched": SplitFacts(4)}
    record = replace(
        RECORD,
        data=replace(RECORD.data, splits=splits),
        metrics=("accuracy",),
        evaluation={"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0, "eval_mismatched_accuracy": 0.5},
        baseline={"accuracy": 0.4, "mismatched_accuracy": 0.3},
    )
    assert split_scores(record, "validation_matched") == ({"loss": 0.5, "accuracy": 0.75}, {"accuracy": 0.4})
    assert split_scores(record, "validation_mismatched") == ({"accuracy": 0.5}, {"accuracy": 0.3})
    assert split_scores(record, "test") == ({}, {})


# --- the verdict -------------------------------------------------------------------------------------------------------
def test_the_verdict_is_that_of_a_paired_test_and_of_seeds_by_their_interval() -> None:
    better = verdict_on(rows([1] * 30 + [0] * 10, [1] * 30 + [0] * 10), 1)
    assert better.kind == "better"
    assert better.sentence == (
        'Better than always answering "b": accuracy 1.0000 against 0.7500 (difference +0.2500, '
        "95% confidence interval +0.0934 to +0.3828, p = 0.002, exact McNemar test, 40 rows)"
    )
    worse = verdict_on(rows([0] * 30 + [1] * 10, [1] * 30 + [0] * 10), 1)
    assert worse.kind == "worse"
    assert worse.sentence.startswith('Worse than always answering "b": accuracy 0.0000 against 0.7500')
    few = verdict_on(rows([1] * 7 + [0], [1] * 6 + [0] * 2), 1)
    assert few.kind == "undecided"
    assert few.sentence.startswith('Undecided against always answering "b": accuracy 0.8750 against 0.7500')
    assert few.sentence.endswith("; about 165 more rows would decide")
    for answers, labels, task in [([1], [1], CLASSES), ([5.0], [5.0], SCORE)]:
        found = verdict_on(rows(answers, labels, task), 0)
        assert (found.kind, found.sentence.endswith("(1 row)")) == ("undecided", True)
    for number in [8, 40]:
        labels = np.arange(number) * 1.0
        better = verdict_on(rows(labels + 0.1, labels, SCORE), 3.0)
        told = "Better than always answering the mean 3: mse 0.0100" if number == 40 else "Undecided against"
        assert better.sentence.startswith(told)
        worse = verdict_on(rows(labels + 99.0, labels, SCORE), 3.0)
        assert worse.sentence.startswith("Worse than always answering the mean 3")
        assert "paired jackknife" in worse.sentence
        assert verdict_on(rows(labels * 0 + 3, labels, SCORE), 3.0).sentence.startswith("No different from always answering")
    error = results.Score("validation", "mse", "mse", 0.5, 0.4, 0.6, 1.0)
    assert (
        mean_verdict(error)
        == "Better than the baseline: mean mse 0.5000 against 1.0000 (95% confidence interval 0.4000 to 0.6000)"
    )
    assert mean_verdict(replace(error, baseline=0.2)).startswith("Worse than the baseline")
    assert mean_verdict(replace(error, key="accuracy", baseline=0.2)).startswith("Better than the baseline")
    assert mean_verdict(replace(error, baseline=0.5)).startswith("Undecided against the baseline")
    assert mean_verdict(replace(error, baseline=None)) == mean_verdict(replace(error, low=None)) == ""


def test_several_seeds_are_tested_against_the_best_baseline_on_the_same_rows() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 300)

    def answers(share: float) -> ScoredRows:
        return rows(np.where(random.random(300) < share, labels, 1 - labels), labels)

    words, frozen = (
        results.Baseline(name, answers(share), 100, 1.0) for name, share in (("words", 0.6), ("frozen encoder", 0.7))
    )
    constant = constant_baseline(words.rows, 0)
    seeds = [answers(0.9) for _ in range(3)]
    verdict, text, gain = results.best_compared(seeds, [constant, words, frozen], results.Method("fine-tuning", 60.0))
    accuracy = [float(one.right.mean()) for one in (*seeds, frozen.rows)]
    assert verdict.kind == "better"
    assert gain == pytest.approx(sum(accuracy[:3]) / 3 - accuracy[3])
    assert f"mean accuracy {sum(accuracy[:3]) / 3:.4f} against {accuracy[3]:.4f}" in text
    assert text.startswith(f"Fine-tuning gains {100 * gain:.1f} points over the frozen encoder (")
    assert "seeds and rows, 300 rows)" in text
    # The frozen encoder as a method is not compared with itself.
    itself = results.Method(results.THE_FROZEN_ENCODER)
    assert "a regression on words" in results.best_compared([frozen.rows], [words, frozen], itself)[1]
    other = replace(frozen, name=results.OTHER_FROZEN)  # but with its default pooling
    found = results.best_compared([answers(0.9)], [words, other], itself)[1]
    assert "points over the frozen encoder with its default pooling (" in found
    few = results.best_compared([answers(0.75), answers(0.65)], [frozen], results.Method("fine-tuning", 60.0))[1]
    assert "Undecided against the frozen encoder" in few
    assert "which is 60 times cheaper" in few


def test_the_answers_of_baselines_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    told = rows([0, 1, 1, 0, 1], [0, 1, 0, 0, 1])
    judged = np.array([0, 2, 3])
    kept = replace(told, predictions=np.array([1, 0, 0]), references=told.references[judged], logits=told.logits[judged])
    each = [results.Baseline(name, replace(kept, predictions=kept.predictions ^ place), 4, 0.5, "a sample")
            for place, name in enumerate(("class frequencies", "words"))]  # fmt: skip
    data = replace(RECORD.data, splits={"train": SplitFacts(4), "validation": SplitFacts(5)})
    record = replace(RECORD, data=data, baselines=tuple(BaselineRecord(one.name, {}, 4, 0.5, "a sample") for one in each))
    assert results.read_baselines(tmp_path, told, record) is None
    split = "validation"
    results.write_baselines(tmp_path, results.Baselines(split, judged, each))
    found = results.read_baselines(tmp_path, told, record)
    assert found is not None
    assert (found.split, found.numbers.tolist(), [one.title for one in found.each][1]) == (split, [0, 2, 3], each[1].title)
    for one, wanted in zip(found.each, each, strict=True):
        np.testing.assert_array_equal(one.rows.predictions, wanted.rows.predictions)
        np.testing.assert_array_equal(one.rows.references, wanted.rows.references)
        assert (one.num_train, one.seconds, one.note) == (4, 0.5, "a sample")
    few = rows([0, 1], [0, 1])
    for broken, content in ((few, None), (told, b"no tensors")):
        if content:
            (tmp_path / BASELINES_NAME).write_bytes(content)
        with pytest.raises(ModelError, match="does not fit the run"):
            results.read_baselines(tmp_path, broken, record)
    with pytest.raises(ModelError, match="does not fit the run"):
        results.read_baselines(tmp_path, told, replace(record, baselines=()))


def test_a_verdict_names_what_the_accuracy_hides() -> None:
    # With 95% of one class, a model that finds the others has the lower accuracy.
    found = verdict_on(rows([0] * 89 + [1] * 11, [0] * 95 + [1] * 5), 0)
    assert found.sentence.endswith("; balanced accuracy 0.9684 against 0.5000")
    assert verdict_on(rows([1] * 10, [0] * 9 + [1]), 0).sentence.endswith('; the model answers "b" for every row')
    found = verdict_on(rows([0] * 50 + [1] * 50, [0] * 50 + [1] * 45 + [2] * 5, names="abcd"), 0, USUAL)
    assert found.sentence.endswith("; 1 of 4 classes are never predicted: c")
    rare = replace(USUAL, counts={"a": 500, "b": 450, "c": 50})
    tips = verdict_on(rows([0] * 50 + [1] * 50, [0] * 50 + [1] * 45 + [2] * 5, names="abcd"), 0, rare).advice
    assert tips == ('--class_weights balanced: "c" has only 50 of 1,000 training rows',)
    labels = [[1, 1, 0]] * 20 + [[0, 0, 1]] * 10
    found = verdict_on(rows(labels, labels, SEVERAL, "abc"), np.array([1, 1, 0]))
    assert found.sentence.startswith('Better than always answering "a", "b": exact match 1.0000 against 0.6667')
    assert "always answering no label" in verdict_on(rows(labels, labels, SEVERAL, "abc"), np.array([0, 0, 0])).sentence


# --- advice ------------------------------------------------------------------------------------------------------------
# A training with the settings of the rule, whose loss fell a little.
USUAL = results.TrainingFacts(1000, 100, 1.4e-4, 3_900_000, (0.7, 0.65, 0.6, 0.55, 0.5), {"a": 500, "b": 500}, 1000)
LOST = rows([0] * 10, [0] * 5 + [1] * 5)


def test_advice_needs_facts_and_a_reason() -> None:
    assert verdict_on(LOST, 0).advice == ()
    assert verdict_on(rows([0, 1] * 20, [0, 1] * 20), 0, replace(USUAL, steps=68)).advice == (), "the result is better"
    undecided = rows([1] * 7 + [0], [1] * 6 + [0] * 2)
    assert verdict_on(undecided, 1, USUAL).advice == ()
    assert verdict_on(undecided, 1, replace(USUAL, steps=68)).advice == ("--num_train_epochs 10: 68 steps are few",)
    for facts, advice in [
        ({}, NO_REASON),
        ({"steps": 68, "steps_per_epoch": 23}, "--num_train_epochs 20: 68 steps are few"),
        ({"steps": 68, "steps_per_epoch": 23, "counts_steps": True}, "--max_steps 460: 68 steps are few"),
        ({"rate": 5e-5}, "--learning_rate 0.00014: 5e-05 is low for this model"),
        ({"rate": 1e-3, "losses": FLAT}, HIGH),
        ({"rate": 1e-3}, NO_REASON),  # the loss fell
        ({"counts": RARE}, '--class_weights balanced: "b" has only 50 of 1,000 training rows'),
        ({"counts": {**RARE, "c": 0}}, NO_REASON),
        ({"counts": RARE, "weighted": True}, NO_REASON),
        ({"losses": (0.7, 0.5, 0.2, 0.1, 0.01)}, MEMORIZED),
        ({"losses": FLAT}, "check texts and labels with glassloop inspect: the training loss went from 0.7000 to 0.7000"),
    ]:
        assert verdict_on(LOST, 0, replace(USUAL, **facts)).advice == (advice,)


FLAT = (0.7, 0.7, 0.69, 0.7, 0.7)
NO_REASON = "more training rows, or another model"
HIGH = "--learning_rate 0.00014: 0.001 is high for this model, and the training loss went from 0.7000 to 0.7000"
MEMORIZED = (
    "more training rows, or fewer epochs: the training loss went from 0.7000 to 0.0100, "
    "so the model only learned its training rows"
)
RARE = {"a": 950, "b": 50}


def test_facts_come_from_the_record_and_the_history() -> None:
    for history in [[], [{"loss": 0.7, "step": 10}, {"eval_loss": 0.4, "step": 10}, {"loss": 0.5, "step": 20}]]:
        record = replace(RECORD, data=replace(RECORD.data, splits={"train": SplitFacts(30, {"a": 20, "b": 10})}))
        found = results.facts_of(record, history, 10_616_832)
        assert (found.steps, found.rate) == (record.plan.max_steps, record.settings.learning_rate)
        assert (found.rows, found.counts) == (30, {"a": 20, "b": 10})
        assert found.losses == [entry["loss"] for entry in history if "loss" in entry]
        assert found.fall == ((0.7, 0.5) if history else None)
        assert found.usual_rate > 1e-4
