"""Captured steps that several trainings share, on a CPU: a graph is the list of the operations that its capture recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, tiny_tokenizer
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.backends import graphs
from glassloop.backends.fast.operations import TorchOperations
from glassloop.backends.graphs import LATEST
from glassloop.backends.packed import PackedBackend


def places(values: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


class Recording(TorchDispatchMode):
    """Record every operation with the tensors that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        # The memory of a tensor, not the tensor: a weight refers to other memory after its training.
        self.calls.append((func, *tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}, found))))
        return found


class RecordedGraph:
    """Runs the recorded operations again, on the same memory, as a CUDA graph does."""

    num_captures = 0

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, named, outputs in self.calls:
                before = places([args, named])
                for old, new in zip(tree_leaves(outputs), tree_leaves(func(*args, **named)), strict=True):
                    if isinstance(old, torch.Tensor) and not places(old) & before:
                        old.copy_(new)


@contextmanager
def capture(graph: RecordedGraph, **options: Any) -> Iterator[None]:
    """Record the block. Unlike a capture on a GPU it runs it, so what it changed is restored."""
    memory = [*LATEST[0].memory.tensors.values()]
    before = [tensor.clone() for tensor in memory]
    with Recording() as seen:
        yield
    graph.calls = seen.calls
    for tensor, value in zip(memory, before, strict=True):
        tensor.copy_(value)
    RecordedGraph.num_captures += 1


def add_table_gradient(self: Any, weight: Any, rows: Any, order: Any, grad: Any, padding: int, storage: Any) -> None:
    """Zero all of the gradient, as on a GPU; on a CPU it depends on the batch before which rows are zeroed."""
    storage.gradient(weight).zero_().index_add_(0, rows, grad)
    if padding >= 0:
        storage.gradient(weight)[padding].zero_()
    storage.mark_written(weight)


@pytest.fixture(autouse=True)
def recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    nothing = dict.fromkeys(("graph_pool_handle", "current_stream", "synchronize"), lambda: None)
    fakes = {"CUDAGraph": RecordedGraph, "graph": capture, "current_device": lambda: 0, "mem_get_info": lambda gpu: (9, 10)}
    for name, fake in (nothing | fakes | {"Stream": lambda device: object()}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "in_stream", lambda stream: nullcontext())
    monkeypatch.setattr(graphs, "compile_kernels", lambda *given: None)
    monkeypatch.setattr(TorchOperations, "add_table_gradient", add_table_gradient)
    RecordedGraph.num_captures = 0
    graphs.capture_stream.cache_clear()
    yield
    graphs.capture_stream.cache_clear()
    gc.collect()
    assert not LATEST, "captures stay only as long as a Trainer that may share them"


# All rows have the same length: on a CPU the layout of a batch is not among the operations.
ROWS = [{"input_ids": [2, *(5 + (row * 7 + place * 3) % 60 for place in range(9)), 3], "labels": row % 2} for row in range(12)]


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """Train a tiny model with captured steps; keywords are parts of the Trainer or settings. Return its Trainer."""

    def train(seed: int = 1, *, dropout: float = 0.0, rows: Any = ROWS, parts: Any = None, **settings: Any) -> Trainer:
        model = tiny_model(dropout=0.0)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = dropout  # which is not in the config
        with torch.no_grad():
            model.classifier.weight.normal_(generator=torch.Generator().manual_seed(seed))
        args = TrainingArguments(
            str(tmp_path / f"out-{seed}"), **{"max_steps": 7, "per_device_train_batch_size": 4, "seed": seed} | settings,
            lr_scheduler_type="constant", learning_rate=1e-2, logging_steps=1, save_strategy="no", disable_tqdm=True,
            report_to="none", overwrite_output_dir=True,
        )  # fmt: skip
        backend = PackedBackend(captures=True)
        trainer = Trainer(model, args, train_dataset=rows, processing_class=tiny_tokenizer(), backend=backend, **parts or {})
        trainer._quiet = True
        trainer.train(report=False)
        return trainer

    return train


def results(trainer: Trainer) -> list[Any]:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [losses, *(value.tolist() for value in trainer.model.state_dict().values())]


def results_alone(trained: Any, seed: int) -> list[Any]:
    found = results(trained(seed))
    gc.collect()  # a Trainer is in a circle of references
    assert not LATEST
    return found


def test_a_later_training_replays_the_graphs_of_an_earlier_one_and_computes_what_it_would_alone(trained: Any) -> None:
    """Weights, moments and the number of steps start anew at the same addresses; the earlier model keeps its own weights."""
    alone = [results_alone(trained, seed) for seed in (1, 2)]
    assert RecordedGraph.num_captures == 2
    assert alone[0][0] != alone[1][0]
    first = trained(1)
    second = trained(2)
    assert RecordedGraph.num_captures == 3, "the second training replays from its first step on"
    assert [results(first), results(second)] == alone
    for weight, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert weight.data_ptr() != other.data_ptr()
    del first
    again = trained(1)
    assert results(again) == alone[0]
    again.train(report=False)
    assert RecordedGraph.num_captures == 3, "so does the same Trainer, as in a cell that is run again"
    more_words = [{**row, "input_ids": [*row["input_ids"][:-2], 80, 3]} for row in ROWS]
    other_rows = trained(2, rows=more_words)
    assert RecordedGraph.num_captures == 4, "other words are another table of vectors"
    assert results(other_rows)[0] != alone[1][0]


class Reader(Callback):
    """Reads the weights after each step."""


OTHERS = {
    "clipping": {"max_grad_norm": 0.5},
    "decay": {"weight_decay": 0.1},
    "beta": {"adam_beta1": 0.8},
    "epsilon": {"adam_epsilon": 1e-6},
    "smoothing": {"label_smoothing_factor": 0.2},
    "class weights": {"class_weights": "1,3"},
    "dropout": {"dropout": 0.3},
    "a callback that reads weights": {"parts": {"callbacks": [Reader]}},
    "loss": {"parts": {"loss": lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none")}},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", OTHERS)
def test_a_graph_of_other_computations_is_never_replayed(name: str, trained: Any) -> None:
    other = OTHERS[name]
    alone = results(trained(**other))
    gc.collect()
    first, second = trained(), trained(**other)
    assert RecordedGraph.num_captures == 3
    assert results(second) == alone
    assert first.backend.earlier is second.backend.earlier or not first.backend.earlier.memory.tensors, "one memory stays"
    third = trained(**other)
    assert RecordedGraph.num_captures == (4 if "parts" in other else 3), "code of the user is not replayed for another training"
    assert results(third) == alone or name == "dropout"  # whose masks a graph on a CPU does not draw


def test_nothing_is_shared_after_a_failure_or_where_memory_is_short(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Callback):
        reads_weights = False

        def on_step(self, state: Any, batches: Any) -> None:
            if state.step == 3:
                raise ValueError("oh")

    first = trained()
    kept = first.backend.earlier
    assert kept.graphs
    assert kept.memory.tensors
    with pytest.raises(ValueError, match="oh"):
        trained(parts={"callbacks": [Fails]})
    assert (kept.graphs, kept.memory.tensors) == ({}, {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (4, 10))
    second = trained()
    assert (second.backend.earlier.graphs, second.backend.earlier.memory.tensors) == ({}, {})


def test_a_training_inside_a_training_has_memory_of_its_own(trained: Any) -> None:
    """As a callback may start one; an evaluation of another Trainer ends nothing either."""
    alone = [results_alone(trained, seed) for seed in (1, 2)]
    inner: list[Any] = []

    class Trains(Callback):
        reads_weights = False

        def on_step(self, state: Any, batches: Any) -> None:
            if state.step == 4:
                assert LATEST[0].in_use
                backend = PackedBackend(captures=True)
                Trainer(tiny_model(), backend=backend, processing_class=tiny_tokenizer(), eval_dataset=ROWS).evaluate()
                assert LATEST[0].in_use
                inner.append(results(trained(2)))

    outer = results(trained(1, parts={"callbacks": [Trains]}))
    assert (outer, inner) == (alone[0], alone[1:])
