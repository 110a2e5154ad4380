"""A regression on the words of texts, which can be fitted in a process beside this one. It needs no torch.

As a program, it is that process: the first line on standard input has the training rows, the second line the texts to predict,
and the line on standard output the answer. It ends with its input, and so never outlives the process that started it.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn needs it, too

from glassloop.base.output import note
from glassloop.scores.calibration import output_losses, prior_outputs
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Texts = Sequence[Sequence[str]]  # one column of texts, or two of pairs
# Words and pairs of words; of many classes fewer, because the weights of a regression need 250 bytes each while it is fitted.
MOST_FEATURES, LEAST_FEATURES, MOST_WEIGHTS = 30_000, 1_000, 3_000_000
MOST_TEXTS, LEAST_TEXTS, MOST_TEXTS_AND_OUTPUTS = 20_000, 2_000, 400_000  # rows of the fit: fewer for many outputs
WORD_STRENGTHS = (1.0, 10.0, 100.0)  # inverse penalties
MOST_ITERATIONS = 100
MOST_CHOSEN = 40_000  # products of rows and outputs up to which a held-out fifth chooses the strength; else the middle one
LEAST_LIKELY = 1e-6  # a probability
FEW_WORDS = 1.5  # words of a text on average, below which its language writes none apart
LONG_WORD = 12  # characters of a text, from which one without spaces is no single word
WORD = re.compile(r"\w+")
# Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, in which a short text without spaces is a sentence.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
OVERLAP_WEIGHT = 3.0


# --- the regression ------------------------------------------------------------------------------------------------------
def fit_words(train: Texts, targets: Array, task: str, num_outputs: int) -> Callable[[Texts], Array]:
    """Fit the words and pairs of words of the training texts, and return a function that gives logits, or scores, of others."""
    features = WordFeatures(train, most_features(targets, task, len(train)))
    matrix = features.of(train)
    prior = prior_outputs(targets, task, num_outputs)
    if not matrix.shape[1]:
        return lambda others: np.tile(prior, (len(others[0]), 1))
    strength = WORD_STRENGTHS[1]
    held = np.random.default_rng(0).permutation(len(targets)) % 5 == 0
    if len(targets) * num_outputs <= MOST_CHOSEN and held.any() and not held.all():

        def loss(strength: float) -> float:
            outputs = fitted_words(matrix[~held], targets[~held], task, prior, strength)(matrix[held])
            return float(output_losses(outputs, targets[held], task).mean())

        strength = min(WORD_STRENGTHS, key=loss)
    fitted = fitted_words(matrix, targets, task, prior, strength)
    return lambda others: fitted(features.of(others))


def most_texts(num_outputs: int) -> int:
    """Return how many training rows the regression on words reads at most, so that it takes seconds."""
    return int(np.clip(MOST_TEXTS_AND_OUTPUTS // num_outputs, LEAST_TEXTS, MOST_TEXTS))


def most_features(targets: Array, task: str, columns: int) -> int:
    """Return how many words, and pairs of words, the regression reads at most, so that its weights take 1 GB at most."""
    outputs = len(np.unique(targets)) if task == CLASSES else 1  # several labels are fitted one after the other
    return int(np.clip(MOST_WEIGHTS // (outputs * (1 if columns == 1 else 4)), LEAST_FEATURES, MOST_FEATURES))


def fitted_words(matrix: csr_matrix, targets: Array, task: str, prior: Array, strength: float) -> Callable[[csr_matrix], Array]:
    """Fit the rows of a sparse matrix and return a function that predicts the outputs of others."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if task == SCORE:
        ridge = Ridge(alpha=10.0 / strength, solver="sparse_cg").fit(matrix, targets)
        return lambda rows: np.asarray(ridge.predict(rows))[:, None]
    columns = [targets] if task == CLASSES else [*targets.T]
    with threadpool_limits(1):  # 16 threads took 15 s for 1,000 texts, and one takes 2 s
        models = [
            LogisticRegression(C=strength, max_iter=MOST_ITERATIONS).fit(matrix, column) if len(np.unique(column)) > 1 else None
            for column in columns
        ]

    def outputs(rows: csr_matrix) -> Array:
        found = np.tile(prior, (rows.shape[0], 1))
        for place, model in enumerate(models):
            if model is None:  # all rows have the same label
                continue
            likely = np.log(np.clip(model.predict_proba(rows), LEAST_LIKELY, 1.0))
            if task == CLASSES:
                found[:] = np.minimum(prior, np.log(LEAST_LIKELY))  # of classes without a training row
                found[:, model.classes_] = likely
            else:
                found[:, place] = likely[:, 1] - likely[:, 0]
        return found

    return outputs


def number_of(pattern: re.Pattern[str]) -> Callable[[str], int]:
    return lambda text: len(pattern.findall(text))


class WordFeatures:
    """Turns texts, or pairs of texts, into weighted counts of words and pairs of words; of a pair, also those both share."""

    def __init__(self, train: Texts, most: int) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        every = [text for column in train for text in column]
        sample = every[:1000]
        words, unspaced, length = (sum(map(count, sample)) for count in (number_of(WORD), number_of(UNSPACED), len))
        is_word = length < LONG_WORD * len(sample) and 2 * unspaced < length  # or what a text has instead of a word
        spaced = words > FEW_WORDS * len(sample) or is_word
        options = {"ngram_range": (1, 2), "token_pattern": r"\w+"} if spaced else {"ngram_range": (1, 3), "analyzer": "char"}
        self.vectorizer = TfidfVectorizer(**options, sublinear_tf=True, max_features=most)
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


def import_regressions() -> None:
    """Import scikit-learn, which takes longer than fitting few rows, and would be added to it."""
    import sklearn.feature_extraction.text
    import sklearn.linear_model  # noqa: F401


def timed_outputs(
    train: Texts, targets: Array, task: str, num_outputs: int, others: Callable[[], Texts]
) -> tuple[Array, float]:  # fmt: skip
    """Return the outputs of a regression on words for other texts, and the seconds of its fit and its predictions."""
    import_regressions()
    began = time.perf_counter()
    predict = fit_words(train, targets, task, num_outputs)
    fitted = time.perf_counter()
    texts = others()  # which may have to be waited for
    asked = time.perf_counter()
    outputs = predict(texts)
    return outputs, fitted - began + time.perf_counter() - asked


# --- a process beside this one -------------------------------------------------------------------------------------------
COMMAND = (sys.executable, "-P", "-m", "glassloop.models.words")  # files of the folder it starts in are no modules
FEW_TEXTS = 500  # a child that imports NumPy, SciPy and scikit-learn takes as long as fitting them


# A process that imports what it needs while this one imports torch, and then waits for rows.
SPARE: list[subprocess.Popen[bytes]] = []


def start_early() -> None:
    """Start the process of the next regression before its rows are known. It ends with this one."""
    if pays() and not SPARE and (process := started_process()):
        SPARE.append(process)


def pays(num_rows: int = 0) -> bool:
    """Return whether a process beside this one is worth its start."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores > 1 and (num_rows >= FEW_TEXTS or "sklearn.linear_model" not in sys.modules)


def started_process() -> subprocess.Popen[bytes] | None:
    """Return a process that runs this module; None if there is no memory, or there are too many processes."""
    with suppress(OSError):
        return subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for this process, which ends it
        )  # fmt: skip
    return None


class WordsRegression:
    """A regression on words, fitted when its outputs are asked for: in a `with` block, meanwhile in a process beside this one.

    Args:
        train: The training texts.
        targets: Their labels.
        task: What the labels are.
        num_outputs: The number of classes or labels; 1 for scores.
    """

    def __init__(self, train: Texts, targets: Array, task: str, num_outputs: int) -> None:
        self.train, self.targets, self.task, self.num_outputs = train, targets, task, num_outputs
        self.others: Texts = ()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WordsRegression:
        self.process = SPARE.pop() if SPARE else started_process() if pays(len(self.targets)) else None
        if self.process:
            # In a thread: a pipe takes little before the child, which has to import much, reads it.
            self.sender = ThreadPoolExecutor(1)
            self.sender.submit(self.send, [self.train, packed(self.targets), self.task, self.num_outputs])
        return self

    def send(self, content: object) -> None:
        if self.process and self.process.stdin:
            with suppress(OSError, ValueError):  # it has ended
                self.process.stdin.write(json.dumps(content).encode() + b"\n")
                self.process.stdin.flush()

    def ask(self, others: Texts) -> None:
        """Say which texts to predict."""
        self.others = others
        if self.process:
            self.sender.submit(self.send, others)

    def outputs(self) -> tuple[Array, float]:
        """Return logits, or scores, of the texts of `ask`, and the seconds of the fit and of the predictions."""
        if self.process and self.process.stdout:
            if answer := self.process.stdout.readline():
                outputs, seconds = json.loads(answer)
                return unpacked(outputs), seconds
            # An error that the rows cause is raised here again, as it is without a second process.
            note(f"the regression on words is fitted again: its process ended with exit status {self.process.wait()}")
        return timed_outputs(self.train, self.targets, self.task, self.num_outputs, lambda: self.others)

    def __exit__(self, *error: object) -> None:
        if self.process:
            self.process.kill()  # it has nothing to lose
            self.process.wait()
            self.sender.shutdown()
            for stream in (self.process.stdin, self.process.stdout):
                with suppress(OSError):
                    if stream:
                        stream.close()
            self.process = None


def packed(array: Array) -> list[object]:
    """Return an array as JSON can hold it, bit-identical when it is read again."""
    return [array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()]


def unpacked(content: tuple[str, list[int], str]) -> Array:
    kind, shape, data = content
    return np.frombuffer(bytearray(base64.b64decode(data)), kind).reshape(shape)


def main() -> None:
    """Fit the rows of the first line of the input, and predict those of the second."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with open(0, "rb", closefd=False) as questions:  # Python aborts if a thread reads sys.stdin at its end
            for line in questions:
                lines.put(line)
        os._exit(0)  # whoever asked has ended

    threading.Thread(target=read, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what libraries print is no answer
    import_regressions()
    train, targets, task, num_outputs = json.loads(lines.get())
    outputs, seconds = timed_outputs(train, unpacked(targets), task, num_outputs, lambda: json.loads(lines.get()))
    answers.write(json.dumps([packed(outputs), seconds]) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
