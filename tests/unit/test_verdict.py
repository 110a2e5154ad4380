"""What a result means, and the advice that follows from the facts of its training."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_record import RECORD

from glassloop.runs.record import ClassRecord, SplitFacts
from glassloop.training.results import Comparison, TrainingFacts, facts_of, verdict_of

EVEN = {"a": 500, "b": 500}
# A training with the settings of the rule, whose loss fell a little.
USUAL = TrainingFacts(1000, 100, 1.4e-4, 1.4e-4, (0.7, 0.65, 0.6, 0.55, 0.5), EVEN, 1000)
LOST = Comparison("accuracy", 0.5, 0.5, '"a"', balanced=(0.5, 0.5))


def advice(facts: TrainingFacts) -> tuple[str, ...]:
    return verdict_of(LOST, {}, facts).advice


def test_above_the_baseline_by_how_much() -> None:
    found = verdict_of(Comparison("accuracy", 0.8431, 0.6838, '"yes"'), {}, USUAL)
    assert (found.sentence, found.better) == ('accuracy 0.8431: 0.1593 above always answering "yes" (0.6838)', True)
    assert found.advice == ()


def test_an_error_is_better_if_it_is_below() -> None:
    found = Comparison("mse", 0.42, 0.93, "the mean 3", lower_is_better=True)
    assert found.sentence == "mse 0.4200: 0.5100 below always answering the mean 3 (0.9300)"


def test_no_better_but_more_than_one_answer() -> None:
    """With 95 % of one class, a model that finds the others has the lower accuracy."""
    found = Comparison("accuracy", 0.94, 0.95, '"ok"', balanced=(0.72, 0.5))
    text = 'accuracy 0.9400: no better than always answering "ok" (0.9500), but balanced accuracy is 0.7200 (against 0.5000)'
    assert found.sentence == text
    assert replace(found, balanced=(0.5, 0.5)).sentence == 'accuracy 0.9400: no better than always answering "ok" (0.9500)'
    assert replace(found, only='"no"').sentence.endswith('; the model answers "no" for every row')


def test_without_facts_there_is_no_advice() -> None:
    assert verdict_of(LOST, {}, None).advice == ()


def test_few_steps_suggest_more_epochs() -> None:
    few = replace(USUAL, steps=68, steps_per_epoch=23)
    assert advice(few)[0] == "--num_train_epochs 20: 68 steps are few"
    assert advice(replace(few, counts_steps=True))[0] == "--max_steps 460: 68 steps are few"


def test_a_low_learning_rate_suggests_that_of_the_rule() -> None:
    assert advice(replace(USUAL, rate=5e-5)) == ("--learning_rate 0.00014: 5e-05 is low for this model",)


def test_a_high_learning_rate_is_named_only_if_the_loss_did_not_fall() -> None:
    flat = replace(USUAL, rate=1e-3, losses=(0.7, 0.7, 0.69, 0.7, 0.7))
    text = "--learning_rate 0.00014: 0.001 is high for this model, and the training loss went from 0.7000 to 0.7000"
    assert advice(flat) == (text,)
    assert advice(replace(USUAL, rate=1e-3)) == ("more training rows, or another model",)


def test_imbalance_suggests_class_weights_unless_they_were_set() -> None:
    rare = replace(USUAL, counts={"a": 950, "b": 50})
    assert advice(rare) == ('--class_weights balanced: "b" has only 50 of 1,000 training rows',)
    assert advice(replace(rare, counts={"a": 950, "b": 50, "c": 0})) == ("more training rows, or another model",)
    assert advice(replace(rare, weighted=True)) == ("more training rows, or another model",)


def test_training_rows_that_were_only_memorized_suggest_more_rows() -> None:
    (text,) = advice(replace(USUAL, losses=(0.7, 0.5, 0.2, 0.1, 0.01)))
    assert text.startswith("more training rows, or fewer epochs: the training loss went from 0.7000 to 0.0100")


def test_a_loss_that_did_not_fall_with_usual_settings_suggests_the_data() -> None:
    (text,) = advice(replace(USUAL, losses=(0.7, 0.7, 0.69, 0.7, 0.7)))
    assert text == "check texts and labels with glassloop data: the training loss went from 0.7000 to 0.7000"


def test_classes_that_are_never_predicted_are_named_with_a_good_result() -> None:
    classes = {"a": ClassRecord(0.9, 0.9, 0.9, 90), "b": ClassRecord(None, 0.0, 0.0, 5), "c": ClassRecord(None, None, None, 0)}
    facts = replace(USUAL, counts={"a": 900, "b": 50, "c": 50})
    found = verdict_of(Comparison("accuracy", 0.9, 0.8, '"a"'), classes, facts)
    assert found.sentence.endswith("; 1 of 3 classes are never predicted: b")
    assert found.advice == ('--class_weights balanced: "b" has only 50 of 1,000 training rows',)


@pytest.mark.parametrize(
    "history", [[], [{"loss": 0.7, "step": 10}, {"eval_loss": 0.4, "step": 10}, {"loss": 0.5, "step": 20}]]
)
def test_facts_come_from_the_record_and_the_history(history: list[dict[str, float]]) -> None:
    record = replace(RECORD, data=replace(RECORD.data, splits={"train": SplitFacts(30, {"a": 20, "b": 10})}))
    found = facts_of(record, history, 10_616_832)
    assert (found.steps, found.rate, found.rows, found.counts) == (
        record.plan.max_steps,
        record.settings.learning_rate,
        30,
        {"a": 20, "b": 10},
    )
    assert found.losses == [entry["loss"] for entry in history if "loss" in entry]
    assert found.fall == ((0.7, 0.5) if history else None)
    assert found.usual_rate > 1e-4
