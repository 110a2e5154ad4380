"""Callbacks written for transformers' Trainer: called with its arguments at its events; what they ask for is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import Batch
from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.run_folder.history import Entry
from glassloop.run_folder.record import Plan
from glassloop.training.setup import DEFAULT_DIR
from glassloop.training.trainer_state import best_checkpoint, log_history

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState

ASKED_TO_STOP = "a callback asked to stop"
ASKED = {"should_log": "log", "should_evaluate": "evaluate", "should_save": "save"}


def is_for_transformers(callback: object) -> bool:
    """Return whether a callback, or a class of callbacks, is written for transformers' Trainer."""
    kind = callback if isinstance(callback, type) else type(callback)
    return any(parent.__name__ == "TrainerCallback" for parent in kind.__mro__)


def overrides_event(kind: type, event: str) -> bool:
    """Return whether a class of callbacks has its own version of an event."""
    own = next((parent for parent in kind.__mro__ if event in vars(parent)), None)
    return own is not None and own.__name__ != "TrainerCallback"


class TrainerCallbacks(Callback):
    """Calls transformers' callbacks at the events of the loop, and passes on what their control asks for.

    Args:
        callbacks: The callbacks.
        args: The settings, which each callback gets.
        parts: Returns what callbacks get by name: model, optimizer, lr_scheduler, processing_class.
        plan: Returns the plan of the training.
    """

    def __init__(
        self,
        callbacks: Sequence[TrainerCallback],
        args: TrainingArguments,
        parts: Callable[[], dict[str, object]],
        plan: Callable[[], Plan],
    ) -> None:
        from transformers import TrainerControl, TrainerState

        self.callbacks, self.args, self.parts, self.plan = callbacks, args, parts, plan
        self.control: TrainerControl = TrainerControl()
        self.seen: TrainerState = TrainerState()
        self.reads_weights = any(not type(one).__module__.startswith("transformers.") for one in callbacks)

    def tell(self, event: str, state: State | None, **facts: object) -> None:
        """Call a method of every callback, and note what their control asks for."""
        self.seen.best_model_checkpoint = best_checkpoint(self.folder, self.seen.best_global_step)
        for callback in self.callbacks:
            # a callback may return a control of its own
            found = getattr(callback, event)(self.args, self.seen, self.control, **self.parts(), **facts)
            self.control = self.control if found is None else found
        if state is None:
            return
        if self.control.should_epoch_stop:
            self.control.should_epoch_stop = False
            state.epoch_ends = event != "on_epoch_end"  # then it ends anyway
        if self.control.should_training_stop and not state.stop_reason:
            state.stop_reason = ASKED_TO_STOP
        for flag, wanted in ASKED.items():
            if getattr(self.control, flag):
                setattr(self.control, flag, False)
                state.asked.add(wanted)

    def update(self, state: State) -> None:
        """Bring what callbacks see of the state up to date."""
        plan = self.plan()
        self.seen.global_step = state.step
        self.seen.epoch = state.epoch + state.batch / plan.batches_per_epoch
        self.seen.log_history = log_history(state.history)
        self.seen.max_steps, self.seen.num_train_epochs = plan.max_steps, -(-plan.max_steps // plan.steps_per_epoch)
        self.seen.logging_steps, self.seen.eval_steps, self.seen.save_steps = plan.log_every, plan.eval_every, plan.save_every
        self.seen.train_batch_size = self.args.per_device_train_batch_size

    def on_fit_start(self, state: State) -> None:
        """Call on_train_begin. Early stopping of a resumed run counts the evaluations it has missed."""
        self.update(state)
        self.control.should_training_stop = False
        if state.stop_reason == ASKED_TO_STOP:  # of the run that is resumed
            state.stop_reason = None
        self.tell("on_train_begin", state)
        for entry in state.history:
            self.judge(entry, state.step, replayed=True)

    def on_epoch_start(self, state: State) -> None:
        """Call on_epoch_begin."""
        self.update(state)
        self.tell("on_epoch_begin", state)

    def on_step_start(self, state: State) -> None:
        """Call on_step_begin."""
        self.tell("on_step_begin", state)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Call the events of a step, in the order of transformers."""
        self.update(state)
        for _ in batches[1:]:
            self.tell("on_substep_end", state)
        for event in ("on_pre_optimizer_step", "on_optimizer_step", "on_step_end"):
            self.tell(event, state)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Call on_log with the latest entry of the history."""
        self.update(state)
        self.tell("on_log", state, logs={name: value for name, value in state.history[-1].items() if name != "step"})

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Call on_log and on_evaluate, with the best score before this evaluation, as transformers does."""
        self.update(state)
        self.tell("on_log", state, logs={**metrics, "epoch": self.seen.epoch})
        self.tell("on_evaluate", state, metrics=metrics)
        self.judge(metrics, state.step)

    def judge(self, metrics: Entry | dict[str, float], step: int, *, replayed: bool = False) -> None:
        """Take over the score of an evaluation if it is the best one so far."""
        plan = self.plan()
        score = metrics.get(plan.best_metric)
        if not isinstance(score, int | float):
            return
        for callback in self.callbacks if replayed else ():
            if hasattr(callback, "early_stopping_patience_counter"):
                callback.check_metric_value(self.args, self.seen, self.control, score)
        best = self.seen.best_metric
        if best is None or (score > best if plan.greater_is_better else score < best):
            at = metrics.get("step", step)
            self.seen.best_metric, self.seen.best_global_step = score, at

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return Path(self.args.output_dir or DEFAULT_DIR)

    @property
    def reads_checkpoints(self) -> bool:
        """Whether a callback may read a checkpoint, or add files to it, as soon as it is saved."""
        return any(overrides_event(type(one), "on_save") for one in self.callbacks)

    def on_save(self, state: State) -> None:
        """Call on_save."""
        self.update(state)
        self.tell("on_save", state)

    def on_epoch_end(self, state: State) -> None:
        """Call on_epoch_end."""
        self.update(state)
        self.tell("on_epoch_end", state)

    def on_fit_end(self, state: State) -> None:
        """Call on_epoch_end if a training stops within an epoch. The Trainer calls on_train_end, after the last log."""
        self.update(state)
        if state.batch:
            self.tell("on_epoch_end", None)
