"""history.jsonl: what is written is read again, also while a run is writing it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from glassloop.runs.history import last_step, numbers_by_step, read_history, write_history
from glassloop.runs.layout import HISTORY_NAME

ENTRIES = [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}, {"step": 4, "eval_f1": 1.0}]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_history(tmp_path, ENTRIES)
    assert read_history(tmp_path) == ENTRIES
    assert last_step(tmp_path) == 4


def test_no_history(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    assert last_step(tmp_path) == 0
    write_history(tmp_path, [])
    assert read_history(tmp_path) == []
    assert last_step(tmp_path) == 0


def test_a_pipe_or_a_device_is_no_history(tmp_path: Path) -> None:
    """Reading a pipe would wait forever, reading a device would never end."""
    os.mkfifo(tmp_path / HISTORY_NAME)
    assert read_history(tmp_path) == []
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).symlink_to("/dev/zero")
    assert read_history(tmp_path) == []


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')
    assert read_history(tmp_path) == ENTRIES[:1]
    assert last_step(tmp_path) == 2


@pytest.mark.parametrize("damage", ["not JSON", "[1]", "\0\0\0", '{"step": "four"}'])
def test_damage_is_no_error(tmp_path: Path, damage: str) -> None:
    (tmp_path / HISTORY_NAME).write_text(f'{{"step": 2, "loss": 0.5}}\n{damage}\n')
    assert read_history(tmp_path)[:1] == ENTRIES[:1]
    assert last_step(tmp_path) == 0


def test_only_the_end_of_a_long_history_is_read_for_the_last_step(tmp_path: Path) -> None:
    write_history(tmp_path, [{"step": step, "loss": 0.5} for step in range(1, 2001)])
    assert last_step(tmp_path) == 2000


def test_a_figure_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    write_history(tmp_path, ENTRIES)
    with pytest.raises(ValueError, match="Out of range"):
        write_history(tmp_path, [{"loss": math.nan}])
    assert read_history(tmp_path) == ENTRIES


def test_figures_are_found_by_step() -> None:
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "eval_loss": 0.4}, {"step": 3, "loss": None}, {"loss": 1.0}]
    assert numbers_by_step(history, "loss") == [(1, 0.5)]
