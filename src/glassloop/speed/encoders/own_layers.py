"""Make a model fast that keeps its own layers: flat storage for any model, packed attention where transformers allows it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils.hooks import RemovableHandle

from glassloop.errors import ModelError
from glassloop.speed.operations.attention import Saved, attend, attend_backward
from glassloop.speed.operations.dropout import DropoutMasks
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing
from glassloop.transformers_types import Model

PACKED_ATTENTION = "glassloop_packed"


class ModelOutput(Protocol):
    """What a classifier returns."""

    logits: torch.Tensor


class OwnLayers:
    """A model with flat storage. With `packs`, its own layers run over packed tokens, and only attention is replaced."""

    vocabulary = limits = uncounted = None

    def __init__(self, model: Model, *, packs: bool = False, trains: bool = True, no_decay: set[int] | None = None) -> None:
        self.model, self.packs = model, packs
        self.storage = FlatStorage(model, [], no_decay or set(), trains=trains)
        self.masks = DropoutMasks(next(model.parameters()).device)
        self.hooks: list[RemovableHandle] = []
        self.packing: Packing | None = None
        self.hidden: torch.Tensor | None = None
        self.plain_forward = model.forward
        if self.packs:
            register_attention()
            model.forward = self.forward
            self.hooks += [
                model.base_model.final_norm.register_forward_hook(self.keep_hidden),
                model.head.register_forward_pre_hook(self.pool),
            ]

    def open_for_training(self) -> None:
        """Allocate gradients and moments, and let autograd write gradients into the storage."""
        self.storage.open_for_training()
        for weight in self.storage.parameters:
            hook = weight.register_post_accumulate_grad_hook(self.storage.adopt_gradient)  # type: ignore[no-untyped-call]
            self.hooks.append(hook)

    def remove(self) -> None:
        """Restore the model, which keeps its trained weights."""
        vars(self.model).pop("forward", None)
        for hook in self.hooks:
            hook.remove()
        self.storage.release()

    def sync_to_model(self) -> None:
        """Do nothing: the module holds the trained weights."""

    def sync_from_model(self) -> None:
        """Do nothing: the storage is the module's memory."""

    def after_backward(self) -> None:
        """Do nothing: autograd has written all gradients."""

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> ModelOutput:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        if packed is None:
            return self.plain_forward(*args, **inputs)  # type: ignore[no-any-return]
        config = self.model.config
        usual = config._attn_implementation
        self.packing = Packing.from_inputs(packed, inputs)
        if self.model.training:
            self.masks.start()
        config._attn_implementation = PACKED_ATTENTION
        try:
            return self.plain_forward(  # type: ignore[no-any-return]
                input_ids=self.packing.ids[None],
                position_ids=self.packing.positions[None],
                packing=self.packing,
                dropout_masks=self.masks,
            )
        finally:
            config._attn_implementation = usual
            self.packing = self.hidden = None

    def keep_hidden(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
        """Keep the hidden states of a packed batch for `pool`."""
        self.hidden = output if self.packing is not None else None

    def pool(self, module: nn.Module, args: object) -> tuple[torch.Tensor] | None:
        """Return the first token, or the mean, of each row as the input of the head; None for a padded batch."""
        if self.packing is None or self.hidden is None:
            return None
        tokens, packing = self.hidden[0], self.packing
        if self.model.config.classifier_pooling == "cls":
            return (tokens.index_select(0, packing.first_tokens),)
        row = torch.arange(packing.rows, device=tokens.device)[:, None]
        inside = (packing.slot_of_token // packing.longest == row).to(tokens.dtype)
        return (inside @ tokens / inside.sum(1, keepdim=True),)


class AttentionContext(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    saved: Saved


class PackedAttention(torch.autograd.Function):
    """Attention within each sequence of a packed batch."""

    @staticmethod
    def forward(
        ctx: AttentionContext, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float,
        masks: DropoutMasks, window: int,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attended values."""
        attended, ctx.saved = attend(query, key, value, packing, rate, masks, window)
        return attended

    @staticmethod
    def backward(ctx: AttentionContext, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        return (*attend_backward(grad.contiguous(), ctx.saved), None, None, None, None)


def packed_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, dropout: float = 0.0,
    sliding_window: int | None = None, *, packing: Packing, dropout_masks: DropoutMasks, **ignored: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attend in place of transformers' own attention; query, key and value are [1, heads, tokens, width]."""
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    parts = [part[0].transpose(0, 1).to(dtype).contiguous() for part in (query, key, value)]
    window = -1 if sliding_window is None else sliding_window - 1  # transformers counts the token itself
    attended: torch.Tensor = PackedAttention.apply(  # type: ignore[no-untyped-call]
        *parts, packing, dropout, dropout_masks, window
    )
    return attended[None], None


def no_mask(*args: object, attention_mask: torch.Tensor | None = None, **ignored: object) -> None:
    """Return no mask, because packed tokens have no padding; raise if the user gave one, which would be ignored."""
    if attention_mask is not None:
        raise ModelError("a packed batch came with an attention mask", "omit it, or use backend plain")


def register_attention() -> None:
    """Register packed attention with transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, no_mask)
