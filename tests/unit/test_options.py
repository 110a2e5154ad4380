"""Options made from settings: only what was given, text where a number is wrong, and `--resume` with and without a value."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassloop.cli.options import (
    choices_of,
    completed_runs,
    default_of,
    given_for,
    number_or_text,
    options_of,
    with_resume_value,
    with_settings,
)
from glassloop.settings.fields import DataSettings
from glassloop.settings.training import TrainingArguments


def test_given_for_takes_only_what_was_given_and_belongs_there() -> None:
    flags = {"seed": 7, "split_seed": 3, "task": None, "learning_rate": 0.1, "nonsense": 1}
    assert given_for(DataSettings, flags) == {"split_seed": 3}
    assert given_for(TrainingArguments, flags) == {"seed": 7, "learning_rate": 0.1}


def test_every_field_is_an_option_unless_its_name_is_taken() -> None:
    names = [option.name for option in options_of(DataSettings, taken=["name", "text"])]
    assert names[:4] == ["data_dir", "validation", "test", "text_pair"]
    assert all(option.default is None for option in options_of(DataSettings, taken=[]))


def test_the_help_of_a_setting_that_is_chosen_says_so() -> None:
    assert default_of("learning_rate", 5e-5) == "  [default: chosen from the data and the model; 5e-05 for GLUE]"
    assert (default_of("seed", 42), default_of("max_length", None)) == ("  [default: 42]", "")


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


def test_a_short_option_may_follow_resume() -> None:
    assert with_resume_value(["train", "--resume", "-o", "x"]) == ["train", "--resume=newest", "-o", "x"]


# --- completion --------------------------------------------------------------------------------------------------


def test_run_folders_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed_runs("") == []
    for name in ("runs/run-001/run.json", "runs/seeds/seeds.json", "runs/notes/x.txt", "here/run.json", "deep/er/run.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert completed_runs("") == ["here", "runs/run-001", "runs/seeds"]
    assert completed_runs("runs/s") == ["runs/seeds"]
    assert completed_runs("deep/") == completed_runs("deep/e") == ["deep/er"]
    assert completed_runs("elsewhere/x") == []


def test_choices_are_completed() -> None:
    assert choices_of("eval_strategy")() == ["no", "steps", "epoch"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_completions(shell: str) -> None:
    """In a process of its own, as a shell asks for them; torch is not needed for that."""
    words = {"COMP_WORDS": "glassloop train --eval_str", "COMP_CWORD": "2"}
    words |= {"_TYPER_COMPLETE_ARGS": "glassloop train --eval_str", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from glassloop.cli.main import main; main()"
    environment = {**os.environ, **words, "_GLASSLOOP_COMPLETE": f"complete_{shell}"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "--eval_strategy" in found.stdout


def test_a_command_may_take_only_some_settings() -> None:
    @with_settings(DataSettings, only=("encoding", "header"))
    def command(**options: object) -> None: ...

    assert [*inspect.signature(command).parameters] == ["header", "encoding", "help_all"]
