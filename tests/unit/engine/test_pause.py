"""A run is interrupted at a step."""

from __future__ import annotations

import pytest

from glassloop.training.callbacks import PauseAt
from glassloop.training.signals import PAUSE, Paused, leave
from glassloop.training.state import State


def test_a_pause_is_asked_for_after_its_step_and_leaves_the_process_alone() -> None:
    pause, state = PauseAt(3), State(step=2)
    pause.on_step(state, [])
    assert state.asked_to_stop == 0
    state.step = 3
    pause.on_step(state, [])
    assert state.asked_to_stop == PAUSE
    assert not pause.reads_weights, "it costs nothing"
    with pytest.raises(Paused):
        leave(PAUSE)


def test_a_signal_comes_before_a_pause() -> None:
    state = State(step=3, asked_to_stop=15)
    PauseAt(3).on_step(state, [])
    assert state.asked_to_stop == 15
