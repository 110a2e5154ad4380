"""Callbacks: what a run calls at each of its events, and those of every run: history, sessions, trackers, a pause."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from glassloop.base.errors import SettingsError, listed
from glassloop.base.records import package_version
from glassloop.data.batches import Batch
from glassloop.runs.history import END, RESUME, START, STOP, Entry, lasting, line_of, note_moment, write_history
from glassloop.runs.record import HISTORY_NAME
from glassloop.training.signals import PAUSE
from glassloop.training.state import State


class Callback:
    """The base class of callbacks; override the events you need.

    Attributes:
        reads_weights: Whether the callback may read the model's weights. Set it to False if it never does: a backend that
            stores weights elsewhere during training then need not copy them into the model after every step.
    """

    reads_weights = True

    def on_fit_start(self, state: State) -> None:
        """Act before the first step.

        Args:
            state: Where training stands.
        """

    def on_epoch_start(self, state: State) -> None:
        """Act before the first step of an epoch, or before the next one of a resumed epoch.

        Args:
            state: Where training stands.
        """

    def on_step_start(self, state: State) -> None:
        """Act before every step.

        Args:
            state: Where training stands.
        """

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Act after every step. Reading a number from the device here makes every step wait for it.

        Args:
            state: Where training stands.
            batches: The batches of the step.
        """

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Act when losses were read.

        Args:
            state: Where training stands.
            figures: Loss and gradient norm of each step since the last log.
        """

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Act after an evaluation.

        Args:
            state: Where training stands.
            metrics: The metrics by name.
        """

    def on_save(self, state: State) -> None:
        """Act after a checkpoint was handed to the thread that writes it.

        Args:
            state: Where training stands.
        """

    def on_epoch_end(self, state: State) -> None:
        """Act after the last step of an epoch.

        Args:
            state: Where training stands.
        """

    def on_fit_end(self, state: State) -> None:
        """Act after the last step.

        Args:
            state: Where training stands.
        """


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def checked_callbacks(callbacks: Sequence[Callback | type[Callback]] | None) -> list[Callback]:
    """Return the callbacks, classes among them as instances.

    Raises `SettingsError` if one lacks an event, or has a method for an event that Glassloop does not have: it would never
    be called.
    """
    ready = []
    for given in callbacks or []:
        callback = given() if isinstance(given, type) else given
        unknown = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS]
        if unknown:
            raise SettingsError(
                f"{type(callback).__name__} has {listed(unknown)}, which is not a Glassloop event",
                f"the events are {listed(EVENTS)}; make it a subclass of glassloop.Callback",
            )
        if missing := [name for name in EVENTS if not hasattr(callback, name)]:
            raise SettingsError(f"{type(callback).__name__} has no {missing[0]}", "make it a subclass of glassloop.Callback")
        ready.append(callback)
    return ready


class History(Callback):
    """Adds every logged step and every evaluation to `state.history` and, with a `folder`, to its history.jsonl.

    `learning_rate` returns the learning rate of the next step.
    """

    def __init__(self, folder: Path | None, learning_rate: Callable[[], float], batches_per_epoch: int) -> None:
        self.folder, self.learning_rate, self.batches_per_epoch = folder, learning_rate, batches_per_epoch

    def on_fit_start(self, state: State) -> None:
        """Write the history of a resumed run again, without steps after its checkpoint."""
        self.used = self.next = self.learning_rate()
        if self.folder is not None:
            write_history(self.folder, state.history)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Remember the learning rate that the step used: the schedule is already at the next one."""
        self.used, self.next = self.next, self.learning_rate()

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Record the mean loss since the last log."""
        losses = [loss for loss, _ in figures]
        entry: Entry = {
            "step": state.step,
            "epoch": self.epoch(state),
            "loss": sum(losses) / len(losses),
            "grad_norm": figures[-1][1],
            "learning_rate": self.used,
        }
        self.record(state, entry)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Record metrics."""
        self.record(state, {"step": state.step, "epoch": self.epoch(state), **lasting(metrics)})

    def epoch(self, state: State) -> float:
        """Return the epoch as a number with a fraction."""
        return round(state.epoch + state.batch / self.batches_per_epoch, 4)

    def record(self, state: State, entry: Entry) -> None:
        """Add an entry to the state and to the file."""
        state.history.append(entry)
        if self.folder is not None:
            # A full disk does not end a training: the whole file is written again after the last step.
            with suppress(OSError), (self.folder / HISTORY_NAME).open("a", encoding="utf-8") as opened:
                opened.write(line_of(entry))


class Sessions(Callback):
    """Writes a line to sessions.jsonl before the first step of this process and after its last.

    The times are not in history.jsonl: a run that is repeated or resumed writes the same history.

    Args:
        folder: The folder of the run.
        max_steps: The number of steps of the whole training.
    """

    reads_weights = False

    def __init__(self, folder: Path, max_steps: int) -> None:
        self.folder, self.max_steps = folder, max_steps

    def on_fit_start(self, state: State) -> None:
        """Note a start or a resume."""
        note_moment(self.folder, RESUME if state.step else START, state.step, self.max_steps)

    def on_fit_end(self, state: State) -> None:
        """Note a stop by a signal, or the end."""
        note_moment(self.folder, STOP if state.signal else END, state.step, self.max_steps)


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


class PauseAt(Callback):
    """Interrupts a run after a step, with a checkpoint, as a signal would. A resumed run ends as if it had not been.

    Args:
        step: The step to stop after. The last step of a run ends it as always.
    """

    reads_weights = False

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Ask for the pause.

        Args:
            state: Where training stands.
            batches: The batches of the step.
        """
        if state.step == self.step:
            state.asked_to_stop = state.asked_to_stop or PAUSE
