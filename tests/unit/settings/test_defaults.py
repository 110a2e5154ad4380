"""The rule that chooses batch size, epochs, learning rate and warm-up. Settings that are given are never changed."""

from __future__ import annotations

import math

from glassloop import TrainingArguments
from glassloop.settings.defaults import CHOSEN_SETTINGS, choose_settings, has_own_settings, learning_rate, num_epochs

MINILM, BASE, LARGE = 12 * 6 * 384**2, 12 * 12 * 768**2, 12 * 24 * 1024**2
CHOSEN = ("per_device_train_batch_size", "num_train_epochs", "learning_rate", "warmup_steps")


def test_everything_is_chosen_for_a_user_who_gives_nothing_and_nothing_that_is_given() -> None:
    args = TrainingArguments(seed=7)
    found = choose_settings(args, {"seed"}, 2400, 2, MINILM)
    assert (found.names, {*CHOSEN_SETTINGS}) == (CHOSEN, {*CHOSEN})
    assert found.settings.seed == 7
    assert found.reason == (
        "batch size, epochs, learning rate, warm-up: from 2,400 training rows, 2 outputs, 10.6 M encoder weights"
    )
    assert choose_settings(args, {"seed"}, 2400, 2, None).reason.endswith(": from 2,400 training rows, 2 outputs")
    for name in CHOSEN:
        found = choose_settings(TrainingArguments(), {name}, 300, 2, MINILM)
        assert name not in found.names
        assert getattr(found.settings, name) == getattr(TrainingArguments(), name)
    everything = choose_settings(TrainingArguments(), {*CHOSEN}, 300, 2, MINILM)
    assert (everything.settings, everything.names, everything.reason) == (TrainingArguments(), (), "")
    sources = ["glue", "glue/mrpc", None, "quickstart", "glue.csv", "my/glue/mrpc.csv", "glued/x"]
    assert [source for source in sources if has_own_settings(source)] == ["glue", "glue/mrpc"]


def test_the_learning_rate_is_that_of_the_steps_a_user_asks_for() -> None:
    few = choose_settings(TrainingArguments(num_train_epochs=1), {"num_train_epochs"}, 300, 2, MINILM).settings
    steps = choose_settings(TrainingArguments(max_steps=38), {"max_steps"}, 300, 2, MINILM).settings
    usual = choose_settings(TrainingArguments(), (), 300, 2, MINILM).settings
    assert few.learning_rate == steps.learning_rate == learning_rate(MINILM, 38) > usual.learning_rate
    assert (steps.num_train_epochs, few.num_train_epochs) == (3.0, 1)
    assert "num_train_epochs" not in choose_settings(TrainingArguments(max_steps=38), {"max_steps"}, 300, 2, MINILM).names


def test_processes_share_the_batch_and_there_are_enough_steps_but_not_too_many_epochs() -> None:
    alone = choose_settings(TrainingArguments(), (), 5000, 2, BASE).settings
    for processes, accumulate in [(1, 1), (2, 1), (2, 4), (64, 1)]:
        args = TrainingArguments(gradient_accumulation_steps=accumulate)
        found = choose_settings(args, {"gradient_accumulation_steps"}, 5000, 2, BASE, processes).settings
        total = found.per_device_train_batch_size * processes * accumulate
        assert total == (alone.per_device_train_batch_size if processes < 64 else 64)
        if processes < 64:
            assert (found.num_train_epochs, found.learning_rate) == (alone.num_train_epochs, alone.learning_rate)
    for rows in [1, 2, 18, 100, 1000, 1001, 10_000, 10_001, 250_000, 1_000_000, 50_000_000]:
        chosen = choose_settings(TrainingArguments(), (), rows, 2, BASE).settings
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
    for steps, warmup in [(1, 0.0), (19, 0.0), (20, 0.1), (1000, 0.1)]:  # the first of few steps would have a rate of zero
        args = TrainingArguments(max_steps=steps)
        assert choose_settings(args, {"max_steps"}, 2400, 2, MINILM).settings.warmup_steps == warmup
