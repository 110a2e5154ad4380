"""Where a run stands, the signals that stop it, and the callbacks of its events: history and trackers."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from glassloop.base.errors import SettingsError, listed
from glassloop.base.records import described, entry, package_version
from glassloop.runs.history import END, RESUME, START, STOP, Entry, lasting, line_of, note_moment, write_history
from glassloop.runs.record import HISTORY_NAME, Plan

# Every command loads this module before its first line, so it imports neither torch nor numpy.
if TYPE_CHECKING:
    from glassloop.data.batches import Batch

MOST_STEPS_WITHOUT_GRADIENT = 20  # fp16's scaler skips a few steps until it has found its factor, but never this many
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSE = signal.SIGUSR1  # what `PauseAt` asks for in place of a signal


# --- state -------------------------------------------------------------------------------------------------------------
class NotFiniteError(FloatingPointError):
    """A loss, gradient or weight that is not finite. Its arguments are a sentence and the number of the step."""


@described
@dataclass
class State:
    """Where a run stands."""

    step: int = entry(0, "The number of weight updates.")
    epoch: int = entry(0, "The number of finished epochs.")
    batch: int = entry(0, "The number of batches of this epoch that were trained on.")
    loss_sum: float = entry(0.0, "The sum of the losses of all steps.")
    losses_read: int = entry(0, "The number of losses in this sum.")
    last_loss: float | None = entry(None, "The latest loss.")
    best_score: float | None = entry(None, "The best value of the plan's metric.")
    best_step: int | None = entry(None, "The step of that evaluation.")
    evaluations_without_gain: int = entry(0, "The number of evaluations since then.")
    steps_without_gradient: int = entry(0, "The number of latest steps with a gradient of zero; in fp16, it overflowed.")
    stop_reason: str | None = entry(None, "Why to stop after this step; a callback may set it.")
    epoch_ends: bool = entry(False, "Whether to end this epoch after this step; a callback may set it.")
    steps_left_out: int = entry(0, "The number of steps that were left out at the end of such epochs.")
    evaluation_due: bool = entry(False, "Whether an evaluation was interrupted and is to be repeated.")
    unlogged: list[list[float]] = field(default_factory=list, metadata={"help": "Loss and norm of steps not logged yet."})
    history: list[Entry] = field(default_factory=list, metadata={"help": "The entries of history.jsonl."})
    own_entries: list[int] = field(default_factory=list, metadata={"help": "Places in `history` of a script's own entries."})
    asked: set[str] = field(default_factory=set, metadata={"help": "What callbacks ask for: `log`, `evaluate` or `save`."})
    asked_to_stop: int = entry(0, "The signal that this process received, or 0.")
    signal: int = entry(0, "The signal that all processes act on, or 0.")

    def read(self, figures: list[list[float]]) -> None:
        """Take loss and gradient norm of the latest steps, the `figures`; raise `NotFiniteError` if the training diverged."""
        for step, (loss, norm) in enumerate(figures, self.step - len(figures) + 1):
            self.steps_without_gradient = self.steps_without_gradient + 1 if norm == 0 < loss else 0
            problem = None
            if not math.isfinite(loss):
                problem = f"the loss is {loss}"
            elif not math.isfinite(norm):
                problem = f"the gradient norm is {norm}"
            elif self.steps_without_gradient == MOST_STEPS_WITHOUT_GRADIENT:
                problem = f"the gradient overflowed or was zero for {MOST_STEPS_WITHOUT_GRADIENT} steps"
            if problem:
                raise NotFiniteError(f"step {step:,}: {problem}", step)
            self.loss_sum += loss
            self.losses_read += 1
            self.last_loss = loss
        self.unlogged += figures

    @property
    def mean_loss(self) -> float:
        """Return the mean loss of all steps read so far."""
        return self.loss_sum / self.losses_read if self.losses_read else 0.0

    def judge(self, metrics: dict[str, float], plan: Plan) -> None:
        """Compare the `metrics` of an evaluation with the best; set `stop_reason` if the patience of the `plan` has run out."""
        score = metrics.get(plan.best_metric)
        if score is None and not plan.needs_best:
            return
        if score is None:
            remedy = "choose one of these; without labels there is no loss"
            if plan.best_metric == "eval_f1" and "eval_f1_macro" in metrics:
                remedy = "set positive_label to the class whose F1 counts, or use f1_macro"
            problem = f"metric_for_best_model is {plan.best_metric}, but an evaluation computes {listed(metrics)}"
            raise SettingsError(problem, remedy)
        gain = math.inf if self.best_score is None else (score - self.best_score) * (1 if plan.greater_is_better else -1)
        if gain > plan.least_gain and not math.isnan(score):
            self.best_score, self.best_step, self.evaluations_without_gain = score, self.step, 0
            return
        self.evaluations_without_gain += 1
        if plan.patience is not None and self.evaluations_without_gain >= plan.patience:
            self.stop_reason = f"{plan.best_metric} did not improve in {plan.patience} evaluations"

    def epoch_by(self, plan: Plan) -> float:
        """Return the epoch as a number with a fraction. The `plan` knows the batches of an epoch."""
        return round(self.epoch + self.batch / plan.batches_per_epoch, 4)

    def to_dict(self) -> dict[str, object]:
        """Return everything that a checkpoint has to hold."""
        return {name: value for name, value in asdict(self).items() if name not in ("asked", "asked_to_stop", "signal")}


# --- signals: a run acts on the first one between two steps, and a second one ends the process at once -----------------
class Paused(SystemExit):
    """A run was interrupted at the step that was asked for. Its checkpoint is written."""


@contextmanager
def handled_by(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with each signal that asks to stop while the block runs. Only the main thread gets signals."""

    def handle(number: int, frame: FrameType | None) -> None:
        act(number)
        for descriptor in (1, 2) if number == signal.SIGHUP else ():
            try:
                os.write(descriptor, b"")
            except OSError:  # the terminal was closed, and writing to it would end the run
                with suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, descriptor)
                    os.close(nowhere)

    in_main_thread = threading.current_thread() is threading.main_thread()
    ignored = signal.SIGHUP if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else None  # on purpose, as under nohup
    wanted = [number for number in STOPPING if in_main_thread and number != ignored]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listening(state: State) -> AbstractContextManager[None]:
    """Store the first signal in `state.asked_to_stop` while the block runs; let a second one end the process at once."""

    def ask(number: int) -> None:
        if state.asked_to_stop:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        state.asked_to_stop = number

    return handled_by(ask)


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list of the signals that arrive while the block runs, for a caller that passes them on to other processes."""
    received: list[int] = []
    with handled_by(received.append):
        yield received


def leave(number: int) -> NoReturn:
    """End the process as the signal asks, with exit status 128 + number. A pause only raises `Paused`."""
    if number == PAUSE:
        raise Paused
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def leave_on_signal() -> None:
    """Exit in an orderly way on SIGTERM and SIGHUP, so that no partly written files stay. A training saves first instead."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: sys.exit(128 + number))


# --- callbacks ---------------------------------------------------------------------------------------------------------
class Callback:
    """The base class of callbacks; override the events you need. Each gets the `state`: where training stands.

    Attributes:
        reads_weights: Whether the callback may read the model's weights. Set it to False if it never does: a backend that
            stores weights elsewhere during training then need not copy them into the model after every step.
    """

    reads_weights = True

    def on_fit_start(self, state: State) -> None:
        """Act before the first step, with the `state` of the run."""

    def on_epoch_start(self, state: State) -> None:
        """Act before the first step of an epoch, or before the next one of a resumed epoch, with the `state` of the run."""

    def on_step_start(self, state: State) -> None:
        """Act before every step, with the `state` of the run."""

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
        """Act after an evaluation, with the `state` of the run and the `metrics` by name."""

    def on_save(self, state: State) -> None:
        """Act after a checkpoint was handed to the thread that writes it, with the `state` of the run."""

    def on_epoch_end(self, state: State) -> None:
        """Act after the last step of an epoch, with the `state` of the run."""

    def on_fit_end(self, state: State) -> None:
        """Act after the last step, with the `state` of the run."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def checked_callbacks(callbacks: Sequence[Callback | type[Callback]] | None) -> list[Callback]:
    """Return the callbacks, classes among them as instances. Raises `SettingsError` if one would never be called."""
    ready = [callback() if isinstance(callback, type) else callback for callback in callbacks or []]
    for callback in ready:
        name, remedy = type(callback).__name__, "make it a subclass of glassloop.Callback"
        if unknown := [event for event in dir(callback) if event.startswith("on_") and event not in EVENTS]:
            problem = f"{name} has {listed(unknown)}, which is not a Glassloop event"
            raise SettingsError(problem, f"the events are {listed(EVENTS)}; {remedy}")
        if missing := [event for event in EVENTS if not hasattr(callback, event)]:
            raise SettingsError(f"{name} has no {missing[0]}", remedy)
    return ready


class History(Callback):
    """Adds logged steps and evaluations to `state.history` and to history.jsonl in `folder`; notes start and end there."""

    def __init__(self, folder: Path | None, learning_rate: Callable[[], float], plan: Plan) -> None:
        self.folder, self.learning_rate, self.plan = folder, learning_rate, plan

    def on_fit_start(self, state: State) -> None:
        self.used = self.next = self.learning_rate()
        if self.folder is not None:
            write_history(self.folder, state.history)  # of a resumed run, without steps after its checkpoint
            note_moment(self.folder, RESUME if state.step else START, state.step, self.plan.max_steps)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        # The rate that the step used: the schedule is already at the next one.
        self.used, self.next = self.next, self.learning_rate()

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        losses = [loss for loss, _ in figures]
        self.record(state, {"loss": sum(losses) / len(losses), "grad_norm": figures[-1][1], "learning_rate": self.used})

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.record(state, lasting(metrics))

    def on_fit_end(self, state: State) -> None:
        if self.folder is not None:
            note_moment(self.folder, STOP if state.signal else END, state.step, self.plan.max_steps)

    def record(self, state: State, figures: Entry) -> None:
        entry: Entry = {"step": state.step, "epoch": state.epoch_by(self.plan), **figures}
        state.history.append(entry)
        if self.folder is not None:
            # A full disk does not end a training: the whole file is written again after the last step.
            with suppress(OSError), (self.folder / HISTORY_NAME).open("a", encoding="utf-8") as opened:
                opened.write(line_of(entry))


def refuse_missing(names: tuple[str, ...]) -> None:
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
        numbers_and_names = {key: value for key, value in settings.items() if isinstance(value, int | float | str | bool)}
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            options = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
            if name == "wandb" and "WANDB_DIR" not in os.environ:
                options["dir"] = str(folder)  # else wandb writes to the current directory
            try:
                tracker = kind(run_name.replace("/", "-").replace("\\", "-"), **options)  # some use it as a folder's name
                tracker.start()
            except ImportError as error:
                problem = f"report_to lists {name}, which cannot be imported: {error}"
                raise SettingsError(problem, f"pip install {name}") from error
            tracker.store_init_configuration(numbers_and_names)
            self.trackers.append(tracker)

    def on_fit_start(self, state: State) -> None:
        self.reported = len(state.history)  # without the entries of the run that is resumed

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        self.report(state)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.report(state)

    def on_fit_end(self, state: State) -> None:
        self.report(state)
        for tracker in self.trackers:
            tracker.finish()

    def report(self, state: State) -> None:
        """Report the new entries of the history: callbacks of a script may have added some, too."""
        for line in state.history[self.reported :]:
            figures = {name: value for name, value in line.items() if name != "step"}
            for tracker in self.trackers:
                tracker.log(figures, step=line["step"])
        self.reported = len(state.history)


class PauseAt(Callback):
    """Interrupts a run after a step, with a checkpoint, as a signal would. A resumed run ends as if it had not been."""

    reads_weights = False

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: State, batches: list[Batch]) -> None:
        if state.step == self.step:
            state.asked_to_stop = state.asked_to_stop or PAUSE
