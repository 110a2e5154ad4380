"""What a run is compared with: class frequencies, words, and the frozen encoder, fitted before the first step."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glassloop.backends.packed import PackedBackend, supported_backend, verified_backend
from glassloop.backends.plain import PlainBackend
from glassloop.base.cache import open_or_build
from glassloop.base.files import assigned
from glassloop.base.output import stage
from glassloop.data.batches import Batches
from glassloop.data.encoding import Encoding
from glassloop.data.examples import Examples
from glassloop.data.interfaces import Collator, Rows
from glassloop.models.linear import LinearModel, fit_linear
from glassloop.models.pooled import PooledClassifier
from glassloop.scores import baselines as simple
from glassloop.scores.metrics import Array
from glassloop.scores.result import FREQUENCIES, FROZEN_ENCODER, WORDS, Baseline, Baselines, rows_of
from glassloop.training.checkpoints import weights_fingerprint
from glassloop.training.evaluate import labels_of, run_over
from glassloop.training.interfaces import Backend, Tensors

FORMAT = 1  # of cached embeddings
BATCH_SIZE = 64
# Tokens that are embedded at most to compare a run with, about half a minute of two CPU cores and a few seconds of a GPU.
# Counted in tokens, not in seconds, so that the same rows always give the same head to start from.
MOST_TOKENS = {"cpu": 200_000, "cuda": 4_000_000}
MOST_ROWS, MOST_HELD_OUT = 20_000, 5_000
MOST_ROWS_OF_METHOD = 200_000  # of the method "frozen": more hardly change a linear model of a few hundred features


# --- the frozen encoder --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FrozenEncoder:
    """A pooled classifier whose encoder stays as it is: computes embeddings, and fits a linear model to them."""

    model: PooledClassifier
    collate: Collator
    backend: Backend

    def vectors(self, rows: Rows, numbers: Array) -> Array:
        """Return the pooled vectors of some rows; those of both texts side by side with two towers. They are cached."""
        chosen = rows.select(numbers)  # type: ignore[attr-defined]  # an encoded split
        batches = Batches(chosen, self.collate, BATCH_SIZE, group_by_length=True)
        pooling = self.model.pooling
        known = [FORMAT, weights_fingerprint(self.model.base_model), pooling.mode, pooling.towers]
        known += [self.backend.device.type, self.backend.precision, hashlib.sha256(batches.row_hashes().tobytes()).hexdigest()]
        key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]

        def build(folder: Path) -> None:
            np.save(folder / "vectors.npy", self.computed(batches))

        return open_or_build("embeddings", key, build, lambda folder: np.load(folder / "vectors.npy", allow_pickle=False))

    def computed(self, batches: Batches) -> Array:
        model = self.model
        backend = verified_backend(supported_backend(self.backend, model), model, lambda: batches)
        with stage("computing embeddings", len(batches.rows)), assigned(model, embeds=True), backend.evaluation_context(model):
            found = run_over(model, backend.adapt_batches(batches, batches.rows), backend)
        return found.logits.astype(np.float32)

    def features(self, rows: Rows, numbers: Array) -> Array:
        """Return what the head reads of some rows."""
        vectors, pooling = torch.from_numpy(self.vectors(rows, numbers)), self.model.pooling
        return pooling.features(vectors.view(2 * len(vectors), -1) if pooling.towers else vectors).numpy()


def embedding_backend(backend: Backend) -> Backend:
    """Return a backend that computes embeddings in this process alone, on the device and in the precision of another."""
    if isinstance(backend, PlainBackend) and backend.processes.num_processes == 1:
        return backend
    return PackedBackend(backend.device, backend.precision if backend.precision != "fp16" else "fp32")


def drawn_rows(lengths: Array, most_rows: int, most_tokens: int) -> Array:
    """Return the numbers of rows to read: all of them, or as many at random as the limits allow."""
    if len(lengths) <= most_rows and int(lengths.sum()) <= most_tokens:
        return np.arange(len(lengths))
    order = np.random.default_rng(0).permutation(len(lengths))[:most_rows]
    return np.sort(order[: max(1, int(np.searchsorted(np.cumsum(lengths[order]), most_tokens, side="right")))])


@dataclass(frozen=True)
class FittedHead:
    """A linear model on the embeddings of the frozen encoder."""

    linear: LinearModel
    numbers: Array  # the training rows it was fitted to
    seconds: float

    @property
    def tensors(self) -> Tensors:
        """Weight and bias of a linear layer of torch."""
        parts = {"weight": self.linear.weights.T, "bias": self.linear.bias}
        return {name: torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for name, part in parts.items()}


def fitted_head(frozen: FrozenEncoder, examples: Examples, encoded: Encoding, *, whole: bool) -> FittedHead:
    """Fit a linear head to the training rows: to all of them if `whole`, within reason, else to a sample of many."""
    began = time.perf_counter()
    device = "cuda" if frozen.backend.device.type == "cuda" else "cpu"
    limits = (MOST_ROWS_OF_METHOD, 2**62) if whole else (MOST_ROWS, MOST_TOKENS[device])
    numbers = drawn_rows(encoded.lengths, *limits)
    targets = labels_of(examples, "train")[numbers]
    features = frozen.features(encoded.rows, numbers)
    linear = fit_linear(features, targets, examples.task, examples.num_labels, text_groups(examples, numbers))
    return FittedHead(linear, numbers, time.perf_counter() - began)


def text_groups(examples: Examples, numbers: Array) -> Array:
    """Return a number for each training row; rows with the same texts have the same."""
    columns = texts_of(examples, "train", numbers)
    known: dict[tuple[str, ...], int] = {}
    return np.array([known.setdefault(row, len(known)) for row in zip(*columns, strict=True)])


def texts_of(examples: Examples, split: str, numbers: Array) -> list[list[str]]:
    rows = examples.splits[split].select(numbers)
    return [[text or "" for text in rows[name]] for name in examples.columns.texts]


# --- the baselines of a run ----------------------------------------------------------------------------------------------
def fitted_baselines(
    examples: Examples, encoded: Mapping[str, Encoding], split: str, frozen: FrozenEncoder | None, head: FittedHead | None
) -> Baselines:
    """Fit the baselines to the training rows, and let them predict the rows of a split.

    Args:
        examples: The data.
        encoded: Its splits as the frozen encoder takes them.
        split: The split.
        frozen: The frozen encoder; None to leave it out.
        head: Its linear head.
    """
    task, names, lengths = examples.task, examples.labels.names if examples.labels else (), encoded[split].lengths
    device = "cpu" if frozen is None or frozen.backend.device.type != "cuda" else "cuda"
    held = drawn_rows(lengths, MOST_HELD_OUT, MOST_TOKENS[device] // 2)
    every, wanted = labels_of(examples, "train"), labels_of(examples, split)[held]

    def baseline(name: str, outputs: Array, num_train: int, seconds: float) -> Baseline:
        notes = [f"fitted to {num_train:,} of {len(every):,} training rows"] if num_train < len(every) else []
        notes += [f"evaluated on {len(held):,} of {len(lengths):,} rows"] if len(held) < len(lengths) else []
        return Baseline(name, rows_of(outputs, wanted, task, names), num_train, seconds, "; ".join(notes))

    prior = simple.prior_outputs(every, task, examples.num_labels)
    found = [baseline(FREQUENCIES, np.tile(prior, (len(held), 1)), len(every), 0.0)]
    began = time.perf_counter()
    with stage("fitting a regression on words"):
        numbers = drawn_rows(np.ones(len(every), dtype=np.int64), simple.most_rows(examples.num_labels), len(every))
        train, others = texts_of(examples, "train", numbers), {split: texts_of(examples, split, held)}
        outputs = simple.words_outputs(train, every[numbers], others, task, examples.num_labels)[split]
    found.append(baseline(WORDS, outputs, len(numbers), time.perf_counter() - began))
    if frozen is not None and head is not None:
        began = time.perf_counter()
        outputs = head.linear.outputs(frozen.features(encoded[split].rows, held))
        seconds = head.seconds + time.perf_counter() - began
        found.append(baseline(FROZEN_ENCODER, outputs, len(head.numbers), seconds))
    return Baselines(split, held, found)
