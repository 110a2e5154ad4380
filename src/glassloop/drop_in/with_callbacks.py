"""The callbacks of a Trainer: those of Glassloop, and those written for transformers' Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassloop.drop_in.callbacks import TrainerCallbacks, is_for_transformers
from glassloop.engine.callbacks import Callback, checked_callbacks
from glassloop.engine.interfaces import LRScheduler, Optimizer
from glassloop.run_folder.record import Plan
from glassloop.trainer import Trainer as OwnTrainer

if TYPE_CHECKING:
    from transformers import TrainerCallback


class WithCallbacks(OwnTrainer):
    """A Trainer whose callbacks may be added and removed.

    Attributes:
        optimizer: The optimizer of the current or last training; None before the first one.
        lr_scheduler: Its learning rate schedule.
    """

    optimizer: Optimizer | None = None
    lr_scheduler: LRScheduler | None = None
    _adapted: TrainerCallbacks | None = None
    _plan: Plan | None = None

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
        made = [one() if isinstance(one, type) else one for one in given or ()]
        self._own_callbacks = checked_callbacks([one for one in made if not is_for_transformers(one)])
        self._foreign_callbacks = [one for one in made if is_for_transformers(one)]
        self._adapt()

    def _adapt(self) -> None:
        """Make the object that calls the callbacks of transformers."""
        adapted = TrainerCallbacks(self._foreign_callbacks, self.args, self._callback_parts, self._current_plan)
        self._adapted = adapted if self._foreign_callbacks else None

    def _callback_parts(self) -> dict[str, object]:
        """Return what each callback of transformers gets by name."""
        names = ("model", "processing_class", "optimizer", "lr_scheduler")
        return {**{name: getattr(self, name, None) for name in names}, "train_dataloader": None, "eval_dataloader": None}

    def _tell(self, event: str, **facts: object) -> None:
        """Call a method of the callbacks of transformers outside a training."""
        if self._adapted is not None:
            self._adapted.tell(event, None, **facts)

    def add_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Add a callback.

        Args:
            callback: A callback or its class.
        """
        self.callbacks = [*self._own_callbacks, *self._foreign_callbacks, callback]

    def pop_callback(self, callback: Callback | TrainerCallback | type) -> Callback | TrainerCallback | None:
        """Remove a callback and return it; return None if the Trainer does not have it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        every: list[Callback | TrainerCallback] = [*self._own_callbacks, *self._foreign_callbacks]
        found = next((one for one in every if callback in (one, type(one))), None)
        if found is not None:
            self.callbacks = [one for one in every if one is not found]
        return found

    def remove_callback(self, callback: Callback | TrainerCallback | type) -> None:
        """Remove a callback, if the Trainer has it.

        Args:
            callback: A callback, or the class of the one to remove.
        """
        self.pop_callback(callback)
