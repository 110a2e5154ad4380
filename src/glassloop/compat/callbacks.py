"""Callbacks written for transformers' Trainer, and the state they see under the names of `TrainerState`."""

from __future__ import annotations

import dis
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Protocol

from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl
from transformers import TrainerState as TheirState
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from glassloop.base.files import write_text
from glassloop.base.output import show
from glassloop.data.batches import Batch
from glassloop.runs.history import Entry, lasting
from glassloop.runs.record import Plan, checkpoint_name
from glassloop.settings.training import TrainingArguments
from glassloop.training.callbacks import Callback, State
from glassloop.training.session import log_history


def overrides(trainer: object, base: type, name: str) -> bool:
    """Return whether a Trainer has its own version of a method, by a subclass or by an assignment."""
    own = getattr(type(trainer), name, None) is not getattr(base, name, None)
    return own or name in vars(trainer)


class TrainerState(TheirState):  # type: ignore[misc]
    """The state of a training, as scripts and callbacks for transformers read it.

    Names that transformers does not have, such as `step` and `history`, are those of the loop's own state.

    Attributes:
        loop: The state of the loop.
    """

    loop: State
    global_step: int
    epoch: float
    history: list[Entry]
    log_history: list[dict[str, object]]
    best_metric: float | None
    best_global_step: int | None
    save_to_json: Callable[[str], None]
    taken = 0  # how many entries of the loop's history `log_history` has

    @classmethod
    def of(cls, loop: State) -> TrainerState:
        """Return the state of a training that the loop is about to begin."""
        made = cls(is_local_process_zero=True, is_world_process_zero=True, total_flos=0.0, epoch=0.0)
        made.loop = loop
        return made

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or "loop" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loop, name)

    def follow(self, plan: Plan | None, batch_size: int) -> TrainerState:
        """Bring everything up to date that the loop has changed, and return the state."""
        loop = self.loop
        if plan is not None:
            if loop.step != self.global_step or not self.epoch:  # an epoch that is cut short counts when the next one begins
                self.epoch = loop.epoch + loop.batch / plan.batches_per_epoch
            self.max_steps, self.num_train_epochs = plan.max_steps, -(-plan.max_steps // plan.steps_per_epoch)
            self.logging_steps, self.eval_steps, self.save_steps = plan.log_every, plan.eval_every, plan.save_every
        self.global_step, self.train_batch_size = loop.step, batch_size
        for entry in log_history(loop.history[self.taken :]):  # a script may have added entries of its own
            self.log_history.append({**entry, "epoch": self.epoch} if entry["step"] == loop.step else entry)
        self.taken = len(loop.history)
        return self

    def omit_latest(self) -> None:
        """Remove the latest entry of `log_history`: transformers would not have logged it."""
        if self.log_history:
            self.log_history.pop()

    def add(self, logs: Mapping[str, object]) -> None:
        """Add an entry of a script itself. The history leaves out what differs between repeated runs, or is not a number."""
        loop = self.loop
        loop.own_entries.append(len(loop.history))
        loop.history.append({"step": loop.step, **lasting(logs), "epoch": round(self.epoch, 4)})
        self.taken = len(loop.history)
        self.log_history.append({**logs, "step": loop.step})

    def split_latest(self, parts: Sequence[dict[str, float]]) -> Iterator[dict[str, float]]:
        """Yield the evaluation of each data set, each with an entry in `log_history` instead of the latest one for them all."""
        entry, names = self.log_history.pop(), {name for part in parts for name in part}
        added = {name: value for name, value in entry.items() if name not in names}  # by a script's own `log`, and the step
        for part in parts:
            self.log_history.append({**part, **added})
            yield part

    def add_to_latest(self, logs: Mapping[str, float], *, of_loop: bool) -> None:
        """Add to the latest entry what a script's own `log` has added."""
        if of_loop:
            self.loop.history[-1].update(lasting(logs))
        if self.log_history:
            self.log_history[-1].update(logs)


def show_metrics(split: str, metrics: Mapping[str, float]) -> None:
    """Print metrics as transformers' `log_metrics` does: a line for each, in the order of their names."""
    show(f"***** {split} metrics *****")
    width = max((len(name) for name in metrics), default=0)
    for name in sorted(metrics):
        value = metrics[name]
        show(f"  {name:<{width}} = {round(value, 4) if isinstance(value, float) else value!s:>10}")


def write_metrics(folder: Path, split: str, metrics: Mapping[str, float], *, combined: bool) -> None:
    """Write metrics to SPLIT_results.json and, if `combined`, add them to all_results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{split}_results.json", json.dumps(dict(metrics), indent=4, sort_keys=True) + "\n")
    if combined:
        path = folder / "all_results.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        write_text(path, json.dumps({**known, **metrics}, indent=4, sort_keys=True) + "\n")


class Logging(Protocol):
    """A Trainer whose `log` a script overrides."""

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the latest evaluation for each data set."""

    def _report(self, logs: dict[str, float]) -> None:
        """Call `log` with an entry that the history has already."""


class Logged(Callback):
    """Calls an overridden `log` of a Trainer with every entry of its history."""

    reads_weights = False

    def __init__(self, trainer: Logging) -> None:
        self.trainer = trainer

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Report a logged step, unless only Glassloop logs it."""
        if self.trainer.control.should_log:
            entry = {name: value for name, value in state.history[-1].items() if name not in ("step", "epoch")}
            self.trainer._report(entry)  # type: ignore[arg-type]  # numbers only

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report the evaluation of each data set."""
        for part in self.trainer._evaluated_parts(metrics):
            self.trainer._report(dict(part))


ASKED_TO_STOP = "a callback asked to stop"


ASKED = {"should_log": "log", "should_evaluate": "evaluate", "should_save": "save"}


UPDATES = ("on_pre_optimizer_step", "on_optimizer_step")  # events at which gradients can be read


SHOWS = (ProgressCallback, PrinterCallback)


class Watched(Protocol):
    """What callbacks see of a Trainer."""

    args: TrainingArguments

    @property
    def state(self) -> TrainerState: ...
    @property
    def callback_handler(self) -> CallbackHandler: ...
    def _current_plan(self) -> Plan: ...
    def _callback_parts(self) -> dict[str, object]: ...
    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]: ...


def is_for_transformers(callback: object) -> bool:
    """Return whether a callback, or a class of callbacks, is written for transformers' Trainer."""
    kind = callback if isinstance(callback, type) else type(callback)
    return any(parent.__name__ == "TrainerCallback" for parent in kind.__mro__)


def silent(kind: type[TrainerCallback]) -> type[TrainerCallback]:
    """Return a class of the same name whose events do nothing: it stands for what Glassloop shows itself."""
    events = {name: value for name, value in vars(TrainerCallback).items() if name.startswith("on_")}
    return type(kind.__name__, (kind,), {**events, "__module__": __name__})


OWN_PROGRESS, OWN_PRINTER = silent(ProgressCallback), silent(PrinterCallback)


def make_handler(callbacks: Sequence[TrainerCallback | type], *, prints_lines: bool) -> CallbackHandler:
    """Return transformers' list of callbacks: its default one, those of a script, and one for Glassloop's progress display."""
    handler = CallbackHandler([DefaultFlowCallback, *callbacks], None, None, None, None)
    handler.add_callback(OWN_PRINTER if prints_lines else OWN_PROGRESS)
    return handler


class TrainerCallbacks(Callback):
    """Calls transformers' callbacks at the events of the loop, and passes on what their control asks for.

    Args:
        trainer: The Trainer whose callbacks, settings and state these are.
    """

    def __init__(self, trainer: Watched) -> None:
        self.trainer, self.control = trainer, TrainerControl()
        self.told_update = False  # the events of this step's update

    @property
    def reads_weights(self) -> bool:  # type: ignore[override]
        """Whether a callback of a script may read the weights between two steps."""
        known = ("transformers.", "glassloop.")
        return any(not type(one).__module__.startswith(known) for one in self.trainer.callback_handler.callbacks)

    @property
    def reads_checkpoints(self) -> bool:
        """Whether a callback may read a checkpoint, or add files to it, as soon as it is saved."""
        return any(overrides(one, TrainerCallback, "on_save") for one in self.trainer.callback_handler.callbacks)

    @property
    def gradient_readers(self) -> list[str]:
        """The events of callbacks that may read or change gradients, with the name of the class."""
        known = self.trainer.callback_handler.callbacks
        return [f"{type(one).__name__}.{name}" for one in known for name in UPDATES if overrides(one, TrainerCallback, name)]

    def tell(self, event: str, loop: State | None, **facts: object) -> None:
        """Call a method of every callback, and note what their control asks for."""
        handler, state = self.trainer.callback_handler, self.trainer.state
        vars(handler).update(self.trainer._callback_parts())
        before = {flag: getattr(self.control, flag) for flag in ASKED}
        self.control = getattr(handler, event)(self.trainer.args, state, self.control, **facts) or self.control
        if loop is None:
            return
        # As with transformers, a callback that evaluates in on_log, for example, takes the place of the evaluation to come.
        loop.asked -= {wanted for flag, wanted in ASKED.items() if before[flag] and not getattr(self.control, flag)}
        if self.control.should_epoch_stop:
            self.control.should_epoch_stop = False
            loop.epoch_ends = event != "on_epoch_end"  # then it ends anyway
        if self.control.should_training_stop and not loop.stop_reason and loop.step < self.trainer._current_plan().max_steps:
            loop.stop_reason = ASKED_TO_STOP
        loop.asked |= {wanted for flag, wanted in ASKED.items() if getattr(self.control, flag)}

    def on_fit_start(self, state: State) -> None:
        """Call on_train_begin. Early stopping of a resumed run counts the evaluations it has missed."""
        if state.stop_reason == ASKED_TO_STOP:  # of the run that is resumed
            state.stop_reason = None
        self.tell("on_train_begin", state)
        for place, entry in enumerate(state.history):
            if place not in state.own_entries:
                self.judge(entry, state.step, replayed=True)

    def on_epoch_start(self, state: State) -> None:
        """Call on_epoch_begin."""
        self.tell("on_epoch_begin", state)

    def on_step_start(self, state: State) -> None:
        """Call on_step_begin."""
        self.tell("on_step_begin", state)

    def before_update(self, group: Sequence[object]) -> None:
        """Call on_pre_optimizer_step within a step, when gradients are clipped and the weights have not changed yet."""
        loop = self.trainer.state.loop
        for _ in group[1:]:
            self.tell("on_substep_end", loop)
        self.tell("on_pre_optimizer_step", loop)

    def after_update(self) -> None:
        """Call on_optimizer_step within a step, when the weights have changed and gradients are not cleared yet."""
        self.tell("on_optimizer_step", self.trainer.state.loop)
        self.told_update = True

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Call the events of a step, in the order of transformers."""
        if not self.told_update:  # no callback has use for gradients
            self.before_update(batches)
            self.after_update()
        self.told_update = False
        self.tell("on_step_end", state)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Call on_log with the latest entry of the history, unless it is one that only Glassloop writes."""
        if not self.control.should_log:
            self.trainer.state.omit_latest()
            return
        self.tell("on_log", state, logs={name: value for name, value in state.history[-1].items() if name != "step"})

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Call on_log and on_evaluate for each data set, with the best score before this evaluation, as transformers does."""
        parts = [{**part, "epoch": self.trainer.state.epoch} for part in self.trainer._evaluated_parts(metrics)]
        for part in self.trainer.state.split_latest(parts):
            self.tell("on_log", state, logs=part)
            self.tell("on_evaluate", state, metrics=part)
        self.judge(metrics, state.step)

    def judge(self, metrics: Entry | dict[str, float], step: int, *, replayed: bool = False) -> None:
        """Take over the score of an evaluation if it is the best one so far."""
        plan, state = self.trainer._current_plan(), self.trainer.state
        score = metrics.get(plan.best_metric)
        if not plan.needs_best or not isinstance(score, int | float):
            return
        for callback in self.trainer.callback_handler.callbacks if replayed else ():
            if hasattr(callback, "early_stopping_patience_counter"):
                callback.check_metric_value(self.trainer.args, state, self.control, score)
        if state.best_metric is None:  # as in transformers: NaN is never the best, and early stopping counts it
            state.best_metric = -math.inf if plan.greater_is_better else math.inf
        if score > state.best_metric if plan.greater_is_better else score < state.best_metric:
            state.best_metric, state.best_global_step = score, int(str(metrics.get("step", step)))

    def on_save(self, state: State) -> None:
        """Call on_save."""
        seen = self.trainer.state
        if seen.best_global_step is not None:
            best = Path(str(self.trainer.args.output_dir), checkpoint_name(seen.best_global_step))
            is_saved = seen.best_global_step == state.step or best.is_dir()
            seen.best_model_checkpoint = str(best) if is_saved else seen.best_model_checkpoint
        self.tell("on_save", state)

    def on_epoch_end(self, state: State) -> None:
        """Call on_epoch_end."""
        self.tell("on_epoch_end", state)

    def on_fit_end(self, state: State) -> None:
        """Call on_epoch_end if a training stops within an epoch. The Trainer calls on_train_end, after the last log."""
        if state.batch:
            self.tell("on_epoch_end", None)


def freezes_weights(callback: TrainerCallback) -> bool:
    """Return whether a method of a callback assigns `requires_grad`: a fast optimizer works with a fixed set of weights."""
    values = (value for kind in type(callback).__mro__ for value in vars(kind).values() if inspect.isfunction(value))
    codes = [inspect.unwrap(value).__code__ for value in values]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        if any(part.opname == "STORE_ATTR" and part.argval == "requires_grad" for part in dis.get_instructions(code)):
            return True
    return any("requires_grad_" in code.co_names for code in codes)
