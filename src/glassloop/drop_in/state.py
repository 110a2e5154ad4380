"""Where a training stands, under the names of transformers' `TrainerState`, and the files scripts write after a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from glassloop.engine.state import State
from glassloop.errors import show
from glassloop.files import write_text
from glassloop.training.trainer_state import best_checkpoint, log_history, state_text


@dataclass
class TrainerState(State):
    """The state of a training, with the names that scripts for transformers read.

    Attributes:
        result: Loss and speed of a finished training, an entry of `log_history`.
        result_at: The number of entries before it.
        max_steps: The number of steps of the training.
        folder: The folder of the checkpoints.
        facts: The entries of trainer_state.json that stay the same.
    """

    result: dict[str, float] = field(default_factory=dict)
    result_at: int = 0
    max_steps: int = 0
    folder: Path = Path()
    facts: dict[str, int] = field(default_factory=dict)

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
    def best_model_checkpoint(self) -> str | None:
        """The checkpoint of the best evaluation; None if it does not exist."""
        return best_checkpoint(self.folder, self.best_step)

    @property
    def is_world_process_zero(self) -> bool:
        """Whether this is the main process; only its state is written."""
        return True

    def to_dict(self) -> dict[str, object]:
        """Return everything that a checkpoint has to hold."""
        names = {entry.name for entry in fields(State)}
        return {name: value for name, value in super().to_dict().items() if name in names}

    def save_to_json(self, path: str | Path) -> None:
        """Write the state as transformers' trainer_state.json has it.

        Args:
            path: The file to write.
        """
        epoch = float(str((self.log_history or [{}])[-1].get("epoch", 0.0)))
        write_text(Path(path), state_text(self, epoch, self.log_history, self.best_model_checkpoint, self.facts))


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
