"""Savings for models whose layers stay as they are: flat storage for all, packed attention where the model lets us in."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.errors import ModelError
from glassloop.speed.operations.attention import attend, attend_backward
from glassloop.speed.operations.torch_operations import DropoutMasks
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

PACKED_ATTENTION = "glassloop_packed"


class OwnLayers:
    """Flat storage for any model. With `packs`, its own modules run over packed tokens: only attention is replaced."""

    vocabulary = limits = None
    first_position = 0

    def __init__(self, model: Any, *, packs: bool = False, trains: bool = True, no_decay: set[int] | None = None) -> None:
        self.model, self.packs = model, packs
        self.storage = FlatStorage(model, [], no_decay or set(), trains=trains)
        self.masks = DropoutMasks(next(model.parameters()).device)
        self.hooks: list[Any] = []
        self.packing: Packing | None = None
        self.hidden: torch.Tensor | None = None
        self.plain_forward = model.forward
        if self.packs:
            register_attention()
            model.forward = self.forward
            self.hooks += [
                model.base_model.final_norm.register_forward_hook(self.keep),
                model.head.register_forward_pre_hook(self.pool),
            ]

    def open_for_training(self) -> None:
        self.storage.open_for_training()
        for weight in self.storage.parameters:
            self.hooks.append(weight.register_post_accumulate_grad_hook(self.storage.adopt_gradient))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Leave the model as it was, with its trained weights."""
        vars(self.model).pop("forward", None)
        for hook in self.hooks:
            hook.remove()
        self.storage.release()

    def sync_to_model(self) -> None: ...

    def sync_from_model(self) -> None: ...

    def after_backward(self) -> None: ...

    def forward(self, *args: Any, packed: torch.Tensor | None = None, **given: Any) -> Any:
        """The model over a packed batch, or over whatever it took before."""
        if packed is None:
            return self.plain_forward(*args, **given)
        config = self.model.config
        usual = config._attn_implementation
        self.packing = Packing(packed, given["tokens"], given["rows"], given["longest"], given["filled"])
        if self.model.training:
            self.masks.start()
        config._attn_implementation = PACKED_ATTENTION
        try:
            return self.plain_forward(
                input_ids=self.packing.ids[None],
                position_ids=self.packing.positions[None],
                packing=self.packing,
                dropout_masks=self.masks,
            )
        finally:
            config._attn_implementation = usual
            self.packing = self.hidden = None

    def keep(self, module: Any, args: Any, output: torch.Tensor) -> None:
        self.hidden = output if self.packing is not None else None

    def pool(self, module: Any, args: Any) -> Any:
        """The first token, or the mean, of each row in place of those of the whole line."""
        if self.packing is None or self.hidden is None:
            return None
        tokens, packing = self.hidden[0], self.packing
        if self.model.config.classifier_pooling == "cls":
            return (tokens.index_select(0, packing.firsts),)
        row = torch.arange(packing.rows, device=tokens.device)[:, None]
        inside = (packing.places // packing.longest == row).to(tokens.dtype)
        return (inside @ tokens / inside.sum(1, keepdim=True),)


class PackedAttention(torch.autograd.Function):
    """Attention within each sequence of a packed line."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float,
        masks: DropoutMasks, window: int,
    ) -> torch.Tensor:  # fmt: skip
        found, ctx.saved = attend(query, key, value, packing, rate, masks, window)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return (*attend_backward(grad.contiguous(), ctx.saved), None, None, None, None)


def packed_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, dropout: float = 0.0,
    sliding_window: int | None = None, **given: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What transformers calls in place of its own attention: [1, heads, tokens, width] each."""
    low = torch.get_autocast_dtype(query.device.type) if torch.is_autocast_enabled(query.device.type) else query.dtype
    parts = [part[0].transpose(0, 1).to(low).contiguous() for part in (query, key, value)]
    window = -1 if sliding_window is None else sliding_window - 1  # transformers counts the token itself
    found: torch.Tensor = PackedAttention.apply(  # type: ignore[no-untyped-call]
        *parts, given["packing"], dropout, given["dropout_masks"], window
    )
    return found[None], None


def no_mask(*args: Any, attention_mask: Any = None, **given: Any) -> None:
    """Packed tokens have no padding; a mask that came all the same would be lost without a word."""
    if attention_mask is not None:
        raise ModelError("a packed batch came with an attention mask", "leave it away, or use backend plain")


def register_attention() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, no_mask)
