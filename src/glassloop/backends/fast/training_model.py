"""Make a model fast for training: its layers replaced, or its own layers with flat storage and packed attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils.hooks import RemovableHandle

from glassloop.backends.fast.encoder_parts import LayerParts, embeddings_of, layer_calls, layers_of, uncounted_token_of
from glassloop.backends.fast.layers import EmbeddingSum, PostNormLayer
from glassloop.backends.fast.operations import DropoutMasks, Saved, TorchOperations, attend, attend_backward
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage, ReducedVocabulary
from glassloop.base.errors import ModelError
from glassloop.data.interfaces import Model

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


PlainForward = Callable[..., torch.Tensor]  # the forward method of a module of transformers


class ReplacedLayers:
    """A model whose layers accept packed batches as well as padded ones; modules and their names stay the same.

    Args:
        model: A classifier of a family whose layers have a fast form.
        matmul_dtype: The dtype of matrix multiplications.
        trains: Whether the weights will be trained; else they stay where they are.
        no_decay: The ids of the parameters without weight decay.
        vocabulary: The word vectors that are trained; None for all of them.
        low_precision_gradients: Whether the gradients of the layers' matrices are kept in `matmul_dtype`.
        first_tokens_only: Whether the last layer computes only the first token of each row, which the head reads.
    """

    packs = True

    def __init__(
        self,
        model: Model,
        matmul_dtype: torch.dtype = torch.float32,
        *,
        trains: bool = True,
        no_decay: set[int] | None = None,
        vocabulary: ReducedVocabulary | None = None,
        low_precision_gradients: bool = False,
        first_tokens_only: bool = True,
    ) -> None:
        embeddings = embeddings_of(model)
        if embeddings is None:
            raise ModelError(f"{type(model).__name__} has embeddings without a fast form", "use backend plain")
        self.model, self.layers, self.num_layer_calls = model, layers_of(model), len(layer_calls(model))
        self.embeddings, self.vocabulary, self.first_tokens_only = embeddings, vocabulary, first_tokens_only
        self.storage = FlatStorage(
            model,
            self.layers,
            no_decay or set(),
            embedding_vectors=self.embeddings.vectors,
            tables={id(self.embeddings.words.weight): vocabulary} if vocabulary is not None else {},
            matmul_dtype=matmul_dtype,
            low_precision_gradients=low_precision_gradients,
            trains=trains,
        )
        self.ops = operations_for(next(model.parameters()).device, matmul_dtype)
        self.takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
        self.uncounted = uncounted_token_of(model)
        most_tokens = self.embeddings.positions.num_embeddings - (0 if self.uncounted is None else self.uncounted + 1)
        self.limits = (most_tokens, self.embeddings.words.num_embeddings)
        self.packing: Packing | None = None
        self.num_layers_run = 0
        # The output of the last layer, and the same with a batch dimension, which the model hands to the next layer.
        self.last_output: tuple[torch.Tensor, torch.Tensor] | None = None
        self.hooks: list[RemovableHandle] = []
        self.plain_forward = model.forward
        self.install()

    def install(self) -> None:
        """Replace the forward methods of the model, its layers and its embeddings; padded batches still use the old ones."""
        self.model.forward = self.forward
        for layer in self.layers:
            layer.module.forward = partial(self.layer_forward, layer, layer.module.forward)
        module = self.embeddings.module
        module.forward = partial(self.embed, module.forward)

    def open_for_training(self) -> None:
        """Allocate gradients and moments, and let autograd write the gradients of all other modules into the storage."""
        self.storage.open_for_training()
        written = {id(weight) for layer in self.layers for group in (*layer.matrices, layer.vectors) for weight in group}
        written |= {id(weight) for weight in (*self.embeddings.tables, *self.embeddings.vectors)}
        self.hooks = [
            weight.register_post_accumulate_grad_hook(self.storage.adopt_gradient)  # type: ignore[no-untyped-call]
            for weight in self.storage.parameters
            if id(weight) not in written
        ]

    def remove(self) -> None:
        """Restore the model, which keeps its trained weights."""
        self.sync_to_model()
        for module in (self.model, *(layer.module for layer in self.layers), self.embeddings.module):
            vars(module).pop("forward", None)
        for hook in self.hooks:
            hook.remove()
        self.storage.release()

    def sync_to_model(self) -> None:
        """Copy the trained word vectors into the module."""
        if self.vocabulary is not None:
            weight = self.embeddings.words.weight
            self.vocabulary.write_back(self.storage.view(self.storage.weights, id(weight)), weight.data)

    def sync_from_model(self) -> None:
        """Take over the module's weights, which were just loaded."""
        if self.vocabulary is not None:
            weight = self.embeddings.words.weight
            self.storage.view(self.storage.weights, id(weight)).copy_(self.vocabulary.select(weight.detach()))
        self.storage.refresh_low_copies()

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> ModelOutput:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        if packed is None:
            self.sync_to_model()
            return self.plain_forward(*args, **inputs)  # type: ignore[no-any-return]
        self.packing = Packing.from_inputs(packed, inputs)
        self.num_layers_run = 0
        self.ops.before_forward(self.storage, self.packing, self.model.training)
        tokens = {"input_ids": self.packing.ids[None], "position_ids": self.packing.positions[None]}
        if self.takes_types:
            tokens["token_type_ids"] = self.packing.types[None]
        try:
            # The layers choose their precision themselves. The head has few rows and runs in fp32.
            with torch.autocast(packed.device.type, enabled=False):
                return self.plain_forward(**tokens)  # type: ignore[no-any-return]
        finally:
            self.packing = self.last_output = None
            self.ops.after_forward()

    def layer_forward(
        self, layer: LayerParts, plain: PlainForward, hidden_states: torch.Tensor, *args: object, **inputs: object
    ) -> torch.Tensor:
        """Run one layer over the packed batch; the last one returns only the first token of each row, for the head."""
        if self.packing is None:
            return plain(hidden_states, *args, **inputs)
        self.num_layers_run += 1
        last = self.num_layers_run == self.num_layer_calls
        follows_fast_layer = self.last_output is not None and hidden_states is self.last_output[1]
        if follows_fast_layer and self.last_output is not None:
            x = self.last_output[0]
        else:
            x = hidden_states.reshape(-1, hidden_states.shape[-1]).float()
        y: torch.Tensor = PostNormLayer.apply(  # type: ignore[no-untyped-call]
            x, layer.query.weight, layer, self.packing, self.storage, self.ops, self.model.training,
            last and self.first_tokens_only, follows_fast_layer,
        )  # fmt: skip
        if not last:
            self.last_output = (y, y[None])
            return self.last_output[1]
        first_tokens = y if self.first_tokens_only else y.index_select(0, self.packing.first_tokens)
        return first_tokens[:, None]

    def embed(self, plain: PlainForward, *args: object, **inputs: object) -> torch.Tensor:
        """Return the embeddings of the packed batch."""
        if self.packing is None:
            return plain(*args, **inputs)
        y: torch.Tensor = EmbeddingSum.apply(  # type: ignore[no-untyped-call]
            self.embeddings.norm.weight, self.embeddings, self.packing, self.storage, self.ops, self.model.training,
            self.padding_row,
        )  # fmt: skip
        self.last_output = (y, y[None])
        return self.last_output[1]

    @property
    def padding_row(self) -> int:
        """Return the row of the padding token, which never gets a gradient; -1 if there is none."""
        padding = self.embeddings.words.padding_idx
        if padding is None:
            return -1
        return padding if self.vocabulary is None else int(self.vocabulary.new_ids[padding])

    def after_backward(self) -> None:
        """Finish the gradients of a batch."""
        self.ops.after_backward(self.storage)


def operations_for(device: torch.device, matmul_dtype: torch.dtype) -> TorchOperations:
    """Return the operations of a device: Triton kernels on a GPU, plain torch elsewhere."""
    if device.type == "cuda":
        from glassloop.backends.fast.triton_operations import TritonOperations

        return TritonOperations(device, matmul_dtype)
    return TorchOperations(device, matmul_dtype)
