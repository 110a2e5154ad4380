"""A training notes its start, resume, stop and end in its folder."""

from __future__ import annotations

from pathlib import Path

from glassloop.runs.status import read_moments
from glassloop.training.callbacks import Sessions
from glassloop.training.state import State


def test_a_training_that_is_stopped_and_resumed(tmp_path: Path) -> None:
    for first, last, signal in ((0, 12, 15), (12, 30, 0)):
        callback = Sessions(tmp_path, 30)
        callback.on_fit_start(State(step=first))
        callback.on_fit_end(State(step=last, signal=signal))
    found = [(moment.event, moment.step, moment.max_steps) for moment in read_moments(tmp_path)]
    assert found == [("start", 0, 30), ("stop", 12, 30), ("resume", 12, 30), ("end", 30, 30)]


def test_a_new_training_in_the_same_folder_begins_a_new_file(tmp_path: Path) -> None:
    for _ in range(2):
        Sessions(tmp_path, 30).on_fit_start(State())
    assert len(read_moments(tmp_path)) == 1
