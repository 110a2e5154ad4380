"""What a run is compared with: class frequencies, words, and the frozen encoder, fitted before the first step."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn needs it, too
from torch.nn import functional

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
from glassloop.models.loading import declared_by, load_model, load_tokenizer
from glassloop.models.pooled import HEAD_KEY, PooledClassifier, Pooling, frozen_copy, reads_tokens
from glassloop.models.words import WordsRegression, most_texts
from glassloop.runs.record import RunRecord
from glassloop.scores.calibration import output_losses, prior_outputs, skill_of
from glassloop.scores.metrics import Array
from glassloop.scores.result import FROZEN_ENCODER, WORDS, Baseline, Baselines, constant_name, rows_of
from glassloop.settings.training import CLASSES, FROZEN, SCORE, SEVERAL
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


# --- a linear model on embeddings ---------------------------------------------------------------------------------------
FOLDS = 5
# Inverse penalties of features whose mean squared length is SQUARED_LENGTH. Lower ones come first: each solution starts
# from the one before.
STRENGTHS = tuple(10 ** (place * 2 / 3) for place in range(-5, 5))
SQUARED_LENGTH = 20.0
WORSE_IN_A_ROW = 2  # strengths with a higher loss than the best one, after which higher ones are not tried
# Products of rows, features and outputs, beyond which fp32 is used, and beyond which one fold chooses the strength.
LARGE, VERY_LARGE = 1e7, 1e8
MOST_ITERATIONS, TOLERANCE, CORRECTIONS = 100, 1e-6, 10
ROUNDING = 1e-5  # of the length of features: those that differ by less are equal but for the rounding of an encoder in fp32
SMALLEST = 1e-9  # principal axes with less than this share of the largest are rounding errors
ROWS_AT_ONCE = 10_000  # rows that are copied to fp64 at a time


@dataclass(frozen=True)
class LinearModel:
    """A linear model, and how well it predicts its own rows if they are held out."""

    weights: Array  # features x outputs
    bias: Array
    strength: float  # the chosen inverse penalty
    held_out: Array  # the loss of each row for a model that was fitted without its fold; NaN if no fold held it out

    def outputs(self, features: Array) -> Array:
        """Return logits, or a score, of each row."""
        return np.asarray(features @ self.weights + self.bias)


def fit_linear(
    features: Array, targets: Array, task: str, num_outputs: int, groups: Array | None = None,
    class_weights: Sequence[float] | None = None,
) -> LinearModel:  # fmt: skip
    """Fit classes, several labels (0 and 1) or scores to features.

    Args:
        features: One row of numbers per example.
        targets: A class number per row, a row of 0 and 1 per row, or a score per row.
        task: What the targets are.
        num_outputs: The number of classes or labels; 1 for scores.
        groups: Rows with equal numbers, such as those with the same text, are always held out together.
        class_weights: The weight of each class or label in the loss; None if all count the same.

    Raises:
        DataError: A feature is not finite.
    """
    rows = np.arange(len(features))
    refuse_infinite(features, rows)
    if len(rows) > MOST_ROWS_OF_METHOD:
        rows = np.sort(np.random.default_rng(0).choice(len(features), MOST_ROWS_OF_METHOD, replace=False))
    size = len(rows) * min(features.shape) * num_outputs
    dtype = torch.float32 if size > LARGE else torch.float64
    folds = assigned_folds(targets, task, groups)
    used = [fold for fold in range(FOLDS) if (folds == fold).any() and (folds[rows] != fold).any()]
    used = used if size <= VERY_LARGE else used[:1]
    weights_of_classes = None if class_weights is None else mean_one(class_weights, targets, task)
    # numpy, scipy and torch each have threads that wait in empty loops, so together they are up to a hundred times slower
    # than one thread. Small problems are solved in one thread, large ones in those of torch.
    with threadpool_limits(1, "blas" if size > LARGE else None):
        scaled, center, factor = scaled_features(torch.from_numpy(features), rows, dtype)
        data = rotated(scaled[rows])
        fit = partial(solutions, data, targets[rows], task=task, num_outputs=num_outputs, class_weights=weights_of_classes)
        paths = [fit(folds[rows] != fold) for fold in used]
        best, place, worse = np.inf, 0, 0
        found = np.full(len(features), np.nan)
        held = np.isin(folds, used)
        for number in range(len(STRENGTHS)):
            losses = np.full_like(found, np.nan)
            for fold, path in zip(used, paths, strict=True):
                weights, bias = next(path)
                outputs = torch.addmm(bias.to(dtype), scaled[folds == fold], weights.to(dtype)).double().numpy()
                losses[folds == fold] = output_losses(outputs, targets[folds == fold], task, weights_of_classes)
            loss = float(losses[held].mean()) if held.any() else 0.0
            if loss < best:
                best, place, found, worse = loss, number, losses, 0
            elif (worse := worse + 1) >= WORSE_IN_A_ROW:
                break
        weights, bias = next(islice(fit(np.ones(len(rows), dtype=bool)), place, None))
        weights = weights * factor
        return LinearModel(weights.numpy(), (bias - center @ weights).numpy(), STRENGTHS[place], found)


def mean_one(class_weights: Sequence[float], targets: Array, task: str) -> Array:
    """Return class weights times a factor with which a row, or with several labels a label, weighs 1 on average."""
    # Else twice the weights would be half the penalty.
    weights = np.asarray(class_weights, dtype=np.float64)
    mean = float((weights if task == SEVERAL else weights[targets]).mean())
    return weights / mean if mean > 0 else weights


def refuse_infinite(features: Array, numbers: Array, split: str = "") -> None:
    """Raise `DataError` with the number of the first row of a split whose features are not finite."""
    if not (sound := np.isfinite(features).all(axis=1)).all():
        problem = f"{split and f'{split}: '}the embedding of row {int(numbers[np.argmin(sound)]) + 1:,} is not finite"
        raise DataError(problem, "use precision fp32; if that does not help, the weights of the model are damaged")


def scaled_features(features: torch.Tensor, rows: Array, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return features minus the center of some rows, times a factor that makes their mean squared length `SQUARED_LENGTH`."""
    center = features[rows].mean(dim=0, dtype=torch.float64)
    around = features.to(dtype) - center.to(dtype)
    length = float(around[rows].square().sum(dim=1).mean(dtype=torch.float64)) ** 0.5
    factor = SQUARED_LENGTH**0.5 / length if length > ROUNDING * float(center.norm()) else 0.0
    return around.mul_(factor), center, factor


@dataclass(frozen=True)
class Rotated:
    """Centered features along their principal axes, where the penalized problem is nearly diagonal: few iterations solve it."""

    # All folds share the axes: the penalty does not depend on the direction, so the solutions do not either.
    features: torch.Tensor  # rows x axes
    axes: torch.Tensor  # features x axes
    squares: torch.Tensor  # along each axis

    @cached_property
    def gram(self) -> torch.Tensor:
        # In fp32 the features are rounded by more than a small penalty, so their squares are no longer those of the axes.
        return self.squares.diag() if self.features.dtype == torch.float64 else product(self.features, self.features)


def rotated(features: torch.Tensor) -> Rotated:
    many = len(features) > features.shape[1]
    squares, vectors = torch.linalg.eigh(product(features, features) if many else features.double() @ features.double().T)
    kept = squares > SMALLEST * squares.max().clamp(min=1e-30)
    squares, vectors = squares[kept], vectors[:, kept]
    axes = vectors if many else features.double().T @ vectors / squares.sqrt()
    return Rotated(features @ axes.to(features.dtype), axes, squares)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left^T @ right in fp64, without a copy of all rows in fp64."""
    parts = zip(torch.split(left, ROWS_AT_ONCE), torch.split(right, ROWS_AT_ONCE), strict=True)
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for some, others in parts:
        total.addmm_(some.double().T, others.double())
    return total


def solutions(
    data: Rotated, targets: Array, chosen: Array, *, task: str, num_outputs: int, class_weights: Array | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield weights and bias, fitted to the `chosen` rows, for one strength after the other."""
    features, targets = data.features[chosen], targets[chosen]
    start = prior_outputs(targets, task, num_outputs, class_weights)
    if task == SCORE:
        center, others = features.mean(dim=0, dtype=torch.float64), data.features[~chosen]
        gram = data.gram - product(others, others) - len(features) * center.outer(center)
        pull = product(features, torch.from_numpy(targets - start)[:, None])
        for strength in STRENGTHS:
            factors = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=torch.float64) / strength)
            solution = torch.cholesky_solve(pull, factors)
            yield data.axes @ solution, torch.from_numpy(start) - center @ solution
        return
    curvature = data.squares.numpy() * (0.25 if task == SEVERAL else max(0.5 / num_outputs, 0.05))
    values = np.concatenate([np.zeros((features.shape[1], num_outputs)), start[None]])
    for strength in STRENGTHS:
        values = minimized(features, targets, task, strength, values, start, curvature, class_weights)
        yield data.axes @ torch.from_numpy(values[:-1]), torch.from_numpy(values[-1])


def minimized(
    features: torch.Tensor, targets: Array, task: str, strength: float, first: Array, prior: Array, curvature: Array,
    class_weights: Array | None = None,
) -> Array:  # fmt: skip
    """Return weights, and below them the bias, that minimize the sum of the losses plus the penalty."""
    # The bias has a penalty, too: it is as if each class had one row more, so that a class without rows stays finite.
    spread = np.append((curvature + 1 / strength) ** -0.5, (len(features) / (4 * max(len(prior), 2)) + 1) ** -0.5)[:, None]
    wanted = torch.from_numpy(targets)
    marks = wanted.to(features.dtype) if task == SEVERAL else None
    weights_of_classes = None if class_weights is None else torch.from_numpy(class_weights).to(features.dtype)

    def loss_and_slope(values: Array) -> tuple[float, Array]:
        solution = values.reshape(first.shape) * spread
        weights, bias = torch.from_numpy(solution[:-1]).to(features.dtype), torch.from_numpy(solution[-1]).to(features.dtype)
        outputs = torch.addmm(bias, features, weights)
        if marks is not None:
            loss = functional.binary_cross_entropy_with_logits(outputs, marks, weights_of_classes, reduction="sum")
            pull = torch.sigmoid(outputs) - marks
        else:
            loss = functional.cross_entropy(outputs, wanted, weights_of_classes, reduction="sum")
            pull = torch.softmax(outputs, 1)
            pull[torch.arange(len(pull)), wanted] -= 1
        if weights_of_classes is not None:
            pull *= weights_of_classes if marks is not None else weights_of_classes[wanted, None]
        slope = np.concatenate([(features.T @ pull).double().numpy(), pull.sum(0, keepdim=True).double().numpy()])
        apart = solution[-1] - prior
        slope[:-1] += solution[:-1] / strength
        slope[-1] += apart
        penalty = float(np.square(solution[:-1]).sum()) / (2 * strength) + float(np.square(apart).sum()) / 2
        return float(loss) + penalty, (slope * spread).ravel()

    options = {"maxiter": MOST_ITERATIONS, "maxcor": CORRECTIONS, "ftol": TOLERANCE, "gtol": 1e-3}
    found = minimize(loss_and_slope, (first / spread).ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(first.shape) * spread)


def assigned_folds(targets: Array, task: str, groups: Array | None = None, folds: int = FOLDS, seed: int = 0) -> Array:
    """Return the fold of each row: equally many rows of each class in each fold, and equal texts in the same one."""
    _, firsts, members = np.unique(
        np.arange(len(targets)) if groups is None else groups, return_index=True, return_inverse=True
    )
    order = np.random.default_rng(seed).permutation(len(firsts))
    if task == CLASSES:
        order = order[np.argsort(targets[firsts][order], kind="stable")]
    numbers = np.empty(len(firsts), dtype=np.int64)
    numbers[order] = np.arange(len(firsts)) % folds
    return np.asarray(numbers[members])


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
