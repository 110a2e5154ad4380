"""The rule that chooses method, pooling, batch size, epochs, learning rate and warm-up. Given settings are never changed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from glassloop.settings.defaults import (
    CHOSEN_SETTINGS,
    FAMILY_HEAD_FROM,
    TOWERS_UP_TO,
    Facts,
    choose_method,
    choose_settings,
    has_own_settings,
    head_share,
    learning_rate,
    num_epochs,
    started_epochs,
    started_rate,
)
from glassloop.settings.training import TrainingArguments

MINILM, BASE, LARGE = 12 * 6 * 384**2, 12 * 12 * 768**2, 12 * 24 * 1024**2
FORM = ("method", "pooling", "pair_form")  # chosen if they are auto, whether or not they were given
STEPS = ("per_device_train_batch_size", "num_train_epochs", "learning_rate", "warmup_steps")
# A model that keeps its head, as in `glassloop train --model a/classifier`, and an encoder that declares how it is pooled.
CLASSIFIER = Facts(2400, 2, MINILM)
ENCODER = Facts(2400, 2, MINILM, declared="cls", has_head=False)


def test_everything_is_chosen_for_a_user_who_gives_nothing_and_nothing_that_is_given() -> None:
    args = TrainingArguments(seed=7)
    found = choose_settings(args, {"seed"}, CLASSIFIER)
    assert (found.names, {*CHOSEN_SETTINGS}) == (("method", "pooling", *STEPS), {*FORM, *STEPS})
    assert found.settings.seed == 7
    names = "method, pooling, batch size, epochs, learning rate, warm-up"
    assert found.reason == f"{names}: from 2,400 training rows, 2 outputs, 10.6 M encoder weights"
    unknown = choose_settings(args, {"seed"}, replace(CLASSIFIER, weights=None))
    assert unknown.reason == f"{names}: from 2,400 training rows, 2 outputs"
    pairs = choose_settings(args, {"seed"}, replace(ENCODER, pairs=True))
    assert pairs.names == (*FORM, *STEPS)
    assert pairs.reason == (
        "method, pooling, form of pairs, batch size, epochs, learning rate, warm-up: from 2,400 training rows, 2 outputs, "
        "10.6 M encoder weights, the declared pooling"
    )
    sources = ["glue", "glue/mrpc", None, "quickstart", "glue.csv", "my/glue/mrpc.csv", "glued/x"]
    assert [source for source in sources if has_own_settings(source)] == ["glue", "glue/mrpc"]


@pytest.mark.parametrize("facts", [CLASSIFIER, ENCODER, replace(ENCODER, rows=300, pairs=True)])
def test_a_given_setting_is_never_changed(facts: Facts) -> None:
    for name in STEPS:
        found = choose_settings(TrainingArguments(), {name}, facts)
        assert name not in found.names
        assert getattr(found.settings, name) == getattr(TrainingArguments(), name)
    given = {"method": "fine_tune", "pooling": "max", "pair_form": "one_sequence"}
    for name, value in given.items():
        found = choose_settings(TrainingArguments(**{name: value}), {name}, facts)
        assert name not in found.names
        assert getattr(found.settings, name) == value
    everything = TrainingArguments(**given)
    found = choose_settings(everything, {*STEPS, *given}, facts)
    assert (found.settings, found.names, found.reason) == (everything, (), "")


def test_a_model_keeps_its_own_head_and_an_encoder_is_pooled_as_it_declares() -> None:
    def pooling(facts: Facts, **given: str) -> str:
        found = choose_method(TrainingArguments(**given), facts)
        assert found.method == given.get("method", "fine_tune")
        return found.pooling

    bare = Facts(2400, 2, MINILM, has_head=False)
    assert [pooling(facts) for facts in (CLASSIFIER, ENCODER, bare)] == ["head", "cls", "mean"]
    assert pooling(replace(CLASSIFIER, declared="max")) == "head", "what it was trained as, before what it declares"
    many = [replace(facts, rows=FAMILY_HEAD_FROM) for facts in (CLASSIFIER, ENCODER, bare)]
    assert [pooling(facts) for facts in many] == ["head", "cls", "head"], "many rows train a head of the family"
    assert pooling(replace(bare, rows=FAMILY_HEAD_FROM - 1)) == "mean"
    for facts, wanted in zip((CLASSIFIER, ENCODER, *many), ("mean", "cls", "mean", "cls", "mean"), strict=True):
        assert pooling(facts, method="frozen") == wanted, "a frozen encoder has no head of its family"
        assert pooling(facts, pooling="max", method="frozen") == pooling(facts, pooling="max") == "max"
        assert pooling(facts, pooling="head") == "head"


def test_a_pooled_head_that_is_kept_says_how_rows_are_read() -> None:
    def form(facts: Facts, **given: str) -> tuple[str, str]:
        found = choose_method(TrainingArguments(**given), facts)
        return found.pooling, found.pair_form

    towers = replace(CLASSIFIER, rows=10**5, pairs=True, declared="mean", kept="mean", kept_form="two_towers")
    one = replace(towers, rows=9, kept="cls", kept_form="one_sequence")
    assert [form(facts) for facts in (towers, one)] == [("mean", "two_towers"), ("cls", "one_sequence")]
    assert form(towers, pooling="mean") == form(towers, pair_form="two_towers") == ("mean", "two_towers")
    assert form(replace(towers, pairs=False)) == ("mean", "two_towers"), "which is then refused, and not read otherwise"
    assert form(towers, pair_form="one_sequence") == ("mean", "one_sequence"), "a new head"
    assert form(one, method="frozen") == ("mean", "two_towers"), "its head is new, too"
    found = choose_settings(TrainingArguments(), (), towers)
    assert found.reason.endswith("10.6 M encoder weights, the head of the model")
    assert found.settings.learning_rate == started_rate(10**5, MINILM, towers=True), "not that of a random head"
    found = choose_settings(TrainingArguments(), (), one)
    assert found.settings.learning_rate == started_rate(9, MINILM), "it was trained on pairs"


def test_an_encoder_that_cannot_be_pooled_has_the_head_of_its_family() -> None:
    facts = replace(ENCODER, can_be_pooled=False)
    assert choose_method(TrainingArguments(), facts).pooling == "head"
    assert choose_method(TrainingArguments(pooling="mean"), facts).pooling == "mean", "which is then refused"


def test_few_pairs_go_through_two_towers_and_many_or_those_of_a_head_in_one_sequence() -> None:
    def form(facts: Facts, **given: str) -> str:
        return choose_method(TrainingArguments(**given), facts).pair_form

    pairs = replace(ENCODER, pairs=True)
    for rows, wanted in ((1, "two_towers"), (TOWERS_UP_TO, "two_towers"), (TOWERS_UP_TO + 1, "one_sequence")):
        assert form(replace(pairs, rows=rows)) == wanted
        assert form(replace(pairs, rows=rows), method="frozen") == "two_towers", "it cannot learn to compare in one sequence"
    assert form(ENCODER) == "one_sequence", "there is no second text"
    assert form(pairs, pooling="head") == form(replace(CLASSIFIER, pairs=True)) == "one_sequence"
    assert form(pairs, pair_form="one_sequence") == "one_sequence"
    assert form(replace(pairs, rows=10**6), pair_form="two_towers") == "two_towers"


def test_a_head_that_starts_from_a_regression_needs_few_steps_at_a_low_rate() -> None:
    rows = [1, 16, 50, 100, 200, 500, 1_000, 2_999, 3_000, 10_000, 10**6]
    assert [started_epochs(number) for number in rows] == [30, 30, 26, 13, 6, 4, 3, 3, 3, 3, 2]
    assert [started_epochs(number, towers=True) for number in rows] == [30, 30, 19, 10, 5, 5, 5, 4, 4, 3, 2]
    assert [started_rate(200, size) for size in (None, LARGE, BASE, MINILM, 1_000)] == [1.8e-5, 9.5e-6, 1.8e-5, 5.1e-5, 1e-4]
    assert [started_rate(number, MINILM, towers=True) for number in rows] == [1e-5] * 6 + [2e-5] + [5e-5] * 4
    assert [started_rate(4_000, size, towers=True) for size in (LARGE, BASE)] == [9.5e-6, 1.8e-5], "not above that of one text"
    assert [started_rate(9, size, several=True) for size in (BASE, MINILM)] == [3.6e-5, 1e-4], "labels that rows share"
    several = choose_settings(TrainingArguments(), (), replace(ENCODER, several=True)).settings
    assert several.learning_rate == started_rate(ENCODER.rows, MINILM, several=True)
    for number in rows:
        chosen = choose_settings(TrainingArguments(), (), replace(ENCODER, rows=number)).settings
        assert (chosen.num_train_epochs, chosen.learning_rate) == (started_epochs(number), started_rate(number, MINILM))
        pairs = choose_settings(TrainingArguments(), (), replace(ENCODER, rows=number, pairs=True)).settings
        if number <= TOWERS_UP_TO:
            assert (pairs.num_train_epochs, pairs.learning_rate) == (
                started_epochs(number, towers=True),
                started_rate(number, MINILM, towers=True),
            )
        else:  # two texts in one sequence, about which a regression on the embeddings knows little
            head = choose_settings(TrainingArguments(), (), replace(CLASSIFIER, rows=number, pairs=True)).settings
            assert (pairs.num_train_epochs, pairs.learning_rate) == (head.num_train_epochs, head.learning_rate)
    for number, batch, usual in [(1, 16, 8), (1_000, 16, 8), (1_001, 16, 16), (10_000, 16, 16), (10_001, 32, 32)]:
        both = [choose_settings(TrainingArguments(), (), replace(facts, rows=number)) for facts in (ENCODER, CLASSIFIER)]
        assert [chosen.settings.per_device_train_batch_size for chosen in both] == [batch, usual]
    pooled = choose_settings(TrainingArguments(pooling="mean"), {"pooling"}, CLASSIFIER).settings
    assert (pooled.learning_rate, pooled.num_train_epochs) == (started_rate(2400, MINILM), started_epochs(2400)), (
        "its head is new"
    )
    limited = choose_settings(TrainingArguments(max_steps=38), {"max_steps"}, ENCODER)
    assert (limited.settings.num_train_epochs, "num_train_epochs" in limited.names) == (3.0, False)


def test_a_head_starts_with_a_part_of_the_regression_and_with_all_of_it_for_many_labels_and_pairs() -> None:
    assert [head_share(number) for number in (1, 2, 10)] == [0.4] * 3
    assert [head_share(number) for number in (20, 63, 1_000)] == pytest.approx([0.5657, 1, 1], abs=1e-4)
    assert head_share(2, pairs=True) == head_share(2, several=True) == 1.0


def test_a_frozen_encoder_takes_no_steps_so_nothing_about_steps_is_chosen() -> None:
    found = choose_settings(TrainingArguments(method="frozen"), {"method"}, ENCODER)
    assert found.names == ("pooling",)
    assert [getattr(found.settings, name) for name in STEPS] == [getattr(TrainingArguments(), name) for name in STEPS]


def test_the_learning_rate_is_that_of_the_steps_a_user_asks_for() -> None:
    facts = replace(CLASSIFIER, rows=300)
    few = choose_settings(TrainingArguments(num_train_epochs=1), {"num_train_epochs"}, facts).settings
    steps = choose_settings(TrainingArguments(max_steps=38), {"max_steps"}, facts).settings
    usual = choose_settings(TrainingArguments(), (), facts).settings
    assert few.learning_rate == steps.learning_rate == learning_rate(MINILM, 38) > usual.learning_rate
    assert (steps.num_train_epochs, few.num_train_epochs) == (3.0, 1)
    assert "num_train_epochs" not in choose_settings(TrainingArguments(max_steps=38), {"max_steps"}, facts).names


@pytest.mark.parametrize("facts", [Facts(5000, 2, BASE), Facts(5000, 2, BASE, has_head=False)])
def test_processes_share_the_batch(facts: Facts) -> None:
    alone = choose_settings(TrainingArguments(), (), facts).settings
    for processes, accumulate in [(1, 1), (2, 1), (2, 4), (64, 1)]:
        args = TrainingArguments(gradient_accumulation_steps=accumulate)
        found = choose_settings(args, {"gradient_accumulation_steps"}, replace(facts, processes=processes)).settings
        total = found.per_device_train_batch_size * processes * accumulate
        assert total == (alone.per_device_train_batch_size if processes < 64 else 64)
        if processes < 64:
            assert (found.num_train_epochs, found.learning_rate) == (alone.num_train_epochs, alone.learning_rate)


def test_there_are_enough_steps_but_not_too_many_epochs() -> None:
    for rows in [1, 2, 18, 100, 1000, 1001, 10_000, 10_001, 250_000, 1_000_000, 50_000_000]:
        chosen = choose_settings(TrainingArguments(), (), Facts(rows, 2, BASE)).settings
        per_epoch = math.ceil(rows / chosen.per_device_train_batch_size)
        epochs = chosen.num_train_epochs
        steps = epochs * per_epoch
        assert epochs >= 1
        assert steps >= 1000 or epochs == num_epochs(1, 2)  # as many epochs as there may be
        assert steps <= 20_000 or epochs == 1
        assert epochs >= 3 or 3 * per_epoch > 20_000


def test_many_labels_get_more_steps_and_a_smaller_encoder_or_few_steps_a_higher_rate() -> None:
    assert [num_epochs(100, labels) for labels in (1, 2, 12, 13, 25, 10_000)] == [10, 10, 10, 11, 20, 20]
    assert num_epochs(1_000, 10_000) == 20
    assert num_epochs(5_000, 10_000) == 4
    rates = [learning_rate(weights, 1000) for weights in (LARGE, BASE, MINILM, 1000)]
    assert rates == [1.6e-5, 3e-5, 8.5e-5, 3e-4]
    assert learning_rate(None, 1000) == 3e-5
    for steps in [1, 10, 100, 1000, 10**6]:
        assert learning_rate(BASE, 1000) <= learning_rate(BASE, steps) <= 2 * learning_rate(BASE, 1000)
    for facts in (CLASSIFIER, ENCODER):
        for steps, warmup in [(1, 0.0), (19, 0.0), (20, 0.1), (1000, 0.1)]:  # the first of few steps would have a rate of zero
            args = TrainingArguments(max_steps=steps)
            assert choose_settings(args, {"max_steps"}, facts).settings.warmup_steps == warmup
