"""The state under the names of transformers, and the files that scripts write after a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import TrainerState as TheirState

from glassloop.compat.callbacks import TrainerState, show_metrics, write_metrics
from glassloop.runs.record import Plan
from glassloop.training.state import State

PLAN = Plan(
    max_steps=4, steps_per_epoch=2, batches_per_epoch=2, accumulate=1, warmup_steps=0, log_every=1, eval_every=0, save_every=0
)


def test_the_state_follows_the_loop_and_keeps_what_scripts_add(tmp_path: Path) -> None:
    loop = State(step=2, epoch=1, history=[{"step": 2, "epoch": 1.0, "loss": 0.5}])
    state = TrainerState.of(loop).follow(PLAN, batch_size=8)
    assert (state.global_step, state.max_steps, state.num_train_epochs, state.epoch) == (2, 4, 2, 1.0)
    assert (state.step, state.history, state.best_metric) == (2, loop.history, None)
    state.log_history.append({"mine": 1.0, "step": 2})
    loop.history.append({"step": 2, "epoch": 1.0, "eval_loss": 0.4})
    kinds = [[*entry] for entry in state.follow(PLAN, batch_size=8).log_history]
    assert kinds == [["epoch", "loss", "step"], ["mine", "step"], ["epoch", "eval_loss", "step"]]
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    loaded = TheirState.load_from_json(str(tmp_path / "trainer_state.json"))
    assert (loaded.global_step, loaded.epoch, loaded.log_history) == (2, 1.0, state.log_history)


def test_what_a_log_method_adds_is_in_both_histories() -> None:
    state = TrainerState.of(State(history=[{"step": 2, "epoch": 1.0, "loss": 0.5}])).follow(PLAN, batch_size=8)
    state.add_to_latest({"mine": 1.0}, of_loop=True)
    assert state.history[-1]["mine"] == state.log_history[-1]["mine"] == 1.0
    state.add_to_latest({"more": 1.0}, of_loop=False)
    assert "more" in state.log_history[-1]
    assert "more" not in state.history[-1]
    state.omit_latest()
    assert state.log_history == []


def test_a_name_that_neither_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = TrainerState.of(State()).nothing


def test_metrics_are_printed_and_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_metrics("eval", {"eval_loss": 0.123456, "epoch": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        "***** eval metrics *****",
        "  epoch     =        1.0",
        "  eval_loss =     0.1235",
    ]
    write_metrics(tmp_path, "train", {"train_loss": 1.0}, combined=True)
    write_metrics(tmp_path, "eval", {"eval_loss": 2.0}, combined=True)
    write_metrics(tmp_path, "test", {"test_loss": 3.0}, combined=False)
    assert json.loads((tmp_path / "all_results.json").read_text()) == {"train_loss": 1.0, "eval_loss": 2.0}
    assert json.loads((tmp_path / "test_results.json").read_text()) == {"test_loss": 3.0}
