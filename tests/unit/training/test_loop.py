"""The loop: every batch once an epoch, never a step more or less, events in their order, figures read only where logged."""

from __future__ import annotations

import importlib
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import epoch_order
from glassloop.runs.record import Plan
from glassloop.training import loop
from glassloop.training.callbacks import EVENTS, State
from glassloop.training.loop import fit, groups_of, train_step


class Numbers:
    """Batches that are nothing but the numbers of their rows."""

    def __init__(self, num_rows: int, batch_size: int) -> None:
        self.num_rows, self.batch_size = num_rows, batch_size

    def order(self, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(rows.tolist()) for rows in epoch_order(self.num_rows, self.batch_size, seed=5, epoch=epoch)]

    def __len__(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[tuple[int, ...]]:
        assert epoch < 100, "a loop that never comes to its last step"
        yield from self.order(epoch)[skip:]


def plan_of(batches: Numbers, accumulate: int = 1, max_steps: int | None = None, epochs: int = 1, **intervals: int) -> Plan:
    per_epoch = math.ceil(len(batches) / accumulate)
    wanted: dict[str, Any] = {"log_every": 0, "eval_every": 0, "save_every": 0, **intervals}
    return Plan(max_steps or per_epoch * epochs, per_epoch, len(batches), accumulate, 0, **wanted)


class Watching:
    """Writes down everything that happens, in its order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.state: State | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda state, **facts: self.seen.append(f"{name} {state.step}")


FINE = torch.tensor([0.5, 1.0])


def run(batches: Numbers, plan: Plan, state: State | None = None, **options: Any) -> tuple[list[list[Any]], State]:
    """The groups that were trained on, and the state at the end."""
    groups: list[list[Any]] = []

    def step(group: list[Any]) -> torch.Tensor:
        groups.append(group)
        return FINE

    state = fit(step, batches, plan, state if state is not None else State(), **options)
    return groups, state


SHAPES = [*product(range(1, 10), range(1, 5), range(1, 5))]  # rows, batch size, accumulated batches


def test_no_step_is_skipped_or_doubled() -> None:
    """Every batch once an epoch and the short group too, with any number of steps, and after a resume from any step."""
    for num_rows, batch_size, accumulate in SHAPES:
        batches = Numbers(num_rows, batch_size)
        whole, state = run(batches, plan_of(batches, accumulate, epochs=3, log_every=2))
        per_epoch = math.ceil(math.ceil(num_rows / batch_size) / accumulate)
        assert len(whole) == state.step == 3 * per_epoch
        assert (state.epoch, state.batch) == (3, 0)
        for epoch in range(3):
            mine = whole[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert [batch for group in mine for batch in group] == batches.order(epoch)
            assert all(len(group) == accumulate for group in mine[:-1])
            assert len(mine[-1]) == len(batches) - accumulate * (per_epoch - 1)
            assert sorted(row for group in mine for batch in group for row in batch) == [*range(num_rows)]
        for max_steps in range(1, len(whole) + 1):
            groups, state = run(batches, plan_of(batches, accumulate, max_steps))
            assert groups == whole[:max_steps]
            assert state.step == max_steps
        plan, state, stored = plan_of(batches, accumulate, epochs=2, save_every=1), State(), []
        two, _ = run(batches, plan, state, save=lambda state=state, stored=stored: stored.append(replace(state)) is None)
        assert len(stored) == len(two)
        for done, state in enumerate(stored[:-1], 1):
            groups, ended = run(batches, plan, replace(state))
            assert groups == two[done:]
            assert (ended.step, ended.epoch, ended.batch) == (len(two), 2, 0)


class Acting(Watching):
    """Does something with the state after every step."""

    def __init__(self, act: Callable[[State], object]) -> None:
        super().__init__()
        self.act = act

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.act(state)


def happenings(plan: Plan, batches: Numbers, **options: Any) -> list[Any]:
    watching = Watching()

    def step(group: list[Any]) -> torch.Tensor:
        watching.seen.append("step")
        return FINE

    def evaluate() -> dict[str, float]:
        watching.seen.append("evaluate")
        return {"eval_loss": 1.0}

    given: dict[str, Any] = {"evaluate": evaluate, "save": lambda: watching.seen.append("save") is None, **options}
    callbacks = [watching, *given.pop("callbacks", [])]
    fit(step, batches, plan, State(), callbacks=callbacks, **given)
    return watching.seen


def steps_of(event: str, seen: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in seen if line.startswith(f"{event} ")]


def test_a_checkpoint_that_is_left_out_is_no_event() -> None:
    batches = Numbers(5, 1)
    seen = happenings(plan_of(batches, save_every=1, max_steps=2), batches, save=lambda: False)
    assert not [event for event in seen if "save" in event]


def test_step_log_evaluate_save_stop_and_the_end_of_every_epoch_come_in_their_order() -> None:
    batches = Numbers(5, 1)
    plan = plan_of(batches, accumulate=2, max_steps=4, log_every=2, eval_every=3, save_every=3)
    assert happenings(plan, batches) == [
        *("on_fit_start 0", "on_epoch_start 0"),
        *("on_step_start 0", "step", "on_step 1"),
        *("on_step_start 1", "step", "on_step 2", "on_log 2"),
        *("on_step_start 2", "step", "on_step 3", "on_log 3", "evaluate", "on_evaluate 3", "save", "on_save 3"),
        *("on_epoch_end 3", "on_epoch_start 3"),
        *("on_step_start 3", "step", "on_step 4", "on_log 4"),
        "on_fit_end 4",
    ]
    batches = Numbers(4, 2)
    seen = happenings(plan_of(batches, epochs=3), batches)
    assert steps_of("on_epoch_end", seen) == [2, 4, 6]
    assert seen[-3:] == ["on_epoch_end 6", "on_log 6", "on_fit_end 6"]
    assert steps_of("on_epoch_end", happenings(plan_of(batches, max_steps=3), batches)) == [2]
    batches = Numbers(4, 1)
    plan = replace(plan_of(batches), eval_on_start=True)
    assert happenings(plan, batches)[:4] == ["on_fit_start 0", "evaluate", "on_evaluate 0", "on_epoch_start 0"]
    assert "evaluate" not in happenings(replace(plan, eval_on_start=False), batches)
    seen = happenings(replace(plan_of(batches, eval_every=1), eval_from=3), batches)
    assert steps_of("on_evaluate", seen) == [3, 4]


def test_an_evaluation_is_judged_before_callbacks_see_it_and_what_they_ask_for_happens_once() -> None:
    batches, best, losses = Numbers(3, 1), [], iter([3.0, 2.0, 2.5])
    plan = plan_of(batches, eval_every=1)

    class Watcher(Watching):
        def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
            best.append((state.best_step, metrics["eval_loss"]))

    _, state = run(batches, plan, evaluate=lambda: {"eval_loss": next(losses)}, callbacks=[Watcher()])
    assert best == [(1, 3.0), (2, 2.0), (2, 2.5)]
    assert not state.evaluation_due
    assert run(batches, plan, evaluate=lambda: None)[1].evaluation_due, "a signal interrupted it"

    def ask(state: State) -> None:
        state.asked |= {"log", "evaluate", "save"} if state.step == 2 else set()

    seen = happenings(plan_of(Numbers(4, 1)), Numbers(4, 1), callbacks=[Acting(ask)])
    assert [event for event in seen if event in ("evaluate", "save")] == ["evaluate", "save"]
    assert steps_of("on_log", seen) == [2, 4], "and at the end"

    def stop(state: State) -> None:
        state.stop_reason = "enough" if state.step == 3 else None

    batches = Numbers(9, 1)
    seen = happenings(plan_of(batches, eval_every=3, save_every=3), batches, callbacks=[Acting(stop)])
    assert seen[-7:] == ["on_step 3", "on_log 3", "evaluate", "on_evaluate 3", "save", "on_save 3", "on_fit_end 3"]
    seen = happenings(plan_of(batches, log_every=2), batches, callbacks=[Acting(stop)])
    assert seen[-3:] == ["on_step 3", "on_log 3", "on_fit_end 3"]
    batches = Numbers(9, 1)
    plan = replace(plan_of(batches, eval_every=1), patience=2)
    _, state = run(batches, plan, evaluate=lambda: {"eval_loss": 1.0})
    assert (state.step, state.best_step) == (3, 1)
    assert state.stop_reason == "eval_loss did not improve in 2 evaluations"


@pytest.mark.parametrize(("every", "evaluated"), [(3, [1, 4, 7]), (2, [2, 4, 6])])
def test_an_epoch_that_is_ended_leaves_its_rest_out(every: int, evaluated: list[int]) -> None:
    """An interval of a whole epoch, three steps, ends with it; another one counts the steps that were taken."""

    def end(state: State) -> None:
        state.epoch_ends = state.step == 1

    batches = Numbers(3, 1)
    seen = happenings(replace(plan_of(batches, eval_every=every), max_steps=9), batches, callbacks=[Acting(end)])
    assert steps_of("on_step", seen) == [*range(1, 8)]
    assert steps_of("on_evaluate", seen) == evaluated
    _, state = run(batches, replace(plan_of(batches), max_steps=6), State(step=1, batch=1, epoch_ends=True))
    assert (state.step, state.epoch, state.steps_left_out, state.epoch_ends) == (4, 2, 2, False), "resumed after that step"


class Counted(torch.Tensor):
    """A tensor that counts how often numbers are read from the device."""

    asked = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("tolist", "item", "__float__", "__bool__", "__int__", "numpy", "cpu"):
            Counted.asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize(("log_every", "logs"), [(1, 12), (3, 4), (5, 3), (12, 1), (0, 1)])
def test_figures_are_read_only_where_they_are_logged(log_every: int, logs: int) -> None:
    batches, logged, numbers = Numbers(12, 1), [], iter(range(12))

    class Watcher(Watching):
        def on_log(self, state: State, figures: list[list[float]]) -> None:
            logged.append(figures)

    def step(group: list[Any]) -> torch.Tensor:
        return torch.tensor([next(numbers), 1.0]).as_subclass(Counted)

    Counted.asked = 0
    state = fit(step, batches, plan_of(batches, log_every=log_every), State(), callbacks=[Watcher()])
    assert Counted.asked == len(logged) == logs
    assert [figures for log in logged for figures in log] == [[float(number), 1.0] for number in range(12)]
    assert state.mean_loss == 5.5


def test_a_step_asks_for_no_number_and_groups_take_no_batch_before_it_is_needed() -> None:
    Counted.asked = 0
    model = Line()
    model.weight = torch.nn.Parameter(model.weight.detach().as_subclass(Counted))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    group = [batch_of([[1.0, 0.0], [1.0, 1.0]], [0.0, 1.0])]
    train_step(model, group, squares, optimizer, scheduler, backend=PlainBackend(), max_norm=1.0)
    assert Counted.asked == 0
    batches = iter(range(7))
    groups = groups_of(3, batches)
    assert next(groups) == [0, 1, 2]
    assert next(batches) == 3
    assert [*groups] == [[4, 5, 6]]
    assert [*groups_of(2, range(5))] == [[0, 1], [2, 3], [4]]
    assert [*groups_of(4, [])] == []


@pytest.mark.parametrize(("place", "name"), [(0, "loss"), (1, "gradient norm")])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("log_every", [1, 5, 10, 100])
def test_a_figure_that_is_not_finite_names_its_step(place: int, name: str, wrong: float, log_every: int) -> None:
    figures = [wrong, 1.0] if place == 0 else [0.5, wrong]
    batches, watching, state, steps = Numbers(12, 1), Watching(), State(), 0

    def step(group: list[Any]) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return torch.tensor(figures) if steps == 7 else FINE

    with pytest.raises(FloatingPointError) as caught:
        fit(step, batches, plan_of(batches, log_every=log_every), state, callbacks=[watching])
    assert caught.value.args == (f"step 7: the {name} is {wrong}", 7)
    assert steps == min(math.ceil(7 / log_every) * log_every, 12), "not found within the logging interval"
    assert (state.last_loss, state.losses_read) == (0.5, 6)
    assert "on_fit_end 12" not in watching.seen


def test_figures_of_several_processes_are_gathered_when_they_are_read_and_nothing_is_done_after_a_bad_one() -> None:
    batches, gathered = Numbers(6, 1), []

    def gather(figures: torch.Tensor) -> torch.Tensor:
        gathered.append(tuple(figures.shape))
        return figures * 2

    _, state = run(batches, plan_of(batches, log_every=4), gather=gather)
    assert gathered == [(4, 2), (2, 2)]
    assert state.mean_loss == 1.0
    batches, watched = Numbers(6, 1), {"save": lambda: pytest.fail("saved"), "evaluate": lambda: pytest.fail("evaluated")}
    for interval in ["save_every", "eval_every"]:
        with pytest.raises(FloatingPointError):
            fit(lambda group: torch.tensor([math.nan, 1.0]), batches, plan_of(batches, **{interval: 2}), State(), **watched)


class Line(torch.nn.Module):
    """Logits are a weighted sum of the input, so that gradients can be computed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0], [2.0]]))

    def forward(self, rows: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=rows @ self.weight)


def squares(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.squeeze(-1) - labels).square().sum()


def batch_of(rows: list[list[float]], labels: list[float], mine: int | None = None, size: int | None = None) -> Any:
    numbers = range(len(rows) if mine is None else mine)
    inputs = {"rows": torch.tensor(rows)}
    return SimpleNamespace(inputs=inputs, labels=torch.tensor(labels), numbers=numbers, size=size or len(rows))


def one_step(group: list[Any], max_norm: float = 0.0, **options: Any) -> tuple[Line, list[float]]:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    figures = train_step(model, group, squares, optimizer, scheduler, backend=PlainBackend(), max_norm=max_norm, **options)
    assert model.weight.grad is None
    assert optimizer.param_groups[0]["lr"] == 0.05
    return model, figures.tolist()


def test_a_step_is_the_mean_over_its_examples_and_gradients_are_seen_once_before_they_are_clipped() -> None:
    rows, labels = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, 1.0]
    expected = torch.tensor([[1.0], [2.0]]) - 0.1 * torch.tensor([[2 * (1 + 2) / 3], [2 * (2 + 2) / 3]])
    groups = [
        [batch_of(rows, labels)],
        [batch_of(rows[:2], labels[:2]), batch_of(rows[2:], labels[2:])],
        [batch_of([row], [label]) for row, label in zip(rows, labels, strict=True)],
    ]
    for group in groups:
        model, (loss, norm) = one_step(group)
        torch.testing.assert_close(model.weight.detach(), expected)
        assert loss == pytest.approx((1 + 4 + 4) / 3)
        assert norm == pytest.approx(math.hypot(2, 8 / 3))
    _, (loss, _) = one_step([batch_of([[1.0, 0.0]], [0.0], size=4)])
    assert loss == 0.25
    model, figures = one_step([batch_of([[1.0, 0.0]], [0.0], mine=0, size=1)])
    assert figures == [0.0, 0.0]
    assert model.weight.tolist() == [[1.0], [2.0]]
    seen: list[float] = []
    rows = [batch_of([[30.0, 40.0]], [0.0]), batch_of([[30.0, 40.0]], [0.0])]
    model, (_, norm) = one_step(rows, 1.0, on_gradients=lambda model: seen.append(model.weight.grad.norm().item()))
    assert len(seen) == 1
    assert seen[0] == pytest.approx(norm)
    assert norm > 1000
    moved = torch.tensor([[1.0], [2.0]]) - model.weight.detach()
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-4)  # rate times the norm they were clipped to


def test_the_file_alone_trains_with_torch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy in another folder; nothing else of ours or of Hugging Face can be imported, at its start or later."""

    class OwnState:
        step = epoch = batch = asked_to_stop = signal = steps_left_out = 0
        stop_reason, epoch_ends, evaluation_due = None, False, False

        def __init__(self) -> None:
            self.unlogged, self.losses, self.asked = [], [], set()

        def read(self, figures: list[list[float]]) -> None:
            self.unlogged += figures
            self.losses += [loss for loss, norm in figures]

    class OwnBatches:
        def epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
            torch.manual_seed(epoch)
            for _ in range(skip, 5):
                rows = torch.randn(4, 2)
                yield SimpleNamespace(inputs={"rows": rows}, labels=rows.sum(dim=1), numbers=range(4), size=4)

    backend = SimpleNamespace(
        device=torch.device("cpu"), move=lambda data: data, backward=lambda loss: loss.backward(),
        unscale=lambda optimizer: None, step=lambda optimizer: optimizer.step(),
        clip=lambda model, max_norm: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm),
        forward=lambda model, is_last=True: nullcontext(),
    )  # fmt: skip
    plan = SimpleNamespace(
        max_steps=40, batches_per_epoch=5, accumulate=2, log_every=7, eval_every=0, save_every=0, eval_on_start=False,
        eval_from=0, log_first=False,
    )  # fmt: skip
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    shutil.copy(Path(str(loop.__file__)), tmp_path / "copied_loop.py")
    others = ("glassloop", "transformers", "datasets", "accelerate")
    for name in {*others, *(name for name in sys.modules if name.partition(".")[0] in others)}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.syspath_prepend(tmp_path)
    alone = importlib.import_module("copied_loop")
    monkeypatch.delitem(sys.modules, "copied_loop")
    with pytest.raises(ImportError):
        importlib.import_module("glassloop.training.loop")

    def step(group: list[Any]) -> torch.Tensor:
        return alone.train_step(model, group, squares, optimizer, scheduler, backend=backend, max_norm=10.0)

    losses = alone.fit(step, OwnBatches(), plan, OwnState()).losses
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 100
