"""The training loop. There is one, and this is it: copied away, this file still runs with torch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch


def train_step(
    model: Any,
    group: list[Any],
    loss_sum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: Any,
    scheduler: Any,
    *,
    backend: Any,
    max_norm: float = 0.0,
    on_gradients: Callable[[Any], None] | None = None,
) -> torch.Tensor:
    """One change of the weights; returns its loss and gradient norm as two numbers that still live on the device.

    The loss is the mean over the step's examples: the sum over all examples of all batches on all processes, divided by
    their true count. `batch.size` counts the rows over all processes; a share of a batch may be empty.
    """
    num_examples = sum(batch.size for batch in group)
    step_loss = torch.zeros((), device=backend.device)
    for batch in group:
        with backend.forward(model, is_last=batch is group[-1]):
            logits = model(**backend.move(batch.inputs)).logits.float()
            rows = len(batch.numbers)
            loss = loss_sum(logits, backend.move(batch.labels)) if rows else logits.sum() * 0.0
            loss = loss / num_examples
        backend.backward(loss)
        step_loss = step_loss + loss.detach()
    backend.unscale(optimizer)
    if on_gradients is not None:
        on_gradients(model)
    norm = backend.clip(model, max_norm)
    backend.step(optimizer)
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return torch.stack([step_loss, norm])


def fit(
    step: Callable[[list[Any]], torch.Tensor],
    batches: Any,
    plan: Any,
    state: Any,
    *,
    callbacks: Iterable[Any] = (),
    evaluate: Callable[[], dict[str, float] | None] | None = None,
    save: Callable[[], None] | None = None,
    gather: Callable[[torch.Tensor], torch.Tensor] = lambda figures: figures,
    agree: Callable[[int], int] = lambda signal: signal,
) -> Any:
    """Train until `plan.max_steps`, until `state.stop_reason` is set, or until all processes agree on a signal; return `state`.

    `step` takes a group of batches and makes one change of the weights. Always in this order: step, evaluate, save, stop.
    Figures are read from the device only where they are logged. Raises `FloatingPointError` when one is not finite.
    """
    unread: list[torch.Tensor] = []

    def tell(event: str, **facts: Any) -> None:
        for callback in callbacks:
            getattr(callback, event)(state, **facts)

    def read_figures() -> None:
        if unread:
            state.read(gather(torch.stack(unread)).tolist())  # raises where a figure is not finite
            unread.clear()

    def log() -> None:
        read_figures()
        if state.unlogged:
            figures, state.unlogged = state.unlogged, []
            tell("on_log", figures=figures)

    def evaluate_now() -> None:
        state.evaluation_due = True
        if evaluate and (metrics := evaluate()) is not None:  # None: a signal came in between
            state.evaluation_due = False
            state.judge(metrics, plan)
            tell("on_evaluate", metrics=metrics)

    def end_epoch() -> None:
        state.epoch, state.batch = state.epoch + 1, 0
        tell("on_epoch_end")

    tell("on_fit_start")
    if evaluate and (state.evaluation_due or (plan.eval_on_start and state.step == 0)):
        evaluate_now()
        state.signal = agree(state.asked_to_stop)
    while state.step < plan.max_steps and not (state.stop_reason or state.signal):
        for group in groups_of(plan.accumulate, batches.epoch(state.epoch, skip=state.batch)):
            unread.append(step(group))
            state.step += 1
            state.batch += len(group)
            tell("on_step", batches=group)
            last = state.step == plan.max_steps
            if last or any(due(every, state.step) for every in (plan.log_every, plan.eval_every)):
                log()
            if evaluate and due(plan.eval_every, state.step):
                evaluate_now()
            state.signal = agree(state.asked_to_stop)
            if save and (state.signal or due(plan.save_every, state.step)):
                read_figures()
                save()
                tell("on_save")
            if last or state.stop_reason or state.signal:
                break
        else:
            end_epoch()
    if not state.signal:
        log()
        if state.batch == plan.batches_per_epoch:  # the last step was also an epoch's last
            end_epoch()
    tell("on_fit_end")
    return state


def groups_of(number: int, batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of `number` consecutive batches; the last list of an epoch may be shorter and is trained on like any other."""
    batches = iter(batches)
    while group := list(islice(batches, number)):
        yield group


def due(every: int, step: int) -> bool:
    """Whether something done every so many steps (0: never) is due after this one."""
    return bool(every) and step % every == 0
