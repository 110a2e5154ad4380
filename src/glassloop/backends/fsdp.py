"""FSDP: weights, gradients and the optimizer's state split over processes while a training runs, whole before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor, distribute_tensor

from glassloop.backends.accelerate import AccelerateBackend
from glassloop.backends.plain import PlainBackend
from glassloop.engine.checkpoint import Tensors, optimizer_of
from glassloop.errors import SettingsError, counted


class SplitBackend(AccelerateBackend):
    """Trains a copy of the model that Accelerate has split. The model itself waits in main memory, whole: evaluations,
    checkpoints and callbacks see that one, brought up to date by all processes together."""

    def __init__(self, accelerator: Any) -> None:
        super().__init__(accelerator)
        self.plugin = accelerator.state.fsdp_plugin
        self.whole: Any = None
        self.split: Any = None
        self.optimizer: Any = None
        refuse_options(self.plugin, accelerator, self.precision)
        if self.device.type == "cpu":
            self.plugin.cpu_offload = OffloadPolicy()  # they are there already

    def saved_names(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> list[str]:
        return [f"weights, gradients and optimizer split over {counted(self.num_processes, 'process', 'processes')} (FSDP)"]

    def open(self, model: Any, data_sets: Sequence[Any], weight_decay: float, *, shown: bool, adds: bool) -> Callable[..., Any]:
        if shown:
            problem = "with FSDP a process has a part of each gradient, which on_gradients would take for the whole"
            raise SettingsError(problem, "leave on_gradients away, or use distributed_type MULTI_GPU")
        self.watched = bool(self.agree(int(self.watched)))  # callbacks of one process make all of them gather
        if self.num_processes > 1:
            for tensor in tensors_of(model):
                torch.distributed.broadcast(tensor, 0)  # as DDP does: a new head may be another in each process
        return super().open(model, data_sets, weight_decay, shown=shown, adds=adds)

    def prepare(self, model: Any, optimizer: Any, scheduler: Any) -> tuple[Any, Any, Any]:
        self.whole = model.to("cpu")
        copied = deepcopy(self.whole).to(self.device)
        twins = dict(zip(model.parameters(), copied.parameters(), strict=True))
        for group in optimizer.param_groups:
            if any(parameter not in twins for parameter in group["params"]):
                problem = "the optimizer holds parameters that are not the model's, or that FSDP has split before"
                raise SettingsError(problem, "make a new optimizer over model.parameters()")
            group["params"] = [twins[parameter] for parameter in group["params"]]
        del twins
        choose_layers(self.plugin, copied)
        self.plugin.mixed_precision_policy = policy_of(self.precision, self.device)
        self.split, self.optimizer = self.accelerator.prepare(copied, optimizer)
        return self.split, self.optimizer, scheduler

    def unwrap(self, model: Any) -> Any:
        return self.whole if self.split is not None and model is self.split else model

    @contextmanager
    def forward(self, model: Any, is_last: bool = True) -> Iterator[None]:
        with self.accelerator.autocast():  # gradients are shared out after every batch: whole ones would have to be kept
            yield

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        return self.gathered(PlainBackend.clip(self, model, max_norm))

    def step(self, optimizer: Any) -> None:
        super().step(optimizer)
        if self.watched:
            self.settle()

    @contextmanager
    def equipped(self, model: Any) -> Iterator[None]:
        """The whole model on the device for as long as a pass lasts."""
        if self.split is None or model is not self.whole:
            yield
            return
        model.to(self.device)
        try:
            yield
        finally:
            model.to("cpu")

    @torch.no_grad()
    def settle(self) -> None:
        if self.split is not None:
            for mine, part in zip(tensors_of(self.whole), tensors_of(self.split), strict=True):
                mine.copy_(self.gathered(part))

    @torch.no_grad()
    def reload(self) -> None:
        """Take the whole model's weights, and what an optimizer keeps of them, which were just loaded."""
        if self.split is None:
            return
        for mine, part in zip(tensors_of(self.whole), tensors_of(self.split), strict=True):
            put_share(mine, part)
        inner = optimizer_of(self.optimizer)
        for mine, part in zip(self.whole.parameters(), self.split.parameters(), strict=True):
            for key, value in inner.state.pop(mine, {}).items():
                where = part.device if inner.defaults.get("fused") else value.device  # AdamW's step is picky
                kept = put_share(value, torch.empty_like(part, dtype=value.dtype)) if value.dim() else value.to(where)
                inner.state[part][key] = kept

    def optimizer_state(self, optimizer: Any) -> dict[Any, Tensors]:
        """What the optimizer keeps of each parameter, whole, in the main process."""
        state, found = optimizer_of(optimizer).state, {}
        for mine, part in zip(self.whole.parameters(), self.split.parameters(), strict=True):
            whole = {key: self.gathered(torch.as_tensor(value)).cpu() for key, value in state.get(part, {}).items()}
            if self.is_main and whole:
                found[mine] = whole
        return found

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor that each process may have a part of, on the device."""
        moved = part.to(self.device)
        return moved.full_tensor() if isinstance(moved, DTensor) else moved

    def close(self) -> None:
        if self.whole is not None:
            self.whole.to(self.device)
            self.whole, self.split, self.optimizer = None, None, None
            self.accelerator.free_memory()


def tensors_of(model: Any) -> Iterator[torch.Tensor]:
    """Weights and buffers, in an order that splitting does not change."""
    return (tensor.detach() for tensor in chain(model.parameters(), model.buffers()))


def put_share(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Fill `part` with this process's share of a tensor that every process has."""
    if isinstance(part, DTensor):
        whole = distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)
    return part.copy_(whole)


def policy_of(precision: str, device: torch.device) -> Any:
    """bf16 on a GPU: weights travel in bf16 and gradients are summed in fp32; what autocast leaves in fp32 stays there."""
    if precision == "fp32" or device.type == "cpu":
        return None
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def choose_layers(plugin: Any, model: Any) -> None:
    """Split by layers: those the config names, else the model; else what stands in lists. None of them there: as one part."""
    if plugin.auto_wrap_policy is None:
        return
    words = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    there = {type(module).__name__ for module in model.modules()}
    there -= {type(module).__name__ for module in model.modules() if words in module.modules()}  # split on their own
    lists = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    kinds = (plugin.transformer_cls_names_to_wrap, getattr(model, "_no_split_modules", None),
             [type(layer).__name__ for layers in lists for layer in layers])  # fmt: skip
    found = next((names for kind in kinds if (names := there & {*(kind or ())})), set())
    plugin.transformer_cls_names_to_wrap = sorted(found)
    plugin.auto_wrap_policy = transformer_auto_wrap_policy if found else None  # by size: fully_shard refuses lists


def refuse_options(plugin: Any, accelerator: Any, precision: str) -> None:
    """Raise for what Accelerate would do in silence, with other numbers than those of one process."""
    if precision == "fp16":
        raise SettingsError("FSDP is not supported in fp16", "use mixed_precision bf16 or no")
    if plugin.activation_checkpointing:
        problem = "fsdp_activation_checkpointing draws other dropout masks in the backward pass than in the forward pass"
        raise SettingsError(problem, "set it to false, and call model.gradient_checkpointing_enable()")
    if plugin.ignored_modules is not None:
        raise SettingsError("fsdp_ignored_modules are trained by each process alone", "leave them away")
    if getattr(accelerator, "parallelism_config", None) is not None:
        raise SettingsError("a parallelism_config beside FSDP is not supported", "leave it away")
