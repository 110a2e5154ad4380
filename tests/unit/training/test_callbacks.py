"""The state of a run, the signals that stop it, and callbacks: one that would never run is an error."""

from __future__ import annotations

import inspect
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import accelerate.tracking
import pytest
from transformers import EarlyStoppingCallback

from glassloop.base.errors import SettingsError
from glassloop.runs.history import read_moments
from glassloop.runs.record import HISTORY_NAME, Plan
from glassloop.settings.training import TRACKERS
from glassloop.training import callbacks as callbacks_module
from glassloop.training import loop
from glassloop.training.callbacks import EVENTS, PAUSE, Callback, History, State, Trackers, checked_callbacks, leave, listening

STEPS = {"max_steps": 10, "steps_per_epoch": 4, "batches_per_epoch": 4, "accumulate": 1, "warmup_steps": 0}
PLAN = Plan(**STEPS, log_every=1, eval_every=1, save_every=0)


def judged(scores: list[float], **options: Any) -> State:
    """The state after evaluations with these scores, one a step."""
    plan, state = replace(PLAN, **options), State()
    for score in scores:
        state.step += 1
        state.judge({plan.best_metric: score, "eval_other": 9.0}, plan)
        if state.stop_reason:
            break
    return state


def test_losses_are_summed_what_is_not_finite_is_named_with_its_step_and_a_state_is_plain() -> None:
    state = State()
    assert state.mean_loss == 0.0
    for figures in ([[1.0, 5.0], [2.0, 5.0]], [[6.0, 5.0]]):
        state.step += len(figures)
        state.read(figures)
    assert (state.loss_sum, state.losses_read, state.last_loss, state.mean_loss) == (9.0, 3, 6.0, 3.0)
    for wrong in [math.nan, math.inf, -math.inf]:
        state = State(step=1005)
        with pytest.raises(FloatingPointError) as caught:
            state.read([[1.0, 1.0], [2.0, 1.0], [wrong, 1.0], [3.0, 1.0]])
        assert caught.value.args == (f"step 1,004: the loss is {wrong}", 1004)
        assert state.last_loss == 2.0
        with pytest.raises(FloatingPointError) as caught:
            State(step=3).read([[2.0, wrong]])
        assert caught.value.args == (f"step 3: the gradient norm is {wrong}", 3)
    state = State()
    for number, figures in ((19, [0.7, 0.0]), (1, [0.7, 0.1]), (30, [0.0, 0.0]), (19, [0.7, 0.0])):
        state.step += number
        state.read([figures] * number)
    state.step += 1
    with pytest.raises(FloatingPointError) as caught:
        state.read([[0.7, 0.0]])
    assert caught.value.args == ("step 70: the gradient overflowed or was zero for 20 steps", 70)
    state = judged([3.0, 1.0, 2.0])
    state.read([[0.5, 1.0]])
    state.history.append({"step": 3, "loss": 0.5})
    assert State(**json.loads(json.dumps(state.to_dict()))) == state
    assert json.loads(json.dumps(asdict(PLAN))) == asdict(PLAN)
    with pytest.raises(AttributeError):
        PLAN.max_steps = 3  # type: ignore[misc]


MORE_IS_BETTER = {"best_metric": "eval_f1", "greater_is_better": True}


def test_the_best_evaluation_patience_and_a_figure_that_no_evaluation_gives(says: Any) -> None:
    for scores, options, best, what in [
        ([3.0, 1.0, 2.0, 1.0], {}, (1.0, 2, 2), "a smaller loss is better"),
        ([0.3, 0.1, 0.5], MORE_IS_BETTER, (0.5, 3, 0), "a larger f1 is better"),
        ([1.0, 0.95, 0.91], {"least_gain": 0.1}, (1.0, 1, 2), "a small gain is none"),
        ([1.0, 0.95, 0.89], {"least_gain": 0.1}, (0.89, 3, 0), "gains add up"),
        ([math.nan, 2.0, 3.0], {}, (2.0, 2, 1), "what is no number is not the best for ever"),
        ([1.0, math.nan, 0.5], {}, (0.5, 3, 0), "nor in between"),
    ]:
        state = judged(scores, **options)
        assert (state.best_score, state.best_step, state.evaluations_without_gain) == best, what
        assert state.stop_reason is None
    for patience, steps in [(1, 2), (2, 3), (3, 6), (None, 6)]:
        state = judged([0.5, 0.5, 0.5, 1.0, 0.9, 0.8], patience=patience, **MORE_IS_BETTER)
        assert state.step == steps
        expected = f"eval_f1 did not improve in {patience} evaluations" if patience in (1, 2) else None
        assert state.stop_reason == expected
    metrics, plan = {"eval_loss": 1.0, "eval_accuracy": 0.5}, replace(PLAN, best_metric="eval_f1")
    problem = "metric_for_best_model is eval_f1, but an evaluation computes eval_loss, eval_accuracy"
    with says(problem, "choose one of these; without labels there is no loss"):
        State().judge(metrics, plan)


STOPPED = """
import signal, sys, time
from pathlib import Path
from glassloop.training.callbacks import State, listening
state = State()
with listening(state):
    print("ready", flush=True)
    until = time.monotonic() + 20
    while not state.asked_to_stop and time.monotonic() < until:
        time.sleep(0.01)
    print("saving", flush=True)
    Path(sys.argv[1]).write_text(str(state.asked_to_stop))
"""


def test_a_signal_asks_unless_it_is_ignored_or_outside_the_main_thread_and_the_exit_status_names_it() -> None:
    for number in callbacks_module.STOPPING:
        before, state = signal.getsignal(number), State()
        with listening(state):
            signal.raise_signal(number)
            assert state.asked_to_stop == number
        assert signal.getsignal(number) == before
    before, state = signal.signal(signal.SIGHUP, signal.SIG_IGN), State()
    try:
        with listening(state):
            signal.raise_signal(signal.SIGHUP)
        assert state.asked_to_stop == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    handlers: list[Any] = []

    def inside() -> None:
        with listening(State()):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
    for number, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with pytest.raises(SystemExit) as caught:
            leave(number)
        assert caught.value.code == status
    with pytest.raises(KeyboardInterrupt):
        leave(signal.SIGINT)
    with pytest.raises(callbacks_module.Paused):
        leave(PAUSE)


def test_a_terminal_that_is_gone_does_not_end_the_run_but_a_second_signal_does(tmp_path: Path) -> None:
    """It sends a SIGHUP, and after that every line written to it fails."""
    process, master = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", STOPPED, str(tmp_path / "saved")])
    assert os.read(master, 5) == b"ready"
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGHUP))
    script = STOPPED.replace("time.sleep(0.01)", "[signal.raise_signal(signal.SIGHUP) for _ in range(2)]")
    ended = subprocess.run([sys.executable, "-c", script, "nowhere"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGHUP, "ready\n")


def test_callbacks_with_all_events_are_taken_and_those_that_would_not_be_called_refused(says: Any) -> None:
    watching, anything = Callback(), type("Anything", (), {event: lambda self, state, **facts: None for event in EVENTS})()
    first, second, third = checked_callbacks([watching, Callback, anything])
    assert (first, type(second), third) == (watching, Callback, anything)
    assert checked_callbacks(None) == []
    remedy = "make it a subclass of glassloop.Callback"
    with says("Foreign has on_train_begin, which is not a Glassloop event", f"the events are {', '.join(EVENTS)}; {remedy}"):
        checked_callbacks([type("Foreign", (Callback,), {"on_train_begin": print})()])  # what transformers calls it
    with says("Half has no on_epoch_start", remedy):
        checked_callbacks([type("Half", (), {"on_fit_start": print})])
    with pytest.raises(SettingsError, match="EarlyStoppingCallback has on_"):
        checked_callbacks([EarlyStoppingCallback()])
    assert {*re.findall(r'tell\("(on_\w+)"', inspect.getsource(loop))} == {*EVENTS}
    assert len(EVENTS) == 9


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_history_is_kept_in_the_state_and_in_the_file_and_no_line_holds_what_json_cannot(tmp_path: Path) -> None:
    """With the learning rate that the step used. A resumed run drops lines after its checkpoint."""
    path, rates, state = tmp_path / HISTORY_NAME, iter([0.3, 0.2, 0.1]), State()
    path.write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')  # the process died while it wrote
    history = History(tmp_path, lambda: next(rates), PLAN)
    history.on_fit_start(state)
    assert path.read_text() == ""
    state.step, state.batch = 3, 3
    history.on_step(state, [])
    history.on_log(state, [[1.0, 0.1], [2.0, 0.2], [6.0, 0.3]])
    state.step, state.epoch, state.batch = 5, 1, 1
    history.on_step(state, [])
    history.on_evaluate(state, {"eval_loss": 0.5, "eval_f1": 0.25})
    history.on_log(state, [[1.0, 2.0]])
    assert state.history == [
        {"step": 3, "epoch": 0.75, "loss": 3.0, "grad_norm": 0.3, "learning_rate": 0.3},
        {"step": 5, "epoch": 1.25, "eval_loss": 0.5, "eval_f1": 0.25},
        {"step": 5, "epoch": 1.25, "loss": 1.0, "grad_norm": 2.0, "learning_rate": 0.2},
    ]
    assert lines_of(path) == state.history
    alone, again = State(step=1, batch=1), History(None, lambda: 0.1, replace(PLAN, batches_per_epoch=3))
    again.on_fit_start(alone)
    again.on_log(alone, [[1.0, 2.0]])
    assert alone.history == [{"step": 1, "epoch": 0.3333, "loss": 1.0, "grad_norm": 2.0, "learning_rate": 0.1}]
    History(tmp_path, lambda: 0.1, PLAN).on_fit_start(alone)
    assert lines_of(path) == alone.history
    history = History(tmp_path, lambda: math.nan, PLAN)
    history.on_fit_start(State())
    with pytest.raises(ValueError, match="not JSON compliant"):
        history.on_log(State(step=1), [[1.0, 2.0]])


def test_a_pause_is_asked_for_after_its_step_and_sessions_note_stop_and_resume(tmp_path: Path) -> None:
    for step, before, after in [(2, 0, 0), (3, 0, PAUSE), (3, signal.SIGTERM, signal.SIGTERM)]:
        state = State(step=step, asked_to_stop=before)
        callbacks_module.PauseAt(3).on_step(state, [])
        assert state.asked_to_stop == after
        assert not callbacks_module.PauseAt.reads_weights, "it costs nothing"
    for first, last, number in ((0, 9, 0), (0, 12, 15), (12, 30, 0)):
        callback = History(tmp_path, lambda: 0.1, replace(PLAN, max_steps=30))
        callback.on_fit_start(State(step=first))
        callback.on_fit_end(State(step=last, signal=number))
    noted = [(moment.event, moment.step, moment.max_steps) for moment in read_moments(tmp_path)]
    assert noted == [("start", 0, 30), ("stop", 12, 30), ("resume", 12, 30), ("end", 30, 30)]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mock]:
    """Two classes of trackers, as Accelerate's are; their objects record what is called."""
    made = {name: Mock(requires_logging_directory=name == "tensorboard") for name in ("wandb", "tensorboard")}
    for kind in made.values():  # as wandb's and trackio's do: an error where there is no state
        kind.return_value.start.side_effect = lambda: accelerate.logging.get_logger(__name__).debug("started")
    monkeypatch.setattr(accelerate.PartialState, "_shared_state", {})  # a run on plain torch
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setattr(accelerate.tracking, "LOGGER_TYPE_TO_CLASS", made)
    monkeypatch.setattr(callbacks_module, "package_version", lambda name: "1.0")
    return made


def test_everything_logged_reaches_every_tracker(kinds: dict[str, Mock], tmp_path: Path) -> None:
    history, state = History(None, lambda: 0.1, PLAN), State()
    settings = {"learning_rate": 0.1, "seed": 3, "optim": "adamw", "fused": True, "max_length": None}
    listeners = (history, Trackers(("wandb", "tensorboard"), tmp_path, "../my run\\1", settings))
    for listener in listeners:
        listener.on_fit_start(state)
    for step in (2, 4):
        state.step = state.batch = step
        for listener in listeners:
            listener.on_log(state, [[1.0 / step, 2.0]])
    for listener in listeners:
        listener.on_evaluate(state, {"eval_loss": 0.5})
        listener.on_fit_end(state)
    simple = {name: value for name, value in settings.items() if value is not None}
    entries = [{**entry} for entry in state.history]
    logged = [call.log(entry, step=entry.pop("step")) for entry in entries]
    assert len(logged) == 3
    for name, option in (("wandb", "dir"), ("tensorboard", "logging_dir")):
        # A name cannot lead out of the folder.
        assert kinds[name].call_args_list == [call("..-my run-1", **{option: str(tmp_path)})]
        calls = [call.start(), call.store_init_configuration(simple), *logged, call.finish()]
        assert kinds[name].return_value.method_calls == calls


def test_wandb_writes_where_its_variable_says_and_a_tracker_that_is_missing_is_named(
    kinds: dict[str, Mock], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_DIR", "elsewhere")
    monkeypatch.setenv("WANDB_MODE", "unset")
    for key, mode in ((None, "offline"), ("x", None)):
        monkeypatch.delenv("WANDB_MODE")
        monkeypatch.delenv("WANDB_API_KEY", raising=False) if key is None else monkeypatch.setenv("WANDB_API_KEY", key)
        Trackers(("wandb",), tmp_path, "run", {})
        assert os.environ.get("WANDB_MODE") == mode
        assert kinds["wandb"].call_args.kwargs == {}
    kinds["wandb"].return_value.start.side_effect = ModuleNotFoundError("No module named 'half_of_it'")
    with says("report_to lists wandb, which cannot be imported: No module named 'half_of_it'", "pip install wandb"):
        Trackers(("wandb",), tmp_path, "run", {})
    monkeypatch.setattr(callbacks_module, "package_version", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with says(f"report_to lists {name}, which is not installed", f"pip install {name}"):
            Trackers((name,), tmp_path, "run", {})


def test_the_trackers_of_the_settings_are_known_to_accelerate() -> None:
    assert {*TRACKERS} - {"none"} <= {*map(str, accelerate.tracking.LOGGER_TYPE_TO_CLASS)}
