"""The values of varied settings: every form, with the type of the setting, and all wrong ones named."""

from __future__ import annotations

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.study import Choices, Range, parsed, vary_of, vary_text


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("learning_rate", "2e-5, 5e-5,1", Choices((2e-5, 5e-5, 1.0))),
        ("per_device_train_batch_size", "8,16", Choices((8, 16))),
        ("group_by_length", "true,False", Choices((True, False))),
        ("max_length", "none,64", Choices((None, 64))),
        ("lr_scheduler_type", "linear,cosine", Choices(("linear", "cosine"))),
        ("model", "quickstart,runs/run-001/model", Choices(("quickstart", "runs/run-001/model"))),
        ("learning_rate", "log:1e-5..1e-3", Range(1e-5, 1e-3, log=True)),
        ("weight_decay", "linear:0..0.1", Range(0.0, 0.1)),
        ("per_device_train_batch_size", "linear:4..16", Range(4.0, 16.0, whole=True)),
    ],
)
def test_values_have_the_type_of_their_setting(name: str, text: str, found: Choices | Range) -> None:
    assert parsed(name, text) == found


def test_a_range_is_drawn_on_its_scale_with_three_digits() -> None:
    assert [Range(1e-5, 1e-3, log=True).at(share) for share in (0.0, 0.5, 1.0)] == [1e-5, 1e-4, 1e-3]
    assert [Range(0.0, 0.1).at(share) for share in (0.0, 0.123456, 1.0)] == [0.0, 0.0123, 0.1]
    assert Range(4, 16, whole=True).at(0.49) == 10
    assert str(Range(1e-5, 1e-3, log=True)) == "log:1e-05..0.001"


def test_options_become_settings_and_all_wrong_ones_are_named() -> None:
    assert vary_of(["learning-rate=1e-5,2e-5", "seed_x= 1"]) == {"learning_rate": "1e-5,2e-5", "seed_x": "1"}
    with pytest.raises(SettingsError) as raised:
        vary_of(["learning_rate", "a=1", "a=2"])
    assert raised.value.problem == '--vary "learning_rate" is not name=values; --vary names a twice'


def test_lists_of_files_and_python_are_written_like_options() -> None:
    assert [vary_text(value) for value in ([1e-5, 2e-5], (True, None), "log:1..2", 8)] == [
        "1e-05,2e-05", "true,none", "log:1..2", "8",
    ]  # fmt: skip
