"""Scripts with parts and callbacks of their own, as launchers start them: losses, scores and weights of each go to a file.

Arguments: the folder, the rows of a batch in each process, the batches of a step, and how each training is interrupted: "no",
"stop" (by a signal) or "crash". An interrupted training is resumed.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import transformers
from families import tiny_model
from small_training import StopAt
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback

from glassloop import Trainer, TrainingArguments

ROWS = [{"input_ids": [2, 5 + row % 40, 6, 3], "attention_mask": [1] * 4, "labels": row % 2} for row in range(21)]
INTERRUPTED_AT = 5


class Weighted(Trainer):
    """A loss of its own, which is a mean."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]), reduction="none").mean()
        return (loss, outputs) if return_outputs else loss


class Counted(Trainer):
    """A loss of its own, which is a sum divided by a number of rows that it is given."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        count = len(labels) if num_items_in_batch is None else num_items_in_batch
        loss = 2 * functional.cross_entropy(outputs.logits, labels, reduction="sum") / count
        return (loss, outputs) if return_outputs else loss


class Optimized(Trainer):
    """An optimizer and a schedule of its own."""

    def create_optimizer(self) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, 2, gamma=0.5)
        return self.lr_scheduler


class Loaded(Trainer):
    """Loaders of its own. Each batch is shared by the processes."""

    def get_train_dataloader(self) -> Any:
        size = 8 // self.args.gradient_accumulation_steps
        return DataLoader(self.train_dataset, batch_size=size, collate_fn=transformers.default_data_collator)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return DataLoader(rows, batch_size=4, collate_fn=transformers.default_data_collator)


class Reporting(Trainer):
    """Changes what an evaluation computes, and watches the log."""

    def log(self, logs: dict[str, float], *others: Any) -> None:
        super().log({**logs, "seen": 1.0}, *others)

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        found = super().evaluate(*given, **named)
        return {**found, "eval_twice": 2 * found["eval_loss"]}

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        return loss, -logits, labels


class Saving(Trainer):
    """Saves the model in another form: half precision, and a note."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        half = {name: value.half() for name, value in self.model.state_dict().items()}
        self.model.save_pretrained(output_dir, state_dict=half)
        Path(str(output_dir), "note.txt").write_text("mine")
        torch.rand(1)


class Asking(TrainerCallback):
    """Asks for everything once, and ends the second epoch after its first step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 2:
            control.should_log = control.should_evaluate = control.should_save = True
        control.should_epoch_stop = state.global_step == 4

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        assert (folder / "config.json").is_file()
        if state.is_world_process_zero:
            model.save_pretrained(folder / "again")


class Stopping(TrainerCallback):
    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.epoch >= 2


NEVER = {"metric_for_best_model": "eval_loss", "greater_is_better": True, "load_best_model_at_end": True}
CASES: dict[str, tuple[type[Trainer], list[Any], dict[str, Any]]] = {
    "loss": (Weighted, [], {}),
    "counted loss": (Counted, [], {"save_strategy": "best", "metric_for_best_model": "loss"}),
    "optimizer": (Optimized, [], {}),
    "loaders": (Loaded, [], {}),
    "log and evaluation": (Reporting, [], {}),
    "save_model": (Saving, [], {}),
    "asking": (Trainer, [Asking], {}),
    "stopping": (Trainer, [Stopping], {}),
    "early stopping": (Trainer, [EarlyStoppingCallback(1)], NEVER),
}


class Crash(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == INTERRUPTED_AT:
            raise ConnectionError("the machine is gone")


def trained(name: str, folder: Path, size: int, accumulate: int, resume: bool, *more: Any) -> Trainer:
    kind, callbacks, settings = CASES[name]
    usual = {"num_train_epochs": 3, "logging_steps": 1, "learning_rate": 1e-3, "per_device_train_batch_size": size}
    usual |= {"eval_strategy": "epoch", "save_strategy": "epoch", "gradient_accumulation_steps": accumulate}
    args = TrainingArguments(str(folder), device="cpu", precision="fp32", **usual | settings)
    trainer = kind(tiny_model(dropout=0.0), args, train_dataset=ROWS, eval_dataset=ROWS[:9], callbacks=[*callbacks, *more])
    trainer._quiet = True
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(folder: Path, size: int, accumulate: int, interrupted: str) -> None:
    found = {}
    for name in CASES:
        place = folder / name.replace(" ", "-")
        if interrupted != "no":
            with suppress(SystemExit, ConnectionError):
                trained(name, place, size, accumulate, False, StopAt(INTERRUPTED_AT) if interrupted == "stop" else Crash)
            CASES["early stopping"] = (Trainer, [EarlyStoppingCallback(1)], NEVER)  # as another process has it
        trainer = trained(name, place, size, accumulate, interrupted != "no")
        entries = [{key: value for key, value in entry.items() if key != "seen"} for entry in trainer.state.history]
        # the gradient of a key's bias is zero but for rounding, which Adam scales up
        trained_weights = {key: value for key, value in trainer.model.state_dict().items() if not key.endswith("key.bias")}
        weights = [float(value.double().abs().sum()) for value in trained_weights.values()]
        best = trainer.state.best_model_checkpoint
        found[name] = {"history": entries, "weights": weights, "best": best and Path(best).name}
        if trainer.is_world_process_zero():  # it writes checkpoints, in a thread that the other processes do not wait for
            assert best is None or Path(best).is_dir()
    if trainer.is_world_process_zero():
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
