"""Methods of transformers' `TrainingArguments` that set several settings at once, such as `set_training`."""

from __future__ import annotations

from typing import TypeVar

Kind = TypeVar("Kind", bound="Setters")
LOADER_NAMES = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")


class Setters:
    """Assigns settings by the names that each method of transformers' `TrainingArguments` gives them."""

    def set_training(
        self: Kind,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        **others: object,
    ) -> Kind:
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
        self: Kind, strategy: str = "no", steps: int = 500, batch_size: int = 8, delay: float | None = None, **others: object
    ) -> Kind:
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

    def set_testing(self: Kind, batch_size: int = 8, **others: object) -> Kind:
        """Set the batch size of predictions, and return the settings.

        Args:
            batch_size: Evaluation batch size per device.
            **others: Other settings by name.
        """
        return self._with(per_device_eval_batch_size=batch_size, **others)

    def set_save(
        self: Kind, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, **others: object
    ) -> Kind:
        """Set when to save checkpoints, and return the settings.

        Args:
            strategy: no, steps or epoch.
            steps: Number of steps between checkpoints.
            total_limit: Number of checkpoints to keep.
            **others: Other settings by name.
        """
        return self._with(save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, **others)

    def set_logging(
        self: Kind, strategy: str = "steps", steps: int = 500, report_to: str | list[str] = "none", **others: object
    ) -> Kind:
        """Set when and where to log, and return the settings.

        Args:
            strategy: no, steps or epoch.
            steps: Number of steps between log entries.
            report_to: Experiment trackers.
            **others: logging_first_step and other settings by name; `first_step` is accepted for the former.
        """
        names = {"first_step": "logging_first_step", "level": "log_level", "replica_level": "log_level_replica"}
        names |= {"nan_inf_filter": "logging_nan_inf_filter", "on_each_node": "log_on_each_node"}
        given = {names.get(name, name): value for name, value in others.items()}
        return self._with(logging_strategy=strategy, logging_steps=steps, report_to=report_to, **given)

    def set_optimizer(
        self: Kind,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Kind:
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
        self: Kind,
        name: str = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Kind:
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
            warmup_steps=warmup_steps or warmup_ratio or 0,
        )

    def set_dataloader(
        self: Kind, train_batch_size: int = 8, eval_batch_size: int = 8, drop_last: bool = False, **others: object
    ) -> Kind:
        """Set how batches are made, and return the settings.

        Args:
            train_batch_size: Training batch size per device.
            eval_batch_size: Evaluation batch size per device.
            drop_last: Drop the last incomplete batch of each epoch.
            **others: num_workers, auto_find_batch_size, sampler_seed and other settings by name.
        """
        given = {f"dataloader_{name}" if name in LOADER_NAMES else name: value for name, value in others.items()}
        given = {"data_seed" if name == "sampler_seed" else name: value for name, value in given.items()}
        return self._with(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            **given,
        )

    def _with(self: Kind, **given: object) -> Kind:
        """Assign settings and return them."""
        for name, value in given.items():
            setattr(self, name, value)
        return self
