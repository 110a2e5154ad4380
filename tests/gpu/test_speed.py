"""The fast paths of a GPU: Triton kernels against plain torch, whole trainings as graphs against the plain backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_checks as checks
import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from families import BY_MODULES, FAST, UNPACKED, rows_for, tiny_model
from kernel_checks import DTYPES
from packs import packing_of, token_rows
from small_training import StopAt
from torch.nn import functional

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.backends.fast.encoder_parts import layers_of
from glassloop.backends.fast.operations import TorchOperations, attend, attend_backward, can_flash
from glassloop.backends.graphs import LATEST, GraphStep, Idle
from glassloop.backends.packed import PackedBackend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

CLOSE = 1e-5
WIDTH, ROWS = 320, 70  # wider than a block of the kernels, and no multiple of one


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return checks.drawn(*shape, seed=seed, device="cuda")


# --- Triton kernels
CASES = checks.cases("cuda", [WIDTH, 768, 1024], ROWS, dropouts=(WIDTH, 512))  # with those of BERT-base and BERT-large


@pytest.mark.parametrize("check", CASES.values(), ids=CASES)
def test_an_operation_and_its_gradient(check: Callable[[], None]) -> None:
    check()


def test_an_evaluation_draws_no_random_number() -> None:
    bench = checks.Bench("triton", "cuda", rows=ROWS, width=WIDTH)
    before = torch.cuda.get_rng_state()
    bench.ops.before_forward(bench.storage, checks.packing_with(ROWS), training=False)
    assert torch.equal(before, torch.cuda.get_rng_state())


# --- attention
@pytest.mark.parametrize(("window", "first_tokens_only"), [(-1, False), (-1, True), (3, False)])
def test_flash_attention_is_that_of_the_grid(window: int, first_tokens_only: bool) -> None:
    packing = checks.moved(packing_of(token_rows((7, 2, 40, 5)), multiple=32), "cuda")
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


# --- the update
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [0.0, 0.7])
@DTYPES
def test_twenty_steps_are_bit_identical_to_torchs_adamw(dtype: torch.dtype, decay: float, max_norm: float) -> None:
    pair = checks.AdamWPair("cuda", dtype, decay, max_norm)
    for step in range(20):
        norm, expected = pair.step(3e-3 * (1 - step / 20))
        torch.testing.assert_close(norm, expected, atol=1e-5, rtol=1e-5)
        for weight, twin in zip(pair.model.parameters(), pair.twin.parameters(), strict=True):
            assert torch.equal(weight, twin), f"step {step + 1}: {(weight - twin).abs().max():.1e}"
    matrix, bias = layers_of(pair.model)[0].up.weight, layers_of(pair.model)[1].query.bias
    assert torch.equal(pair.storage.matmul_weight(matrix), matrix.detach().to(dtype)), "products read today's weights"
    assert torch.equal(pair.storage.matmul_bias(bias), bias.detach().to(dtype))


# --- whole trainings
@pytest.fixture(scope="module")
def rows() -> Dataset:
    source = np.random.default_rng(3)
    ids = [[2, *source.integers(5, 60, 3 + number * 7 % 30).tolist(), 3] for number in range(61)]
    types = [[int(place > 4) for place in range(len(row))] for row in ids]
    return Dataset.from_dict({"input_ids": ids, "token_type_ids": types, "labels": [number % 2 for number in range(61)]})


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each capture succeeded."""
    found: list[bool] = []
    original = GraphStep.capture

    def capture(self: GraphStep, *given: Any) -> Any:
        entry = original(self, *given)
        if not isinstance(self.optimizer, Idle):  # else the check before the first step
            found.append(entry is not None)
        return entry

    monkeypatch.setattr(GraphStep, "capture", capture)
    return found


@pytest.fixture(autouse=True)
def no_captures_of_another_test() -> None:
    """A Trainer that is not collected yet would leave its graphs to the next one."""
    LATEST.clear()


@pytest.fixture
def trained(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> Any:
    """Train a tiny model on the GPU with a backend; keywords are parts of the Trainer or settings."""
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_later_training_replays_the_graphs_of_an_earlier_one_with_the_numbers_it_has_alone(
    family: str, precision: str, trained, captures: list[bool]
) -> None:
    """Bit for bit, with dropout, from the first step on, which alone runs without a graph."""

    def train(seed: int, name: str) -> Trainer:
        model = lively(family, dropout=0.1)
        return trained("graphs", model=model, seed=seed, family=family, precision=precision, max_steps=40, output_dir=name)

    alone = train(2, "alone")
    LATEST.clear()
    captures.clear()
    trainers = [train(1, "first")]
    for name in ("second", "third"):
        before = len(captures)
        trainers.append(train(2, name))
        assert torch.equal(figures(trainers[-1]), figures(alone))
        for weight, other in zip(trainers[-1].model.parameters(), alone.model.parameters(), strict=True):
            assert torch.equal(weight, other)
    assert family != "bert" or len(captures) == before, "the third training has the shapes of the second"
    assert not torch.equal(figures(trainers[0]), figures(alone))


def test_after_the_first_compilation_no_kernel_is_compiled_in_a_step_or_an_evaluation(trained) -> None:
    from glassloop.backends.fast import triton_kernels as kernels

    def compiled() -> dict[str, int]:
        return {name: len(part.device_caches[0][0]) for name, part in vars(kernels).items() if name.endswith("_kernel")}

    class Count(Callback):
        def on_fit_start(self, state: Any) -> None:
            counts.append(compiled())

    counts: list[dict[str, int]] = []
    trainer = trained("graphs", callbacks=[Count()], max_steps=8, precision="bf16")
    trainer.evaluate()
    assert all(counts[0].values())
    assert compiled() == counts[0]


def test_an_evaluation_waits_for_the_last_work_of_a_training(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy GPU finishes a training late: here it sleeps half a second before the last work."""
    end_training = PackedBackend.end_training

    def late(self: PackedBackend) -> None:
        if self.savings is not None and self.savings.storage.trains:
            torch.cuda._sleep(1_000_000_000)
        end_training(self)

    monkeypatch.setattr(PackedBackend, "end_training", late)
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
def test_losses_in_half_precision_are_close(family: str, accumulate: int, trained, captures: list[bool]) -> None:
    given = {"family": family, "max_steps": 50, "learning_rate": 1e-4, "gradient_accumulation_steps": accumulate}
    graphs, plain = trained("graphs", precision="bf16", **given), trained("plain", **given)
    same_losses(graphs, plain, close=5e-2)
    assert any(captures)
    assert all(weight.dtype == torch.float32 for weight in graphs.model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_two_replays_draw_the_same_masks(dropout: float, precision: str, rows, trained, captures: list[bool]) -> None:
    """The same four rows in every step, and a learning rate that changes no weight."""
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
    """Up to rounding: the first steps after a resume run without a graph, where the other run replays one."""
    given = {"max_steps": 40, "precision": precision, "gradient_accumulation_steps": accumulate}
    whole = trained("graphs", model=lively(dropout=0.1), output_dir="whole", **given)
    with pytest.raises(SystemExit):
        trained("graphs", model=lively(dropout=0.1), output_dir="parts", callbacks=[StopAt(17)], **given)
    parts = trained("graphs", model=lively(dropout=0.1), output_dir="parts", resume=True, **given)
    same_losses(parts, whole, close=1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize(("first", "second"), [("graphs", "plain"), ("plain", "graphs")])
def test_either_backend_resumes_a_run_of_the_other(first: str, second: str, trained) -> None:
    whole = trained("plain", output_dir="whole", max_steps=40)
    with pytest.raises(SystemExit):
        trained(first, output_dir="parts", callbacks=[StopAt(17)], max_steps=40)
    same_losses(trained(second, output_dir="parts", resume=True, max_steps=40), whole)


def reads(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    cost = functional.cross_entropy(logits, labels, reduction="none")
    assert cost.sum().item() > 0  # asks the device for a number, which a graph cannot
    return cost


def test_a_step_that_cannot_be_captured_has_the_right_numbers(trained, captures: list[bool], capsys) -> None:
    graphs = trained("graphs", loss=reads, model=lively(), max_steps=40)
    said = capsys.readouterr().err
    assert said.count("steps cannot be captured as CUDA graphs") == 1
    assert captures
    assert not any(captures)
    same_losses(graphs, trained("plain", loss=reads, max_steps=40))
    captures.clear()
    losses = figures(trained("graphs", loss=reads, model=lively(dropout=0.1), max_steps=40))
    assert captures
    assert not any(captures)
    assert torch.isfinite(losses).all()
    assert len({*losses.tolist()}) == 40, "dropout still draws"


def test_gradients_are_exposed_in_every_step(trained, captures: list[bool]) -> None:
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
    """Partial sums are rows of one buffer: a graph must not add rows that a later, larger batch has written."""
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


def test_gradients_of_long_sequences_are_the_same_each_time() -> None:
    """Flash attention adds up the gradients of queries over blocks of keys, in any order unless it is told otherwise."""
    rows = [np.full(length, 7) for length in (512, 300, 512, 40, 511, 129)]
    packing = checks.moved(packing_of(rows, multiple=64), "cuda")
    heads = [drawn(packing.tokens, 12, 32, seed=seed).to(torch.bfloat16) for seed in (1, 2, 3)]
    grad = drawn(packing.tokens, 12, 32, seed=4).to(torch.bfloat16)
    ops = TorchOperations(torch.device("cuda"))
    _, saved = attend(*heads, packing, 0.0, ops.masks)
    first = attend_backward(grad, saved)
    for _ in range(20):
        assert all(torch.equal(one, other) for one, other in zip(attend_backward(grad, saved), first, strict=True))
