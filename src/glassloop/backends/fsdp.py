"""FSDP: weights, gradients and optimizer state are split over processes during a training, and whole before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor, distribute_tensor

from glassloop.backends.accelerate import precision_of, processes_of
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import SettingsError, counted
from glassloop.data.interfaces import Model
from glassloop.training.interfaces import LRScheduler, Optimizer, OptimizerFactory, OptimizerState, Prepared, TrainingUse
from glassloop.training.optimizer import unwrap_optimizer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin


# The model itself stays whole in main memory and a split copy is trained: evaluations, callbacks and checkpoints see
# ordinary weights, and an evaluation cannot hang on uneven batches. FSDP version 1 would need this code twice.
class FSDPBackend(PlainBackend):
    """Trains a copy of the model that Accelerate has split over the processes."""

    name = "accelerate"

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator.device, precision_of(accelerator))
        self.accelerator = accelerator
        self.processes = processes_of(accelerator)
        self.plugin = accelerator.state.fsdp_plugin
        self.whole: Model = None
        self.split: Model = None
        self.optimizer: Optimizer | None = None
        self.reads_weights = False
        refuse_options(self.plugin, accelerator, self.precision)
        if self.device.type == "cpu":
            self.plugin.cpu_offload = OffloadPolicy()  # everything is in main memory already

    def describe_savings(self, model: torch.nn.Module, use: TrainingUse) -> list[str]:
        processes = counted(self.processes.num_processes, "process", "processes")
        return [f"weights, gradients and optimizer split over {processes} (FSDP)"]

    def start_training(self, model: torch.nn.Module, use: TrainingUse) -> OptimizerFactory:
        """Give all processes the weights of the main process; raise `SettingsError` if gradients are to be read."""
        if use.reads_gradients:
            problem = "with FSDP each process holds a part of each gradient, but on_gradients needs complete gradients"
            raise SettingsError(problem, "omit on_gradients, or use distributed_type MULTI_GPU")
        # If a callback of any process reads weights, all processes have to gather them.
        self.reads_weights = bool(self.processes.agree(int(use.reads_weights)))
        if self.processes.num_processes > 1:
            for tensor in tensors_of(model):
                torch.distributed.broadcast(tensor, 0)  # as DDP does: each process may have drawn a different new head
        return super().start_training(model, use)

    def prepare(self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> Prepared:
        """Split a copy of the model, and let the optimizer hold the weights of the copy."""
        self.whole = model.to("cpu")
        copied = deepcopy(self.whole).to(self.device)
        twins = dict(zip(model.parameters(), copied.parameters(), strict=True))
        for group in optimizer.param_groups:
            if any(parameter not in twins for parameter in group["params"]):
                problem = "the optimizer contains parameters that do not belong to the model, or that FSDP has already split"
                raise SettingsError(problem, "create a new optimizer from model.parameters()")
            group["params"] = [twins[parameter] for parameter in group["params"]]
        del twins
        choose_layers(self.plugin, copied)
        self.plugin.mixed_precision_policy = precision_policy(self.precision, self.device)
        self.split, self.optimizer = self.accelerator.prepare(copied, optimizer)
        return self.split, self.optimizer, scheduler

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return self.whole if self.split is not None and model is self.split else model

    @contextmanager
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> Iterator[None]:
        """Run a forward pass with autocast. Gradients are split after every batch: whole ones would have to be stored."""
        with self.accelerator.autocast():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        # Processes average their gradients, but the loss is already divided by the examples of all of them.
        self.accelerator.backward(loss * self.processes.num_processes)

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Scale gradients down to `max_norm` (0: never), and return the norm they had over all processes."""
        return self.gathered(super().clip(model, max_norm))

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights, and the whole model too if a callback reads it."""
        super().step(optimizer)
        if self.reads_weights:
            self.sync_to_model()

    @contextmanager
    def evaluation_context(self, model: torch.nn.Module) -> Iterator[None]:
        if self.split is None or model is not self.whole:
            yield
            return
        model.to(self.device)
        try:
            yield
        finally:
            model.to("cpu")

    @torch.no_grad()
    def sync_to_model(self) -> None:
        """Copy the trained weights into the whole model; all processes take part."""
        if self.split is not None:
            for mine, part in zip(tensors_of(self.whole), tensors_of(self.split), strict=True):
                mine.copy_(self.gathered(part))

    @torch.no_grad()
    def sync_from_model(self) -> None:
        """Take over the weights of the whole model and their optimizer state, which were just loaded."""
        if self.split is None or self.optimizer is None:
            return
        for mine, part in zip(tensors_of(self.whole), tensors_of(self.split), strict=True):
            copy_share(mine, part)
        inner = unwrap_optimizer(self.optimizer)
        for mine, part in zip(self.whole.parameters(), self.split.parameters(), strict=True):
            for key, value in inner.state.pop(mine, {}).items():
                where = part.device if inner.defaults.get("fused") else value.device  # where AdamW wants its step counter
                kept = copy_share(value, torch.empty_like(part, dtype=value.dtype)) if value.dim() else value.to(where)
                inner.state[part][key] = kept

    def gather_optimizer_state(self, optimizer: Optimizer) -> OptimizerState:
        """Return the whole optimizer state in the main process, and nothing in the others."""
        state, found = unwrap_optimizer(optimizer).state, dict[torch.nn.Parameter, dict[str, torch.Tensor]]()
        for mine, part in zip(self.whole.parameters(), self.split.parameters(), strict=True):
            whole = {key: self.gathered(torch.as_tensor(value)).cpu() for key, value in state.get(part, {}).items()}
            if self.processes.is_main and whole:
                found[mine] = whole
        return found

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """Return the whole of a tensor that may be split over the processes, on the device."""
        moved = part.to(self.device)
        return moved.full_tensor() if isinstance(moved, DTensor) else moved

    def end_training(self) -> None:
        if self.whole is not None:
            self.whole.to(self.device)
            self.whole, self.split, self.optimizer = None, None, None
            self.accelerator.free_memory()


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return weights and buffers, in an order that splitting does not change."""
    return (tensor.detach() for tensor in chain(model.parameters(), model.buffers()))


def copy_share(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Copy this process's share of a tensor, which every process holds, into `part`."""
    if isinstance(part, DTensor):
        whole = distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)
    return part.copy_(whole)


def precision_policy(precision: str, device: torch.device) -> MixedPrecisionPolicy | None:
    """Return the policy of bf16 on a GPU: exchange weights in bf16, sum gradients in fp32, leave inputs to autocast."""
    if precision == "fp32" or device.type == "cpu":
        return None
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def choose_layers(plugin: FullyShardedDataParallelPlugin, model: Model) -> None:
    """Choose the layers to split by: those that the config names, or the model, or the members of its module lists."""
    if plugin.auto_wrap_policy is None:  # a model without any of them is split as one part
        return
    words = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    there = {type(module).__name__ for module in model.modules()}
    there -= {type(module).__name__ for module in model.modules() if words in module.modules()}  # split separately
    lists = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    members = [type(layer).__name__ for layers in lists for layer in layers]
    kinds = (plugin.transformer_cls_names_to_wrap, getattr(model, "_no_split_modules", None), members)
    chosen = next((names for kind in kinds if (names := there & {*(kind or ())})), set())
    plugin.transformer_cls_names_to_wrap = sorted(chosen)
    plugin.auto_wrap_policy = transformer_auto_wrap_policy if chosen else None  # by size: fully_shard refuses lists


def refuse_options(plugin: FullyShardedDataParallelPlugin, accelerator: Accelerator, precision: str) -> None:
    """Raise `SettingsError` for options with which Accelerate would silently compute other numbers than one process."""
    masks = "fsdp_activation_checkpointing uses different dropout masks in the forward and the backward pass"
    modules = "with fsdp_ignored_modules each process would train these modules separately"
    several = getattr(accelerator, "parallelism_config", None) is not None
    for unsupported, problem, remedy in (
        (precision == "fp16", "FSDP is not supported in fp16", "use mixed_precision bf16 or no"),
        (plugin.activation_checkpointing, masks, "set it to false, and call model.gradient_checkpointing_enable()"),
        (plugin.ignored_modules is not None, modules, "omit them"),
        (several, "FSDP together with a parallelism_config is not supported", "omit parallelism_config"),
    ):
        if unsupported:
            raise SettingsError(problem, remedy)
