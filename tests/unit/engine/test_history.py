"""What a run writes down: history line by line, its description, and everything logged told to the trackers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import accelerate.tracking
import pytest

from glassloop.engine import history as recorder
from glassloop.engine.history import History, Trackers, package_version, versions
from glassloop.engine.state import State
from glassloop.run_folder.layout import HISTORY_NAME


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- history -----------------------------------------------------------------------------------------------------


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


def test_a_new_run_starts_a_new_history_and_a_run_that_goes_on_keeps_its_own(tmp_path: Path) -> None:
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


# --- trackers ----------------------------------------------------------------------------------------------------


class Tracker:
    """What accelerate's trackers have in common; writes down what it is told."""

    requires_logging_directory = False
    made: list[Tracker] = []  # noqa: RUF012

    def __init__(self, run_name: str, **options: Any) -> None:
        self.run_name, self.options, self.told = run_name, options, []
        Tracker.made.append(self)

    def start(self) -> None:
        accelerate.logging.get_logger(__name__).debug("as wandb's and trackio's do: an error where there is no state")
        self.told.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.told.append((step, values))

    def finish(self) -> None:
        self.told.append("finish")


class InFolder(Tracker):
    requires_logging_directory = True


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    Tracker.made = []
    monkeypatch.setattr(accelerate.PartialState, "_shared_state", {})  # a run on plain torch
    monkeypatch.delenv("WANDB_DIR", raising=False)
    classes = {"wandb": Tracker, "tensorboard": InFolder}
    monkeypatch.setattr(accelerate.tracking, "LOGGER_TYPE_TO_CLASS", classes)
    monkeypatch.setattr(recorder, "package_version", lambda name: "1.0")


@pytest.mark.usefixtures("known")
def test_everything_logged_reaches_every_tracker(tmp_path: Path) -> None:
    history, state = History(None, lambda: 0.1, 4), State()
    settings = {"learning_rate": 0.1, "seed": 3, "optim": "adamw", "fused": True, "max_length": None}
    trackers = Trackers(("wandb", "tensorboard"), tmp_path, "my run", settings, history)
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
        assert tracker.told == ["start", plain, *logged, "finish"]


def test_a_tracker_that_is_not_installed(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "package_version", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with says(f"report_to names {name}, which is not installed", f"pip install {name}"):
            Trackers((name,), tmp_path, "run", {}, History(None, lambda: 0.1, 1))


@pytest.mark.usefixtures("known")
def test_a_tracker_that_cannot_be_loaded(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Tracker) -> None:
        raise ModuleNotFoundError("No module named 'half_of_it'")

    monkeypatch.setattr(Tracker, "start", start)
    problem = "report_to names wandb, which cannot be loaded: No module named 'half_of_it'"
    with says(problem, "pip install wandb"):
        Trackers(("wandb",), tmp_path, "run", {}, History(None, lambda: 0.1, 1))


@pytest.mark.usefixtures("known")
def test_wandbs_files_go_where_its_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DIR", "elsewhere")
    Trackers(("wandb",), tmp_path, "run", {}, History(None, lambda: 0.1, 1))
    assert Tracker.made[0].options == {}


def test_the_trackers_of_the_settings_are_known_to_accelerate() -> None:
    from glassloop.arguments import TRACKERS

    for name in TRACKERS:
        assert name == "none" or name in accelerate.tracking.LOGGER_TYPE_TO_CLASS


# --- versions ----------------------------------------------------------------------------------------------------


def test_versions() -> None:
    found = versions()
    assert {"python", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy"} <= {*found}
    assert package_version("torch") == found["torch"]
    assert package_version("no-such-package-anywhere") is None


def test_wandb_is_offline_unless_there_is_an_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    from glassloop.engine.history import History, Trackers

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "unset")
    monkeypatch.delenv("WANDB_MODE")
    Trackers((), tmp_path, "run", {}, History(None, lambda: 0.0, 1))
    assert os.environ["WANDB_MODE"] == "offline"
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    Trackers((), tmp_path, "run", {}, History(None, lambda: 0.0, 1))
    assert "WANDB_MODE" not in os.environ
