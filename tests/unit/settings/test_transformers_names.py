"""The settings of transformers: each field of the installed version is known, and has an outcome and a sentence."""

from __future__ import annotations

import dataclasses

import pytest
import transformers

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
