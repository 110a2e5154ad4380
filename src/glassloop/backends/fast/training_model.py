"""A model that trains on packed batches: its embeddings and layers, forward and backward, and how they are connected to it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils.hooks import RemovableHandle

from glassloop.backends.fast import encoder_parts, operations
from glassloop.backends.fast.encoder_parts import (
    EmbeddingParts,
    LayerParts,
    embeddings_of,
    layer_calls,
    layers_of,
    weight_ids,
)
from glassloop.backends.fast.operations import DropoutMasks, Saved, TensorPair, TorchOperations, apply_mask, aten, with_filler
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage, Memory, ReducedVocabulary
from glassloop.base.errors import ModelError, listed
from glassloop.data.interfaces import Model
from glassloop.models.adapters import AdaptedLinear
from glassloop.models.interface import base_of
from glassloop.models.pooled import PooledClassifier

PACKED_ATTENTION = "glassloop_packed"
BESIDE_TOKENS = ("labels", "return_dict")  # what a call of a user may ask for on a packed batch
PlainForward = Callable[..., torch.Tensor]  # the forward method of a module of transformers


class Context(FunctionCtx):
    """What a forward pass keeps for its backward pass."""

    parts: Saved
    kept: Saved
    needs_input_grad: tuple[bool, ...]  # set by autograd


class EmbeddingSum(torch.autograd.Function):
    """y = dropout(norm(word + type + position)). Gradients are added to the storage, only to the rows that were read."""

    @staticmethod
    def forward(
        ctx: Context, anchor: torch.Tensor, tables: EmbeddingParts, packing: Packing, storage: FlatStorage,
        ops: TorchOperations, training: bool, padding_row: int,
    ) -> torch.Tensor:  # fmt: skip
        """Return the embeddings; `anchor` is any parameter, so that autograd calls `backward`."""
        words, positions = storage.table_rows(tables.words.weight), storage.table_rows(tables.positions.weight)
        types = storage.table_rows(tables.types.weight) if tables.types is not None else None
        rate = float(tables.dropout.p) if training else 0.0
        y, low_y, saved = ops.embed(words, positions, types, packing, tables.norm, rate)
        ops.last_low = (y, low_y)
        ctx.parts = (tables, packing, storage, ops, padding_row, saved)
        return y

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[None, ...]:
        tables, packing, storage, ops, padding_row, saved = ctx.parts
        grad_total = ops.embed_backward(grad, saved, tables.norm, storage)
        ops.add_table_gradient(tables.words.weight, packing.ids, packing.sorted_by_id, grad_total, padding_row, storage)
        padding = -1 if tables.positions.padding_idx is None else tables.positions.padding_idx
        order = packing.sorted_by_position
        ops.add_table_gradient(tables.positions.weight, packing.positions, order, grad_total, padding, storage)
        if tables.types is not None:
            ops.add_type_gradient(tables.types.weight, packing.types, grad_total, storage)
        return (None,) * 7


# One layer, written out, serves nine families: they compute the same under different names. Gradients go straight into flat
# storage.
class PostNormLayer(torch.autograd.Function):
    """y = norm(h + dropout(down(gelu(up(h))))) with h = norm(x + dropout(out(attention(x))))."""

    # With `first_tokens_only` (the last layer, if the head reads only first tokens) everything but keys and values, and on a
    # CPU these too, is computed only for the first token of each row: the same numbers with a tenth of the work.

    @staticmethod
    def forward(
        ctx: Context, x: torch.Tensor, anchor: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage,
        ops: TorchOperations, training: bool, first_tokens_only: bool, follows_fast_layer: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Return y; `anchor` is any parameter, so that autograd calls `backward`."""
        attention_rate, out_rate, down_rate = layer.dropout_rates if training else (0.0, 0.0, 0.0)
        low_x = ops.to_matmul_dtype(x)
        query, key, value = (part.weight for part in (layer.query, layer.key, layer.value))
        width, linears = query.shape[0], (layer.query, layer.key, layer.value)
        bias = storage.matmul_bias(layer.query.bias, layer.key.bias, layer.value.bias)
        source, low_source = x, low_x
        # An adapter of keys or values has a dropout of its own for each token, so its matrices cannot be folded.
        folds = first_tokens_only and not x.is_cuda and not any(isinstance(part, AdaptedLinear) for part in linears[1:])
        if first_tokens_only:
            source, low_source = x.index_select(0, packing.first_tokens), low_x.index_select(0, packing.first_tokens)
            found = ops.linear(low_source, storage.matmul_weight(query), bias[:width])
            shrunk = [ops.shrink(low_source, layer.query, storage, training)]
            queries = ops.expand(found, shrunk[0], storage).view(len(source), layer.heads, -1)
        if first_tokens_only and not folds:  # on a GPU few launches count for more than few multiplications
            found = ops.linear(low_x, storage.matmul_weight(key, value), bias[width:])
            for part, columns in zip(linears[1:], found.chunk(2, 1), strict=True):
                shrunk.append(ops.shrink(low_x, part, storage, training))
                ops.expand(columns, shrunk[-1], storage)
            both = found.view(len(x), 2, layer.heads, -1)
            attended, saved_attention = operations.attend(queries, both[:, 0], both[:, 1], packing, attention_rate, ops.masks)
        elif first_tokens_only:
            attended, saved_attention = attend_first_tokens(queries, low_x, layer, packing, storage, attention_rate, ops.masks)
        else:
            found = ops.linear(low_x, storage.matmul_weight(query, key, value), bias)
            shrunk = [ops.shrink(low_x, part, storage, training) for part in linears]
            for one, columns in zip(shrunk, found.chunk(3, 1), strict=True):
                ops.expand(columns, one, storage)
            heads = found.view(len(x), 3, layer.heads, -1)
            attended, saved_attention = operations.attend_qkv(heads, packing, attention_rate, ops.masks)
        low_attended = attended.reshape(len(source), width)
        shrunk.append(ops.shrink(low_attended, layer.out, storage, training))
        h, low_h, saved_out = ops.add_and_norm(low_attended, layer.out, source, layer.out_norm, out_rate, storage, shrunk[-1])
        shrunk.append(ops.shrink(low_h, layer.up, storage, training))
        pre_activation, low_active = ops.linear_gelu(low_h, layer.up, layer.gelu_approximate, storage, shrunk[-1])
        shrunk.append(ops.shrink(low_active, layer.down, storage, training))
        y, low_y, saved_down = ops.add_and_norm(low_active, layer.down, h, layer.down_norm, down_rate, storage, shrunk[-1])
        ops.last_low = (y, low_y)
        ctx.parts = (layer, packing, storage, ops, first_tokens_only, folds, follows_fast_layer, shrunk)
        ctx.kept = (low_x, low_source, saved_attention, low_attended, saved_out, low_h, pre_activation, low_active, saved_down)
        return y

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, packing, storage, ops, first_tokens_only, folds, follows_fast_layer, (*shrunk, out, up, down) = ctx.parts
        low_x, low_source, saved_attention, low_attended, saved_out, low_h, pre_activation, low_active, saved_down = ctx.kept
        ctx.kept = ()
        grad_h, grad_down = ops.add_and_norm_backward(grad, None, saved_down, layer.down, layer.down_norm, storage)
        storage.add_matmul_gradient([layer.down.weight], grad_down, low_active)
        grad_active = grad_down @ storage.matmul_weight(layer.down.weight)
        ops.adapter_backward(grad_down, low_active, down, storage, grad_active)
        grad_up = ops.linear_gelu_backward(grad_active, pre_activation, layer.up, layer.gelu_approximate, storage)
        storage.add_matmul_gradient([layer.up.weight], grad_up, low_h)
        extra_grad = grad_up @ storage.matmul_weight(layer.up.weight)
        ops.adapter_backward(grad_up, low_h, up, storage, extra_grad)
        grad_source, grad_out = ops.add_and_norm_backward(grad_h, extra_grad, saved_out, layer.out, layer.out_norm, storage)
        storage.add_matmul_gradient([layer.out.weight], grad_out, low_attended)
        grad_attended = grad_out @ storage.matmul_weight(layer.out.weight)
        ops.adapter_backward(grad_out, low_attended, out, storage, grad_attended)
        grad_attended = grad_attended.view(len(grad_attended), layer.heads, -1)
        linears = [layer.query, layer.key, layer.value]
        weights = [part.weight for part in linears]
        needs_x = ctx.needs_input_grad[0]  # not below the lowest trained layer
        if not first_tokens_only:
            joined = ops.join_gradients(operations.attend_qkv_backward(grad_attended, saved_attention), linears, storage)
            storage.add_matmul_gradient(weights, joined, low_x)
            for one, columns in zip(shrunk, joined.chunk(3, 1), strict=True):
                ops.adapter_backward(columns, low_x, one, storage, grad_source if needs_x else None)
            if not needs_x:
                return (None,) * 9
            return (ops.add_matmul(grad_source, joined, storage.matmul_weight(*weights), follows_fast_layer), *[None] * 8)
        if not folds:
            flat = [part.reshape(part.shape[0], -1) for part in operations.attend_backward(grad_attended, saved_attention)]
            grad_query = ops.join_gradients(flat[:1], linears[:1], storage)
            joined = ops.join_gradients(flat[1:], linears[1:], storage)
            storage.add_matmul_gradient(weights[1:], joined, low_x)
            grad_x = (joined @ storage.matmul_weight(*weights[1:])).float()
            for one, columns in zip(shrunk[1:], joined.chunk(2, 1), strict=True):
                ops.adapter_backward(columns, low_x, one, storage, grad_x)
        else:
            grad_queries, grad_x = attend_first_tokens_backward(grad_attended, saved_attention, layer, storage)
            grad_query = ops.join_gradients([grad_queries.reshape(len(grad_queries), -1)], linears[:1], storage)
        storage.add_matmul_gradient(weights[:1], grad_query, low_source)
        ops.adapter_backward(grad_query, low_source, shrunk[0], storage, grad_source)
        grad_source = ops.add_matmul(grad_source, grad_query, storage.matmul_weight(weights[0]))
        grad_x.index_add_(0, packing.first_tokens, grad_source)
        return (grad_x if needs_x else None, *[None] * 8)


def attend_first_tokens(
    query: torch.Tensor, x: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage, rate: float,
    masks: DropoutMasks,
) -> tuple[torch.Tensor, Saved]:  # fmt: skip
    """Return the attended values [rows, heads, width] of one query per row, and what the backward function needs."""
    # The key and value matrices are multiplied with the few queries and with what these attend to, not with all tokens:
    # query · (K x) is (Kᵀ query) · x, and Σ p (V x + b) is V (Σ p x) + b (Σ p) for attention probabilities p. The bias of the
    # keys adds the same number to all scores of a query, so softmax cancels it. On a GPU, several kernel launches would save
    # one hundredth of the multiplications.
    heads, width = query.shape[1:]
    key, value = storage.matmul_weight(layer.key.weight, layer.value.weight).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
    queries = with_filler(query, packing).transpose(0, 1)
    folded = torch.bmm(queries, key).transpose(0, 1)
    grid = x.index_select(0, packing.token_of_slot).view(packing.sequences, packing.longest, -1)
    scores = torch.bmm(folded, grid.mT).mul_(width**-0.5).add_(packing.additive_mask[:, None])
    probabilities = torch.softmax(scores, -1)
    mask = masks.draw(probabilities, rate)
    kept = apply_mask(probabilities, mask)
    mixed, share = torch.bmm(kept, grid), kept.sum(-1, keepdim=True)  # after dropout the share is not exactly 1
    out = torch.bmm(mixed.transpose(0, 1), value.mT).transpose(0, 1).addcmul(share, bias)
    return out[: packing.rows], (queries, folded, grid, probabilities, mask, mixed, share, packing)


def attend_first_tokens_backward(grad: torch.Tensor, saved: Saved, layer: LayerParts, storage: FlatStorage) -> TensorPair:
    """Return the gradients of the queries and of all tokens; those of keys and values are added to the storage."""
    queries, folded, grid, probabilities, mask, mixed, share, packing = saved
    heads, _, width = queries.shape
    weights = [layer.key.weight, layer.value.weight]
    key, value = storage.matmul_weight(*weights).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
    grad = with_filler(grad, packing)
    grad_heads, kept = grad.transpose(0, 1), apply_mask(probabilities, mask)
    grad_mixed = torch.bmm(grad_heads, value).transpose(0, 1)
    grad_kept = torch.baddbmm((grad * bias).sum(-1, keepdim=True), grad_mixed, grid.mT)
    grad_probabilities = grad_kept if mask is None else grad_kept.mul_(mask)
    grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype).mul_(width**-0.5)
    grad_folded = torch.bmm(grad_score, grid).transpose(0, 1)
    storage.add_matmul_gradient(weights, torch.cat([queries, grad_heads]), torch.cat([grad_folded, mixed.transpose(0, 1)]))
    storage.add(layer.key.bias, torch.zeros_like(layer.key.bias))
    storage.add(layer.value.bias, (grad * share).sum(0, dtype=torch.float32).view(-1))
    grad_grid = torch.bmm(torch.cat([grad_score, kept], 1).mT, torch.cat([folded, grad_mixed], 1))
    grad_query = torch.bmm(grad_folded, key.mT).transpose(0, 1)[: packing.rows]
    return grad_query, grad_grid.view(-1, grid.shape[-1]).index_select(0, packing.slot_of_token).float()


class KnownBatch:
    """The padded inputs that code of a user gets, and the packed ones that a call of the model with them runs on."""

    # A tensor that was changed in place has another version.
    def __init__(self, padded: Mapping[str, torch.Tensor], packed: Mapping[str, object]) -> None:
        self.padded = {name: (value, value._version) for name, value in padded.items()}
        self.packed = packed
        self.calls: list[str | None] = []  # of each call of the model: why it ran padded, or None

    def why_other(self, inputs: Mapping[str, object]) -> str | None:
        """Return what a call of the model asks for beside logits and loss of this batch; None if it is nothing."""
        given = {name: value for name, value in inputs.items() if value is not None}
        if more := [name for name in given if name not in (*self.padded, *BESIDE_TOKENS)]:
            return f"the model is called with {listed(more)}"
        for name, (value, version) in self.padded.items():
            if name == "token_type_ids" and name not in given and not value.any():
                continue  # the model takes all of them as 0
            if given.get(name) is not value or value._version != version:
                return f"the model is called {'with another' if name in given else 'without'} {name}"
        return None


class FastModel(ABC):
    """A model with flat storage, whose forward method takes packed batches as well as all inputs that it took before."""

    packs = True
    uncounted: int | None = None
    limits: tuple[int, int] | None = None
    vocabulary: ReducedVocabulary | None = None  # the word vectors that are trained; None: all

    def __init__(self, model: Model, storage: FlatStorage, replaced: list[nn.Module], written: set[int]) -> None:
        self.model, self.storage = model, storage
        self.replaced = replaced  # the modules whose forward methods are replaced
        self.written = written  # the ids of the weights whose gradients fast layers write; autograd makes all others
        self.hooks: list[RemovableHandle] = []
        self.packing: Packing | None = None
        self.known: KnownBatch | None = None
        self.own_hooks = 0
        self.plain_forward = model.forward
        self.names = [*inspect.signature(model.forward).parameters]  # of arguments that are given by place
        self.base = base_of(model)  # without what peft wraps around it
        self.pooled = self.base if isinstance(self.base, PooledClassifier) else None
        self.towers = self.pooled is not None and self.pooled.pooling.towers

    def open_for_training(self, *, own_code: bool = False) -> None:
        """Allocate gradients and moments, and let autograd write the gradients of all other modules into the storage.

        With `own_code`, code of the user calls the model, and may call it padded: then autograd makes all gradients.
        """
        self.storage.open_for_training()
        for weight in self.storage.parameters:
            if id(weight) not in self.written or own_code:
                adopt = self.adopt_padded_gradient if id(weight) in self.written else self.storage.adopt_gradient
                self.hooks.append(weight.register_post_accumulate_grad_hook(adopt))  # type: ignore[no-untyped-call]
        self.own_hooks = num_hooks(self.model)

    def adopt_padded_gradient(self, weight: torch.Tensor) -> None:
        """Add what autograd made of a padded pass to the gradient of a weight that fast layers write."""
        self.storage.gradients_exposed = True  # of a table, other rows than those of the batch may have a gradient
        self.storage.adopt_gradient(weight)

    def remove(self) -> None:
        """Restore the model, which keeps its trained weights."""
        self.sync_to_model()
        for module in self.replaced:
            vars(module).pop("forward", None)
        for hook in self.hooks:
            hook.remove()
        self.storage.release()

    def sync_to_model(self) -> None:
        """Copy the trained word vectors into the module, which holds all other weights itself."""
        if self.vocabulary is not None:
            weight = self.model.get_input_embeddings().weight
            weight.data.index_copy_(0, self.vocabulary.used, self.storage.view(self.storage.weights, id(weight)))

    def sync_from_model(self) -> None:
        if self.vocabulary is not None:
            weight = self.model.get_input_embeddings().weight
            self.storage.view(self.storage.weights, id(weight)).copy_(self.vocabulary.select(weight.detach()))
        self.storage.refresh_low_copies()
        self.storage.copy_frozen()

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> object:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        beside: dict[str, object] = {}
        if packed is None and self.known is not None:
            named = {**dict(zip(self.names, args, strict=False)), **inputs}
            self.known.calls.append(self.known.why_other(named) or self.why_hooked())
            if self.known.calls[-1] is None:
                beside = {name: named[name] for name in BESIDE_TOKENS if named.get(name) is not None}
                inputs = {**self.known.packed}
                packed = cast(torch.Tensor, inputs["packed"])
        if packed is None:
            self.sync_to_model()
            return self.plain_forward(*args, **inputs)
        self.packing = Packing.from_inputs(packed, inputs)
        try:
            return self.run(self.packing, beside)
        finally:
            self.packing = None

    @property
    def why_unpacked(self) -> str | None:
        """Why code of the user did not run the latest batch packed; None if it did."""
        calls = self.known.calls if self.known is not None else []
        return next(filter(None, calls), None if calls else "the model is not called with the inputs of a batch")

    def why_hooked(self) -> str | None:
        return None if num_hooks(self.model) == self.own_hooks else "a module of the model got a hook"

    # `beside` is what a call of a user asks for with the tokens: `labels`, for the model's own loss, and `return_dict`.
    @abstractmethod
    def run(self, packing: Packing, beside: dict[str, object]) -> object: ...

    def after_backward(self) -> None: ...  # noqa: B027 - a model's own layers have nothing to finish


def num_hooks(model: nn.Module) -> int:
    return sum(len(vars(part)[kind]) for part in model.modules() for kind in ("_forward_hooks", "_forward_pre_hooks"))


class OwnLayers(FastModel):
    """A model whose own layers run. With `packs`, they run over packed tokens, and only attention is replaced."""

    def __init__(self, model: Model, *, packs: bool = False, trains: bool = True, no_decay: set[int] | None = None) -> None:
        super().__init__(model, FlatStorage(model, [], no_decay or set(), trains=trains), [model], set())
        self.packs, self.masks = packs, DropoutMasks(next(model.parameters()).device)
        self.hidden: torch.Tensor | None = None
        if packs:
            from transformers import AttentionInterface
            from transformers.masking_utils import AttentionMaskInterface

            AttentionInterface.register(PACKED_ATTENTION, packed_attention)
            AttentionMaskInterface.register(PACKED_ATTENTION, no_mask)
            model.forward = self.forward
            if self.pooled is None:
                self.hooks.append(self.base.base_model.final_norm.register_forward_hook(self.keep_hidden))
                self.hooks.append(self.base.head.register_forward_pre_hook(self.pool))

    def run(self, packing: Packing, beside: dict[str, object]) -> object:
        config = self.base.config
        usual = config._attn_implementation
        if self.model.training:
            self.masks.start()
        config._attn_implementation = PACKED_ATTENTION
        tokens = {"input_ids": packing.ids[None], "position_ids": packing.positions[None]}
        try:
            if self.pooled is None:
                return self.plain_forward(**tokens, **beside, packing=packing, dropout_masks=self.masks)
            hidden = self.pooled.base_model(**tokens, packing=packing, dropout_masks=self.masks).last_hidden_state
            logits = self.pooled.classify(pool_packed(hidden[0], packing, self.pooled.pooling.mode))
            return self.pooled.output(logits, cast("torch.Tensor | None", beside.get("labels")))
        finally:
            config._attn_implementation = usual
            self.hidden = None

    def keep_hidden(self, module: nn.Module, args: object, output: torch.Tensor) -> None:
        """Keep the hidden states of a packed batch for `pool`."""
        self.hidden = output if self.packing is not None else None

    def pool(self, module: nn.Module, args: object) -> tuple[torch.Tensor] | None:
        """Return the first token, or the mean, of each row as the input of the head; None for a padded batch."""
        if self.packing is None or self.hidden is None:
            return None
        return (pool_packed(self.hidden[0], self.packing, self.base.config.classifier_pooling),)


def pool_packed(tokens: torch.Tensor, packing: Packing, mode: str) -> torch.Tensor:
    """Return one vector per sequence from the vectors of all tokens, as `models.pooled.pooled` does for padded rows."""
    if mode == "cls":
        return tokens.index_select(0, packing.first_tokens)
    if mode == "last":
        return tokens.index_select(0, packing.bounds[1 : packing.rows + 1] - 1)
    if mode == "max":
        grid = tokens.index_select(0, packing.token_of_slot).masked_fill(packing.has_token == 0, torch.finfo(tokens.dtype).min)
        return grid.view(packing.sequences, packing.longest, -1)[: packing.rows].amax(1)
    # A matrix multiplication adds in the same order each time; scattered additions on a GPU would not.
    sequence = torch.arange(packing.rows, device=tokens.device)[:, None]
    inside = (packing.slot_of_token // packing.longest == sequence).to(tokens.dtype)
    return inside @ tokens / inside.sum(1, keepdim=True)


class PackedAttention(torch.autograd.Function):
    """Attention within each sequence of a packed batch."""

    @staticmethod
    def forward(
        ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float,
        masks: DropoutMasks, window: int,
    ) -> torch.Tensor:  # fmt: skip
        attended, ctx.kept = operations.attend(query, key, value, packing, rate, masks, window)
        return attended

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (*operations.attend_backward(grad.contiguous(), ctx.kept), None, None, None, None)


def packed_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, dropout: float = 0.0,
    sliding_window: int | None = None, *, packing: Packing, dropout_masks: DropoutMasks, **ignored: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attend in place of transformers' own attention; query, key and value are [1, heads, tokens, width]."""
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    parts = [part[0].transpose(0, 1).to(dtype).contiguous() for part in (query, key, value)]
    window = -1 if sliding_window is None else sliding_window - 1  # transformers counts the token itself
    attended: torch.Tensor = PackedAttention.apply(*parts, packing, dropout, dropout_masks, window)  # type: ignore[no-untyped-call]
    return attended[None], None


def no_mask(*args: object, attention_mask: torch.Tensor | None = None, **ignored: object) -> None:
    """Return no mask, because packed tokens have no padding; raise if the user gave one, which would be ignored."""
    if attention_mask is not None:
        raise ModelError("a packed batch came with an attention mask", "omit it, or use backend plain")


class ReplacedLayers(FastModel):
    """A model of a family whose layers have a fast form; padded batches still use the old ones."""

    def __init__(
        self, model: Model, matmul_dtype: torch.dtype = torch.float32, *, trains: bool = True, no_decay: set[int] | None = None,
        vocabulary: ReducedVocabulary | None = None, low_precision_gradients: bool = False, first_tokens_only: bool = True,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        base = base_of(model)
        embeddings, layers = embeddings_of(base), layers_of(base)
        first_tokens_only = first_tokens_only and encoder_parts.reads_first_tokens(base)
        if embeddings is None:
            raise ModelError(f"{type(model).__name__} has embeddings without a fast form", "use backend plain")
        storage = FlatStorage(
            model, layers, no_decay or set(), embedding_vectors=embeddings.vectors, trains=trains, matmul_dtype=matmul_dtype,
            tables={id(embeddings.words.weight): vocabulary} if vocabulary is not None else {},
            low_precision_gradients=low_precision_gradients, memory=memory,
        )  # fmt: skip
        replaced = [model, *(layer.module for layer in layers), embeddings.module]
        super().__init__(model, storage, replaced, weight_ids(layers, embeddings))
        self.embeddings, self.vocabulary, self.first_tokens_only = embeddings, vocabulary, first_tokens_only
        self.uncounted, self.limits = embeddings.uncounted, embeddings.limits
        self.takes_types = "token_type_ids" in inspect.signature(encoder_parts.encoder_in(base).forward).parameters
        device = next(model.parameters()).device
        if device.type == "cuda":
            from glassloop.backends.fast.triton_operations import TritonOperations

            self.ops: TorchOperations = TritonOperations(device, matmul_dtype)
        else:
            self.ops = TorchOperations(device, matmul_dtype)
        self.num_layer_calls, self.num_layers_run = len(layer_calls(base)), 0
        # The output of the last layer, and the same with a batch dimension, which the model hands to the next layer.
        self.last_output: TensorPair | None = None
        model.forward = self.forward
        for layer in layers:
            layer.module.forward = partial(self.layer_forward, layer, layer.module.forward)
        embeddings.module.forward = partial(self.embed, embeddings.module.forward)

    def run(self, packing: Packing, beside: dict[str, object]) -> object:
        self.num_layers_run = 0
        self.ops.before_forward(self.storage, packing, self.model.training)
        tokens = {"input_ids": packing.ids[None], "position_ids": packing.positions[None]}
        if self.takes_types:
            tokens["token_type_ids"] = packing.types[None]
        try:
            # The layers choose their precision themselves. The head has few rows and runs in fp32.
            with torch.autocast(packing.numbers.device.type, enabled=False):
                if self.pooled is None:
                    return self.plain_forward(**tokens, **beside)
                hidden = self.pooled.base_model(**tokens).last_hidden_state
                mode = self.pooled.pooling.mode
                vectors = hidden[:, 0] if mode == "cls" else pool_packed(hidden[0], packing, mode)
                return self.pooled.output(self.pooled.classify(vectors), cast("torch.Tensor | None", beside.get("labels")))
        finally:
            # Through autograd the last output refers to these operations, a circle that Python never frees.
            self.last_output = self.ops.last_low = None

    def layer_forward(
        self, layer: LayerParts, plain: PlainForward, hidden_states: torch.Tensor, *args: object, **inputs: object
    ) -> torch.Tensor:
        """Run one layer over the packed batch; the last one may return only the first token of each row, for the head."""
        if self.packing is None:
            return plain(hidden_states, *args, **inputs)
        self.num_layers_run += 1
        last = self.num_layers_run == self.num_layer_calls
        before = self.last_output if self.last_output is not None and hidden_states is self.last_output[1] else None
        x = before[0] if before is not None else hidden_states.reshape(-1, hidden_states.shape[-1]).float()
        y: torch.Tensor = PostNormLayer.apply(  # type: ignore[no-untyped-call]
            x, layer.anchor, layer, self.packing, self.storage, self.ops, self.model.training,
            last and self.first_tokens_only, before is not None,
        )  # fmt: skip
        if not last or not encoder_parts.reads_first_tokens(self.base):
            self.last_output = (y, y[None])
            return self.last_output[1]
        return (y if self.first_tokens_only else y.index_select(0, self.packing.first_tokens))[:, None]

    def embed(self, plain: PlainForward, *args: object, **inputs: object) -> torch.Tensor:
        if self.packing is None:
            return plain(*args, **inputs)
        padding_row = self.embeddings.words.padding_idx  # never gets a gradient
        if padding_row is not None and self.vocabulary is not None:
            padding_row = int(self.vocabulary.new_ids[padding_row])
        y: torch.Tensor = EmbeddingSum.apply(  # type: ignore[no-untyped-call]
            self.embeddings.norm.weight, self.embeddings, self.packing, self.storage, self.ops, self.model.training,
            -1 if padding_row is None else padding_row,
        )  # fmt: skip
        self.last_output = (y, y[None])
        return self.last_output[1]

    def after_backward(self) -> None:
        self.ops.after_backward(self.storage)
