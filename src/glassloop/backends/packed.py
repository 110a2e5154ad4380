"""The backends that run packed batches (packed, graphs, int8), and the comparison with plain that admits a model to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from math import lcm
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from glassloop.backends import graphs
from glassloop.backends.fast import encoder_parts, packing
from glassloop.backends.fast.encoder_parts import layers_of, packing_form, why_not_flat, why_not_packed, why_not_unmodified
from glassloop.backends.fast.inference_model import InferenceLayers, Ranges, why_no_kernels
from glassloop.backends.fast.operations import TensorPair
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import EVALUATION_TOKENS, LENGTH_MULTIPLE, why_not_columns
from glassloop.backends.fast.storage import FlatStorage, Memory, ReducedVocabulary, choose_vocabulary
from glassloop.backends.fast.training_model import FastModel, KnownBatch, OwnLayers, ReplacedLayers
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import GlassloopError, ModelError, no_memory
from glassloop.data.batches import Batch, Batches, PaddingCollator
from glassloop.data.interfaces import Model, Row
from glassloop.data.rows import random_states_kept
from glassloop.models.interface import base_of, is_adapted
from glassloop.runs.record import Difference
from glassloop.training.interfaces import (
    Backend,
    LRScheduler,
    OptimizerFactory,
    RowBatches,
    Say,
    StepFunction,
    Tensors,
    TrainingBatch,
    TrainingUse,
)
from glassloop.training.losses import TaskLoss
from glassloop.training.optimizer import decay_groups

BatchLoss = Callable[[nn.Module, TrainingBatch], torch.Tensor]
NO_TRAINING = TrainingUse((), 0.0)


class PackedBackend(PlainBackend):
    """One process, one device: packed batches, and an optimizer over flat storage."""

    name = "packed"

    # With `captures` it is the backend "graphs", whose steps are captured as CUDA graphs. With `int8` it is for predictions on
    # a CPU: its first passes are in fp32, and measure; after `quantize`, linear layers run in int8.
    def __init__(
        self, device: str | torch.device = "cpu", precision: str = "fp32", *, captures: bool = False, int8: bool = False
    ) -> None:
        super().__init__(device, precision)
        self.name = "graphs" if captures else "int8" if int8 else "packed"
        self.compute_dtype = self.autocast_dtype or torch.float32  # of matrix multiplications
        gpu = torch.cuda.current_device() if captures else None
        self.stream = None if gpu is None else graphs.capture_stream(gpu)
        self.captures: graphs.Captures | None = None  # of the steps of a training
        # Those of an earlier training stay for the next one, although the Trainer they were made for may be gone by then.
        self.earlier = None if gpu is None else graphs.LATEST.get(gpu)
        self.ranges: dict[nn.Module, Ranges] | None = {} if int8 else None  # of the layers that run over all tokens
        self.quantized = False
        self.savings: FastModel | InferenceLayers | None = None
        self.optimizer: FlatAdamW | None = None
        self.use = NO_TRAINING
        # How far each model's results on this backend are from those of the plain backend.
        self.differences: WeakKeyDictionary[nn.Module, Difference] = WeakKeyDictionary()

    def why_not(self, model: Model) -> str | None:
        if self.precision == "fp16":
            return "fp16 needs a scaler"
        if self.stream is not None:  # a model that cannot be packed is run padded, if it is what transformers builds
            return why_not_flat(model) or why_not_unmodified(model)
        reason = why_not_packed(model) or why_not_flat(model)
        if reason is None and self.ranges is not None and (packing_form(model) != "layers" or is_adapted(model)):
            return f"{type(model).__name__} has layers without an int8 form"
        return reason

    @property
    def storage(self) -> FlatStorage:
        """Return the flat storage of the weights in training; raise `ModelError` if no training was started."""
        if not isinstance(self.savings, FastModel):
            raise ModelError(f"backend {self.name}: no training was started", "call start_training first")
        return self.savings.storage

    def start_training(self, model: nn.Module, use: TrainingUse) -> OptimizerFactory:
        """Put the savings of a training in place. Gradients that `on_gradients` reads are complete and in full precision."""
        # Layers are replaced on the instance, not wrapped: names, state_dict, save_pretrained and what a callback
        # sees stay the same.
        groups = decay_groups(model, use.weight_decay)
        low_gradients = self.compute_dtype is not torch.float32 and self.device.type == "cuda"
        low_gradients = low_gradients and not (use.runs_own_code or use.adds_gradients)
        vocabulary = trained_words(model, use)
        self.use = use
        if self.stream is not None:
            self.captures = graphs.captures_of(structure_of(model, use, vocabulary, (self.compute_dtype, low_gradients)))
        self.savings = make_fast_model(
            model,
            self.compute_dtype,
            no_decay={id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]},
            vocabulary=vocabulary,
            low_precision_gradients=low_gradients,
            memory=self.captures.memory if self.captures is not None else None,
        )
        if isinstance(self.savings, FastModel):
            self.savings.open_for_training(own_code=use.batch_loss is not None)
        return self.make_optimizer

    def make_optimizer(
        self, model: nn.Module, learning_rate: float, *, weight_decay: float, betas: tuple[float, float], epsilon: float,
        fused: bool,
    ) -> FlatAdamW:  # fmt: skip
        groups, fused = decay_groups(model, weight_decay), fused or self.device.type == "cuda"
        self.optimizer = FlatAdamW(groups, self.storage, lr=learning_rate, betas=betas, eps=epsilon, fused=fused or None)
        return self.optimizer

    def end_training(self) -> None:
        if self.savings is not None:
            self.savings.remove()
        if self.captures is not None:
            self.captures.end()
            self.earlier, self.captures = self.captures, None
        self.savings, self.optimizer, self.use = None, None, NO_TRAINING

    @contextmanager
    def evaluation_context(self, model: nn.Module) -> Iterator[None]:
        """Put the savings in place for one pass, unless a training has put them there."""
        if self.savings is not None or self.why_not(model) is not None:
            yield
            return
        self.savings = self.fast_form(model)
        try:
            yield
        finally:
            self.end_training()

    def fast_form(self, model: Model) -> FastModel | InferenceLayers:
        """Return the form of a model for predictions; in int8, with layers that measure, or with quantized ones."""
        if self.ranges is None:
            return make_fast_model(model, self.compute_dtype, trains=False)
        return InferenceLayers(model, self.ranges, quantized=self.quantized)

    def quantize(self) -> None:
        """Run the layers whose ranges were measured in int8 from now on."""
        self.quantized = True

    def training_context(self) -> AbstractContextManager[None]:
        return nullcontext() if self.stream is None else graphs.in_stream(self.stream)

    def wrap_step(
        self, step: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, scheduler: LRScheduler, say: Say
    ) -> StepFunction:
        """Return the function that runs a step, or captures it for each new shape and replays it afterwards."""
        # code of the user must run in every step, not only while a step is captured
        if self.stream is None or self.use.runs_own_code:
            return super().wrap_step(step, optimizer, scheduler, say)
        flat = cast(FlatAdamW, optimizer)  # `make_optimizer` makes no other
        if not isinstance(self.savings, ReplacedLayers) or self.captures is None:
            return graphs.GraphStep(partial(step, scheduler=graphs.Idle()), flat, scheduler, say, own_modules=True)
        self.captures.begin(description_of(step, flat))
        if not self.captures.graphs:  # else this process has compiled them
            graphs.compile_kernels(self.savings, self.optimizer, self.backward)
        constants = (getattr(step, "keywords", {}).get("loss_sum"), [*self.savings.model.buffers()])
        step = partial(step, scheduler=graphs.Idle())
        return graphs.GraphStep(step, flat, scheduler, say, captures=self.captures, constants=constants)

    def trial_step(self, step: StepFunction, group: list[Batch], other: list[Batch]) -> torch.Tensor:
        """Return what a step without an update computes for `group`, run in the same way as the steps of a training."""
        # If steps are captured, a model's own modules are captured with `other`, which has the same shapes, and replayed with
        # `group`: that reveals values that a captured graph would wrongly reuse.
        if self.stream is not None and isinstance(self.savings, ReplacedLayers):
            graphs.compile_kernels(self.savings, None, self.backward)
        if self.stream is None or self.use.runs_own_code or isinstance(self.savings, ReplacedLayers):
            return step(group)
        run = graphs.GraphStep(step, graphs.Idle(), graphs.Idle(), lambda line: None, own_modules=True)
        run(other)
        run(other)
        return run(group)

    def adapt_batches(self, batches: Batches, rows: object) -> RowBatches:
        """Return the batches packed, or as they are if they cannot be, or if `rows` may hold words that are not trained."""
        savings = self.savings
        if savings is None or why_not_columns(batches) is not None:
            return batches
        if not savings.packs:
            return with_few_shapes(batches)
        if savings.vocabulary is not None and not any(rows is known for known in self.use.data_sets):
            self.sync_to_model()
            return batches
        numbers = savings.vocabulary.new_ids if savings.vocabulary is not None else None
        flash = self.compute_dtype is not torch.float32
        return packing.PackedBatches(
            batches, self.device, savings.uncounted, numbers, savings.limits, flash=flash, towers=savings.towers,
            keeps_padded=self.use.batch_loss is not None,
        )  # fmt: skip

    def script_inputs(self, batch: TrainingBatch) -> Tensors:
        """Return the padded inputs of a batch; a call of the model with exactly these then runs packed."""
        if not isinstance(batch, Batch) or batch.padded is None or not isinstance(self.savings, FastModel):
            return super().script_inputs(batch)
        inputs = self.move(batch.padded().inputs)
        self.savings.known = KnownBatch(inputs, batch.inputs)
        return {**inputs}

    def logits_of(self, rows: Sequence[Row]) -> np.ndarray | None:
        """Return the logits of some tokenized rows in their order, by one forward pass on a CPU; None where it cannot be."""
        # The same as a pass over a split, without the preparations of a pass, which matter for a single row.
        savings, lengths = self.savings, [len(row["input_ids"]) for row in rows]
        if not isinstance(savings, InferenceLayers) or sum(lengths) > EVALUATION_TOKENS["cpu"]:
            return None
        order = np.argsort([-length for length in lengths], kind="stable")
        ordered = [rows[place] for place in order]
        inputs = packing.packed_rows(ordered, savings.uncounted, savings.limits, towers=savings.towers)
        with torch.inference_mode():
            logits = savings.run(packing.Packing.from_inputs(torch.from_numpy(inputs["packed"]), inputs)).numpy()
        found = np.empty_like(logits)
        found[order] = logits
        return found

    def sync_to_model(self) -> None:
        """Copy trained word vectors into the model: only those that occur in the data are trained."""
        if isinstance(self.savings, FastModel):
            self.savings.sync_to_model()

    def sync_from_model(self) -> None:
        if isinstance(self.savings, FastModel):
            self.savings.sync_from_model()

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if isinstance(self.savings, FastModel):
            self.savings.after_backward()

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Return the norm of all gradients; the optimizer scales them while it reads them."""
        if self.savings is None or self.optimizer is None:
            return super().clip(model, max_norm)
        if self.use.reads_gradients:
            self.storage.adopt_gradients()
        return self.optimizer.clip(max_norm)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        if self.use.reads_weights:
            self.sync_to_model()

    def describe_savings(self, model: Model, use: TrainingUse) -> list[str]:
        names = ["one-pass AdamW"] if why_not_packed(model) else ["packed batches", "one-pass AdamW"]
        base = base_of(model)
        if any(not weight.requires_grad for weight in model.parameters()):
            names.append("no gradients of frozen weights")
        if layers_of(base):
            names[1:1] = ["last layer for first tokens only"] if encoder_parts.reads_first_tokens(base) else []
            if (words := trained_words(model, use)) is not None:
                names.append(f"{len(words.used):,} of {len(words.new_ids):,} word vectors")
            if self.compute_dtype is not torch.float32:
                names.append(f"{self.precision} copies of weights")
        if self.stream is None:
            return names
        captured = [] if use.runs_own_code else ["steps as CUDA graphs"]
        return [*captured, *(["fused kernels"] if layers_of(base) else []), *names]


def trained_words(model: Model, use: TrainingUse) -> ReducedVocabulary | None:
    """Return the word vectors that a training changes; None for all, which code of the user may read or call."""
    if use.runs_own_code or not model.get_input_embeddings().weight.requires_grad:
        return None
    return choose_vocabulary(model, use.data_sets, use.weight_decay)


def structure_of(
    model: Model, use: TrainingUse, vocabulary: ReducedVocabulary | None, precision: tuple[torch.dtype, bool]
) -> Hashable:  # fmt: skip
    """Return what decides where the weights of a training are in memory, and what a model computes with them.

    None if no other training can use its captured steps.
    """
    # A packed model is what its class builds from its config, but for the rates of dropout, which `repr` shows.
    if is_adapted(model) or not all(weight.requires_grad for weight in model.parameters()):
        return None  # frozen weights are not in the shared memory
    if why_not_packed(model) is not None or packing_form(model) != "layers" or (use.reads_weights and vocabulary is not None):
        return None  # the model's own modules, or its own table of word vectors, are not in the shared memory
    padding = model.get_input_embeddings().padding_idx or 0
    return (
        type(model),
        repr(model),
        model.config.to_json_string(use_diff=False),
        getattr(model, "pooling", None),
        tuple((name, *value.shape, *value.flatten().tolist()) for name, value in model.named_buffers()),
        precision,
        use.weight_decay,
        use.adds_gradients,
        None if vocabulary is None else (len(vocabulary.used), int(vocabulary.new_ids[padding])),
    )


STEP_PARTS = ("on_gradients", "batch_loss", "batch_step", "before_update", "after_update")  # arguments of `train_step`


def description_of(step: Callable[..., torch.Tensor], optimizer: FlatAdamW) -> Hashable:
    """Return what a step computes besides the model; None if code of the user takes part in it."""
    given = getattr(step, "keywords", {})
    loss = given.get("loss_sum")
    if not isinstance(loss, TaskLoss) or any(given.get(name) is not None for name in STEP_PARTS):
        return None
    groups = tuple((*group["betas"], group["eps"], group["weight_decay"]) for group in optimizer.param_groups)
    multiplying = torch.backends.cuda.matmul
    flags = (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), multiplying.allow_tf32)
    return (loss, given.get("max_norm"), groups, *flags, multiplying.allow_bf16_reduced_precision_reduction)


def make_fast_model(
    model: Model, matmul_dtype: torch.dtype, *, trains: bool = True, no_decay: set[int] | None = None,
    vocabulary: ReducedVocabulary | None = None, low_precision_gradients: bool = False, memory: Memory | None = None,
) -> FastModel | InferenceLayers:  # fmt: skip
    """Return the fast form of a model: replaced layers where its family is known, else its own layers."""
    packs, on_cpu = why_not_packed(model) is None, next(model.parameters()).device.type == "cpu"
    if not packs or packing_form(base_of(model)) != "layers":
        return OwnLayers(model, packs=packs, trains=trains, no_decay=no_decay)
    if not trains and matmul_dtype is torch.float32 and on_cpu and not is_adapted(model):
        return InferenceLayers(model)
    return ReplacedLayers(
        model, matmul_dtype, trains=trains, no_decay=no_decay, vocabulary=vocabulary,
        low_precision_gradients=low_precision_gradients, memory=memory,
    )  # fmt: skip


def with_few_shapes(batches: Batches) -> Batches:
    """Return the same batches, padded to fewer different widths: each shape needs a CUDA graph of its own."""
    found = copy(batches)
    if isinstance(batches.collate, PaddingCollator):
        collate = found.collate = copy(batches.collate)
        collate.multiple = lcm(collate.multiple, LENGTH_MULTIPLE)
    return found


def why_not_int8(model: Model) -> str | None:
    if (reason := PackedBackend(int8=True).why_not(model)) is None and (problem := why_no_kernels()) is not None:
        reason = f"this CPU: {problem}"
    return reason


# Each run compares: a new release of transformers can change the computation of a family without renaming a module. Forward
# and backward of these rows cost about one step.
COMPARED_ROWS = 4  # enough for padding, several lengths and both parts of a pair; few enough to take almost no time
CANDIDATE_ROWS = 16  # the compared rows are chosen by length from these, which are spread over the data
ALLOWED = {"fp32": (1e-4, 1e-3), "bf16": (1e-2, 3e-2)}  # relative differences of logits and of gradients, at least
ALLOWED_BY_PADDING = 1e-5  # relative difference of logits between two widths of padding in fp32
TIMES_ROUNDING = 4.0  # in bf16, allow this many times the plain model's own distance from fp32
SMALL = 1e-2  # gradients far below their typical size are rounding errors: those of key biases are zero in exact arithmetic


class PaddedCallError(Exception):
    """Code of a user calls the model in a way that cannot run packed."""


class Figures(NamedTuple):
    """Logits of the compared rows, and the gradient of each weight by its name (none if only logits are compared)."""

    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]
    widened: Batch | None = None  # the batch, if it was padded further than the user's batches


def sample_batches(batches: Batches) -> Batches:
    """Return a few rows of a data set, read once, as two batches: in one order, and in the reverse order."""
    places = np.unique(np.linspace(0, len(batches.rows) - 1, CANDIDATE_ROWS).astype(int))
    rows = sorted(batches.read(places), key=lambda row: len(row["input_ids"]))
    chosen = [rows[place] for place in np.unique(np.linspace(0, len(rows) - 1, COMPARED_ROWS).astype(int))]
    return Batches([*chosen, *reversed(chosen)], batches.collate, len(chosen))


def trial_loss(logits: torch.Tensor) -> torch.Tensor:
    """Return a loss that weights every logit differently, so that an error in any weight changes the gradients."""
    return (logits * torch.linspace(-1.0, 2.0, logits.numel(), device=logits.device).view_as(logits)).mean()


def forward_pass(model: nn.Module, batch: Batch, backend: PlainBackend, batch_loss: BatchLoss | None) -> TensorPair:
    """Return the logits of a batch and a loss of them; with the `batch_loss` of a script, that loss as both."""
    with backend.forward(model):
        if batch_loss is not None:
            loss = batch_loss(model, batch)
            return loss.view(1), loss
        logits = model(**backend.move(batch.inputs)).logits.float()
    return logits, trial_loss(logits)


def plain_figures(
    model: nn.Module, batch: Batch, backend: PlainBackend, *, trains: bool, batch_loss: BatchLoss | None = None
) -> Figures:
    with torch.set_grad_enabled(trains):
        logits, loss = forward_pass(model, batch, backend, batch_loss)
    if not trains:
        return Figures(logits, {})
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    pairs = zip(named, gradients, strict=True)
    return Figures(logits.detach(), {name: gradient for name, gradient in pairs if gradient is not None})


def fast_figures(
    backend: PackedBackend, model: nn.Module, sample: Batches, use: TrainingUse | None, batch_loss: BatchLoss | None = None
) -> Figures:
    """Return what the backend computes for the first batch. Captured steps are captured with the second one and replayed.

    Raises `PaddedCallError` if a `batch_loss` calls the model so that it runs padded.
    """
    if use is None:
        with backend.evaluation_context(model):
            first, _ = backend.adapt_batches(sample, sample.rows).epoch()
            with torch.inference_mode(), backend.forward(model):
                logits = model(**backend.move(first.inputs)).logits.float()
        return Figures(logits, {}, None if "packed" in first.inputs else first)

    def step(group: list[Batch]) -> torch.Tensor:
        logits, loss = forward_pass(model, group[0], backend, batch_loss)
        backend.backward(loss)
        backend.storage.zero_missing_gradients()
        backend.storage.clear_gradients()
        return logits.detach()

    backend.start_training(model, use)
    try:
        first, second = backend.adapt_batches(sample, use.data_sets[0]).epoch()
        logits = backend.trial_step(step, [first], [second])
        named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        gradients = {name: backend.storage.full_gradient(weight) for name, weight in named}
        if batch_loss is not None and isinstance(backend.savings, FastModel) and (why := backend.savings.why_unpacked):
            raise PaddedCallError(why)
    finally:
        backend.end_training()
    return Figures(logits, gradients, None if "packed" in first.inputs else first)


def distance(found: Figures, wanted: Figures) -> tuple[float, float]:
    """Return the largest relative difference of a logit and of a weight's gradient."""
    # Per weight, relative to its own norm. The floor keeps gradients that are zero in exact arithmetic, such as the
    # biases of keys, from counting as differences.
    logits = (found.logits - wanted.logits).abs().max() / wanted.logits.abs().max().clamp(min=1e-6)
    if not (wanted.gradients and found.gradients):
        return float(logits), 0.0
    zero = torch.zeros((), device=wanted.logits.device)
    names = {**wanted.gradients, **found.gradients}
    pairs = [(wanted.gradients.get(name, zero), found.gradients.get(name, zero)) for name in names]
    norms = torch.stack(torch._foreach_norm([value for value, _ in pairs]))
    apart = torch.stack(torch._foreach_norm([value - other for value, other in pairs]))
    sizes = torch.tensor([float(max(value.numel(), other.numel())) for value, other in pairs], device=zero.device)
    typical = norms.norm() / sizes.sum().sqrt()
    shares = apart / (norms + SMALL * typical * sizes.sqrt() + 1e-30)
    return float(logits), float(shares.max())


def compare(
    backend: Backend, model: nn.Module, sample: Batches, fast: Callable[[], Figures], *, trains: bool,
    batch_loss: BatchLoss | None = None,
) -> Difference:  # fmt: skip
    """Compare what `fast` computes for a sample with the plain model. Weights, gradients and random states do not change."""
    was_training, gradients = model.training, {weight: weight.grad for weight in model.parameters()}
    exact = PlainBackend(backend.device, "fp32")
    model.eval()
    model.zero_grad(set_to_none=True)  # else gradients that are already there would be added
    try:
        found = fast()  # first: it raises a clear error for tokens that the model does not know
        batch = next(iter(sample.epoch()))
        with true_fp32():
            wanted = plain_figures(model, batch, exact, trains=trains, batch_loss=batch_loss)
        shares, allowed, times = distance(found, wanted), ALLOWED["fp32"], None
        if found.widened is not None:  # padding must not change logits; the rounding of bf16 or TF32 would hide that it does
            with true_fp32():
                share = distance(plain_figures(model, found.widened, exact, trains=False), wanted)[0]
            if not share <= ALLOWED_BY_PADDING:
                return Difference(len(batch.numbers), share, None, ALLOWED_BY_PADDING, None)
        rounds_to_tf32 = backend.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        if backend.precision != "fp32" or rounds_to_tf32:
            allowed = ALLOWED["bf16"]
            if not all(share <= most for share, most in zip(shares, allowed, strict=True)):
                low = PlainBackend(backend.device, backend.precision)
                rounded = plain_figures(model, batch, low, trains=trains, batch_loss=batch_loss)
                rounding = distance(rounded, wanted)
                allowed = (max(allowed[0], TIMES_ROUNDING * rounding[0]), max(allowed[1], TIMES_ROUNDING * rounding[1]))
                times = TIMES_ROUNDING * max(share / most for share, most in zip(shares, allowed, strict=True))
    finally:
        model.train(was_training)
        for weight, gradient in gradients.items():
            weight.grad = gradient
    if not trains:
        return Difference(len(batch.numbers), shares[0], None, allowed[0], None, times_rounding=times)
    return Difference(len(batch.numbers), *shares, *allowed, times_rounding=times)


@contextmanager
def true_fp32() -> Iterator[None]:
    """Multiply fp32 matrices in fp32 while the block runs: what others are compared with must not round to TF32 or bf16."""
    before, of_convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = of_convolutions


def supported_backend(backend: Backend, model: Model, say: Say = lambda line: None, reason: str | None = None) -> Backend:
    """Return the backend, or the plain one if there is a `reason` against it or it does not support the model."""
    if not isinstance(backend, PackedBackend):
        return backend
    reason = reason or backend.why_not(model)
    return backend if reason is None else fall_back_to_plain(backend, reason, say)


def fall_back_to_plain(backend: Backend, reason: str, say: Say) -> PlainBackend:
    say(f"backend plain instead of {backend.name}: {reason}")
    return PlainBackend(backend.device, backend.precision)


def verified_backend(
    backend: Backend, model: Model, batches: Callable[[], Batches], say: Say = lambda line: None,
    use: TrainingUse | None = None, *, by_name: bool = False,
) -> Backend:  # fmt: skip
    """Return the backend after comparing it with the plain model, once per model; the plain one if they differ."""
    # Without `use`, only the logits of an evaluation are compared. A backend that was asked for `by_name` must not differ.
    if not isinstance(backend, PackedBackend) or backend.savings is not None or backend.why_not(model) is not None:
        return backend
    with random_states_kept():
        made = batches()
        reason = why_not_columns(made)
        if reason is None and use is not None and why_not_packed(model) is None:  # an evaluation runs odd rows padded
            reason = packing.why_not_masks(made)
        if reason is None and use is not None and use.batch_loss is not None:
            reason = why_not_packed(model) or packing.why_not_twice(made)
    reason = reason or why_not_verified(backend, model, made, use)
    if reason is None:
        return backend
    if by_name:
        raise ModelError(f"backend {backend.name}: {reason}", "use backend plain, or auto, which falls back to plain")
    return fall_back_to_plain(backend, reason, say)


def why_not_verified(backend: PackedBackend, model: Model, batches: Batches, use: TrainingUse | None) -> str | None:
    """Return how a backend differs from the plain model as it will be used, or how it fails; None if both agree."""
    known = backend.differences.get(model)
    if known is None or not known.holds or (use is not None and known.gradients is None):
        with random_states_kept():
            sample = sample_batches(batches)
        fast = partial(fast_figures, backend, model, sample, use)
        try:
            with backend.training_context(), random_states_kept(backend.device):
                known = backend.differences[model] = compare(backend, model, sample, fast, trains=use is not None)
                if known.holds and use is not None and use.batch_loss is not None:
                    fast = partial(fast_figures, backend, model, sample, use, use.batch_loss)
                    found = compare(backend, model, sample, fast, trains=True, batch_loss=use.batch_loss)
                    if not found.holds:
                        return f"the loss of the script is another one on packed batches ({found.logits:.1e} of the loss)"
        except PaddedCallError as error:
            return f"{error} by the loss of the script"
        except GlassloopError:
            raise  # of the data, which the plain model would not take either
        except Exception as error:
            if no_memory(error):
                raise
            return f"it fails ({type(error).__name__}: {error})"
    return None if known.holds else str(known)


State = tuple[tuple[int, int], ...]
NO_STATE: State = ()


def state_of(model: Model) -> State:
    """Return what must not change while savings stay in place: modules, numbers of hooks, weights and their versions."""
    found = []
    for part in model.modules():
        values = vars(part)
        found.append((id(part), sum(len(values[hooks]) for hooks in encoder_parts.HOOKS)))
        weights = (weight for weight in values["_parameters"].values() if weight is not None)
        found += [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    return tuple(found)
