"""Where a run stands, as plain numbers that can be saved and shown."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from glassloop.base.errors import SettingsError, listed
from glassloop.runs.history import Entry
from glassloop.runs.record import Plan

MOST_STEPS_WITHOUT_GRADIENT = 20  # fp16's scaler skips a few steps until it has found its factor, but never this many


class NotFiniteError(FloatingPointError):
    """A loss, gradient or weight that is not finite. Its arguments are a sentence and the number of the step."""


@dataclass
class State:
    """Where a run stands.

    Attributes:
        step: The number of weight updates.
        epoch: The number of finished epochs.
        batch: The number of batches of this epoch that were trained on.
        loss_sum: The sum of the losses of all steps.
        losses_read: The number of losses in this sum.
        last_loss: The latest loss.
        best_score: The best value of the plan's metric.
        best_step: The step of that evaluation.
        evaluations_without_gain: The number of evaluations since then.
        steps_without_gradient: The number of latest steps with a gradient of zero: in fp16, those that overflowed.
        stop_reason: Why to stop after this step; a callback may set it.
        epoch_ends: Whether to end this epoch after this step; a callback may set it.
        steps_left_out: The number of steps that were left out at the end of such epochs.
        evaluation_due: Whether an evaluation was interrupted and is to be repeated.
        unlogged: Loss and gradient norm of each step since the last log.
        history: The entries of history.jsonl.
        own_entries: The places in `history` of entries that are not the loop's: those of a script's own `log` and `evaluate`.
        asked: What callbacks ask for after this step: "log", "evaluate" or "save".
        asked_to_stop: The signal that this process received, or 0.
        signal: The signal that all processes act on, or 0.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    losses_read: int = 0
    last_loss: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    steps_without_gradient: int = 0
    stop_reason: str | None = None
    epoch_ends: bool = False
    steps_left_out: int = 0
    evaluation_due: bool = False
    unlogged: list[list[float]] = field(default_factory=list)
    history: list[Entry] = field(default_factory=list)
    own_entries: list[int] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    asked_to_stop: int = 0
    signal: int = 0

    def read(self, figures: list[list[float]]) -> None:
        """Take the `figures` of the latest steps, loss and gradient norm of each, which are kept until they are logged.

        Raise `NotFiniteError` if one is not finite, or if gradients have been zero for too many steps.
        """
        for offset, (loss, norm) in enumerate(figures, self.step - len(figures) + 1):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
                raise NotFiniteError(f"step {offset:,}: {what}", offset)
            self.steps_without_gradient = self.steps_without_gradient + 1 if norm == 0 < loss else 0
            if self.steps_without_gradient == MOST_STEPS_WITHOUT_GRADIENT:
                problem = f"the gradient overflowed or was zero for {MOST_STEPS_WITHOUT_GRADIENT} steps"
                raise NotFiniteError(f"step {offset:,}: {problem}", offset)
            self.loss_sum += loss
            self.losses_read += 1
            self.last_loss = loss
        self.unlogged += figures

    @property
    def mean_loss(self) -> float:
        """Return the mean loss of all steps read so far."""
        return self.loss_sum / self.losses_read if self.losses_read else 0.0

    def judge(self, metrics: dict[str, float], plan: Plan) -> None:
        """Compare the `metrics` of an evaluation with the best; set `stop_reason` if the patience of the `plan` has run out.

        Raise `SettingsError` if the evaluation did not compute the plan's metric.
        """
        if plan.best_metric not in metrics and not plan.needs_best:
            return
        if plan.best_metric not in metrics:
            raise SettingsError(
                f"metric_for_best_model is {plan.best_metric}, but an evaluation computes {listed(metrics)}",
                "set positive_label to the class whose F1 counts, or use f1_macro"
                if plan.best_metric == "eval_f1" and "eval_f1_macro" in metrics
                else "choose one of these; without labels there is no loss",
            )
        score = metrics[plan.best_metric]
        gain = math.inf if self.best_score is None else (score - self.best_score) * (1 if plan.greater_is_better else -1)
        if gain > plan.least_gain and not math.isnan(score):
            self.best_score, self.best_step, self.evaluations_without_gain = score, self.step, 0
        else:
            self.evaluations_without_gain += 1
            if plan.patience is not None and self.evaluations_without_gain >= plan.patience:
                self.stop_reason = f"{plan.best_metric} did not improve in {plan.patience} evaluations"

    def to_dict(self) -> dict[str, object]:
        """Return everything that a checkpoint has to hold."""
        return {name: value for name, value in asdict(self).items() if name not in ("asked", "asked_to_stop", "signal")}
