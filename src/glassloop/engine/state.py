"""What a run intends (the plan) and where it is (the state), as plain numbers that can be saved and shown."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from glassloop.errors import SettingsError, listed
from glassloop.run_folder.record import Plan

MOST_STILL = 20  # fp16's scaler leaves out a few steps until it has found its scale, never so many in a row


class NotFiniteError(FloatingPointError):
    """A figure of a step that is not finite: what, and the number of the step."""


@dataclass
class State:
    """Counters of a run. A step is one change of the weights; `batch` counts the batches taken in this epoch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    losses_read: int = 0
    last_loss: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    still: int = 0  # steps in a row without a gradient: in fp16 those that overflowed
    stop_reason: str | None = None
    evaluation_due: bool = False
    unlogged: list[list[float]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    asked_to_stop: int = 0  # the signal this process got
    signal: int = 0  # the signal all processes act on

    def read(self, figures: list[list[float]]) -> None:
        """Take the losses and gradient norms of the steps since the last reading; they are kept until they are logged."""
        for offset, (loss, norm) in enumerate(figures, self.step - len(figures) + 1):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
                raise NotFiniteError(f"step {offset:,}: {what}", offset)
            self.still = self.still + 1 if norm == 0 < loss else 0
            if self.still == MOST_STILL:
                raise NotFiniteError(f"step {offset:,}: for {MOST_STILL} steps the gradient overflowed or was zero", offset)
            self.loss_sum += loss
            self.losses_read += 1
            self.last_loss = loss
        self.unlogged += figures

    @property
    def mean_loss(self) -> float:
        """The mean loss of all steps read so far."""
        return self.loss_sum / self.losses_read if self.losses_read else 0.0

    def judge(self, metrics: dict[str, float], plan: Plan) -> None:
        """Compare an evaluation with the best one so far; ask to stop where patience has run out."""
        if plan.best_metric not in metrics:
            raise SettingsError(
                f"metric_for_best_model is {plan.best_metric}, but an evaluation gives {listed(metrics)}",
                "name the class whose F1 counts with positive_label, or use f1_macro"
                if plan.best_metric == "eval_f1" and "eval_f1_macro" in metrics
                else "name one of these; without labels there is no loss",
            )
        score = metrics[plan.best_metric]
        gain = math.inf if self.best_score is None else (score - self.best_score) * (1 if plan.greater_is_better else -1)
        if gain > plan.least_gain and not math.isnan(score):
            self.best_score, self.best_step, self.evaluations_without_gain = score, self.step, 0
        else:
            self.evaluations_without_gain += 1
            if plan.patience is not None and self.evaluations_without_gain >= plan.patience:
                self.stop_reason = f"no better {plan.best_metric} in {plan.patience} evaluations"

    def to_dict(self) -> dict[str, Any]:
        """All that must survive a stop."""
        return {name: value for name, value in asdict(self).items() if name not in ("asked_to_stop", "signal")}
