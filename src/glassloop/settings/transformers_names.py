"""The settings of transformers' `TrainingArguments` that are not Glassloop's own: which have an effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

RENAMED, KEPT, UNNEEDED, REFUSED = "renamed", "kept", "no effect", "refused"


SEQUENTIAL = "sequential"  # the sampling strategy that keeps the order of the rows


TRACKERS = ("none", "tensorboard", "wandb", "trackio")


# Values of Glassloop's own settings that transformers writes differently.
TODAY = {
    "optim": {"adamw_hf": "adamw_torch"},
    "report_to": {"None": "none", "all": ",".join(name for name in TRACKERS if find_spec(name)) or "none"},
}


Translate = Callable[[object], dict[str, object]]


@dataclass(frozen=True)
class TransformersSetting:
    """How Glassloop treats a setting of transformers.

    Attributes:
        outcome: `RENAMED`, `KEPT`, `UNNEEDED` or `REFUSED`.
        text: The setting it is called now, why it has no effect, or what to do instead.
        kind: The type of its values, from which transformers' `HfArgumentParser` makes an option.
        default: What a script reads if it was not given.
        translate: Returns the settings that a value stands for.
        allowed: The only values, or members of a list, that are not refused; empty if all others are as the outcome says.
    """

    outcome: str
    text: str
    kind: object = str | None
    default: object = None
    translate: Translate = lambda value: {}
    allowed: tuple[str, ...] = ()

    def refuses(self, value: object) -> bool:
        """Return whether a value is refused: it asks for something, and is not allowed."""
        asks = value not in (None, False, "", "no", "none", "None", [], {}, self.default)
        if self.allowed and asks:
            return not {*(value if isinstance(value, list | tuple) else [value])} <= {*self.allowed}
        return asks and self.outcome == REFUSED


def renamed(text: str, translate: Translate, kind: object = bool) -> TransformersSetting:
    """Return a setting that stands for others."""
    return TransformersSetting(RENAMED, f"is now called {text}", kind, translate=translate)


def kept(text: str, kind: object = str | None, default: object = None) -> TransformersSetting:
    """Return a setting that only scripts read."""
    return TransformersSetting(KEPT, text, kind, default)


def group(outcome: str, text: str, **names: tuple[object, object]) -> dict[str, TransformersSetting]:
    """Return settings that share an explanation, each with its type and default."""
    return {name: TransformersSetting(outcome, text, kind, default) for name, (kind, default) in names.items()}


FLAG, ON = (bool, None), (bool | None, True)  # HfArgumentParser makes a flag of a bool


TEXT, WHOLE, TABLE, NAMES = (str | None, None), (int | None, None), (str | None, None), (list[str] | None, None)


def precision(name: str) -> Translate:
    """Return the translation of `fp16` or `bf16`: True asks for it, False for fp32 unless the other one is asked for."""
    return lambda value: {"precision": name} if value else {} if value is None else {"precision": "fp32"}


LOADER = "rows are memory-mapped and read in the main process, so there are no workers to configure"


SEVERAL_PROCESSES = "several processes need no further settings"


HUB = "push_to_hub reads it; uploads happen when a training has ended"


HALF_PRECISION = "precision chooses the implementation of half precision"


COMPILE = "it changes the speed only; the fast backends have kernels of their own and compile nothing during a run"


LAUNCH = "use --processes or torchrun; for FSDP use an accelerate config file (docs/how-to/processes.md)"


SETTINGS: dict[str, TransformersSetting] = {
    "evaluation_strategy": renamed("eval_strategy", lambda value: {"eval_strategy": value}, str | None),
    "evaluate_during_training": renamed("eval_strategy", lambda value: {"eval_strategy": "steps"} if value else {}),
    "no_cuda": renamed('device="cpu"', lambda value: {"device": "cpu"} if value else {}),
    "use_cpu": renamed('device="cpu"', lambda value: {"device": "cpu"} if value else {}),
    "use_mps_device": renamed('device="mps"', lambda value: {"device": "mps"} if value else {}),
    "fp16": renamed('precision="fp16"', precision("fp16")),
    "bf16": renamed('precision="bf16"', precision("bf16")),
    "adafactor": renamed('optim="adafactor"', lambda value: {"optim": "adafactor"} if value else {}),
    "warmup_ratio": renamed(
        "warmup_steps (a number below 1 is a fraction of all steps)",
        lambda value: {"warmup_steps": value} if value else {},
        float | None,
    ),
    "per_gpu_train_batch_size": renamed(
        "per_device_train_batch_size", lambda value: {"per_device_train_batch_size": value}, int | None
    ),
    "per_gpu_eval_batch_size": renamed(
        "per_device_eval_batch_size", lambda value: {"per_device_eval_batch_size": value}, int | None
    ),
    "train_sampling_strategy": TransformersSetting(
        KEPT,
        "use random, sequential (the order of the rows) or group_by_length",
        str | None,
        "random",
        lambda value: {"group_by_length": value == "group_by_length"},
        ("random", SEQUENTIAL, "group_by_length"),
    ),
    "do_train": kept("scripts read it to decide whether to train", bool | None, False),
    "do_eval": kept("scripts read it to decide whether to evaluate", bool | None, False),
    "do_predict": kept("scripts read it to decide whether to predict", bool | None, False),
    "resume_from_checkpoint": kept("scripts read it and pass it to train()"),
    "label_names": kept("the inputs that are the labels of an evaluation", list[str] | None),
    "remove_unused_columns": kept("False gives a collator and compute_loss all columns of the rows", bool | None, True),
    "prediction_loss_only": kept("an evaluation then returns the loss alone", bool | None, False),
    "batch_eval_metrics": kept("compute_metrics is called for each batch, after the last one", bool | None, False),
    "auto_find_batch_size": kept("training starts again with half the batch if memory is short", bool | None, False),
    "local_rank": kept("the launcher decides it", int | None, -1),
    **group(
        UNNEEDED,
        LOADER,
        dataloader_num_workers=(int | None, 0),
        dataloader_pin_memory=ON,
        dataloader_persistent_workers=FLAG,
        dataloader_prefetch_factor=WHOLE,
        dataloader_multiprocessing_context=TEXT,
        dataloader_in_order=ON,
        dispatch_batches=FLAG,
    ),
    **group(
        UNNEEDED,
        SEVERAL_PROCESSES,
        ddp_find_unused_parameters=FLAG,
        ddp_bucket_cap_mb=WHOLE,
        ddp_broadcast_buffers=FLAG,
        ddp_static_graph=FLAG,
        ddp_backend=TEXT,
        ddp_timeout=(int | None, 1800),
        log_on_each_node=ON,
        save_on_each_node=FLAG,
        xpu_backend=TEXT,
    ),
    **group(
        UNNEEDED,
        HALF_PRECISION,
        fp16_opt_level=TEXT,
        fp16_backend=TEXT,
        half_precision_backend=TEXT,
        fp16_full_eval=FLAG,
        bf16_full_eval=FLAG,
        tf32=FLAG,
    ),
    "push_to_hub": kept("the model is uploaded when a training has ended", bool | None, False),
    **group(
        KEPT,
        HUB,
        hub_token=TEXT,
        hub_private_repo=FLAG,
        hub_model_id=TEXT,
        hub_strategy=(str | None, "every_save"),
        hub_always_push=FLAG,
        hub_revision=TEXT,
        push_to_hub_model_id=TEXT,
        push_to_hub_organization=TEXT,
        push_to_hub_token=TEXT,
    ),
    **group(
        UNNEEDED,
        "the loss is always divided by the true number of rows, over all batches and processes",
        average_tokens_across_devices=ON,
    ),
    **group(
        UNNEEDED,
        "an evaluation keeps only logits, and copies them from the device in groups",
        eval_accumulation_steps=WHOLE,
        eval_do_concat_batches=ON,
        eval_use_gather_object=FLAG,
        torch_empty_cache_steps=WHOLE,
    ),
    **group(
        UNNEEDED,
        "models are always saved in safetensors format, and checkpoints with all that a resume needs",
        save_safetensors=ON,
        save_only_model=FLAG,
    ),
    **group(UNNEEDED, "activations are computed again without reentrant autograd", gradient_checkpointing_kwargs=TABLE),
    **group(
        UNNEEDED,
        "a loss that is not finite ends the run",
        logging_nan_inf_filter=ON,
    ),
    **group(
        UNNEEDED,
        "messages are one line each, from the main process only",
        log_level=TEXT,
        log_level_replica=TEXT,
        skip_memory_metrics=ON,
        include_tokens_per_second=FLAG,
        include_num_input_tokens_seen=(str | None, None),
        debug=(str | None, ""),
    ),
    **group(
        UNNEEDED,
        "lengths are counted from the token ids",
        length_column_name=(str | None, "length"),
    ),
    **group(
        UNNEEDED,
        "trackers get the folder of the run and run_name",
        project=TEXT,
        trackio_space_id=TEXT,
        trackio_bucket_id=TEXT,
        trackio_static_space_id=TEXT,
    ),
    **group(
        UNNEEDED,
        "runs repeat exactly on the same machine and versions",
        full_determinism=FLAG,
    ),
    **group(
        UNNEEDED,
        "an encoder has no cache of past tokens",
        past_index=(int | None, -1),
        use_cache=FLAG,
    ),
    **group(
        REFUSED,
        "construct callbacks with their earlier arguments; early stopping counts the evaluations before a resume anyway",
        restore_callback_states_from_checkpoint=FLAG,
    ),
    **group(REFUSED, "divide per_device_train_batch_size by the number of processes", split_batches=FLAG),
    **group(
        UNNEEDED,
        "there is only one way to evaluate",
        use_legacy_prediction_loop=FLAG,
        jit_mode_eval=FLAG,
    ),
    **group(
        UNNEEDED,
        COMPILE,
        torch_compile=FLAG,
        torch_compile_backend=TEXT,
        torch_compile_mode=TEXT,
        torchdynamo=TEXT,
        use_liger_kernel=FLAG,
        liger_kernel_config=TABLE,
        use_ipex=FLAG,
    ),
    **group(
        REFUSED,
        LAUNCH,
        deepspeed=TABLE,
        fsdp=(list[str] | None, None),
        fsdp_config=TABLE,
        fsdp_min_num_params=(int | None, 0),
        fsdp_transformer_layer_cls_to_wrap=TEXT,
        sharded_ddp=TEXT,
        mp_parameters=TEXT,
        parallelism_config=TABLE,
        accelerator_config=TABLE,
        tpu_num_cores=WHOLE,
        tpu_metrics_debug=FLAG,
        ray_scope=(str | None, "last"),
    ),
    **group(REFUSED, "omit it: Glassloop adds no noise to embeddings", neftune_noise_alpha=(float | None, None)),
    **group(
        REFUSED,
        "read the inputs from the data set: predictions are in its order",
        include_inputs_for_metrics=FLAG,
        include_for_metrics=NAMES,
    ),
    **group(REFUSED, "pass optimizers=(optimizer, scheduler)", optim_target_modules=(list[str] | None, None)),
    **group(REFUSED, "a resumed run always skips the rows it has seen", ignore_data_skip=FLAG),
    **group(REFUSED, "checkpoints are saved when a signal arrives, without it", enable_jit_checkpoint=FLAG),
}


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
