"""The settings of transformers: each field of the installed version is known, and has an outcome and a sentence."""

from __future__ import annotations

import dataclasses

import pytest
import transformers

import glassloop
from glassloop.base.errors import SettingsError
from glassloop.settings.training import TrainingArguments
from glassloop.settings.transformers_names import KEPT, REFUSED, RENAMED, SETTINGS, UNNEEDED


def test_every_field_of_the_installed_transformers_is_known() -> None:
    theirs = {entry.name for entry in dataclasses.fields(transformers.TrainingArguments) if not entry.name.startswith("_")}
    ours = {entry.name for entry in dataclasses.fields(TrainingArguments)}
    assert not theirs - ours - {*SETTINGS}, "add these to the table, or make them work"
    assert not ours & {*SETTINGS}, "these are settings of Glassloop: remove them from the table"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_an_outcome_and_a_sentence(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.outcome in (RENAMED, KEPT, UNNEEDED, REFUSED)
    assert len(setting.text.split()) >= 3
    assert not setting.refuses(setting.default), "the default of transformers asks for nothing"
    assert not setting.refuses(None)


def test_only_some_values_of_a_kept_setting_are_refused() -> None:
    assert SETTINGS["train_sampling_strategy"].refuses("batch_rebalance")
    assert not any(SETTINGS["train_sampling_strategy"].refuses(name) for name in ("random", "sequential", "group_by_length"))
    assert not SETTINGS["do_train"].refuses(True)


def test_every_method_assigns_its_settings_and_returns_the_arguments() -> None:
    args = glassloop.TrainingArguments("out")
    assert args.set_training(learning_rate=1e-4, batch_size=4, num_epochs=2, seed=7) is args
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs, args.seed) == (1e-4, 4, 2, 7)
    args.set_evaluate("steps", steps=5, batch_size=2, delay=3).set_testing(batch_size=6)
    assert (args.eval_strategy, args.eval_steps, args.eval_delay, args.per_device_eval_batch_size) == ("steps", 5, 3, 6)
    args.set_save("epoch", total_limit=3).set_logging("epoch", first_step=True, level="info")
    assert (args.save_strategy, args.save_total_limit) == ("epoch", 3)
    assert (args.logging_strategy, args.logging_first_step) == ("epoch", True)
    args.set_optimizer("sgd", learning_rate=0.1, args="momentum=0.9").set_lr_scheduler("cosine", warmup_ratio=0.1)
    assert (args.optim, args.optim_args, args.lr_scheduler_type, args.warmup_steps) == ("sgd", "momentum=0.9", "cosine", 0.1)
    args.set_dataloader(train_batch_size=3, drop_last=True, sampler_seed=5, num_workers=2, auto_find_batch_size=True)
    assert (args.per_device_train_batch_size, args.dataloader_drop_last, args.data_seed) == (3, True, 5)
    assert args.auto_find_batch_size is True
    args.check()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="there is no setting"):
        glassloop.TrainingArguments("out").set_training(learning_rat=1.0)
