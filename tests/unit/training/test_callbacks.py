"""Callbacks: every event of the loop may be listened to, and one that would never run is an error."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import accelerate.tracking
import pytest

from glassloop.runs.history import read_moments
from glassloop.runs.record import HISTORY_NAME, Plan
from glassloop.training import callbacks as trackers_module
from glassloop.training import loop
from glassloop.training.callbacks import (
    EVENTS,
    PAUSE,
    Callback,
    History,
    PauseAt,
    Paused,
    Sessions,
    State,
    Trackers,
    checked_callbacks,
    leave,
)


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


# --- The history of a run, in its state and line by line in its folder.


PLANS = {size: Plan(9, size, size, accumulate=1, warmup_steps=0, log_every=1, eval_every=1, save_every=0) for size in (3, 4)}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_history_is_kept_in_the_state_and_in_the_file(tmp_path: Path) -> None:
    rate, state = [5e-5], State()
    history = History(tmp_path, lambda: rate[0], PLANS[4])
    history.on_fit_start(state)
    assert (tmp_path / HISTORY_NAME).read_text() == ""
    state.step, state.batch = 3, 3
    history.on_log(state, [[1.0, 0.1], [2.0, 0.2], [6.0, 0.3]])
    assert state.history == [{"step": 3, "epoch": 0.75, "loss": 3.0, "grad_norm": 0.3, "learning_rate": 5e-5}]
    assert lines_of(tmp_path / HISTORY_NAME) == state.history
    state.step, state.epoch, state.batch, rate[0] = 5, 1, 1, 1e-5
    history.on_evaluate(state, {"eval_loss": 0.5, "eval_f1": 0.25})
    assert state.history[1] == {"step": 5, "epoch": 1.25, "eval_loss": 0.5, "eval_f1": 0.25}
    assert lines_of(tmp_path / HISTORY_NAME) == state.history


def test_the_rate_is_the_one_the_step_used(tmp_path: Path) -> None:
    rates, state = iter([0.3, 0.2, 0.1, 0.0]), State()
    history = History(None, lambda: next(rates), PLANS[4])
    history.on_fit_start(state)
    for step in (1, 2, 3):
        state.step = step
        history.on_step(state, [])
        history.on_log(state, [[1.0, 1.0]])
    assert [entry["learning_rate"] for entry in state.history] == [0.3, 0.2, 0.1]


def test_a_new_run_starts_a_new_history_and_a_resumed_run_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_NAME
    path.write_text("of another run\n")
    history = History(tmp_path, lambda: 0.1, PLANS[4])
    history.on_fit_start(State())
    assert path.read_text() == ""
    stored = [{"step": 2, "loss": 0.5}]
    path.write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')  # the process died while it wrote
    history.on_fit_start(State(history=stored))
    assert lines_of(path) == stored


def test_history_without_a_file(tmp_path: Path) -> None:
    state = State(step=1, batch=1)
    history = History(None, lambda: 0.1, PLANS[3])
    history.on_fit_start(state)
    history.on_log(state, [[1.0, 2.0]])
    assert state.history == [{"step": 1, "epoch": 0.3333, "loss": 1.0, "grad_norm": 2.0, "learning_rate": 0.1}]
    assert [*tmp_path.iterdir()] == []


def test_no_line_holds_what_json_cannot(tmp_path: Path) -> None:
    history = History(tmp_path, lambda: math.nan, PLANS[3])
    history.on_fit_start(State())
    with pytest.raises(ValueError, match="not JSON compliant"):
        history.on_log(State(step=1), [[1.0, 2.0]])


# --- A run is interrupted at a step.


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


# --- A training notes its start, resume, stop and end in its folder.


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


# --- Everything that is logged reaches every tracker; a tracker that is not installed is an error.


class Tracker:
    """What Accelerate's trackers have in common; records its calls."""

    requires_logging_directory = False
    made: list[Tracker] = []  # noqa: RUF012

    def __init__(self, run_name: str, **options: Any) -> None:
        self.run_name, self.options, self.calls = run_name, options, []
        Tracker.made.append(self)

    def start(self) -> None:
        accelerate.logging.get_logger(__name__).debug("as wandb's and trackio's do: an error where there is no state")
        self.calls.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.calls.append((step, values))

    def finish(self) -> None:
        self.calls.append("finish")


class InFolder(Tracker):
    requires_logging_directory = True


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    Tracker.made = []
    monkeypatch.setattr(accelerate.PartialState, "_shared_state", {})  # a run on plain torch
    monkeypatch.delenv("WANDB_DIR", raising=False)
    classes = {"wandb": Tracker, "tensorboard": InFolder}
    monkeypatch.setattr(accelerate.tracking, "LOGGER_TYPE_TO_CLASS", classes)
    monkeypatch.setattr(trackers_module, "package_version", lambda name: "1.0")


@pytest.mark.usefixtures("known")
def test_everything_logged_reaches_every_tracker(tmp_path: Path) -> None:
    history, state = History(None, lambda: 0.1, PLANS[4]), State()
    settings = {"learning_rate": 0.1, "seed": 3, "optim": "adamw", "fused": True, "max_length": None}
    trackers = Trackers(("wandb", "tensorboard"), tmp_path, "my run", settings)
    for listener in (history, trackers):
        listener.on_fit_start(state)
    for step in (2, 4):
        state.step = state.batch = step
        for listener in (history, trackers):
            listener.on_log(state, [[1.0 / step, 2.0]])
    for listener in (history, trackers):
        listener.on_evaluate(state, {"eval_loss": 0.5})
        listener.on_fit_end(state)
    first, second = Tracker.made
    assert (first.run_name, first.options) == ("my run", {"dir": str(tmp_path)})
    assert (second.run_name, second.options) == ("my run", {"logging_dir": str(tmp_path)})
    plain = {name: value for name, value in settings.items() if value is not None}
    logged = [(entry["step"], {name: value for name, value in entry.items() if name != "step"}) for entry in state.history]
    assert len(logged) == 3
    for tracker in (first, second):
        assert tracker.calls == ["start", plain, *logged, "finish"]


@pytest.mark.usefixtures("known")
def test_a_run_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    Trackers(("tensorboard",), tmp_path, "../team/run\\1", {})
    assert Tracker.made[0].run_name == "..-team-run-1"


def test_a_tracker_that_is_not_installed(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers_module, "package_version", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with says(f"report_to lists {name}, which is not installed", f"pip install {name}"):
            Trackers((name,), tmp_path, "run", {})


@pytest.mark.usefixtures("known")
def test_a_tracker_that_cannot_be_loaded(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Tracker) -> None:
        raise ModuleNotFoundError("No module named 'half_of_it'")

    monkeypatch.setattr(Tracker, "start", start)
    problem = "report_to lists wandb, which cannot be imported: No module named 'half_of_it'"
    with says(problem, "pip install wandb"):
        Trackers(("wandb",), tmp_path, "run", {})


@pytest.mark.usefixtures("known")
def test_wandbs_files_go_where_its_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DIR", "elsewhere")
    Trackers(("wandb",), tmp_path, "run", {})
    assert Tracker.made[0].options == {}


def test_the_trackers_of_the_settings_are_known_to_accelerate() -> None:
    from glassloop.settings.training import TRACKERS

    for name in TRACKERS:
        assert name == "none" or name in accelerate.tracking.LOGGER_TYPE_TO_CLASS


def test_wandb_is_offline_unless_there_is_an_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "unset")
    monkeypatch.delenv("WANDB_MODE")
    Trackers((), tmp_path, "run", {})
    assert os.environ["WANDB_MODE"] == "offline"
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    Trackers((), tmp_path, "run", {})
    assert "WANDB_MODE" not in os.environ
