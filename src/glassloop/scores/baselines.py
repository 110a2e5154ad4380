"""What a model must beat: the class frequencies, and a linear model of the words in the texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Texts = Sequence[Sequence[str]]  # one column of texts, or two of pairs
MOST_FEATURES = 30_000
MOST_ROWS, LEAST_ROWS, MOST_ROWS_AND_OUTPUTS = 20_000, 2_000, 400_000  # rows of the fit: fewer for many outputs
STRENGTHS = (1.0, 10.0, 100.0)  # inverse penalties
MOST_CHOSEN = 40_000  # products of rows and outputs up to which a held-out fifth chooses the strength; else the middle one
MOST_ITERATIONS = 100
SMALLEST = 1e-6  # a probability
FEW_WORDS = 1.5  # words of a text on average, below which its language writes none apart
WORD = re.compile(r"\w+")
OVERLAP_WEIGHT = 3.0


def prior_outputs(targets: Array, task: str, num_outputs: int) -> Array:
    """Return the outputs that predict the frequencies of the targets, with one more row of each class, or their mean."""
    if task == SCORE:
        return np.array([targets.mean()])
    if task == SEVERAL:
        shares = (targets.sum(axis=0) + 1) / (len(targets) + 2)
        return np.asarray(np.log(shares / (1 - shares)))
    counts = np.bincount(targets, minlength=num_outputs) + 1.0
    return np.asarray(np.log(counts / counts.sum()))


def most_rows(num_outputs: int) -> int:
    """Return how many training rows the regression on words reads at most, so that it takes seconds."""
    return int(np.clip(MOST_ROWS_AND_OUTPUTS // num_outputs, LEAST_ROWS, MOST_ROWS))


def words_outputs(train: Texts, targets: Array, others: Mapping[str, Texts], task: str, num_outputs: int) -> dict[str, Array]:
    """Return logits, or scores, for rows of other splits by a regression on the words and pairs of words of the texts."""
    features = WordFeatures(train)
    matrix = features.of(train)
    prior = prior_outputs(targets, task, num_outputs)
    if not matrix.shape[1] or (task == CLASSES and len(np.unique(targets)) < 2):
        return {name: np.tile(prior, (len(texts[0]), 1)) for name, texts in others.items()}
    strength = STRENGTHS[1]
    if len(targets) * num_outputs <= MOST_CHOSEN:
        held = np.random.default_rng(0).permutation(len(targets)) % 5 == 0
        losses = {
            one: fit_loss(matrix[~held], targets[~held], matrix[held], targets[held], task, prior, one) for one in STRENGTHS
        }
        strength = min(losses, key=lambda one: losses[one]) if held.any() and not held.all() else strength
    predict = fitted(matrix, targets, task, prior, strength)
    return {name: predict(features.of(texts)) for name, texts in others.items()}


def fit_loss(
    matrix: csr_matrix, targets: Array, held: csr_matrix, wanted: Array, task: str, prior: Array, strength: float
) -> float:
    if task == CLASSES and len(np.unique(targets)) < 2:
        return 0.0
    return float(row_losses(fitted(matrix, targets, task, prior, strength)(held), wanted, task).mean())


def fitted(matrix: csr_matrix, targets: Array, task: str, prior: Array, strength: float) -> Any:
    """Fit the rows of a sparse matrix and return a function that predicts the outputs of others."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def logits(column: Array) -> Any:
        model = LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(matrix, column)
        return lambda rows: np.log(np.clip(model.predict_proba(rows), SMALLEST, 1.0)), model.classes_

    if task == SCORE:
        ridge = Ridge(alpha=10.0 / strength, solver="sparse_cg").fit(matrix, targets)
        return lambda rows: np.asarray(ridge.predict(rows))[:, None]
    if task == CLASSES:
        likely, classes = logits(targets)

        def outputs(rows: csr_matrix) -> Array:
            found = np.tile(np.minimum(prior, np.log(SMALLEST)), (rows.shape[0], 1))  # classes without a training row
            found[:, classes] = likely(rows)
            return found

        return outputs
    several = [logits(column) if 0 < column.sum() < len(column) else None for column in targets.T]

    def labels(rows: csr_matrix) -> Array:
        found = np.tile(prior, (rows.shape[0], 1))
        for place, one in enumerate(several):
            if one is not None:
                shares = one[0](rows)
                found[:, place] = shares[:, 1] - shares[:, 0]
        return found

    return labels


def row_losses(outputs: Array, targets: Array, task: str) -> Array:
    """Return the loss of each row: cross entropy, its mean over labels, or the squared error."""
    if task == SCORE:
        return np.asarray(np.square(outputs[:, 0] - targets))
    if task == SEVERAL:
        return np.asarray(np.logaddexp(0, np.where(targets == 1, -outputs, outputs)).mean(axis=1))
    top = outputs.max(axis=1)
    return np.asarray(top + np.log(np.exp(outputs - top[:, None]).sum(axis=1)) - outputs[np.arange(len(outputs)), targets])


class WordFeatures:
    """Turns texts, or pairs of texts, into weighted counts of words and pairs of words; of a pair, also those both share."""

    def __init__(self, train: Texts) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        every = [text for column in train for text in column]
        sample = every[:1000]
        words = sum(len(WORD.findall(text)) for text in sample) / max(len(sample), 1)
        spaced = words > FEW_WORDS or sum(map(len, sample)) < 12 * len(sample)
        options = {"ngram_range": (1, 2), "token_pattern": r"\w+"} if spaced else {"ngram_range": (1, 3), "analyzer": "char"}
        self.vectorizer = TfidfVectorizer(**options, sublinear_tf=True, max_features=MOST_FEATURES)
        try:
            self.vectorizer.fit(every)
        except ValueError:  # there is no word in any text
            self.vectorizer = None

    def of(self, texts: Texts) -> csr_matrix:
        from scipy.sparse import csr_matrix, hstack

        if self.vectorizer is None:
            return csr_matrix((len(texts[0]), 0))
        parts = [csr_matrix(self.vectorizer.transform(column)) for column in texts]
        if len(parts) == 1:
            return parts[0]
        first, second = parts
        shared = first.multiply(second).sqrt()
        overlap = csr_matrix(np.asarray(first.multiply(second).sum(axis=1)) * OVERLAP_WEIGHT)
        return csr_matrix(hstack([first, second, shared, abs(first - second), overlap]))
