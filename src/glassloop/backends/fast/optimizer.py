"""AdamW over flat storage in one pass, which also clips the gradients."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import ParamsT

from glassloop.backends.fast.storage import FlatStorage
from glassloop.base.errors import SettingsError

if TYPE_CHECKING:
    from glassloop.backends.fast.triton_operations import TritonAdamW

PIECE = 4096  # norms are first taken over pieces of this many gradients
REQUIRES_GRAD = attrgetter("requires_grad")


class FlatAdamW(torch.optim.AdamW):
    """AdamW with the numbers of torch's own. Its state is saved and loaded under the names that torch uses."""

    def __init__(
        self, groups: ParamsT, storage: FlatStorage, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=fused)
        self.storage = storage
        self.steps = storage.memory.zeros("steps", like=storage.weights)
        self.learning_rate = storage.memory.zeros("learning rate", like=storage.weights)
        self.norm: torch.Tensor | None = None
        self.max_norm = 0.0
        self.kernel: TritonAdamW | None = None
        if storage.weights.is_cuda:
            from glassloop.backends.fast.triton_operations import TritonAdamW

            self.kernel = TritonAdamW(storage, self.defaults["betas"])

    def add_param_group(self, param_group: dict[str, object]) -> None:
        # torch marks its method for its compiler, and imports that for the mark, which takes a third of a second.
        method = torch.optim.AdamW.add_param_group
        getattr(method, "__wrapped__", method)(self, param_group)

    def clip(self, max_norm: float) -> torch.Tensor:
        """Return the norm of all gradients; the next step scales them down to `max_norm` (0: never) while it reads them."""
        self.storage.zero_missing_gradients()
        blocks = [block for block in (self.storage.matrix_gradients, self.storage.other_gradients) if block.numel()]
        if self.kernel is not None:
            self.norm = self.kernel.norm(blocks)
        else:
            self.norm = torch.linalg.vector_norm(torch.cat([piecewise_norms(block) for block in blocks]))
        self.max_norm = max_norm
        return self.norm

    def upload_learning_rate(self) -> None:
        """Copy the learning rate of the schedule to the device, where a captured CUDA graph of the step reads it."""
        if not all(map(REQUIRES_GRAD, self.storage.parameters)):
            raise SettingsError("weights were frozen during training", "freeze them before it starts, or use backend plain")
        if any(weight.requires_grad for group in self.storage.frozen for weight in group):
            raise SettingsError("weights were unfrozen during training", "unfreeze them before it starts, or use backend plain")
        self._opt_called = True  # else a schedule warns if the first step is replayed, which calls no method of the optimizer
        if self.kernel is not None:
            self.learning_rate.fill_(float(self.param_groups[0]["lr"]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        store, group = self.storage, self.param_groups[0]
        decay = max(float(group["weight_decay"]) for group in self.param_groups)
        beta1, beta2 = group["betas"]
        # A captured step is given the learning rate before each replay.
        if not (store.weights.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.upload_learning_rate()
        self.steps.add_(1)
        if self.kernel is not None:
            self.kernel(self.steps, self.learning_rate, self.norm, self.max_norm, beta1, beta2, group["eps"], decay)
            return
        scale = None
        if self.norm is not None and self.max_norm > 0:
            scale = ((self.norm + 1e-6) / self.max_norm).clamp(min=1.0)
        for region in store.regions:
            torch._fused_adamw_(
                [store.weights[region.span]], [store.region_gradients(region)],
                [store.moments[0][region.span]], [store.moments[1][region.span]], [], [self.steps],
                lr=float(group["lr"]), beta1=beta1, beta2=beta2, weight_decay=decay if region.decays else 0.0, eps=group["eps"],
                amsgrad=False, maximize=False, grad_scale=scale, found_inf=None,
            )  # fmt: skip
        store.refresh_low_copies()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.storage.clear_gradients()

    def torch_state(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the state of each parameter as torch's AdamW has it: with full tables, even if only some rows are trained."""
        store, state = self.storage, {}
        for weight in store.parameters:
            moments = [store.view(block, id(weight)) for block in store.moments]
            if id(weight) in store.tables:
                moments = [store.tables[id(weight)].expand(moment) for moment in moments]
            state[weight] = {"step": self.steps, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
        return state

    def load_torch_state(self) -> None:
        """Take over what was loaded into `state`: what `torch_state` returned, or the state of torch's AdamW."""
        store = self.storage
        self.steps.zero_()
        for block, key in zip(store.moments, ("exp_avg", "exp_avg_sq"), strict=True):
            block.zero_()
            for weight, values in self.state.items():
                value = store.tables[id(weight)].select(values[key]) if id(weight) in store.tables else values[key]
                store.view(block, id(weight)).copy_(value)
                self.steps.copy_(values["step"])
        self.state.clear()


def piecewise_norms(block: torch.Tensor) -> torch.Tensor:
    """Return the norms of a block's pieces; one sum over millions of fp32 squares would be wrong in the fourth digit."""
    even = block.numel() // PIECE * PIECE
    pieces = torch.linalg.vector_norm(block[:even].view(-1, PIECE), dim=1, dtype=torch.float32)
    return torch.cat([pieces, torch.linalg.vector_norm(block[even:], dtype=torch.float32)[None]])
