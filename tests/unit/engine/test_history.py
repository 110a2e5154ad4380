"""The history of a run, in its state and line by line in its folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from glassloop.runs.layout import HISTORY_NAME
from glassloop.training.callbacks import History
from glassloop.training.state import State


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_history_is_kept_in_the_state_and_in_the_file(tmp_path: Path) -> None:
    rate, state = [5e-5], State()
    history = History(tmp_path, lambda: rate[0], 4)
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
    history = History(None, lambda: next(rates), 4)
    history.on_fit_start(state)
    for step in (1, 2, 3):
        state.step = step
        history.on_step(state, [])
        history.on_log(state, [[1.0, 1.0]])
    assert [entry["learning_rate"] for entry in state.history] == [0.3, 0.2, 0.1]


def test_a_new_run_starts_a_new_history_and_a_resumed_run_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_NAME
    path.write_text("of another run\n")
    history = History(tmp_path, lambda: 0.1, 4)
    history.on_fit_start(State())
    assert path.read_text() == ""
    stored = [{"step": 2, "loss": 0.5}]
    path.write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')  # the process died while it wrote
    history.on_fit_start(State(history=stored))
    assert lines_of(path) == stored


def test_history_without_a_file(tmp_path: Path) -> None:
    state = State(step=1, batch=1)
    history = History(None, lambda: 0.1, 3)
    history.on_fit_start(state)
    history.on_log(state, [[1.0, 2.0]])
    assert state.history == [{"step": 1, "epoch": 0.3333, "loss": 1.0, "grad_norm": 2.0, "learning_rate": 0.1}]
    assert [*tmp_path.iterdir()] == []


def test_no_line_holds_what_json_cannot(tmp_path: Path) -> None:
    history = History(tmp_path, lambda: math.nan, 3)
    history.on_fit_start(State())
    with pytest.raises(ValueError, match="not JSON compliant"):
        history.on_log(State(step=1), [[1.0, 2.0]])
