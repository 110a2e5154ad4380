"""The Protocols of a backend name what the backends have."""

from __future__ import annotations

import inspect

from glassloop.training import loop
from glassloop.training.interfaces import Backend, ProcessGroup, StepBackend, TrainingUse


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")} - {"name", "precision", "scaler"}


def test_the_protocols_share_no_member_and_a_step_has_the_verbs_that_the_loop_calls() -> None:
    source = inspect.getsource(loop.train_step)
    assert members(StepBackend) == {name for name in members(StepBackend) if f"backend.{name}" in source}
    parts = [members(StepBackend), members(ProcessGroup), members(Backend)]
    assert len({*parts[0], *parts[1], *parts[2]}) == sum(map(len, parts))
    use = TrainingUse([], 0.0)
    assert (use.reads_gradients, use.adds_gradients, use.reads_weights) == (False, False, False)
