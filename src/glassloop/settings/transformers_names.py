"""The settings of transformers' `TrainingArguments` that are not Glassloop's own: which have an effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

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
    """How Glassloop treats a setting of transformers."""

    outcome: str  # RENAMED, KEPT, UNNEEDED or REFUSED
    text: str  # the setting it is called now, why it has no effect, or what to do instead
    kind: object = str | None  # of its values, from which transformers' HfArgumentParser makes an option
    default: object = None  # what a script reads if it was not given
    translate: Translate = lambda value: {}  # returns the settings that a value stands for
    allowed: tuple[str, ...] = ()  # the only values, or members of a list, that are not refused; empty for all

    def refuses(self, value: object) -> bool:
        """Return whether a value is refused: it asks for something, and is not allowed."""
        asks = value not in (None, False, "", "no", "none", "None", [], {}, self.default)
        if self.allowed and asks:
            return not {*(value if isinstance(value, list | tuple) else [value])} <= {*self.allowed}
        return asks and self.outcome == REFUSED


def renamed(setting: str, kind: object) -> TransformersSetting:
    return TransformersSetting(RENAMED, f"is now called {setting}", kind, translate=lambda value: {setting: value})


def switch(text: str, setting: str, on: str, off: str | None = None) -> TransformersSetting:
    """Return a switch that stands for a value of a setting, and perhaps for another one if it is off."""
    values = {True: {setting: on}, False: {setting: off} if off else {}}
    return TransformersSetting(RENAMED, f"is now called {text}", bool, translate=lambda value: {**values[bool(value)]})


def group(
    outcome: str, text: str, flags: str = "", on: str = "", off: str = "", texts: str = "", numbers: str = "", **others: object
) -> dict[str, TransformersSetting]:
    """Return settings that share an explanation, by their kind: switches, texts, whole numbers; others with their default."""
    kinds: list[tuple[str, object, object]] = [
        (flags, bool, None),  # HfArgumentParser makes a flag of a bool
        (on, bool | None, True),
        (off, bool | None, False),
        (texts, str | None, None),
        (numbers, int | None, None),
    ]
    table = {name: (kind, default) for names, kind, default in kinds for name in names.split()}
    table |= {name: (type(default) | None, default) for name, default in others.items()}
    return {name: TransformersSetting(outcome, text, kind, default) for name, (kind, default) in table.items()}


LOADER = "rows are memory-mapped and read in the main process, so there are no workers to configure"
COMPILE = "it changes the speed only; the fast backends have kernels of their own and compile nothing during a run"
LAUNCH = "use --processes or torchrun; for FSDP use the config file of accelerate"
INPUTS = "read the inputs from the data set: predictions are in its order"
SAMPLINGS = ("random", SEQUENTIAL, "group_by_length")
SAMPLING = "use random, sequential (the order of the rows) or group_by_length"
WARMUP = "is now called warmup_steps (a number below 1 is a fraction of all steps)"
PROCESSES = "several processes need no further settings"
PRECISION = "precision chooses the implementation of half precision"
UPLOADS = "push_to_hub reads it; uploads happen after training"
MEMORY = "an evaluation keeps only logits, and copies them from the device in groups"
SAVING = "models are always saved in safetensors format, and checkpoints with all that a resume needs"
MESSAGES = "messages are one line each, from the main process only"
TRACKED = "trackers get the folder of the run and run_name"
LOSS = "the loss is always divided by the true number of rows, over all batches and processes"
STATES = "construct callbacks with their earlier arguments; early stopping counts the evaluations before a resume anyway"

SETTINGS: dict[str, TransformersSetting] = {
    "evaluation_strategy": renamed("eval_strategy", str | None),
    "evaluate_during_training": switch("eval_strategy", "eval_strategy", "steps"),
    "no_cuda": switch('device="cpu"', "device", "cpu"),
    "use_cpu": switch('device="cpu"', "device", "cpu"),
    "use_mps_device": switch('device="mps"', "device", "mps"),
    "fp16": switch('precision="fp16"', "precision", "fp16", "fp32"),
    "bf16": switch('precision="bf16"', "precision", "bf16", "fp32"),
    "adafactor": switch('optim="adafactor"', "optim", "adafactor"),
    "warmup_ratio": TransformersSetting(
        RENAMED, WARMUP, float | None, translate=lambda value: {"warmup_steps": value} if value else {}
    ),
    "per_gpu_train_batch_size": renamed("per_device_train_batch_size", int | None),
    "per_gpu_eval_batch_size": renamed("per_device_eval_batch_size", int | None),
    "train_sampling_strategy": TransformersSetting(
        KEPT, SAMPLING, str | None, "random", lambda value: {"group_by_length": value == SAMPLINGS[-1]}, SAMPLINGS
    ),
    **group(KEPT, "scripts read it to decide whether to train", off="do_train"),
    **group(KEPT, "scripts read it to decide whether to evaluate", off="do_eval"),
    **group(KEPT, "scripts read it to decide whether to predict", off="do_predict"),
    **group(KEPT, "scripts read it and pass it to train()", texts="resume_from_checkpoint"),
    "label_names": TransformersSetting(KEPT, "the inputs that are the labels of an evaluation", list[str] | None),
    **group(KEPT, "False gives a collator and compute_loss all columns of the rows", on="remove_unused_columns"),
    **group(KEPT, "an evaluation then returns the loss alone", off="prediction_loss_only"),
    **group(KEPT, "compute_metrics is called for each batch, after the last one", off="batch_eval_metrics"),
    **group(KEPT, "training starts again with half the batch if memory is short", off="auto_find_batch_size"),
    **group(KEPT, "the launcher decides it", local_rank=-1),
    **group(UNNEEDED, LOADER, flags="dataloader_persistent_workers dispatch_batches"),
    **group(UNNEEDED, LOADER, on="dataloader_pin_memory dataloader_in_order", texts="dataloader_multiprocessing_context"),
    **group(UNNEEDED, LOADER, numbers="dataloader_prefetch_factor", dataloader_num_workers=0),
    **group(UNNEEDED, PROCESSES, flags="ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph save_on_each_node"),
    **group(UNNEEDED, PROCESSES, on="log_on_each_node", texts="ddp_backend xpu_backend"),
    **group(UNNEEDED, PROCESSES, numbers="ddp_bucket_cap_mb", ddp_timeout=1800),
    **group(UNNEEDED, PRECISION, flags="fp16_full_eval bf16_full_eval tf32"),
    **group(UNNEEDED, PRECISION, texts="fp16_opt_level fp16_backend half_precision_backend"),
    **group(KEPT, "the model is uploaded after training", off="push_to_hub"),
    **group(KEPT, UPLOADS, flags="hub_private_repo hub_always_push", texts="hub_token hub_model_id hub_revision"),
    **group(KEPT, UPLOADS, texts="push_to_hub_model_id push_to_hub_organization push_to_hub_token", hub_strategy="every_save"),
    **group(UNNEEDED, LOSS, on="average_tokens_across_devices"),
    **group(UNNEEDED, MEMORY, flags="eval_use_gather_object", on="eval_do_concat_batches"),
    **group(UNNEEDED, MEMORY, numbers="eval_accumulation_steps torch_empty_cache_steps"),
    **group(UNNEEDED, SAVING, flags="save_only_model", on="save_safetensors"),
    **group(UNNEEDED, "activations are computed again without reentrant autograd", texts="gradient_checkpointing_kwargs"),
    **group(UNNEEDED, "a loss that is not finite ends the run", on="logging_nan_inf_filter"),
    **group(UNNEEDED, MESSAGES, flags="include_tokens_per_second", on="skip_memory_metrics"),
    **group(UNNEEDED, MESSAGES, texts="log_level log_level_replica include_num_input_tokens_seen", debug=""),
    **group(UNNEEDED, "lengths are counted from the token ids", length_column_name="length"),
    **group(UNNEEDED, TRACKED, texts="project trackio_space_id trackio_bucket_id trackio_static_space_id"),
    **group(UNNEEDED, "runs repeat exactly on the same machine and versions", flags="full_determinism"),
    **group(UNNEEDED, "an encoder has no cache of past tokens", flags="use_cache", past_index=-1),
    **group(UNNEEDED, "there is only one way to evaluate", flags="use_legacy_prediction_loop jit_mode_eval"),
    **group(UNNEEDED, COMPILE, flags="torch_compile use_liger_kernel use_ipex"),
    **group(UNNEEDED, COMPILE, texts="torch_compile_backend torch_compile_mode torchdynamo liger_kernel_config"),
    **group(REFUSED, STATES, flags="restore_callback_states_from_checkpoint"),
    **group(REFUSED, "divide per_device_train_batch_size by the number of processes", flags="split_batches"),
    **group(REFUSED, LAUNCH, flags="tpu_metrics_debug", texts="deepspeed fsdp_config fsdp_transformer_layer_cls_to_wrap"),
    **group(REFUSED, LAUNCH, texts="sharded_ddp mp_parameters parallelism_config accelerator_config"),
    **group(REFUSED, LAUNCH, numbers="tpu_num_cores", fsdp_min_num_params=0, ray_scope="last"),
    "fsdp": TransformersSetting(REFUSED, LAUNCH, list[str] | None),
    "neftune_noise_alpha": TransformersSetting(REFUSED, "omit it: Glassloop adds no noise to embeddings", float | None),
    **group(REFUSED, INPUTS, flags="include_inputs_for_metrics"),
    "include_for_metrics": TransformersSetting(REFUSED, INPUTS, list[str] | None),
    "optim_target_modules": TransformersSetting(REFUSED, "pass optimizers=(optimizer, scheduler)", list[str] | None),
    **group(REFUSED, "a resumed run always skips the rows it has seen", flags="ignore_data_skip"),
    **group(REFUSED, "checkpoints are saved when a signal arrives, without it", flags="enable_jit_checkpoint"),
}

LOGGING_NAMES = {name: f"logging_{name}" for name in ("first_step", "nan_inf_filter")}
LOGGING_NAMES |= {"level": "log_level", "replica_level": "log_level_replica", "on_each_node": "log_on_each_node"}
LOADER_NAMES = {name: f"dataloader_{name}" for name in ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")}
LOADER_NAMES["sampler_seed"] = "data_seed"


class Setters:
    """Assigns settings by the names that each method of transformers' `TrainingArguments` gives them, and returns them."""

    def _with(self, **settings: object) -> Self:
        for name, value in settings.items():
            setattr(self, name, value)
        return self

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
    ) -> Self:
        """Set how to train, and return the settings.

        `learning_rate` is the peak, `batch_size` that of a device, `num_epochs` and `max_steps` the length (the latter wins),
        `gradient_accumulation_steps` the batches of a step, `weight_decay` and `seed` as usual, `others` any settings by name.
        """
        self._with(learning_rate=learning_rate, per_device_train_batch_size=batch_size, weight_decay=weight_decay, seed=seed)
        self._with(num_train_epochs=num_epochs, max_steps=max_steps)
        return self._with(gradient_accumulation_steps=gradient_accumulation_steps, **others)

    def set_evaluate(
        self, strategy: str = "no", steps: int = 500, batch_size: int = 8, delay: float | None = None, **others: object
    ) -> Self:
        """Set when to evaluate: the `strategy` no, steps or epoch, and the `steps` between evaluations; return the settings.

        `batch_size` is that of a device, `delay` the steps or epochs before the first one, `others` any settings by name.
        """
        self._with(eval_strategy=strategy, eval_steps=steps, eval_delay=delay or 0.0)
        return self._with(per_device_eval_batch_size=batch_size, **others)

    def set_testing(self, batch_size: int = 8, **others: object) -> Self:
        """Set the `batch_size` of predictions per device, and `others` by name; return the settings."""
        return self._with(per_device_eval_batch_size=batch_size, **others)

    def set_save(self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, **others: object) -> Self:
        """Set when to save: the `strategy` no, steps or epoch, and the `steps` between checkpoints; return the settings.

        `total_limit` checkpoints stay; `others` are any settings by name.
        """
        return self._with(save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, **others)

    def set_logging(
        self, strategy: str = "steps", steps: int = 500, report_to: str | list[str] = "none", **others: object
    ) -> Self:
        """Set when to log: the `strategy` no, steps or epoch, and the `steps` between entries; return the settings.

        `report_to` names experiment trackers; `others` are any settings by name, such as first_step.
        """
        others = {LOGGING_NAMES.get(name, name): value for name, value in others.items()}
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
    ) -> Self:
        """Set the optimizer by its `name`, and return the settings.

        `learning_rate` is the peak, `beta1`, `beta2`, `epsilon` and `weight_decay` are those of AdamW, `args` extra settings.
        """
        self._with(optim=name, optim_args=args, learning_rate=learning_rate, weight_decay=weight_decay)
        return self._with(adam_beta1=beta1, adam_beta2=beta2, adam_epsilon=epsilon)

    def set_lr_scheduler(
        self,
        name: str = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the learning rate schedule by its `name`, and return the settings.

        `num_epochs` and `max_steps` are its length (the latter wins), `warmup_steps` a number or a fraction of all steps, for
        which `warmup_ratio` is an earlier name.
        """
        warmup = warmup_steps or warmup_ratio or 0
        return self._with(lr_scheduler_type=name, num_train_epochs=num_epochs, max_steps=max_steps, warmup_steps=warmup)

    def set_dataloader(
        self, train_batch_size: int = 8, eval_batch_size: int = 8, drop_last: bool = False, **others: object
    ) -> Self:
        """Set the `train_batch_size` and `eval_batch_size` of a device, and return the settings.

        `drop_last` drops the last incomplete batch; `others` are num_workers, sampler_seed and any settings by name.
        """
        others = {LOADER_NAMES.get(name, name): value for name, value in others.items()}
        self._with(per_device_train_batch_size=train_batch_size, per_device_eval_batch_size=eval_batch_size)
        return self._with(dataloader_drop_last=drop_last, **others)
