"""The methods that set several settings at once assign them under their usual names."""

from __future__ import annotations

import pytest

from glassloop import TrainingArguments
from glassloop.base.errors import SettingsError


def test_every_method_assigns_its_settings_and_returns_the_arguments() -> None:
    args = TrainingArguments("out")
    assert args.set_training(learning_rate=1e-4, batch_size=4, num_epochs=2, seed=7) is args
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs, args.seed) == (1e-4, 4, 2, 7)
    args.set_evaluate("steps", steps=5, batch_size=2, delay=3).set_testing(batch_size=6)
    assert (args.eval_strategy, args.eval_steps, args.eval_delay, args.per_device_eval_batch_size) == ("steps", 5, 3, 6)
    args.set_save("epoch", total_limit=3).set_logging("epoch", first_step=True, level="info")
    assert (args.save_strategy, args.save_total_limit, args.logging_strategy, args.logging_first_step) == (
        "epoch",
        3,
        "epoch",
        True,
    )
    args.set_optimizer("sgd", learning_rate=0.1, args="momentum=0.9").set_lr_scheduler("cosine", warmup_ratio=0.1)
    assert (args.optim, args.optim_args, args.lr_scheduler_type, args.warmup_steps) == ("sgd", "momentum=0.9", "cosine", 0.1)
    args.set_dataloader(train_batch_size=3, drop_last=True, sampler_seed=5, num_workers=2, auto_find_batch_size=True)
    assert (args.per_device_train_batch_size, args.dataloader_drop_last, args.data_seed) == (3, True, 5)
    assert args.auto_find_batch_size is True
    args.check()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="there is no setting"):
        TrainingArguments("out").set_training(learning_rat=1.0)
