"""Everything that is logged reaches every tracker; a tracker that is not installed is an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import accelerate.tracking
import pytest

from glassloop.training import callbacks as trackers_module
from glassloop.training.callbacks import History, Trackers
from glassloop.training.state import State


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
    history, state = History(None, lambda: 0.1, 4), State()
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
