"""Where a training stands, under the names of transformers' `TrainerState`, and the files scripts write after a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glassloop.drop_in.callbacks import log_history
from glassloop.engine.state import State
from glassloop.errors import show
from glassloop.files import write_text

STATE_NAME = "trainer_state.json"


@dataclass
class TrainerState(State):
    """The state of a training, with the names that scripts for transformers read.

    Attributes:
        result: Loss and speed of a finished training, an entry of `log_history`.
        result_at: The number of entries before it.
        max_steps: The number of steps of the training.
    """

    result: dict[str, float] = field(default_factory=dict)
    result_at: int = 0
    max_steps: int = 0

    @property
    def global_step(self) -> int:
        """The number of steps."""
        return self.step

    @property
    def log_history(self) -> list[dict[str, object]]:
        """Every logged step and evaluation, and loss and speed of a finished training."""
        found = log_history(self.history)
        if self.result:
            found.insert(self.result_at, {**self.result, "step": self.step})
        return found

    @property
    def best_metric(self) -> float | None:
        """The best value of the metric for the best model."""
        return self.best_score

    @property
    def best_global_step(self) -> int | None:
        """The step of the best evaluation."""
        return self.best_step

    @property
    def is_world_process_zero(self) -> bool:
        """Whether this is the main process; only its state is written."""
        return True

    def to_dict(self) -> dict[str, object]:
        """Return everything that a checkpoint has to hold."""
        return {name: value for name, value in super().to_dict().items() if name not in ("result", "result_at", "max_steps")}

    def save_to_json(self, path: str | Path) -> None:
        """Write the state as transformers' trainer_state.json has it.

        Args:
            path: The file to write.
        """
        values = {
            "best_metric": self.best_metric,
            "best_global_step": self.best_global_step,
            "epoch": (self.log_history or [{"epoch": 0.0}])[-1].get("epoch"),
            "global_step": self.step,
            "max_steps": self.max_steps,
            "is_world_process_zero": True,
            "log_history": self.log_history,
        }
        write_text(Path(path), json.dumps(values, indent=2, sort_keys=True) + "\n")


def show_metrics(split: str, metrics: Mapping[str, float]) -> None:
    """Print metrics as transformers' `log_metrics` does: a line for each, in the order of their names."""
    show(f"***** {split} metrics *****")
    width = max((len(name) for name in metrics), default=0)
    for name in sorted(metrics):
        value = metrics[name]
        show(f"  {name:<{width}} = {round(value, 4) if isinstance(value, float) else value:>10}")


def write_metrics(folder: Path, split: str, metrics: Mapping[str, float], *, combined: bool) -> None:
    """Write metrics to SPLIT_results.json and, if `combined`, add them to all_results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{split}_results.json", json.dumps(dict(metrics), indent=4, sort_keys=True) + "\n")
    if combined:
        path = folder / "all_results.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        write_text(path, json.dumps({**known, **metrics}, indent=4, sort_keys=True) + "\n")
