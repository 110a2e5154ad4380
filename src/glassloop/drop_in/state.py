"""Where a training stands, under the names of transformers' `TrainerState`, and the files scripts write after a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from transformers import TrainerState as TheirState

from glassloop.engine.state import State
from glassloop.errors import show
from glassloop.files import write_text
from glassloop.run_folder.history import Entry, lasting
from glassloop.run_folder.record import Plan
from glassloop.training.trainer_state import log_history


class TrainerState(TheirState):  # type: ignore[misc]
    """The state of a training, as scripts and callbacks for transformers read it.

    Names that transformers does not have, such as `step` and `history`, are those of the loop's own state.

    Attributes:
        loop: The state of the loop.
    """

    loop: State
    global_step: int
    epoch: float
    history: list[Entry]
    log_history: list[dict[str, object]]
    best_metric: float | None
    best_global_step: int | None
    save_to_json: Callable[[str], None]
    taken = 0  # how many entries of the loop's history `log_history` has

    @classmethod
    def of(cls, loop: State) -> TrainerState:
        """Return the state of a training that the loop is about to begin."""
        made = cls(is_local_process_zero=True, is_world_process_zero=True, total_flos=0.0, epoch=0.0)
        made.loop = loop
        return made

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or "loop" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loop, name)

    def follow(self, plan: Plan | None, batch_size: int) -> TrainerState:
        """Bring everything up to date that the loop has changed, and return the state."""
        loop = self.loop
        if plan is not None:
            if loop.step != self.global_step or not self.epoch:  # an epoch that is cut short counts when the next one begins
                self.epoch = loop.epoch + loop.batch / plan.batches_per_epoch
            self.max_steps, self.num_train_epochs = plan.max_steps, -(-plan.max_steps // plan.steps_per_epoch)
            self.logging_steps, self.eval_steps, self.save_steps = plan.log_every, plan.eval_every, plan.save_every
        self.global_step, self.train_batch_size = loop.step, batch_size
        for entry in log_history(loop.history[self.taken :]):  # a script may have added entries of its own
            self.log_history.append({**entry, "epoch": self.epoch} if entry["step"] == loop.step else entry)
        self.taken = len(loop.history)
        return self

    def omit_latest(self) -> None:
        """Remove the latest entry of `log_history`: transformers would not have logged it."""
        if self.log_history:
            self.log_history.pop()

    def add(self, logs: Mapping[str, object]) -> None:
        """Add an entry of a script itself. The history leaves out what differs between repeated runs, or is not a number."""
        loop = self.loop
        loop.own_entries.append(len(loop.history))
        loop.history.append({"step": loop.step, **lasting(logs), "epoch": round(self.epoch, 4)})
        self.taken = len(loop.history)
        self.log_history.append({**logs, "step": loop.step})

    def split_latest(self, parts: Sequence[dict[str, float]]) -> Iterator[dict[str, float]]:
        """Yield the evaluation of each data set, each with an entry in `log_history` instead of the latest one for them all."""
        entry, names = self.log_history.pop(), {name for part in parts for name in part}
        added = {name: value for name, value in entry.items() if name not in names}  # by a script's own `log`, and the step
        for part in parts:
            self.log_history.append({**part, **added})
            yield part

    def add_to_latest(self, logs: Mapping[str, float], *, of_loop: bool) -> None:
        """Add to the latest entry what a script's own `log` has added."""
        if of_loop:
            self.loop.history[-1].update(lasting(logs))
        if self.log_history:
            self.log_history[-1].update(logs)


def show_metrics(split: str, metrics: Mapping[str, float]) -> None:
    """Print metrics as transformers' `log_metrics` does: a line for each, in the order of their names."""
    show(f"***** {split} metrics *****")
    width = max((len(name) for name in metrics), default=0)
    for name in sorted(metrics):
        value = metrics[name]
        show(f"  {name:<{width}} = {round(value, 4) if isinstance(value, float) else value!s:>10}")


def write_metrics(folder: Path, split: str, metrics: Mapping[str, float], *, combined: bool) -> None:
    """Write metrics to SPLIT_results.json and, if `combined`, add them to all_results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{split}_results.json", json.dumps(dict(metrics), indent=4, sort_keys=True) + "\n")
    if combined:
        path = folder / "all_results.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        write_text(path, json.dumps({**known, **metrics}, indent=4, sort_keys=True) + "\n")
