"""What a Trainer of a script asks of the loop."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl

from glassloop.compat.callbacks import Logged
from glassloop.training.state import State


class Trainer:
    def __init__(self) -> None:
        self.control = TrainerControl()
        self.logged: list[Any] = []

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        return [metrics]

    def _report(self, logs: dict[str, float]) -> None:
        self.logged.append(logs)


def test_an_overridden_log_gets_entries_without_step_and_epoch() -> None:
    trainer, state = Trainer(), State()
    state.history.append({"step": 3, "epoch": 1.5, "loss": 0.5})
    callback = Logged(trainer)
    callback.on_log(state, [])
    assert trainer.logged == [], "transformers did not ask for this entry"
    trainer.control.should_log = True
    callback.on_log(state, [])
    callback.on_evaluate(state, {"eval_loss": 0.25, "eval_runtime": 2.0})
    assert trainer.logged == [{"loss": 0.5}, {"eval_loss": 0.25, "eval_runtime": 2.0}]
