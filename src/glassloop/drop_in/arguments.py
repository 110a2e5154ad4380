"""`glassloop.TrainingArguments`: the training settings as scripts for transformers use them.

Every setting of transformers' `TrainingArguments` is accepted, works or is refused by name; settings may be assigned later and
are checked again when training starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from glassloop.arguments import HALVES, Setting, translated
from glassloop.arguments import TrainingArguments as Settings
from glassloop.errors import SettingsError, did_you_mean, visible
from glassloop.settings import refuse
from glassloop.drop_in.settings import KEPT, RENAMED, SETTINGS

OWN = {entry.name: entry.default for entry in fields(Settings)}


def with_settings_of_transformers(kind: type[TrainingArguments]) -> type[TrainingArguments]:
    """Add the settings of transformers to a class, as fields, so that `HfArgumentParser` makes an option for each."""
    for name, theirs in SETTINGS.items():
        kind.__annotations__[name] = theirs.kind
        text = f"{theirs.outcome}: {theirs.text}"
        setattr(kind, name, field(default=theirs.default, metadata={"help": text}, repr=False, compare=theirs.outcome == KEPT))
    return dataclass(init=False, unsafe_hash=True)(kind)


@with_settings_of_transformers
class TrainingArguments(Settings):
    """The settings of a training run, under the names of transformers' `TrainingArguments`.

    A setting may be assigned after construction; all are checked again when training starts.

    Args:
        output_dir: Folder for everything the run writes.
        **given: Any other setting of Glassloop or of transformers, by name.

    Raises:
        SettingsError: A name or value is not allowed. All problems are reported together.
    """

    def __init__(self, output_dir: str | Path | None = None, **given: object) -> None:
        super().__init__(output_dir, **given)
        for name, theirs in SETTINGS.items():
            is_given = given.get(name) is not None and theirs.outcome != RENAMED  # a renamed one is stored under its new name
            object.__setattr__(self, name, given[name] if is_given else theirs.default)

    def __getattribute__(self, name: str) -> object:
        if name in HALVES:  # scripts read them, whatever they were called when they were set
            return self.precision == name
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in OWN and name not in SETTINGS:
            if near := did_you_mean(name, [*OWN, *SETTINGS]):
                raise SettingsError(f"there is no setting {visible(name)}{near}", "glassloop train --help lists all settings")
            object.__setattr__(self, name, value)  # of the script itself
            return
        settings, problems = translated({name: value}, Settings)
        refuse(problems)
        kept = {} if name in SETTINGS and SETTINGS[name].outcome == RENAMED else {name: value}
        for today, meant in (kept | settings).items():
            object.__setattr__(self, today, meant)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    def to_dict(self) -> dict[str, Setting]:
        """Return all settings of Glassloop by name, as plain values that JSON can hold."""
        return {name: getattr(self, name) for name in OWN}

    def to_json_string(self) -> str:
        """Return all settings of Glassloop as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Setting]:
        """Return all settings of Glassloop by name."""
        return self.to_dict()

    @property
    def world_size(self) -> int:
        """The number of processes that train together."""
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def process_index(self) -> int:
        """The number of this process among all, from 0."""
        return int(os.environ.get("RANK", "0"))

    @property
    def local_process_index(self) -> int:
        """The number of this process on this machine, from 0."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return self.process_index == 0

    should_log = should_save

    @property
    def n_gpu(self) -> int:
        """The number of GPUs that this process uses."""
        import torch

        return int(self.device in ("auto", "cuda") and torch.cuda.is_available())

    @property
    def train_batch_size(self) -> int:
        """The number of training rows of a batch in this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """The number of evaluation rows of a batch in this process."""
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warm-up steps of a training.

        Args:
            num_training_steps: The number of steps of the training.
        """
        warmup = self.warmup_steps
        return -int(-warmup * num_training_steps // 1) if warmup < 1 else int(warmup)

    def get_process_log_level(self) -> int:
        """Return the level for Python's logging in this process: warnings."""
        return 30

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the main process first.

        Args:
            local: Accepted for compatibility.
            desc: Accepted for compatibility.
        """
        from accelerate import PartialState

        with PartialState().main_process_first():
            yield

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        **others: object,
    ) -> TrainingArguments:
        """Set how to train, and return the settings.

        Args:
            learning_rate: Peak learning rate.
            batch_size: Training batch size per device.
            weight_decay: Weight decay.
            num_epochs: Number of epochs.
            max_steps: Number of steps; overrides `num_epochs`.
            gradient_accumulation_steps: Number of batches of a step.
            seed: Random seed.
            **others: Other settings by name.
        """
        return self._with(
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            **others,
        )

    def set_evaluate(
        self, strategy: str = "no", steps: int = 500, batch_size: int = 8, delay: float | None = None, **others: object
    ) -> TrainingArguments:
        """Set when to evaluate, and return the settings.

        Args:
            strategy: no, steps or epoch.
            steps: Number of steps between evaluations.
            batch_size: Evaluation batch size per device.
            delay: Steps or epochs before the first evaluation.
            **others: Other settings by name.
        """
        return self._with(
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_delay=delay or 0.0,
            **others,
        )

    def set_testing(self, batch_size: int = 8, **others: object) -> TrainingArguments:
        """Set the batch size of predictions, and return the settings.

        Args:
            batch_size: Evaluation batch size per device.
            **others: Other settings by name.
        """
        return self._with(per_device_eval_batch_size=batch_size, **others)

    def set_save(
        self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, **others: object
    ) -> TrainingArguments:
        """Set when to save checkpoints, and return the settings.

        Args:
            strategy: no, steps or epoch.
            steps: Number of steps between checkpoints.
            total_limit: Number of checkpoints to keep.
            **others: Other settings by name.
        """
        return self._with(save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, **others)

    def set_logging(
        self, strategy: str = "steps", steps: int = 500, report_to: str | list[str] = "none", **others: object
    ) -> TrainingArguments:
        """Set when and where to log, and return the settings.

        Args:
            strategy: no, steps or epoch.
            steps: Number of steps between log entries.
            report_to: Experiment trackers.
            **others: logging_first_step and other settings by name; `first_step` is accepted for the former.
        """
        if "first_step" in others:
            others["logging_first_step"] = others.pop("first_step")
        for name in ("level", "nan_inf_filter", "on_each_node", "replica_level"):
            others.pop(name, None)
        return self._with(logging_strategy=strategy, logging_steps=steps, report_to=report_to, **others)

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> TrainingArguments:
        """Set the optimizer, and return the settings.

        Args:
            name: Name of the optimizer.
            learning_rate: Peak learning rate.
            weight_decay: Weight decay.
            beta1: Beta 1 of AdamW.
            beta2: Beta 2 of AdamW.
            epsilon: Epsilon of AdamW.
            args: Extra settings of the optimizer.
        """
        return self._with(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self,
        name: str = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> TrainingArguments:
        """Set the learning rate schedule, and return the settings.

        Args:
            name: Name of the schedule.
            num_epochs: Number of epochs.
            max_steps: Number of steps; overrides `num_epochs`.
            warmup_steps: Number of warm-up steps, or a fraction of all steps.
            warmup_ratio: Fraction of all steps; an earlier name.
        """
        return self._with(
            lr_scheduler_type=name,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            warmup_steps=warmup_ratio or warmup_steps,
        )

    def set_dataloader(
        self, train_batch_size: int = 8, eval_batch_size: int = 8, drop_last: bool = False, **others: object
    ) -> TrainingArguments:
        """Set how batches are made, and return the settings.

        Args:
            train_batch_size: Training batch size per device.
            eval_batch_size: Evaluation batch size per device.
            drop_last: Drop the last incomplete batch of each epoch.
            **others: num_workers and other settings of transformers, which have no effect.
        """
        named = {"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "auto_find_batch_size", "sampler_seed"}
        unused = {name for name in others if name in named}
        return self._with(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            **{name: value for name, value in others.items() if name not in unused},
        )

    def _with(self, **given: object) -> TrainingArguments:
        """Assign settings and return them."""
        for name, value in given.items():
            setattr(self, name, value)
        return self


