"""The fast paths of a GPU: fused kernels against plain torch, whole trainings as graphs against the plain backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from families import BY_MODULES, FAST, UNPACKED, rows_for, tiny_model
from packs import packing_of, token_rows
from small_training import StopAt
from torch.nn import functional

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.backends.graphs import GraphsBackend
from glassloop.engine.optimizer import decay_groups
from glassloop.speed.capture.graph_step import GraphStep, IdleOptimizer
from glassloop.speed.encoders.parts import embeddings_of, layers_of
from glassloop.speed.operations.attention import attend, attend_backward, can_flash
from glassloop.speed.operations.torch_operations import TorchOperations
from glassloop.speed.optimizer.adamw import FlatAdamW
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

CLOSE = 1e-5
KINDS = {torch.float32: {"atol": 1e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 5e-2, "rtol": 5e-2}}
LOW = pytest.mark.parametrize("low", KINDS, ids=["fp32", "bf16"])
WIDTH, ROWS = 320, 70  # wider than a block of the kernels, and no multiple of one
WIDTHS = pytest.mark.parametrize("width", [WIDTH, 768, 1024])  # and those of BERT-base and BERT-large


def measures(tokens: int) -> Packing:
    """A packing of which only the measures are asked for."""
    return Packing(torch.zeros(0, dtype=torch.int32), tokens, 8, 32, True)


def on_gpu(packing: Packing) -> Packing:
    return Packing(packing.numbers.cuda(), packing.tokens, packing.rows, packing.longest, packing.has_filler)


class Bench:
    """A layer of a model on the GPU, its storage, and the verbs of one kind."""

    def __init__(self, kind: str, low: torch.dtype = torch.float32, rows: int = ROWS, width: int = WIDTH) -> None:
        self.model = tiny_model(hidden_size=width, intermediate_size=4 * width, initializer_range=0.1).cuda()
        with torch.no_grad():
            source = torch.Generator().manual_seed(5)
            for weight in self.model.parameters():
                if weight.dim() == 1:
                    weight.add_((torch.randn(weight.shape, generator=source) * 0.1).cuda())
        self.layer, self.tables, self.low = layers_of(self.model)[0], embeddings_of(self.model), low
        self.storage = FlatStorage(
            self.model, layers_of(self.model), set(), embedding_vectors=self.tables.vectors, matmul_dtype=low
        )
        self.storage.open_for_training()
        device = torch.device("cuda")
        if kind == "fused":
            from glassloop.speed.operations.triton_operations import TritonOperations

            self.ops: Any = TritonOperations(device, low)
        else:
            self.ops = TorchOperations(device, low)
        self.ops.before_forward(self.storage, measures(rows), training=True)

    def gradient(self, weight: Any) -> torch.Tensor:
        return self.storage.gradient(weight).float()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def both(low: torch.dtype, width: int) -> tuple[Bench, Bench]:
    return Bench("fused", low, width=width), Bench("plain", low, width=width)


# --- fused kernels -----------------------------------------------------------------------------------------------


@LOW
@WIDTHS
@pytest.mark.parametrize("more", [False, True])
def test_the_norm_of_a_sum_and_its_gradient(low: torch.dtype, width: int, more: bool) -> None:
    found = []
    x, residual, grad, other = (drawn(ROWS, width, seed=seed) for seed in range(4))
    for bench in both(low, width):
        layer, store, ops = bench.layer, bench.storage, bench.ops
        with torch.no_grad():
            y, low_y, saved = ops.add_and_norm(
                x.to(low), store.matmul_weight(layer.out.weight), layer.out.bias, residual, layer.out_norm.weight,
                layer.out_norm.bias, layer.out_norm.eps, 0.0,
            )  # fmt: skip
            further = other.to(low) if more else None
            grad_residual, grad_product = ops.add_and_norm_backward(grad, further, saved, layer.out, layer.out_norm, store)
            ops.after_backward(store)
        assert low_y.dtype == grad_product.dtype == low
        vectors = [bench.gradient(weight) for weight in (layer.out.bias, layer.out_norm.weight, layer.out_norm.bias)]
        found.append([y, low_y.float(), grad_residual, grad_product.float(), *vectors])
    for mine, plain in zip(*found, strict=True):
        scale = max(1.0, float(plain.abs().max()))
        torch.testing.assert_close(mine / scale, plain / scale, **KINDS[low])


@LOW
@WIDTHS
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_and_its_gradient(low: torch.dtype, width: int, form: str) -> None:
    found = []
    x, grad = drawn(ROWS, width, seed=1), drawn(ROWS, 4 * width, seed=2)
    for bench in both(low, width):
        layer, store, ops = bench.layer, bench.storage, bench.ops
        with torch.no_grad():
            pre_activation, active = ops.linear_gelu(x.to(low), store.matmul_weight(layer.up.weight), layer.up.bias, form)
            grad_pre_activation = ops.linear_gelu_backward(grad.to(low), pre_activation, layer.up, form, store)
            ops.after_backward(store)
        found.append([active.float(), grad_pre_activation.float(), bench.gradient(layer.up.bias)])
    for mine, plain in zip(*found, strict=True):
        scale = max(1.0, float(plain.abs().max()))
        torch.testing.assert_close(mine / scale, plain / scale, **KINDS[low])


@LOW
@WIDTHS
def test_gradients_of_neighbours_are_joined(low: torch.dtype, width: int) -> None:
    found = []
    grads = [drawn(ROWS, width, seed=seed).to(low) for seed in range(3)]
    for bench in both(low, width):
        linears = [bench.layer.query, bench.layer.key, bench.layer.value]
        joined = bench.ops.join_gradients(grads, linears, bench.storage)
        as_one = bench.ops.join_gradients([torch.cat(grads, 1)], linears, bench.storage)
        bench.ops.after_backward(bench.storage)
        assert torch.equal(joined, torch.cat(grads, 1))
        assert torch.equal(as_one, joined)
        found.append([bench.gradient(part.bias) for part in linears])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-3, rtol=1e-3)


@LOW
@WIDTHS
def test_the_first_vectors_and_their_gradient(low: torch.dtype, width: int) -> None:
    rows = token_rows((7, 2, 11, 5))
    packing = on_gpu(packing_of(rows, multiple=32, types=[np.arange(len(row)) % 2 for row in rows]))
    grad, found = drawn(packing.tokens, width, seed=1), []
    for bench in both(low, width):
        tables, store, ops = bench.tables, bench.storage, bench.ops
        with torch.no_grad():
            weights = [table.weight for table in (tables.words, tables.positions, tables.types)]
            y, low_y, saved = ops.embed(*weights, packing, tables.norm, 0.0)
            grad_total = ops.embed_backward(grad, saved, tables.norm, store)
            ops.add_table_gradient(weights[0], packing.ids, packing.sorted_by_id, grad_total, 0, store)
            ops.add_table_gradient(weights[1], packing.positions, packing.sorted_by_position, grad_total, -1, store)
            ops.add_type_gradient(weights[2], packing.types, grad_total, store)
            ops.after_backward(store)
        vectors = [bench.gradient(weight) for weight in (*weights, tables.norm.weight, tables.norm.bias)]
        found.append([y, grad_total, *vectors])
        assert low_y.dtype == low
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-4, rtol=1e-4)
    assert found[0][2][0].abs().sum() == 0, "the padding row gets no gradient"


def test_rows_with_repeated_ids_are_added_up_over_two_batches() -> None:
    bench = Bench("fused")
    weight = bench.tables.words.weight
    expected = torch.zeros_like(weight)
    for seed in (1, 2):
        ids = torch.randint(0, 9, (97,), generator=torch.Generator().manual_seed(seed)).cuda()
        grad = drawn(97, WIDTH, seed=seed)
        bench.ops.add_table_gradient(weight, ids.int(), ids.argsort(stable=True).int(), grad, 0, bench.storage)
        expected.index_add_(0, ids, grad)
    expected[0] = 0.0
    torch.testing.assert_close(bench.gradient(weight), expected, atol=1e-4, rtol=1e-4)
    bench.storage.clear_gradients()
    one = torch.tensor([5, 5], device="cuda")
    bench.ops.add_table_gradient(
        weight, one.int(), torch.tensor([0, 1]).int().cuda(), torch.ones(2, WIDTH).cuda(), 0, bench.storage
    )
    assert bench.gradient(weight).any(1).nonzero().flatten().tolist() == [5], "rows of the step before are zero again"


# --- dropout -----------------------------------------------------------------------------------------------------


def masked_norm(bench: Bench, rate: float, rows: int = 512) -> tuple[torch.Tensor, Any]:
    """Where the product was dropped: it is one everywhere before, so within a row what was dropped lies below the mean."""
    layer = bench.layer
    ones, zeros = torch.ones(WIDTH).cuda(), torch.zeros(WIDTH).cuda()
    x, residual = torch.zeros(rows, WIDTH).cuda(), torch.zeros(rows, WIDTH).cuda()
    with torch.no_grad():
        y, _, saved = bench.ops.add_and_norm(
            x.to(bench.low), bench.storage.matmul_weight(layer.out.weight), ones, residual, ones, zeros, 1e-12, rate
        )
    return y < 0, saved


@LOW
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_kept_share_and_the_same_mask_both_ways(low: torch.dtype, rate: float) -> None:
    bench = Bench("fused", low, rows=512)
    dropped, saved = masked_norm(bench, rate)
    assert float(dropped.float().mean()) == pytest.approx(rate, abs=0.01)
    with torch.no_grad():
        grad = drawn(512, WIDTH, seed=1)
        grad_total, grad_product = bench.ops.add_and_norm_backward(
            grad, None, saved, bench.layer.out, bench.layer.out_norm, bench.storage
        )
    assert torch.equal(grad_product == 0, dropped)
    expected = (grad_total / (1 - rate))[~dropped]
    torch.testing.assert_close(grad_product.float()[~dropped], expected, **KINDS[low])


def test_masks_of_other_sites_steps_and_places_have_nothing_to_do_with_each_other() -> None:
    bench = Bench("fused", rows=512)
    masks = []
    for seed in (0, 1, 2**31 - 1):
        bench.ops.seed.fill_(seed)
        masks += [masked_norm(bench, 0.25)[0].float().flatten() for _ in range(3)]
    bound = 5 / len(masks[0]) ** 0.5
    together = torch.corrcoef(torch.stack(masks)) - torch.eye(9, device="cuda")
    assert together.abs().max() < bound
    for mask in masks:
        for lag in (1, 2, 4, 32, WIDTH):
            assert torch.corrcoef(torch.stack([mask[lag:], mask[:-lag]]))[0, 1].abs() < bound


def test_the_first_vectors_drop_the_same_both_ways() -> None:
    rows = token_rows((40, 50, 30))
    packing, bench = on_gpu(packing_of(rows, multiple=32)), Bench("fused", rows=128)
    tables = bench.tables
    with torch.no_grad():
        weights = (tables.words.weight, tables.positions.weight, tables.types.weight)
        y, _, saved = bench.ops.embed(*weights, packing, tables.norm, 0.25)
        kept = y != 0
        assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.02)
        bench.ops.embed_backward(torch.ones_like(y), saved, tables.norm, bench.storage)
        bench.ops.after_backward(bench.storage)
    torch.testing.assert_close(bench.gradient(tables.norm.bias), kept.sum(0) / 0.75, atol=1e-3, rtol=1e-4)


def test_masks_differ_from_place_to_place_and_from_pass_to_pass_and_come_again_with_the_seed() -> None:
    def masks(seed: int) -> list[torch.Tensor]:
        bench = Bench("fused", rows=512)
        torch.manual_seed(seed)
        bench.ops.before_forward(bench.storage, measures(512), training=True)
        found = [masked_norm(bench, 0.5)[0] for _ in range(2)]
        bench.ops.before_forward(bench.storage, measures(512), training=True)
        return [*found, masked_norm(bench, 0.5)[0]]

    first, second, later = masks(1)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)
    assert all(torch.equal(one, other) for one, other in zip(masks(1), (first, second, later), strict=True))
    assert not torch.equal(masks(2)[0], first)
    together = float((first == second).float().mean())
    assert together == pytest.approx(0.5, abs=0.01), "masks of two places have nothing to do with each other"


def test_an_evaluation_draws_nothing_on_the_gpu() -> None:
    bench = Bench("fused")
    before = torch.cuda.get_rng_state()
    bench.ops.before_forward(bench.storage, measures(ROWS), training=False)
    assert torch.equal(before, torch.cuda.get_rng_state())


# --- attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "first_tokens_only"), [(-1, False), (-1, True), (3, False)])
def test_flash_attention_is_that_of_the_grid(window: int, first_tokens_only: bool) -> None:
    packing = on_gpu(packing_of(token_rows((7, 2, 40, 5)), multiple=32))
    query, key, value = (drawn(packing.tokens, 2, 16, seed=seed) for seed in range(3))
    asked = query[packing.first_tokens.long()] if first_tokens_only else query
    grad = drawn(*asked.shape, seed=4)
    if not first_tokens_only:
        grad[54:] = 0.0  # nothing is asked of what only fills a shape
    found = []
    for kind in (torch.bfloat16, torch.float32):
        parts = [part.to(kind).contiguous() for part in (asked, key, value)]
        assert can_flash(parts[0]) == (kind is torch.bfloat16)
        out, saved = attend(*parts, packing, 0.0, TorchOperations(torch.device("cuda")).masks, window)
        grads = [part.float() for part in attend_backward(grad.to(kind), saved)]
        found.append([out.float()[: len(grad) if first_tokens_only else 54], *grads])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, atol=5e-2, rtol=5e-2)


# --- the update --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [0.0, 0.7])
@LOW
def test_twenty_steps_have_the_bits_of_torchs_adamw(low: torch.dtype, decay: float, max_norm: float) -> None:
    options: dict[str, Any] = {"lr": 3e-3, "betas": (0.85, 0.97), "eps": 1e-7, "fused": True}
    mine, other = tiny_model().cuda(), tiny_model().cuda()
    groups = decay_groups(mine, decay)
    spared = {id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]}
    storage = FlatStorage(mine, layers_of(mine), spared, embedding_vectors=embeddings_of(mine).vectors, matmul_dtype=low)
    storage.open_for_training()
    flat, plain = FlatAdamW(groups, storage, **options), torch.optim.AdamW(decay_groups(other, decay), **options)
    for step in range(20):
        for group in (*flat.param_groups, *plain.param_groups):
            group["lr"] = 3e-3 * (1 - step / 20)
        for number, (weight, peer) in enumerate(zip(mine.parameters(), other.parameters(), strict=True)):
            grad = drawn(*weight.shape, seed=1000 * step + number) * 0.01
            storage.add(weight, grad)
            peer.grad = grad.clone()
        norm = flat.clip(max_norm)
        expected = torch.nn.utils.clip_grad_norm_(other.parameters(), max_norm or float("inf"))
        torch.testing.assert_close(norm, expected, atol=1e-5, rtol=1e-5)
        flat.norm = expected  # summed in another order; all else is the same to the last bit
        flat.step()
        flat.zero_grad()
        plain.step()
        for weight, peer in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(weight, peer), f"step {step + 1}: {(weight - peer).abs().max():.1e}"
    matrix = layers_of(mine)[0].up.weight
    assert torch.equal(storage.matmul_weight(matrix), matrix.detach().to(low)), "products read today's weights"
    bias = layers_of(mine)[1].query.bias
    assert torch.equal(storage.matmul_bias(bias), bias.detach().to(low))


# --- whole trainings ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> Dataset:
    source = np.random.default_rng(3)
    ids = [[2, *source.integers(5, 60, 3 + number * 7 % 30).tolist(), 3] for number in range(61)]
    types = [[int(place > 4) for place in range(len(row))] for row in ids]
    return Dataset.from_dict({"input_ids": ids, "token_type_ids": types, "labels": [number % 2 for number in range(61)]})


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each try to capture a step went well."""
    found: list[bool] = []
    original = GraphStep.capture

    def capture(self: GraphStep, *given: Any) -> Any:
        entry = original(self, *given)
        if not isinstance(self.optimizer, IdleOptimizer):  # else the check before the first step
            found.append(entry is not None)
        return entry

    monkeypatch.setattr(GraphStep, "capture", capture)
    return found


@pytest.fixture
def trained(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> Any:
    """Trains a tiny model on the GPU with a backend; parts are given by name, all else are settings."""
    names = ("train_dataset", "eval_dataset", "loss", "callbacks", "on_gradients")

    def train(backend: str, *, model: Any = None, family: str = "bert", resume: Any = None, **given: Any) -> Trainer:
        parts = {name: given.pop(name) for name in names if name in given}
        settings = {
            **{"max_steps": 100, "per_device_train_batch_size": 4, "learning_rate": 3e-4, "logging_steps": 1},
            **{"device": "cuda", "precision": "fp32", "save_strategy": "no", "disable_tqdm": True, "output_dir": backend},
        } | given
        settings["output_dir"] = tmp_path / settings["output_dir"]
        trainer = Trainer(
            model if model is not None else lively(family),
            TrainingArguments(backend=backend, **settings),
            processing_class=tiny_tokenizer,
            **{"train_dataset": rows_for(family, rows), "eval_dataset": rows_for(family, rows)} | parts,
        )
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.backend.name == backend
        return trainer

    return train


def lively(family: str = "bert", dropout: float = 0.0) -> Any:
    return tiny_model(family, dropout=dropout, initializer_range=0.2)


def figures(trainer: Trainer, name: str = "loss") -> torch.Tensor:
    return torch.tensor([entry[name] for entry in trainer.state.history if name in entry], dtype=torch.float64)


def same_losses(first: Trainer, second: Trainer, close: float = CLOSE) -> None:
    losses, others = figures(first), figures(second)
    torch.testing.assert_close(losses, others[-len(losses) :], atol=close, rtol=0)
    assert losses.std() > 0.01, "losses that all look alike would prove nothing"


@pytest.mark.parametrize("family", [*FAST, *BY_MODULES, *UNPACKED])
def test_a_hundred_steps_as_graphs(family: str, trained, captures: list[bool]) -> None:
    graphs, plain = trained("graphs", family=family), trained("plain", family=family)
    same_losses(graphs, plain)
    assert captures
    assert all(captures), "every shape was captured"


def test_after_the_first_compilation_no_kernel_is_compiled_in_a_step_or_an_evaluation(trained) -> None:
    from glassloop.speed.operations import triton_kernels as kernels
    from glassloop.speed.optimizer import triton_adamw as update

    def compiled() -> dict[str, int]:
        found = {**vars(kernels), **vars(update)}
        return {name: len(part.device_caches[0][0]) for name, part in found.items() if name.endswith("_kernel")}

    class Count(Callback):
        def on_fit_start(self, state: Any) -> None:
            counts.append(compiled())

    counts: list[dict[str, int]] = []
    trainer = trained("graphs", callbacks=[Count()], max_steps=8, precision="bf16")
    trainer.evaluate()
    assert all(counts[0].values())
    assert compiled() == counts[0]


def test_an_evaluation_waits_for_the_last_work_of_a_training(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy GPU does the last work of a training late: here it sleeps half a second before it."""
    end_training = GraphsBackend.end_training

    def late(self: GraphsBackend) -> None:
        if self.savings is not None and self.savings.storage.trains:
            torch.cuda._sleep(1_000_000_000)
        end_training(self)

    monkeypatch.setattr(GraphsBackend, "end_training", late)
    trainer = trained("graphs", max_steps=20)
    early = trainer.predict(trainer.eval_dataset).predictions
    torch.cuda.synchronize()
    assert np.array_equal(early, trainer.predict(trainer.eval_dataset).predictions)


@pytest.mark.parametrize("given", [{"gradient_accumulation_steps": 3}, {"weight_decay": 0.01}, {"max_grad_norm": 0.0}])
def test_settings_under_graphs(given: dict[str, Any], trained, captures: list[bool]) -> None:
    same_losses(trained("graphs", **given), trained("plain", **given))
    assert any(captures)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_packed_on_a_gpu_without_graphs(family: str, trained, captures: list[bool]) -> None:
    same_losses(trained("packed", family=family), trained("plain", family=family))
    assert not captures


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("family", FAST)
def test_half_precision_is_near(family: str, accumulate: int, trained, captures: list[bool]) -> None:
    given = {"family": family, "max_steps": 50, "learning_rate": 1e-4, "gradient_accumulation_steps": accumulate}
    graphs, plain = trained("graphs", precision="bf16", **given), trained("plain", **given)
    same_losses(graphs, plain, close=5e-2)
    assert any(captures)
    assert all(weight.dtype == torch.float32 for weight in graphs.model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_two_replays_draw_the_same_masks(dropout: float, precision: str, rows, trained, captures: list[bool]) -> None:
    """The same four rows in every step, and a rate that changes no weight."""
    given = {"train_dataset": rows.select(range(4)), "max_steps": 12, "learning_rate": 1e-30, "precision": precision}
    losses = figures(trained("graphs", model=lively(dropout=dropout), **given))
    assert captures == [True], "steps 2 to 12 are replays of one graph"
    if dropout:
        distances = (losses[:, None] - losses).abs() + torch.eye(12)
        assert distances.min() > 1e-6
    else:
        torch.testing.assert_close(losses, losses[:1].expand(12), atol=1e-5 if precision == "fp32" else 1e-2, rtol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_stopped_and_resumed_draws_the_same_masks(accumulate: int, precision: str, trained) -> None:
    """To rounding: the first steps after a resume are run, where the run that never stopped replays them."""
    given = {"max_steps": 40, "precision": precision, "gradient_accumulation_steps": accumulate}
    whole = trained("graphs", model=lively(dropout=0.1), output_dir="whole", **given)
    with pytest.raises(SystemExit):
        trained("graphs", model=lively(dropout=0.1), output_dir="parts", callbacks=[StopAt(17)], **given)
    parts = trained("graphs", model=lively(dropout=0.1), output_dir="parts", resume=True, **given)
    same_losses(parts, whole, close=1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize(("first", "second"), [("graphs", "plain"), ("plain", "graphs")])
def test_either_backend_goes_on_where_the_other_stopped(first: str, second: str, trained) -> None:
    whole = trained("plain", output_dir="whole", max_steps=40)
    with pytest.raises(SystemExit):
        trained(first, output_dir="parts", callbacks=[StopAt(17)], max_steps=40)
    same_losses(trained(second, output_dir="parts", resume=True, max_steps=40), whole)


def test_a_step_that_cannot_be_captured_is_run_with_the_right_numbers(trained, captures: list[bool], capsys) -> None:
    def reads(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        cost = functional.cross_entropy(logits, labels, reduction="none")
        assert cost.sum().item() > 0  # asks the device for a number, which a graph cannot
        return cost

    graphs = trained("graphs", loss=reads, model=lively(), max_steps=40)
    said = capsys.readouterr().err
    assert said.count("steps cannot be captured as CUDA graphs") == 1
    assert captures
    assert not any(captures)
    same_losses(graphs, trained("plain", loss=reads, max_steps=40))


def test_after_a_capture_that_failed_dropout_still_draws(trained, captures: list[bool]) -> None:
    def reads(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        cost = functional.cross_entropy(logits, labels, reduction="none")
        assert cost.sum().item() > 0
        return cost

    losses = figures(trained("graphs", loss=reads, model=lively(dropout=0.1), max_steps=40))
    assert captures
    assert not any(captures)
    assert torch.isfinite(losses).all()
    assert len({*losses.tolist()}) == 40


def test_gradients_are_shown_in_every_step(trained, captures: list[bool]) -> None:
    def halve(model: Any) -> None:
        seen.append(float(model.classifier.weight.grad.abs().sum()))
        for weight in model.parameters():
            weight.grad.mul_(0.5)

    seen: list[float] = []
    graphs = trained("graphs", on_gradients=halve, max_steps=30)
    assert len(seen) == 30
    assert not captures, "a replay would not call it"
    same_losses(graphs, trained("plain", on_gradients=halve, max_steps=30))


def test_evaluation_in_between_sees_trained_weights_and_changes_none(trained) -> None:
    given = {"max_steps": 40, "eval_strategy": "steps", "eval_steps": 10}
    graphs, plain = trained("graphs", **given), trained("plain", **given)
    torch.testing.assert_close(figures(graphs, "eval_loss"), figures(plain, "eval_loss"), atol=CLOSE, rtol=0)
    torch.testing.assert_close(figures(graphs), figures(trained("graphs", max_steps=40)), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_large_batches_of_an_evaluation_leave_captured_steps_alone(family: str, rows, trained, captures: list[bool]) -> None:
    """Sums of columns are taken in lines of a buffer; a graph must not add up lines that came after it."""
    many = rows_for(family, concatenate_datasets([rows, rows, rows]))
    given = {
        **{"family": family, "max_steps": 60, "per_device_train_batch_size": 16, "eval_dataset": many},
        **{"eval_strategy": "steps", "eval_steps": 7, "per_device_eval_batch_size": 150},
    }
    graphs, plain = trained("graphs", **given), trained("plain", **given)
    assert any(captures)
    same_losses(graphs, plain)
    for mine, other in zip(layers_of(graphs.model), layers_of(plain.model), strict=True):
        for part in ("query", "value"):
            torch.testing.assert_close(getattr(mine, part).bias, getattr(other, part).bias, atol=1e-4, rtol=0)


def test_predictions_in_the_order_of_the_rows(rows: Dataset, trained) -> None:
    graphs, plain = trained("graphs", max_steps=20), trained("plain", max_steps=20)
    np.testing.assert_allclose(graphs.predict(rows).predictions, plain.predict(rows).predictions, atol=1e-4, rtol=0)
    assert graphs.predict(rows).label_ids.tolist() == rows["labels"][:]


def test_the_best_weights_are_put_back(trained) -> None:
    given = {
        **{"max_steps": 40, "eval_strategy": "steps", "eval_steps": 8, "load_best_model_at_end": True},
        **{"save_strategy": "steps", "save_steps": 8, "metric_for_best_model": "loss"},
    }
    trainer = trained("graphs", **given)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(figures(trainer, "eval_loss").min()), abs=CLOSE)
