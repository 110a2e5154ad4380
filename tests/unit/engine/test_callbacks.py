"""Callbacks: every event of the loop may be listened to, and one that would never run is an error."""

from __future__ import annotations

import inspect
import re

import pytest

from glassloop.training import loop
from glassloop.training.callbacks import EVENTS, Callback, checked_callbacks


def test_the_events_are_these() -> None:
    assert (
        *("on_fit_start", "on_epoch_start", "on_step_start", "on_step", "on_log", "on_evaluate", "on_save"),
        *("on_epoch_end", "on_fit_end"),
    ) == EVENTS


def test_the_loop_calls_exactly_these_events() -> None:
    assert {*re.findall(r'tell\("(on_\w+)"', inspect.getsource(loop))} == {*EVENTS}


def test_an_event_needs_nothing_and_says_when_it_is() -> None:
    for event in EVENTS:
        assert inspect.getdoc(getattr(Callback, event)), event


def test_objects_and_classes_are_taken() -> None:
    class Watching(Callback):
        pass

    watching = Watching()
    first, second = checked_callbacks([watching, Watching])
    assert first is watching
    assert isinstance(second, Watching)
    assert checked_callbacks(None) == checked_callbacks([]) == []


def test_anything_with_all_events_is_taken() -> None:
    anything = type("Anything", (), {event: lambda self, state, **facts: None for event in EVENTS})()
    assert checked_callbacks([anything]) == [anything]


def test_a_method_for_an_unknown_event_is_refused(says) -> None:
    class Foreign(Callback):
        def on_train_begin(self, args, state, control) -> None:
            """What transformers calls it."""

    with says(
        "Foreign has on_train_begin, which is not a Glassloop event",
        f"the events are {', '.join(EVENTS)}; make it a subclass of glassloop.Callback",
    ):
        checked_callbacks([Foreign()])


def test_a_callback_of_transformers_is_refused() -> None:
    from transformers import EarlyStoppingCallback

    from glassloop.base.errors import SettingsError

    with pytest.raises(SettingsError, match="EarlyStoppingCallback has on_"):
        checked_callbacks([EarlyStoppingCallback()])


def test_a_missing_event_is_refused(says) -> None:
    class Half:
        def on_fit_start(self, state) -> None:
            pass

    with says("Half has no on_epoch_start", "make it a subclass of glassloop.Callback"):
        checked_callbacks([Half])
