"""Report the history of a run to experiment trackers, such as TensorBoard or wandb, through Accelerate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.engine.versions import package_version
from glassloop.errors import SettingsError


def refuse_missing(names: tuple[str, ...]) -> None:
    """Raise `SettingsError` for a tracker that is not installed."""
    for name in names:
        if not package_version(name):
            raise SettingsError(f"report_to lists {name}, which is not installed", f"pip install {name}")


class Trackers(Callback):
    """Reports each new entry of `state.history`. Never asks for an account: wandb runs offline without one."""

    def __init__(self, names: tuple[str, ...], folder: Path, run_name: str, settings: Mapping[str, object]) -> None:
        refuse_missing(names)
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # Accelerate's trackers write to its log, which needs this
        self.trackers = []
        self.reported = 0  # entries of the history
        if not (os.environ.get("WANDB_API_KEY") or Path("~/.netrc").expanduser().is_file()):
            os.environ.setdefault("WANDB_MODE", "offline")  # else wandb would ask for an account
        plain = {key: value for key, value in settings.items() if isinstance(value, int | float | str | bool)}
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            options = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
            if name == "wandb" and "WANDB_DIR" not in os.environ:
                options["dir"] = str(folder)  # else wandb writes to the current directory
            try:
                tracker = kind(run_name.replace("/", "-").replace("\\", "-"), **options)  # some use it as a folder's name
                tracker.start()
            except ImportError as error:
                raise SettingsError(
                    f"report_to lists {name}, which cannot be imported: {error}", f"pip install {name}"
                ) from error
            tracker.store_init_configuration(plain)
            self.trackers.append(tracker)

    def on_fit_start(self, state: State) -> None:
        """Skip the entries of the run that is resumed."""
        self.reported = len(state.history)

    def report(self, state: State) -> None:
        """Report the new entries of the history: callbacks of a script may have added some, too."""
        for entry in state.history[self.reported :]:
            figures = {name: value for name, value in entry.items() if name != "step"}
            for tracker in self.trackers:
                tracker.log(figures, step=entry["step"])
        self.reported = len(state.history)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Report a logged step."""
        self.report(state)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report an evaluation."""
        self.report(state)

    def on_fit_end(self, state: State) -> None:
        """Close the trackers."""
        self.report(state)
        for tracker in self.trackers:
            tracker.finish()
