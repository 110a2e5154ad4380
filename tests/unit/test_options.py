"""Options made from settings: only what was given, text where a number is wrong, and `--resume` with and without a value."""

from __future__ import annotations

import inspect

import pytest

from glassloop.arguments import TrainingArguments
from glassloop.options import given_for, number_or_text, options_of, with_resume_value, with_settings
from glassloop.settings import DataSettings


def test_given_for_takes_only_what_was_given_and_belongs_there() -> None:
    flags = {"seed": 7, "split_seed": 3, "task": None, "learning_rate": 0.1, "nonsense": 1}
    assert given_for(DataSettings, flags) == {"split_seed": 3}
    assert given_for(TrainingArguments, flags) == {"seed": 7, "learning_rate": 0.1}


def test_every_field_is_an_option_unless_its_name_is_taken() -> None:
    names = [option.name for option in options_of(DataSettings, taken=["name", "text"])]
    assert names[:4] == ["data_dir", "validation", "test", "text_pair"]
    assert all(option.default is None for option in options_of(DataSettings, taken=[]))


def test_text_that_is_not_a_number_stays_text() -> None:
    """So that the settings report it together with all other problems."""
    assert [number_or_text(int)(text) for text in ("3", "3.5", "x")] == [3, "3.5", "x"]
    assert [number_or_text(float)(text) for text in ("3", "1e-5", "x")] == [3.0, 1e-5, "x"]


@pytest.mark.parametrize(
    ("arguments", "explicit"),
    [
        (["train", "--resume"], ["train", "--resume=newest"]),
        (["train", "--resume", "--output_dir", "x"], ["train", "--resume=newest", "--output_dir", "x"]),
        (["train", "--resume", "out"], ["train", "--resume", "out"]),
        (["train", "--resume=out"], ["train", "--resume=out"]),
        ([], []),
    ],
)
def test_resume_without_a_value_means_the_newest(arguments: list[str], explicit: list[str]) -> None:
    assert with_resume_value(arguments) == explicit


def test_a_command_may_take_only_some_settings() -> None:
    @with_settings(DataSettings, only=("encoding", "header"))
    def command(**options: object) -> None: ...

    assert [*inspect.signature(command).parameters] == ["header", "encoding"]
