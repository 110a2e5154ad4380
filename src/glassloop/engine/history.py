"""What a run writes down while it trains: its history line by line, and what it reports to trackers."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.errors import SettingsError
from glassloop.run_folder.history import line_of, write_history
from glassloop.run_folder.layout import HISTORY_NAME
from glassloop.run_folder.record import is_timing

PACKAGES = ("glassloop", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")


class History(Callback):
    """Keeps every logged figure and every evaluation in `state.history` and, if there is a run folder, in its history."""

    def __init__(self, folder: Path | None, rate: Any, batches_per_epoch: int) -> None:
        self.folder, self.rate, self.batches_per_epoch = folder, rate, batches_per_epoch

    def on_fit_start(self, state: State) -> None:
        self.used = self.next = self.rate()
        if self.folder is not None:
            write_history(self.folder, state.history)

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.used, self.next = self.next, self.rate()  # the schedule already stands at the next step

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        losses = [loss for loss, _ in figures]
        entry = {
            "step": state.step,
            "epoch": self.epoch(state),
            "loss": sum(losses) / len(losses),
            "grad_norm": figures[-1][1],
            "learning_rate": self.used,
        }
        self.record(state, entry)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        lasting = {name: value for name, value in metrics.items() if not is_timing(name)}
        self.record(state, {"step": state.step, "epoch": self.epoch(state), **lasting})

    def epoch(self, state: State) -> float:
        return round(state.epoch + state.batch / self.batches_per_epoch, 4)

    def record(self, state: State, entry: dict[str, Any]) -> None:
        state.history.append(entry)
        if self.folder is not None:
            # A full disk does not end a training: the whole file is written again after the last step.
            with suppress(OSError), (self.folder / HISTORY_NAME).open("a", encoding="utf-8") as opened:
                opened.write(line_of(entry))


class Trackers(Callback):
    """Tells accelerate's trackers what the history is told. Never asks for an account: offline where a tracker can be."""

    def __init__(self, names: tuple[str, ...], folder: Path, run_name: str, settings: dict[str, Any], history: History) -> None:
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # accelerate's trackers write to its log, which asks for it
        self.trackers, self.history = [], history
        if not (os.environ.get("WANDB_API_KEY") or Path("~/.netrc").expanduser().is_file()):
            os.environ.setdefault("WANDB_MODE", "offline")  # else wandb would ask for an account
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS.get(name)
            if kind is None or not package_version(name):
                raise SettingsError(f"report_to names {name}, which is not installed", f"pip install {name}")
            plain = {key: value for key, value in settings.items() if isinstance(value, int | float | str | bool)}
            places = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
            if name == "wandb" and "WANDB_DIR" not in os.environ:
                places["dir"] = str(folder)  # else a folder wandb where the run was started
            try:
                tracker = kind(run_name, **places)
                tracker.start()
            except ImportError as error:
                raise SettingsError(
                    f"report_to names {name}, which cannot be loaded: {error}", f"pip install {name}"
                ) from error
            tracker.store_init_configuration(plain)
            self.trackers.append(tracker)

    def tell(self, state: State) -> None:
        figures = {name: value for name, value in state.history[-1].items() if name != "step"}
        for tracker in self.trackers:
            tracker.log(figures, step=state.step)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        self.tell(state)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.tell(state)

    def on_fit_end(self, state: State) -> None:
        for tracker in self.trackers:
            tracker.finish()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """The versions a run's numbers depend on."""
    found = {name: package_version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in found.items() if text}}
