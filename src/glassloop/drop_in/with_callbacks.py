"""The callbacks of a Trainer, and the state that they see: those of Glassloop, and those written for transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from glassloop.drop_in.callbacks import SHOWS, TrainerCallbacks, is_for_transformers, make_handler
from glassloop.drop_in.state import TrainerState
from glassloop.engine.callbacks import Callback, checked_callbacks
from glassloop.engine.interfaces import LRScheduler, Optimizer
from glassloop.engine.state import State
from glassloop.run_folder.record import Plan
from glassloop.trainer import Trainer as OwnTrainer


class WithCallbacks(OwnTrainer):
    """A Trainer whose callbacks may be added and removed.

    Attributes:
        optimizer: The optimizer of the current or last training; None before the first one.
        lr_scheduler: Its learning rate schedule.
        callback_handler: The callbacks for transformers, as a list of transformers.
    """

    optimizer: Optimizer | None = None
    lr_scheduler: LRScheduler | None = None
    callback_handler: CallbackHandler
    _adapted: TrainerCallbacks | None = None
    _plan: Plan | None = None
    _seen: TrainerState
    _train_loader: DataLoader[object] | None = None  # what callbacks get as the batches of the training
    _latest_loader: DataLoader[object] | None = None  # and as those of the latest evaluation
    _loop_found: list[dict[str, float]] | None = None  # what an evaluation of the loop has found so far, per data set
    _loop_parts: Sequence[dict[str, float]] = ()  # of the latest one

    @property
    def state(self) -> TrainerState:
        """Where the training stands, as callbacks see it, too."""
        return self._seen.follow(self._plan, self.args.per_device_train_batch_size)

    @state.setter
    def state(self, given: State | TrainerState) -> None:
        self._seen = given if isinstance(given, TrainerState) else TrainerState.of(given)

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""
        return TrainerControl() if self._adapted is None else self._adapted.control

    @contextmanager
    def _within(self, **facts: object) -> Iterator[None]:
        """Set internal attributes while a block runs."""
        before = {name: getattr(self, name) for name in facts}
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(before)

    def _current_plan(self) -> Plan:
        """Return the plan of the training, or of the one that would start now."""
        if self._plan is None:
            self._plan = self._make_plan(self._batches(self.train_dataset, training=True))
        return self._plan

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the user; those of transformers as one."""
        return [*self._own_callbacks, *([self._adapted] if self._adapted is not None else [])]

    @callbacks.setter
    def callbacks(self, given: Sequence[Callback | TrainerCallback | type] | None) -> None:
        if given is not None and any(isinstance(one, TrainerCallbacks) for one in given):
            return  # the list as it is
        given = given or ()
        self._own_callbacks = checked_callbacks([one for one in given if not is_for_transformers(one)])
        foreign = [one for one in given if is_for_transformers(one)]
        self.callback_handler = make_handler(foreign, prints_lines=self.args.disable_tqdm)
        self._adapted = TrainerCallbacks(self)

    def _has_flow(self) -> bool:
        """Return whether transformers' `DefaultFlowCallback` asks for log entries, evaluations and checkpoints."""
        return any(isinstance(one, DefaultFlowCallback) for one in self.callback_handler.callbacks)

    def _shows_progress(self) -> bool:
        """Return whether a script has left the callback in the list that stands for the progress display."""
        return any(isinstance(one, SHOWS) for one in self.callback_handler.callbacks)

    def _callback_parts(self) -> dict[str, object]:
        """Return what each callback of transformers gets by name."""
        named = {name: getattr(self, name, None) for name in ("model", "processing_class", "optimizer", "lr_scheduler")}
        return {**named, "train_dataloader": self._train_loader, "eval_dataloader": self._latest_loader}

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the loop's latest evaluation for each data set. What a script added belongs to the last."""
        *others, last = self._loop_parts or [metrics]
        return [*others, {**last, **{name: value for name, value in metrics.items() if not any(name in one for one in others)}}]

    def _tell(self, event: str, **facts: object) -> None:
        """Call a method of the callbacks of transformers outside a training."""
        if self._adapted is not None:
            self._adapted.tell(event, None, **facts)

    def add_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Add a callback.

        Args:
            callback: A callback or its class.
        """
        if is_for_transformers(callback):
            self.callback_handler.add_callback(callback)
        else:
            self._own_callbacks += checked_callbacks([callback])

    def pop_callback(self, callback: Callback | TrainerCallback | type) -> Callback | TrainerCallback | None:
        """Remove a callback and return it; return None if the Trainer does not have it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        found = next((one for one in self._own_callbacks if callback in (one, type(one))), None)
        if found is None:
            return self.callback_handler.pop_callback(callback)
        self._own_callbacks = [one for one in self._own_callbacks if one is not found]
        return found

    def remove_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Remove a callback, if the Trainer has it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        self.pop_callback(callback)
