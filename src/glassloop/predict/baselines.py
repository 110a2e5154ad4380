"""What a run is compared with: class frequencies, words, and the frozen encoder, fitted before the first step."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from glassloop.backends.packed import PackedBackend, supported_backend, verified_backend
from glassloop.backends.plain import PlainBackend
from glassloop.base.cache import open_or_build
from glassloop.base.errors import DataError
from glassloop.base.files import assigned
from glassloop.base.output import LOADING, stage
from glassloop.base.records import collection_paused
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.encoding import Encoding, encode, encode_texts
from glassloop.data.examples import Examples
from glassloop.data.interfaces import Collator, Model, Rows, Tokenizer
from glassloop.models.interface import base_of, config_of, label_names, longest_input
from glassloop.models.linear import LinearModel, fit_linear, refuse_infinite
from glassloop.models.loading import declared_by, load_model, load_tokenizer
from glassloop.models.pooled import HEAD_KEY, PooledClassifier, Pooling, frozen_copy, reads_tokens
from glassloop.models.words import WordsRegression, most_texts
from glassloop.runs.record import RunRecord
from glassloop.scores.calibration import prior_outputs, skill_of
from glassloop.scores.metrics import Array
from glassloop.scores.result import FROZEN_ENCODER, WORDS, Baseline, Baselines, constant_name, rows_of
from glassloop.settings.training import FROZEN, SCORE
from glassloop.training.checkpoints import weights_fingerprint
from glassloop.training.evaluate import labels_of, run_over
from glassloop.training.interfaces import Backend, Tensors
from glassloop.training.recorder import VALIDATION, GivenRows, decoded_texts
from glassloop.training.session import ORIGIN

FORMAT = 3  # of cached embeddings
OF_HEAD = (HEAD_KEY, "problem_type")  # entries of a config that the encoder does not read
BATCH_SIZE = 64
# Tokens that are embedded at most to compare a run with, about half a minute of two CPU cores and a few seconds of a GPU.
# Counted in tokens, not in seconds, so that the same rows always give the same head to start from.
MOST_TOKENS = {"cpu": 200_000, "cuda": 4_000_000}
MOST_ROWS, MOST_HELD_OUT = 20_000, 5_000
MOST_ROWS_OF_METHOD = 200_000  # of the method "frozen": more hardly change a linear model of a few hundred features
# Products of rows, features and outputs of a linear head, and those of the method "frozen": with many classes, about 20
# seconds and three minutes of two CPU cores. The rows are never fewer than LEAST_ROWS for that.
MOST_PRODUCTS, MOST_PRODUCTS_OF_METHOD, LEAST_ROWS = 2e9, 2e10, 2_000


# --- the frozen encoder --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FrozenEncoder:
    """A pooled classifier whose encoder stays as it is: computes embeddings, and fits a linear model to them."""

    model: PooledClassifier
    collate: Collator
    backend: Backend

    def vectors(self, rows: Rows, numbers: Array) -> tuple[Array, float]:
        """Return the pooled vectors of some rows, and the seconds they took when they were computed. They are cached.

        With two towers, the vectors of both texts are side by side.
        """
        chosen = rows.select(numbers) if hasattr(rows, "select") else [rows[int(number)] for number in numbers]
        batches = Batches(chosen, self.collate, BATCH_SIZE, group_by_length=True)
        pooling = self.model.pooling
        # Equal weights can compute something else, such as with another number of heads or another activation.
        config = json.loads(self.model.config.to_json_string(use_diff=False))
        settings = {name: value for name, value in config.items() if name not in (*ORIGIN, *OF_HEAD)}
        known = [FORMAT, weights_fingerprint(self.model.base_model), settings, pooling.mode, pooling.towers]
        known += [self.backend.name, self.backend.device.type, self.backend.precision]
        known += [hashlib.sha256(batches.row_hashes().tobytes()).hexdigest()]
        key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]

        def build(folder: Path) -> None:
            began = time.perf_counter()
            np.save(folder / "vectors.npy", self.computed(batches))
            np.save(folder / "seconds.npy", time.perf_counter() - began)

        def read(folder: Path) -> tuple[Array, float]:
            found, seconds = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("vectors", "seconds"))
            return found, float(seconds)

        return open_or_build("embeddings", key, build, read)

    def computed(self, batches: Batches) -> Array:
        model = self.model
        backend = self.backend
        if isinstance(backend, PackedBackend):
            backend = verified_backend(supported_backend(backend, model), model, lambda: batches)
        with stage("computing embeddings", len(batches.rows)), assigned(model, embeds=True), backend.evaluation_context(model):
            found = run_over(model, backend.adapt_batches(batches, batches.rows), backend)
        return found.logits.astype(np.float32)

    def features(self, rows: Rows, numbers: Array, split: str) -> tuple[Array, float]:
        """Return what the head reads of some rows, and the seconds that their vectors took.

        Raises:
            DataError: A vector is not finite.
        """
        found, seconds = self.vectors(rows, numbers)
        refuse_infinite(found, numbers, split)
        vectors, pooling = torch.from_numpy(found), self.model.pooling
        return pooling.features(vectors.view(2 * len(vectors), -1) if pooling.towers else vectors).numpy(), seconds


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
    skill: float  # on training rows that it was not fitted to: 0 is that of the class frequencies, 1 is perfect
    center: Array  # the mean of the features of these rows
    class_weights: Sequence[float] | None = None  # in the loss of its fit
    share: float = 1.0  # of its weights, with which a training starts

    @property
    def tensors(self) -> Tensors:
        """Weight and bias of a linear layer of torch. With a share of the weights, the outputs of the center stay."""
        bias = self.linear.bias + (1 - self.share) * (self.center @ self.linear.weights)
        parts = {"weight": self.linear.weights.T * self.share, "bias": bias}
        return {name: torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for name, part in parts.items()}


@dataclass(frozen=True)
class FrozenClassifier:
    """The frozen encoder with a linear head."""

    # The head does not hold the encoder: runs share heads, but the encoder can be the model of one run, which it trains.
    encoder: FrozenEncoder
    head: FittedHead


@dataclass(frozen=True)
class LabelledRows:
    """Rows as texts and as tokens, with their labels."""

    texts: Callable[[Array], list[list[str]]]  # of some rows: one column, or two of pairs
    targets: Array
    rows: Rows  # as the frozen encoder takes them
    lengths: Array  # in tokens


def split_rows(examples: Examples, name: str, encoded: Encoding) -> LabelledRows:
    """Return a split of the data of a run."""

    def texts(numbers: Array) -> list[list[str]]:
        rows = examples.rows[name].select(numbers)
        return [[text or "" for text in rows[column]] for column in examples.columns.texts]

    return LabelledRows(texts, labels_of(examples, name), encoded.rows, encoded.lengths)


def fitted_head(
    frozen: FrozenEncoder, train: LabelledRows, task: str, num_labels: int, class_weights: Sequence[float] | None = None, *,
    whole: bool,
) -> FittedHead:  # fmt: skip
    """Fit a linear head to the training rows: to all of them if `whole`, within reason, else to a sample of many."""
    device = "cuda" if frozen.backend.device.type == "cuda" else "cpu"
    most_rows, most_tokens = (MOST_ROWS_OF_METHOD, 2**62) if whole else (MOST_ROWS, MOST_TOKENS[device])
    products = MOST_PRODUCTS_OF_METHOD if whole else MOST_PRODUCTS
    most_fitted = max(LEAST_ROWS, int(products / (frozen.model.head.in_features * num_labels)))
    numbers = drawn_rows(train.lengths, min(most_rows, most_fitted), most_tokens)
    features, seconds = frozen.features(train.rows, numbers, "train")
    began = time.perf_counter()
    known: dict[tuple[str, ...], int] = {}  # equal texts are held out together
    groups = [known.setdefault(row, len(known)) for row in zip(*train.texts(numbers), strict=True)]
    with stage("fitting a linear head"):
        linear = fit_linear(features, train.targets[numbers], task, num_labels, np.array(groups), class_weights)
        skill = skill_of(linear.held_out, train.targets[numbers], task, num_labels)
    center = features.mean(axis=0, dtype=np.float64)
    return FittedHead(linear, numbers, seconds + time.perf_counter() - began, skill, center, class_weights)


# --- the baselines of a run ----------------------------------------------------------------------------------------------
def baseline_pooling(declared: Pooling | None, *, pairs: bool) -> Pooling:
    """Return how the frozen encoder of a baseline pools: as the model declares it, else the mean; texts of a pair apart."""
    return replace(declared or Pooling("mean"), towers=pairs)


def words_regression(train: LabelledRows, task: str, num_labels: int) -> WordsRegression:
    """Return a regression on the words of the training rows, which is not fitted yet; of many rows, a sample."""
    number = len(train.targets)
    numbers = drawn_rows(np.ones(number, dtype=np.int64), most_texts(num_labels), number)
    return WordsRegression(train.texts(numbers), train.targets[numbers], task, num_labels)


def fitted_baselines(
    train: LabelledRows, held_out: Mapping[str, LabelledRows], task: str, names: Sequence[str],
    frozen: FrozenClassifier | None = None, frozen_name: str = FROZEN_ENCODER, words: WordsRegression | None = None,
) -> dict[str, Baselines]:  # fmt: skip
    """Fit the baselines to the training rows once, and let them predict the rows of each split.

    Args:
        train: The training rows.
        held_out: The rows of each split by its name.
        task: What the labels are.
        names: The names of the labels; none for scores.
        frozen: The frozen encoder; None to leave it out.
        frozen_name: What the frozen encoder is called.
        words: The regression on words, if it was started before.
    """
    num_labels, every = max(len(names), 1), train.targets
    device = "cpu" if frozen is None or frozen.encoder.backend.device.type != "cuda" else "cuda"
    held = {split: drawn_rows(rows.lengths, MOST_HELD_OUT, MOST_TOKENS[device] // 2) for split, rows in held_out.items()}
    prior = prior_outputs(every, task, num_labels)
    words = words or words_regression(train, task, num_labels)
    columns = zip(*(held_out[split].texts(rows) for split, rows in held.items()), strict=True)
    words.ask([[text for part in column for text in part] for column in columns])
    if frozen is not None:  # while the regression may be fitted in another process
        features = {split: frozen.encoder.features(held_out[split].rows, rows, split) for split, rows in held.items()}
    with stage("fitting a regression on words"):
        outputs, words_seconds = words.outputs()
    of_words = np.split(outputs, np.cumsum([len(rows) for rows in held.values()])[:-1])
    found = {}
    for (split, rows), word_outputs in zip(held.items(), of_words, strict=True):
        targets = held_out[split].targets

        def baseline(
            name: str, outputs: Array, num_train: int, seconds: float, rows: Array = rows, targets: Array = targets
        ) -> Baseline:
            notes = [f"fitted to {num_train:,} of {len(every):,} training rows"] if num_train < len(every) else []
            notes += [f"evaluated on {len(rows):,} of {len(targets):,} rows"] if len(rows) < len(targets) else []
            return Baseline(name, rows_of(outputs, targets[rows], task, names), num_train, seconds, "; ".join(notes))

        each = [baseline(constant_name(task), np.tile(prior, (len(rows), 1)), len(every), 0.0)]
        each.append(baseline(WORDS, word_outputs, len(words.targets), words_seconds))
        if frozen is not None:
            head, (vectors, seconds) = frozen.head, features[split]
            each.append(baseline(frozen_name, head.linear.outputs(vectors), len(head.numbers), head.seconds + seconds))
        found[split] = Baselines(split, rows, each)
    return found


def refitted_baselines(
    record: RunRecord, train: Examples, held_out: Mapping[str, tuple[Examples, str]], backend: Backend
) -> dict[str, Baselines]:
    """Fit the baselines of a finished run again, and let them predict other splits. Embeddings come from the cache.

    Args:
        record: The record of the run.
        train: The data of the run, with its training rows.
        held_out: The data and the split of each name.
        backend: The device and the precision to use.

    Raises:
        ModelError: The model that the run started from cannot be loaded.
    """
    name, task, names = record.model.name, train.task, train.labels.names if train.labels else ()
    with stage(LOADING), collection_paused():
        tokenizer = load_tokenizer(name)
        pooling = baseline_pooling(declared_by(name)[0], pairs=train.columns.text_pair is not None)
        network = load_model(name, labels=train.labels, task=task, new_head=True, seed=0).to(backend.device)
    frozen = FrozenEncoder(frozen_copy(network, pooling), PaddingCollator(tokenizer), embedding_backend(backend))

    def labelled(examples: Examples, split: str) -> LabelledRows:
        alone = replace(examples, rows={split: examples.rows[split]}, facts={split: examples.facts[split]})
        return split_rows(examples, split, encode(alone, tokenizer, record.max_length, towers=pooling.towers)[split])

    rows = labelled(train, "train")
    whole = record.settings.method == FROZEN and record.model.pooling == asdict(pooling)  # the head is then that of the run
    head = fitted_head(frozen, rows, task, max(len(names), 1), whole=whole)
    judged = {key: labelled(*data) for key, data in held_out.items()}
    return fitted_baselines(rows, judged, task, names, FrozenClassifier(frozen, head))


# --- the baselines of a Trainer ------------------------------------------------------------------------------------------
def tokenized_baselines(
    model: Model, tokenizer: Tokenizer, backend: Backend, train: GivenRows, held_out: GivenRows, task: str
) -> Baselines:
    """Return what simple methods predict for the evaluation rows of a Trainer, whose texts are decoded if only tokens are left.

    Args:
        model: The model before its training.
        tokenizer: Its tokenizer.
        backend: The device and the precision to use.
        train: The training rows.
        held_out: The rows to predict.
        task: What the labels are.

    Raises:
        DataError: Rows have neither texts nor tokens, or no labels.
    """
    columns = [row_texts(rows, tokenizer) for rows in (train, held_out)]
    pairs = all(len(texts) > 1 for texts in columns)
    config = config_of(model)
    name = str(getattr(config, "_name_or_path", ""))
    declared = declared_by(name)[0] if name else None  # a model that was made in memory declares nothing
    pooling = baseline_pooling(declared, pairs=pairs)
    collate, most = PaddingCollator(tokenizer), longest_input(tokenizer, config)
    parts = []
    for rows, texts in zip((train, held_out), columns, strict=True):
        if rows.labels is None:
            raise DataError("the baselines need labels", "give each row labels")
        chosen = np.arange(rows.number) if task == SCORE or rows.labels.ndim > 1 else np.flatnonzero(rows.labels >= 0)
        texts = [[column[row] for row in chosen] for column in (texts if pairs else texts[:1])]
        targets = rows.labels[chosen].astype(np.float64 if task == SCORE else np.int64)
        encoded = encode_texts(tokenizer, texts, most, towers=pairs).rows
        lengths = np.array([row.num_tokens for row in encoded])
        parts.append(
            LabelledRows(partial(chosen_texts, texts), targets.reshape(len(targets)) if task == SCORE else targets,
                         [row.inputs for row in encoded], lengths)
        )  # fmt: skip
    names = () if task == SCORE else label_names(config)
    if not reads_tokens(base_of(model).base_model):
        return fitted_baselines(parts[0], {VALIDATION: parts[1]}, task, names)[VALIDATION]
    frozen = FrozenEncoder(frozen_copy(base_of(model), pooling), collate, embedding_backend(backend))
    head = fitted_head(frozen, parts[0], task, max(len(names), 1), whole=False)
    return fitted_baselines(parts[0], {VALIDATION: parts[1]}, task, names, FrozenClassifier(frozen, head))[VALIDATION]


def chosen_texts(columns: Sequence[Sequence[str]], numbers: Array) -> list[list[str]]:
    return [[column[int(number)] for number in numbers] for column in columns]


def row_texts(rows: GivenRows, tokenizer: Tokenizer) -> list[list[str]]:
    """Return the texts of rows in one column, or two for pairs."""
    if rows.texts:
        return [[*cells] for cells in rows.texts.values()]
    if not len(rows.ids):
        raise DataError("the rows have neither texts nor input_ids that can be read", "pass rows with input_ids or texts")
    words = decoded_texts(rows.ids, tokenizer)
    names = dict.fromkeys(name for row in words for name in row)
    return [[row.get(name, "") for row in words] for name in names]
