"""Plan and state: figures taken, the best evaluation found, and nothing in it that JSON cannot hold."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from glassloop.runs.record import Plan
from glassloop.training.callbacks import State

PLAN = Plan(
    max_steps=10, steps_per_epoch=5, batches_per_epoch=5, accumulate=1, warmup_steps=0, log_every=1, eval_every=1, save_every=0
)


def judged(scores: list[float], **options) -> State:
    """The state after evaluations with these scores, one a step."""
    plan, state = replace(PLAN, **options), State()
    for score in scores:
        state.step += 1
        state.judge({plan.best_metric: score, "eval_other": 9.0}, plan)
        if state.stop_reason:
            break
    return state


# --- figures -----------------------------------------------------------------------------------------------------


def test_losses_are_summed_and_the_mean_is_over_all_steps() -> None:
    state = State()
    assert state.mean_loss == 0.0
    for figures in ([[1.0, 5.0], [2.0, 5.0]], [[6.0, 5.0]]):
        state.step += len(figures)
        state.read(figures)
    assert (state.loss_sum, state.losses_read, state.last_loss, state.mean_loss) == (9.0, 3, 6.0, 3.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named_with_its_step(wrong: float) -> None:
    state = State(step=1005)
    with pytest.raises(FloatingPointError) as caught:
        state.read([[1.0, 1.0], [2.0, 1.0], [wrong, 1.0], [3.0, 1.0]])
    assert caught.value.args == (f"step 1,004: the loss is {wrong}", 1004)
    assert state.last_loss == 2.0
    with pytest.raises(FloatingPointError) as caught:
        State(step=3).read([[2.0, wrong]])
    assert caught.value.args == (f"step 3: the gradient norm is {wrong}", 3)


def test_many_steps_in_a_row_that_fp16_left_out_are_a_divergence() -> None:
    """Their norm counts as 0. A loss of 0 without a gradient is fine."""
    state = State(step=19)
    state.read([[0.7, 0.0]] * 19)
    state.step += 1
    state.read([[0.7, 0.1]])
    state.step += 30
    state.read([[0.0, 0.0]] * 30)
    state.step += 19
    state.read([[0.7, 0.0]] * 19)
    state.step += 1
    with pytest.raises(FloatingPointError) as caught:
        state.read([[0.7, 0.0]])
    assert caught.value.args == ("step 70: the gradient overflowed or was zero for 20 steps", 70)


# --- the best evaluation -----------------------------------------------------------------------------------------


def test_a_loss_is_better_when_it_is_less() -> None:
    state = judged([3.0, 1.0, 2.0, 1.0])
    assert (state.best_score, state.best_step, state.evaluations_without_gain) == (1.0, 2, 2)
    assert state.stop_reason is None


def test_other_figures_are_better_when_they_are_more() -> None:
    state = judged([0.3, 0.1, 0.5], best_metric="eval_f1", greater_is_better=True)
    assert (state.best_score, state.best_step, state.evaluations_without_gain) == (0.5, 3, 0)


def test_a_small_gain_is_none() -> None:
    assert judged([1.0, 0.95, 0.91], least_gain=0.1).best_step == 1
    assert judged([1.0, 0.95, 0.89], least_gain=0.1).best_step == 3


@pytest.mark.parametrize(("patience", "steps"), [(1, 2), (2, 3), (3, 6), (None, 6)])
def test_patience(patience: int | None, steps: int) -> None:
    state = judged([1.0, 1.0, 1.0, 0.5, 0.6, 0.7], patience=patience)
    assert state.step == (steps if patience != 3 else 6)
    assert bool(state.stop_reason) is (patience in (1, 2))


def test_the_reason_says_what_did_not_get_better() -> None:
    reason = "eval_f1 did not improve in 2 evaluations"
    assert judged([1.0, 1.0, 1.0], best_metric="eval_f1", greater_is_better=True, patience=2).stop_reason == reason


def test_a_first_score_that_is_no_number_is_not_the_best_for_ever() -> None:
    assert judged([math.nan, 2.0, 3.0]).best_step == 2
    assert judged([1.0, math.nan, 0.5]).best_step == 3


def test_a_figure_that_no_evaluation_gives_is_named(says) -> None:
    with says(
        "metric_for_best_model is eval_f1, but an evaluation computes eval_loss, eval_accuracy",
        "choose one of these; without labels there is no loss",
    ):
        State().judge({"eval_loss": 1.0, "eval_accuracy": 0.5}, replace(PLAN, best_metric="eval_f1"))


# --- plain numbers -----------------------------------------------------------------------------------------------


def test_plan_and_state_are_plain() -> None:
    state = State(step=3, history=[{"step": 3, "loss": 0.5}])
    assert json.loads(json.dumps(asdict(PLAN))) == asdict(PLAN)
    assert json.loads(json.dumps(state.to_dict())) == state.to_dict()


def test_a_state_comes_back_from_its_dict() -> None:
    state = judged([3.0, 1.0, 2.0])
    state.read([[0.5, 1.0]])
    assert State(**json.loads(json.dumps(state.to_dict()))) == state


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PLAN.max_steps = 3  # type: ignore[misc]
