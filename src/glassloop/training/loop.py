"""The training loop, the only one in Glassloop. This file also runs without the package, with torch alone.

First the loop (`train_step` and `fit`), then the Protocols that say what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from glassloop.runs.record import Plan
    from glassloop.training.callbacks import State

BatchT = TypeVar("BatchT")
BatchOut = TypeVar("BatchOut", covariant=True)
DataT = TypeVar("DataT")
StateT = TypeVar("StateT", bound="State")


def train_step(
    model: torch.nn.Module,
    group: list[TrainingBatch],
    loss_sum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    scheduler: Scheduler,
    *,
    backend: StepBackend,
    max_norm: float = 0.0,
    on_gradients: Callable[[torch.nn.Module], None] | None = None,
    batch_loss: Callable[[torch.nn.Module, TrainingBatch], torch.Tensor] | None = None,
    batch_step: Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor] | None = None,
    before_update: Callable[[list[TrainingBatch]], None] | None = None,
    after_update: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Update the weights once, and return the loss and the gradient norm as two numbers that stay on the device.

    The loss is the mean over the step's examples: the sum over all examples of all batches on all processes, divided by
    their true count.

    Args:
        model: The model to train. It returns an object with `logits`.
        group: The batches whose gradients are added up in this step. This process's share of a batch may be empty.
        loss_sum: A function of logits and labels that returns the sum of the rows' losses.
        optimizer: The optimizer of the model's weights.
        scheduler: The learning rate schedule, which advances once per step.
        backend: How each part of the step is executed.
        max_norm: Scale gradients down to this norm; 0 disables clipping.
        on_gradients: Called with the model before clipping.
        batch_loss: Replaces the forward pass and `loss_sum`: returns the sum of the losses of a batch's rows.
        batch_step: Replaces the backward pass, too: gets the number of batches of the step, adds the gradients of one of them,
            and returns its part of the loss.
        before_update: Called with the group after clipping, before the weights change.
        after_update: Called after the weights have changed, before gradients are cleared.

    Returns:
        A tensor of two numbers: the loss, and the gradient norm before clipping.
    """
    num_examples = sum(batch.size for batch in group)
    step_loss = torch.zeros((), device=backend.device)
    for batch in group:
        if batch_step is not None:
            step_loss = step_loss + batch_step(model, batch, len(group))
            continue
        with backend.forward(model, is_last=batch is group[-1]):
            if batch_loss is None:
                logits = model(**backend.move(batch.inputs)).logits.float()
                loss = loss_sum(logits, backend.move(batch.labels)) if len(batch.numbers) else logits.sum() * 0.0
            else:
                loss = batch_loss(model, batch)
            loss = loss / num_examples
        backend.backward(loss)
        step_loss = step_loss + loss.detach()
    backend.unscale(optimizer)
    if on_gradients is not None:
        on_gradients(model)
    norm = backend.clip(model, max_norm)
    if before_update is not None:
        before_update(group)
    backend.step(optimizer)
    if after_update is not None:
        after_update()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([step_loss, norm])


def fit(
    step: Callable[[list[BatchT]], torch.Tensor],
    batches: BatchSource[BatchT],
    plan: Plan,
    state: StateT,
    *,
    callbacks: Iterable[object] = (),
    evaluate: Callable[[], dict[str, float] | None] | None = None,
    save: Callable[[], bool] | None = None,
    gather: Callable[[torch.Tensor], torch.Tensor] = lambda figures: figures,
    agree: Callable[[int], int] = lambda signal: signal,
) -> StateT:
    """Train until `plan.max_steps`, until `state.stop_reason` is set, or until all processes agree on a signal.

    A callback that sets `state.epoch_ends` ends the epoch after this step; the training is shorter by the steps left out.
    Events always come in this order: step, evaluate, save, stop. Losses are read from the device only when they are logged.

    Args:
        step: Trains on a group of batches and returns its loss and gradient norm, as `train_step` does.
        batches: The batches of each epoch.
        plan: When to log, evaluate, save and stop.
        state: Where training stands; updated in place.
        callbacks: Objects with the methods of `glassloop.Callback`.
        evaluate: Returns the metrics of an evaluation, or None if a signal interrupted it.
        save: Writes a checkpoint, or returns False if it left that out.
        gather: Combines the losses and norms of all processes.
        agree: Returns the signal that any process received, or 0.

    Returns:
        The state after the last step.

    Raises:
        FloatingPointError: A loss or gradient norm is not finite.
    """
    unread: list[torch.Tensor] = []

    def tell(event: str, **facts: object) -> None:
        for callback in callbacks:
            getattr(callback, event)(state, **facts)

    def read_figures() -> None:
        if unread:
            state.read(gather(torch.stack(unread)).tolist())  # raises if a loss or norm is not finite
            unread.clear()

    def log() -> None:
        read_figures()
        if state.unlogged:
            figures, state.unlogged = state.unlogged, []
            tell("on_log", figures=figures)

    def evaluate_now() -> None:
        state.evaluation_due = True
        if evaluate and (metrics := evaluate()) is not None:  # None: a signal interrupted it
            state.evaluation_due = False
            state.judge(metrics, plan)
            tell("on_evaluate", metrics=metrics)

    def is_over() -> bool:
        return state.step + state.steps_left_out >= plan.max_steps or bool(state.stop_reason or state.signal)

    def steps_left() -> int:
        """Return the number of steps of this epoch that are left out because a callback ends it."""
        return -((state.batch - plan.batches_per_epoch) // plan.accumulate) if state.epoch_ends else 0

    def is_due(every: int) -> bool:
        """Return whether an interval (0: never) ends after this step. One of an epoch ends if that is cut short, too."""
        whole_epoch = every == -(-plan.batches_per_epoch // plan.accumulate)
        step = state.step + (state.steps_left_out + steps_left() if whole_epoch else 0)
        return bool(every) and step % every == 0

    def after_step(planned: bool = True) -> None:
        """Log, evaluate and save, in this order, if it is due by the plan or if a callback has asked for it."""
        end = (plan.log_every > 0 and state.step == plan.max_steps) or (plan.log_first and state.step == 1)
        if "log" in state.asked or (planned and (end or is_due(plan.log_every) or is_due(plan.eval_every))):
            log()
        if evaluate and ("evaluate" in state.asked or (planned and is_due(plan.eval_every) and state.step >= plan.eval_from)):
            evaluate_now()
        state.signal = agree(state.asked_to_stop)
        if save and (state.signal or "save" in state.asked or (planned and is_due(plan.save_every))):
            read_figures()
            if save():
                tell("on_save")
        state.asked.clear()

    # A callback may end an epoch (transformers' `should_epoch_stop`). That changes the order of events and the batches left
    # after a resume, so the loop does it and the state records it.
    def end_epoch() -> None:
        state.steps_left_out += steps_left()
        state.epoch, state.batch, state.epoch_ends = state.epoch + 1, 0, False
        tell("on_epoch_end")
        if state.asked:
            after_step(planned=False)

    tell("on_fit_start")
    if evaluate and (state.evaluation_due or (plan.eval_on_start and state.step == 0)):
        evaluate_now()
        state.signal = agree(state.asked_to_stop)
    while not is_over():
        ended = state.epoch_ends  # before the checkpoint that this training was resumed from
        tell("on_epoch_start")
        left: Iterable[BatchT] = () if ended else batches.epoch(state.epoch, skip=state.batch)
        for group in groups_of(plan.accumulate, left):
            tell("on_step_start")
            unread.append(step(group))
            state.step += 1
            state.batch += len(group)
            tell("on_step", batches=group)
            after_step()
            if is_over() or state.epoch_ends:
                break
        if not is_over():
            end_epoch()
    if not state.signal:
        if state.batch == plan.batches_per_epoch:  # the last step was also an epoch's last
            end_epoch()
        log()
    tell("on_fit_end")
    return state


def groups_of(number: int, batches: Iterable[BatchT]) -> Iterator[list[BatchT]]:
    """Yield lists of `number` consecutive batches. The last list of an epoch may be shorter and is trained on too."""
    batches = iter(batches)
    while group := list(islice(batches, number)):
        yield group


# What the loop is given


class TrainingBatch(Protocol):
    """This process's share of a batch. If `numbers` is empty, so is the share, and its one row contributes nothing."""

    @property
    def inputs(self) -> Mapping[str, object]: ...
    @property
    def labels(self) -> Any: ...  # what the loss takes
    @property
    def numbers(self) -> Sized: ...  # which rows of the data these are
    @property
    def size(self) -> int: ...  # the number of rows over all processes


class BatchSource(Protocol[BatchOut]):
    """The batches of each epoch. `skip`: how many batches of the epoch were already trained on."""

    def epoch(self, epoch: int, skip: int) -> Iterator[BatchOut]: ...


class Scheduler(Protocol):
    """A learning rate schedule."""

    def step(self) -> None: ...


class StepBackend(Protocol):
    """How a step is executed: the verbs of `train_step`."""

    @property
    def device(self) -> torch.device: ...

    # The context of a forward pass. `is_last`: its backward pass completes the gradients of the step.
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> AbstractContextManager[None]: ...
    def move(self, data: DataT) -> DataT: ...  # a tensor, or a dict of tensors, to the device
    def backward(self, loss: torch.Tensor) -> None: ...  # adds the gradients of a loss
    def unscale(self, optimizer: torch.optim.Optimizer) -> None: ...  # divides gradients by the factor of fp16's losses
    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor: ...  # 0: never; returns the norm they had
    def step(self, optimizer: torch.optim.Optimizer) -> None: ...  # updates the weights
