"""The quality of models from few rows: accuracy, log loss and time of Glassloop, and of what people use instead.

    python benchmarks/quality_sets.py --repositories FOLDER --out SETS
    python benchmarks/quality.py run --sets SETS --models FOLDER... --out RESULTS.jsonl [--workers 12] [--seconds 500]
    python benchmarks/quality.py table RESULTS.jsonl

A job trains one method on the first rows of a data set in the order of a random seed, so that the rows of a smaller job are
among those of a larger one, and predicts all test rows. Sizes larger than the pool are left out. Each finished job is a line of
the results; the same call continues after a kill. A job that fails is a line with "error"; `--retry` runs it again.

Rules that hold for all methods:

- A method knows the labels of its training rows. Test rows with other labels count: their label has the probability 0.
- Probabilities are clipped to 1e-6 for the log loss, those of several labels also to 1 - 1e-6.
- `seconds` is the time until the model can predict, with loading and saving it, without baselines. It is longer if workers
  share a machine.
- Peers have the defaults of their libraries. They train on all rows; `ours`, `frozen` and `fine_tune` hold out a part of them
  to report on, as the command does. SetFit reads single texts with one label, and at most 1,000 rows, because its pairs of
  rows grow with their square.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from quality_sets import CHOSEN_ON, CLASSES, FINAL, HELD_OUT, SCORE, SEPARATOR, SETS, SEVERAL

SIZES, SEEDS = "50,200,1000,5000", 3
FLOOR = 1e-6  # of a probability in the log loss
BINS = 15  # of the expected calibration error
FOLDS = 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # inverse penalties of regressions on rows of length one
MOST_FOLDED = 100_000  # products of rows and outputs, beyond which one fold chooses the strength
MOST_SETFIT_ROWS = 1_000
COSINE_WEIGHT = 5.0
BATCH = 64  # rows of a forward pass of the frozen encoder
NO_MODEL = "-"  # of a method that has none
MAIN = {CLASSES: "accuracy", SEVERAL: "f1_micro", SCORE: "pearson"}  # what is called accuracy in the tables
LOSS = {CLASSES: "log_loss", SEVERAL: "log_loss", SCORE: "mse"}
SCHEMES = {CLASSES: "single_label_classification", SEVERAL: "multi_label_classification", SCORE: "regression"}
NOTES: dict[str, object] = {
    **{"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 5e-5, "lr_scheduler_type": "linear"},
    **{"warmup_steps": 0, "method": "fine_tune", "pooling": "head", "pair_form": "one_sequence"},
}
SHOWN_SETTINGS = (
    *("method", "pooling", "pair_form", "num_train_epochs", "per_device_train_batch_size", "learning_rate", "warmup_steps"),
)
LOADED = (
    *("glassloop.predictor", "glassloop.study.run", "sklearn.linear_model", "sklearn.feature_extraction.text", "scipy.stats"),
    *("transformers.trainer", "setfit"),
)
PACKAGES = ("glassloop", "torch", "transformers", "scikit-learn", "setfit", "sentence-transformers")
SECONDS_TO_END = 5.0  # of a process without a job
SPOILED = ("CUDA", "CUBLAS", "cuDNN")  # errors after which a process cannot use the device any more
RESAMPLES = 10_000  # of the data sets, for intervals
Array = np.ndarray[Any, Any]
Row = dict[str, Any]


# --- the data ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """One model of one method: its data set, number of training rows and random seed."""

    set: str
    rows: int
    seed: int
    model: str
    method: str


@dataclass(frozen=True)
class Part:
    """Rows of a data set: one text or two of each, and its label as it is written in the file."""

    texts: list[tuple[str, ...]]
    labels: list[str]

    @property
    def columns(self) -> list[list[str]]:
        """The first texts and, if rows are pairs, the second ones."""
        return [[*column] for column in zip(*self.texts, strict=True)]

    def take(self, places: Iterable[int]) -> Part:
        chosen = [*places]
        return Part([self.texts[place] for place in chosen], [self.labels[place] for place in chosen])

    def targets(self, task: str, names: Sequence[str]) -> Array:
        """Return numbers of classes (-1: not among the names), a row of 0 and 1 per row, or scores."""
        if task == SCORE:
            return np.array([float(label) for label in self.labels])
        numbers = {name: number for number, name in enumerate(names)}
        if task == CLASSES:
            return np.array([numbers.get(label, -1) for label in self.labels])
        marks = np.zeros((len(self.labels), len(names)), dtype=np.int64)
        for place, label in enumerate(self.labels):
            marks[place, [numbers[name] for name in label.split(SEPARATOR) if name in numbers]] = 1
        return marks


@dataclass(frozen=True)
class Problem:
    """What a method gets, and what it is judged on."""

    task: str
    train: Part
    test: Part
    known: tuple[str, ...]  # the labels of the training rows
    names: tuple[str, ...]  # those of the whole data set
    seed: int
    model: Path
    device: str
    scratch: Path  # a folder of its own

    @property
    def is_pairs(self) -> bool:
        return len(self.train.texts[0]) == 2

    @property
    def targets(self) -> Array:
        return self.train.targets(self.task, self.known)


@dataclass(frozen=True)
class Answers:
    """The probabilities of labels, or scores, for each row, and what is chosen, if that is not the most likely."""

    values: Array  # rows x labels; or rows
    names: Sequence[str] = ()  # of the labels
    chosen: Sequence[str] | None = None  # as labels are written in a file


Predict = Callable[[Part], Answers]


@lru_cache(maxsize=4)
def read_part(path: Path) -> Part:
    with path.open(encoding="utf-8", newline="") as opened:
        rows = [*csv.DictReader(opened)]
    columns = ("text", "text_pair") if "text_pair" in rows[0] else ("text",)
    return Part([tuple(row[name] for name in columns) for row in rows], [row["label"] for row in rows])


def task_of(name: str) -> str:
    return SETS[name].task if name in SETS else CLASSES


def label_names(task: str, *parts: Part) -> tuple[str, ...]:
    if task == SCORE:
        return ()
    return tuple(
        sorted(
            {
                name
                for part in parts
                for label in part.labels
                for name in (label.split(SEPARATOR) if task == SEVERAL else [label])
            }
        )
    )


def make_problem(job: Job, sets: Path, model: Path, device: str, scratch: Path) -> Problem:
    task, pool, test = task_of(job.set), *(read_part(sets / job.set / f"{part}.csv") for part in ("pool", "test"))
    train = pool.take(np.random.default_rng(job.seed).permutation(len(pool.labels))[: job.rows])
    known, names = label_names(task, train), label_names(task, pool, test)
    return Problem(task, train, test, known, names, job.seed, model, device, scratch)


# --- what is measured ----------------------------------------------------------------------------------------------------
def scores_of(problem: Problem, answers: Answers) -> dict[str, float]:
    """Return all figures of a job on the test rows, and those of the class frequencies of its training rows."""
    task, names, test = problem.task, problem.names, problem.test
    wanted = test.targets(task, names)
    if task == SCORE:
        return score_figures(answers.values, wanted, problem.targets)
    likely = np.zeros((len(wanted), len(names)))
    likely[:, [names.index(name) for name in answers.names]] = answers.values
    if not np.isfinite(likely).all():
        raise ValueError("a probability is not finite")
    frequencies = np.zeros(len(names))
    own = problem.train.targets(task, names)
    if task == SEVERAL:
        frequencies[:] = own.mean(axis=0)
        chosen = (likely >= 0.5).astype(np.int64)
        if answers.chosen is not None:
            chosen = Part(test.texts, [*answers.chosen]).targets(task, names)
        both = int((chosen & wanted).sum())
        confidence, right = np.where(chosen == 1, likely, 1 - likely).ravel(), (chosen == wanted).ravel()
        return {
            "f1_micro": 2 * both / max(int(chosen.sum() + wanted.sum()), 1),
            "exact_match": float((chosen == wanted).all(axis=1).mean()),
            "log_loss": labels_loss(likely, wanted),
            "brier": float(np.square(likely - wanted).mean()),
            "ece": calibration_error(confidence, right),
            "prior_log_loss": labels_loss(np.broadcast_to(frequencies, likely.shape), wanted),
            "unseen": float((wanted[:, ~np.isin(names, problem.known)].sum(axis=1) > 0).mean()),
        }
    frequencies[:] = np.bincount(own, minlength=len(names)) / len(own)
    places = np.arange(len(wanted))
    chosen = likely.argmax(axis=1)
    if answers.chosen is not None:
        chosen = Part(test.texts, [*answers.chosen]).targets(task, names)
    marks = np.zeros_like(likely)
    marks[places, wanted] = 1
    return {
        "accuracy": float((chosen == wanted).mean()),
        "log_loss": float(-np.log(np.clip(likely[places, wanted], FLOOR, 1)).mean()),
        "brier": float(np.square(likely - marks).sum(axis=1).mean()),
        "ece": calibration_error(likely[places, chosen], chosen == wanted),
        "prior_log_loss": float(-np.log(np.clip(frequencies[wanted], FLOOR, 1)).mean()),
        "prior_accuracy": float((wanted == frequencies.argmax()).mean()),
        "unseen": float((~np.isin(np.array(names)[wanted], problem.known)).mean()),
    }


def score_figures(found: Array, wanted: Array, trained: Array) -> dict[str, float]:
    from scipy.stats import pearsonr, spearmanr

    def correlation(of: Callable[..., Any]) -> float:
        return float(of(found, wanted)[0]) if np.ptp(found) > 0 else 0.0

    if not np.isfinite(found).all():
        raise ValueError("a score is not finite")
    errors = {"mse": found - wanted, "prior_mse": trained.mean() - wanted}
    squares = {name: float(np.square(values).mean()) for name, values in errors.items()}
    return {"pearson": correlation(pearsonr), "spearman": correlation(spearmanr), **squares}


def labels_loss(likely: Array, wanted: Array) -> float:
    clipped = np.clip(likely, FLOOR, 1 - FLOOR)
    return float(-np.where(wanted == 1, np.log(clipped), np.log1p(-clipped)).mean())


def calibration_error(confidence: Array, right: Array) -> float:
    """Return the mean gap between confidence and accuracy in bins of equal width."""
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(place, weights=right.astype(np.float64) - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


# --- Glassloop -----------------------------------------------------------------------------------------------------------
def train_ours(
    problem: Problem, training: dict[str, object] | None = None, temperature: float | None = None, share: float | None = None
) -> tuple[Predict, Row]:
    """Train as `glassloop train FILE` does, in this process."""
    from glassloop.predictor import Predictor
    from glassloop.settings.file import GivenSettings
    from glassloop.settings.training import TrainingArguments
    from glassloop.study.run import train_run

    file = problem.scratch / "train.csv"
    pair = ["text_pair"] if problem.is_pairs else []
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["text", *pair, "label"])
        writer.writerows((*texts, label) for texts, label in zip(problem.train.texts, problem.train.labels, strict=True))
    data: dict[str, object] = {"text": "text", "label": "label", "task": SCHEMES[problem.task]}
    data |= {"text_pair": "text_pair"} if problem.is_pairs else {}
    data |= {"label_separator": SEPARATOR} if problem.task == SEVERAL else {}
    data |= {"validation_share": share} if share is not None else {}
    # The settings of the notes are the defaults of versions that do not have all of them.
    known = {entry.name for entry in fields(TrainingArguments)}
    wanted = {name: value for name, value in (training or {}).items() if training is not NOTES or name in known}
    common = {"output_dir": str(problem.scratch / "run"), "seed": problem.seed, "device": problem.device}
    common |= {"disable_tqdm": True, "baselines": False}  # which do not change the model
    folder = train_run(GivenSettings(str(file), str(problem.model), common | wanted, data))
    predictor = Predictor(folder, device=problem.device, temperature=temperature)

    def predict(part: Part) -> Answers:
        found = predictor.predict(part.texts if problem.is_pairs else [text for (text,) in part.texts])
        if problem.task == SCORE:
            return Answers(np.array([answer.label for answer in found], dtype=np.float64))
        chosen = [SEPARATOR.join(answer.label) if isinstance(answer.label, list) else str(answer.label) for answer in found]
        return Answers(np.array([[*answer.scores.values()] for answer in found]), [*found[0].scores], chosen)

    run, shown = predictor.run, {}
    if run is not None:
        shown = {name: value for name in SHOWN_SETTINGS if (value := getattr(run.settings, name, None)) is not None}
        shown |= {"steps": run.plan.max_steps, "backend": run.backend, "precision": run.precision}
    return predict, {**shown, "temperature": predictor.answering.temperature}


# --- regressions of scikit-learn -----------------------------------------------------------------------------------------
def train_words(problem: Problem) -> tuple[Predict, Row]:
    """Words and pairs of words, weighted by TF-IDF; of pairs of texts, also the difference and the product of their vectors."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
    vectorizer.fit([text for texts in problem.train.texts for text in texts])

    def features(part: Part) -> Any:
        vectors = [vectorizer.transform(column) for column in part.columns]
        if len(vectors) == 1:
            return vectors[0]
        first, second = vectors
        product = first.multiply(second)
        overlap = csr_matrix(product.sum(axis=1)) * COSINE_WEIGHT
        return csr_matrix(hstack([first, second, abs(first - second), product, overlap]))

    return fitted_regression(problem, features)


def train_frozen_reference(problem: Problem) -> tuple[Predict, Row]:
    """Embeddings as the model folder declares them; of pairs, also their difference, product and cosine."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    modules = [entry["path"] for entry in json.loads((problem.model / "modules.json").read_text(encoding="utf-8"))]
    pooling = json.loads((problem.model / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    length = json.loads((problem.model / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
    first_token = pooling["pooling_mode_cls_token"]
    if first_token == pooling["pooling_mode_mean_tokens"]:
        raise ValueError(f"{problem.model}: only mean pooling and the first token are known here")
    tokenizer = AutoTokenizer.from_pretrained(problem.model)
    encoder = AutoModel.from_pretrained(problem.model).float().to(problem.device).eval()

    @torch.inference_mode()
    def embeddings(texts: list[str]) -> Array:
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        found = np.zeros((len(texts), encoder.config.hidden_size))
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            given = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
            inputs = tokenizer([texts[place] for place in places], **given).to(problem.device)
            hidden, mask = encoder(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)
            pooled = hidden[:, 0] if first_token else (hidden * mask).sum(1) / mask.sum(1)
            if any("Normalize" in path for path in modules):
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            found[places] = pooled.double().cpu().numpy()
        return found

    def features(part: Part) -> Array:
        vectors = [embeddings(column) for column in part.columns]
        if len(vectors) == 1:
            return vectors[0]
        first, second = vectors
        product = first * second
        return np.hstack([first, second, np.abs(first - second), product, product.sum(axis=1, keepdims=True) * COSINE_WEIGHT])

    return fitted_regression(problem, features)


def fitted_regression(problem: Problem, features: Callable[[Part], Any]) -> tuple[Predict, Row]:
    """Fit logistic or ridge regression, whose penalty is chosen by cross-validation."""
    # Not LogisticRegressionCV: it fails if a fold has no row of a class, which is the rule with 50 rows and 77 classes.
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold, StratifiedKFold

    task, targets, matrix = problem.task, problem.targets, features(problem.train)
    outputs = len(problem.known) or 1
    strengths = [1 / strength for strength in STRENGTHS] if task == SCORE else STRENGTHS

    def fit(rows: Any, wanted: Array, strength: float) -> Callable[[Any], Array]:
        if task == SCORE:
            ridge = Ridge(alpha=strength).fit(rows, wanted)
            return lambda others: np.asarray(ridge.predict(others))
        if task == CLASSES:
            return logistic(rows, wanted, strength, outputs)
        each = [logistic(rows, column, strength, 2) for column in wanted.T]
        return lambda others: np.stack([one(others)[:, 1] for one in each], axis=1)

    def loss(found: Array, wanted: Array) -> float:
        if task == SCORE:
            return float(np.square(found - wanted).mean())
        if task == SEVERAL:
            return labels_loss(found, wanted)
        return float(-np.log(np.clip(found[np.arange(len(wanted)), wanted], FLOOR, 1)).mean())

    splitter = KFold(FOLDS, shuffle=True, random_state=problem.seed)
    if task == CLASSES and np.bincount(targets).max() >= FOLDS:
        splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=problem.seed)
    folds = [*splitter.split(np.zeros(len(targets)), targets)]
    folds = folds if len(targets) * outputs <= MOST_FOLDED else folds[:1]
    losses = {
        strength: np.mean([loss(fit(matrix[own], targets[own], strength)(matrix[held]), targets[held]) for own, held in folds])
        for strength in strengths
    }
    best = min(losses, key=lambda one: losses[one])
    predict = fit(matrix, targets, best)
    return lambda part: Answers(predict(features(part)), problem.known), {"strength": best}


def logistic(rows: Any, wanted: Array, strength: float, outputs: int) -> Callable[[Any], Array]:
    """Return a function that predicts probabilities. A class without rows has none; a single class has all."""
    from sklearn.linear_model import LogisticRegression

    classes = np.unique(wanted)
    model = LogisticRegression(C=strength, max_iter=1_000).fit(rows, wanted) if len(classes) > 1 else None

    def predict(others: Any) -> Array:
        likely = np.zeros((others.shape[0], outputs))
        likely[:, classes] = model.predict_proba(others) if model is not None else 1.0
        return likely

    return predict


# --- other libraries -----------------------------------------------------------------------------------------------------
def train_setfit(problem: Problem) -> tuple[Predict, Row]:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments
    from transformers import set_seed

    set_seed(problem.seed)
    model = SetFitModel.from_pretrained(str(problem.model), device=problem.device)
    rows = Dataset.from_dict({"text": problem.train.columns[0], "label": problem.targets.tolist()})
    folder = str(problem.scratch / "setfit")
    quiet: Row = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "show_progress_bar": False}
    trainer = Trainer(model=model, args=TrainingArguments(output_dir=folder, seed=problem.seed, **quiet), train_dataset=rows)
    trainer.train()

    def predict(part: Part) -> Answers:
        return Answers(np.asarray(model.predict_proba(part.columns[0], as_numpy=True)), problem.known)

    return predict, {}


def train_transformers(problem: Problem) -> tuple[Predict, Row]:
    """Train a classifier of transformers by its Trainer with its defaults: 3 epochs, batches of 8, 5e-5, no warm-up."""
    from transformers import AutoModelForSequenceClassification as Classifier
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

    if problem.task == CLASSES and len(problem.known) < 2:
        raise ValueError("a classifier with one class is a regression in transformers")
    set_seed(problem.seed)
    tokenizer = AutoTokenizer.from_pretrained(problem.model)
    model = Classifier.from_pretrained(problem.model, num_labels=max(len(problem.known), 1), problem_type=SCHEMES[problem.task])

    def rows(part: Part, labels: Array | None = None) -> list[Row]:
        encoded = tokenizer(*part.columns, truncation=True)
        found = [{name: values[place] for name, values in encoded.items()} for place in range(len(part.texts))]
        if labels is not None:
            kind = np.int64 if problem.task == CLASSES else np.float32
            found = [{**row, "labels": label} for row, label in zip(found, labels.astype(kind).tolist(), strict=True)]
        return found

    quiet: Row = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    args = TrainingArguments(str(problem.scratch / "trainer"), seed=problem.seed, use_cpu=problem.device == "cpu", **quiet)
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model=model, args=args, train_dataset=rows(problem.train, problem.targets), data_collator=collator)
    trainer.train()

    def predict(part: Part) -> Answers:
        logits = np.asarray(trainer.predict(rows(part)).predictions, dtype=np.float64)
        if problem.task == SCORE:
            return Answers(logits[:, 0])
        if problem.task == SEVERAL:
            return Answers(1 / (1 + np.exp(-logits)), problem.known)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return Answers(powers / powers.sum(axis=1, keepdims=True), problem.known)

    return predict, {"steps": trainer.state.max_steps}


METHODS: dict[str, Callable[[Problem], tuple[Predict, Row]]] = {
    "ours": train_ours,
    "frozen": partial(train_ours, training={"method": "frozen"}),
    "fine_tune": partial(train_ours, training={"method": "fine_tune"}),
    # The course validates on a split of its own, so that all rows are trained on.
    "notes": partial(train_ours, training=NOTES, temperature=1.0, share=0.0),
    "words": train_words,
    "frozen_sklearn": train_frozen_reference,
    "trainer": train_transformers,
    "setfit": train_setfit,
}


# --- running the jobs ----------------------------------------------------------------------------------------------------
def has_job(job: Job, pairs: bool) -> bool:
    return job.method != "setfit" or (task_of(job.set) == CLASSES and not pairs and job.rows <= MOST_SETFIT_ROWS)


def jobs_of(given: argparse.Namespace) -> list[Job]:
    """Return all jobs: seed by seed and the small ones first, so that a part of them is a whole benchmark."""
    names = given.only or [name for name in SETS if SETS[name].role != FINAL and (given.sets / name / "pool.csv").exists()]
    pools = {name: read_part.__wrapped__(given.sets / name / "pool.csv") for name in names}
    jobs = [
        Job(name, rows, seed, NO_MODEL if method == "words" else model.name, method)
        for seed in range(1, given.seeds + 1)
        for rows in given.rows
        for name in names
        if rows <= len(pools[name].labels)
        for model in given.models
        for method in given.methods
    ]
    return [job for job in dict.fromkeys(jobs) if has_job(job, len(pools[job.set].texts[0]) == 2)]


def read_results(path: Path) -> list[Row]:
    """Return the lines of the results. The last line may be incomplete after a kill."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def job_of(line: Row) -> Job:
    return Job(**{entry.name: line[entry.name] for entry in fields(Job)})


def run_job(job: Job, sets: Path, models: dict[str, Path], device: str, scratch: Path) -> Row:
    """Train and judge one job, and return its line of the results."""
    # Nothing is read that another job has computed.
    os.environ["GLASSLOOP_CACHE"] = str(scratch / "cache")
    line: Row = {**asdict(job), "task": task_of(job.set)}
    try:
        problem = make_problem(job, sets, models.get(job.model, Path()), device, scratch)
        began = time.perf_counter()
        predict, facts = METHODS[job.method](problem)
        seconds = time.perf_counter() - began
        figures = scores_of(problem, predict(problem.test))
        line |= {name: round(value, 6) for name, value in figures.items()}
        line |= {"seconds": round(seconds, 3), "known": len(problem.known), "test_rows": len(problem.test.texts)}
        line["settings"] = facts
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        line["error"] = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"[:600]
    return line


def work(pipe: Connection, sets: Path, models: dict[str, Path], device: str, threads: int) -> None:
    """Run the jobs that come through a pipe, one after the other, in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    for name in LOADED:  # before the first job, whose time this would be
        with suppress(ImportError):
            import_module(name)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    torch.ones(1, device=device)
    facts = {"versions": versions(), "device": torch.cuda.get_device_name() if device == "cuda" else device}
    # Silent: libraries of many processes would write into one terminal. Their loggers keep the streams they were loaded with.
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    warnings.simplefilter("ignore")
    while True:
        try:
            job, scratch = pipe.recv()
        except EOFError:
            return
        line = run_job(job, sets, models, device, scratch)
        pipe.send({**line, **facts})
        if spoiled(line):
            return
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def spoiled(line: Row) -> bool:
    return any(word in line.get("error", "") for word in SPOILED)


def versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if "glassloop" not in found:  # on the path, but not installed
        import glassloop

        found["glassloop"] = glassloop.__version__
    return found


class Worker:
    """A process that runs jobs, the job it is at, and when it began."""

    def __init__(self, given: argparse.Namespace, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, given.sets, {model.name: model for model in given.models}, given.device, threads)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.began = 0.0
        self.scratch = Path()

    def start(self, job: Job, scratch: Path) -> None:
        self.job, self.began, self.scratch = job, time.monotonic(), scratch
        scratch.mkdir()
        self.pipe.send((job, scratch))

    def finish(self) -> Row:
        """Return the line of the finished job, or what ended the process."""
        assert self.job is not None
        try:
            line: Row = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            if self.process.exitcode == 1:  # an exception outside of a job, whose traceback is printed
                raise SystemExit("a worker could not start") from None
            line = {**asdict(self.job), "task": task_of(self.job.set)}
            line["error"] = f"the process ended with status {self.process.exitcode}"
        self.job = None
        shutil.rmtree(self.scratch, ignore_errors=True)
        return line

    def stop(self) -> None:
        """End the process, at once if it is at a job: some of its libraries wait for the end of a step."""
        self.pipe.close()
        self.process.join(0 if self.job else SECONDS_TO_END)
        self.process.kill()
        self.process.join()
        if self.job is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.job = None


def run(given: argparse.Namespace) -> None:
    began = time.monotonic()
    done = {job_of(line) for line in read_results(given.out) if not (given.retry and "error" in line)}
    asked = jobs_of(given)
    waiting = [job for job in asked if job not in done]
    workers = max(1, min(given.workers, len(waiting)))
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    print(
        f"{len(asked):,} jobs, {len(asked) - len(waiting):,} done before; {workers} workers with {threads} threads", flush=True
    )
    # Read by the libraries of the children when they are loaded; nothing is looked up in a network.
    os.environ |= {
        name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    }
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.out.exists() and not given.out.read_bytes().endswith(b"\n"):  # a line that a kill has cut
        with given.out.open("a", encoding="utf-8") as opened:
            opened.write("\n")
    total, number = len(waiting), 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, given.out.open("a", encoding="utf-8") as opened:
        busy = [Worker(given, threads) for _ in range(workers)] if waiting else []
        try:
            while waiting or any(worker.job for worker in busy):
                now = time.monotonic()
                if given.seconds and now - began > given.seconds:
                    left = len(waiting) + sum(worker.job is not None for worker in busy)
                    print(f"stopped after {now - began:.0f} s with {left:,} jobs left; the same call continues", flush=True)
                    break
                for worker in busy:
                    if worker.job is None and waiting:
                        number += 1
                        worker.start(waiting.pop(0), Path(folder) / str(number))
                ready = {*wait([worker.pipe for worker in busy if worker.job], timeout=1.0)}
                for place, worker in enumerate(busy):
                    late = worker.job and given.job_seconds and time.monotonic() - worker.began > given.job_seconds
                    if worker.pipe in ready:
                        line = worker.finish()
                    elif late and worker.job:
                        line = {**asdict(worker.job), "task": task_of(worker.job.set)}
                        line["error"] = f"stopped after {given.job_seconds:g} s"
                        worker.stop()
                    else:
                        continue
                    line["workers"] = workers
                    opened.write(json.dumps(line) + "\n")
                    opened.flush()
                    show(line, total, total - len(waiting) - sum(one.job is not None for one in busy))
                    if spoiled(line) or not worker.process.is_alive():
                        worker.stop()
                        busy[place] = Worker(given, threads)
        finally:
            for worker in busy:
                worker.stop()
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def show(line: Row, total: int, number: int) -> None:
    task = line["task"]
    result = line.get("error") or f"{line[MAIN[task]]:.3f} / {line[LOSS[task]]:.3f} in {line['seconds']:.1f} s"
    print(
        f"{number:5,}/{total:,} {line['set']} {line['rows']} {line['seed']} {line['model']} {line['method']}: {result}",
        flush=True,
    )


# --- the tables ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """One job of the method that is compared, and the same job of another one."""

    own: Row
    other: Row

    @property
    def points(self) -> float:
        return float(100 * (main_of(self.own) - main_of(self.other)))

    @property
    def loss(self) -> float:
        return loss_of(self.own) - loss_of(self.other)

    @property
    def cell(self) -> str:
        return f"{self.own['set']} {self.own['rows']}"


def main_of(line: Row) -> float:
    return float(line[MAIN[line["task"]]])


def loss_of(line: Row) -> float:
    return float(line[LOSS[line["task"]]])


def prior_of(line: Row) -> float:
    return float(line[f"prior_{LOSS[line['task']]}"])


def mean(values: Iterable[float]) -> float:
    return float(np.mean([*values]))


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def pairs_of(lines: list[Row], own: str, other: str) -> list[Pair]:
    """Return all jobs that both methods have. A method without a model is compared with all models."""
    others = grouped(
        (line for line in lines if line["method"] == other), lambda line: (line["set"], line["rows"], line["seed"])
    )
    return [
        Pair(line, peer)
        for line in lines
        if line["method"] == own
        for peer in others.get((line["set"], line["rows"], line["seed"]), ())
        if peer["model"] == line["model"] or NO_MODEL in (peer["model"], line["model"])
    ]


def interval(by_set: Sequence[float], digits: int) -> str:
    """Return the mean of data sets, and its 95% interval by drawing data sets with replacement."""
    values = np.array(by_set)
    drawn = values[np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return f"{values.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def comparison(lines: list[Row], own: str, methods: Sequence[str]) -> list[str]:
    """Return a table of the differences between one method and each other, in which each data set has the same weight."""
    rows = [
        f"| {own} against | sets | jobs | points | log loss | lower loss | furthest behind | of one size | s | its s |",
        "|---|---:|---:|---|---|---|---|---|---:|---:|",
    ]
    for other in methods:
        pairs = pairs_of(lines, own, other)
        if other == own or not pairs:
            continue
        by_set = grouped(pairs, lambda pair: pair.own["set"])
        points = {name: mean(pair.points for pair in some) for name, some in by_set.items()}
        losses = {name: mean(pair.loss for pair in some) for name, some in by_set.items()}
        cells = {name: mean(pair.points for pair in some) for name, some in grouped(pairs, lambda pair: pair.cell).items()}
        of_labels = [losses[name] for name in losses if task_of(name) != SCORE]
        better = sum(value < 0 for value in losses.values())
        worst = min(points, key=points.__getitem__)
        worst_cell = min(cells, key=cells.__getitem__)
        seconds = [mean(getattr(pair, side)["seconds"] for pair in pairs) for side in ("own", "other")]
        cells_of_row = [other, str(len(by_set)), f"{len(pairs):,}", interval([*points.values()], 1)]
        cells_of_row += [interval(of_labels, 3) if of_labels else "", f"{better} of {len(losses)} ({better / len(losses):.0%})"]
        cells_of_row += [f"{points[worst]:+.1f} {worst}", f"{cells[worst_cell]:+.1f} {worst_cell}"]
        rows.append("| " + " | ".join([*cells_of_row, *(f"{value:.1f}" for value in seconds)]) + " |")
    return rows


def summary(lines: list[Row], methods: Sequence[str]) -> list[str]:
    """Return a table of the means of each method over its own jobs."""
    rows = [
        "| method | sets | jobs | accuracy | log loss | Brier score | calibration error | loss above the frequencies' | "
        "of one size and model | s |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|---:|",
    ]
    for method in methods:
        if not (own := [line for line in lines if line["method"] == method]):
            continue
        labelled = [line for line in own if line["task"] != SCORE]
        by_set = grouped(own, lambda line: line["set"])
        cells = grouped(own, lambda line: (line["set"], line["rows"], line["model"]))
        worse = [name for name, some in by_set.items() if mean(map(loss_of, some)) > mean(map(prior_of, some))]
        worse_cells = sum(mean(map(loss_of, some)) > mean(map(prior_of, some)) for some in cells.values())
        figures = [f"{mean(map(main_of, own)):.3f}"]
        figures += [f"{mean(line[name] for line in labelled):.3f}" if labelled else "" for name in ("log_loss", "brier", "ece")]
        named = f"{len(worse)} of {len(by_set)}" + (f": {', '.join(worse[:4])}{' …' * (len(worse) > 4)}" if worse else "")
        row = [method, str(len(by_set)), f"{len(own):,}", *figures, named, f"{worse_cells} of {len(cells)}"]
        rows.append("| " + " | ".join([*row, f"{mean(line['seconds'] for line in own):.1f}"]) + " |")
    return rows


def details(lines: list[Row], methods: Sequence[str], model: str) -> list[str]:
    """Return a table of accuracy and loss of each method on each data set and size, as means over random seeds."""
    own = [line for line in lines if line["model"] in (model, NO_MODEL)]
    present = [method for method in methods if any(line["method"] == method for line in own)]
    rows = ["| set | rows | frequencies | " + " | ".join(present) + " |", "|---|---:|---|" + "---|" * len(present)]
    order = {name: place for place, name in enumerate(SETS)}
    cells = grouped(own, lambda line: (order.get(line["set"], len(order)), line["set"], line["rows"]))
    for (_, name, size), some in sorted(cells.items()):
        by_method = grouped(some, lambda line: line["method"])
        shown = [
            f"{mean(map(main_of, by_method[method])):.3f} / {mean(map(loss_of, by_method[method])):.2f}"
            if method in by_method
            else ""
            for method in present
        ]
        prior = mean(map(prior_of, some))
        rows.append(f"| {name} | {size:,} | {prior:.2f} | " + " | ".join(shown) + " |")
    return rows


def table(given: argparse.Namespace) -> None:
    latest = {job_of(line): line for path in given.results for line in read_results(path)}
    lines = [line for line in latest.values() if "error" not in line]
    failed = [line for line in latest.values() if "error" in line]
    methods = [name for name in METHODS if any(line["method"] == name for line in lines)]
    models = sorted({line["model"] for line in lines} - {NO_MODEL})
    print(
        "Accuracy is the micro-averaged F1 score for several labels and Pearson's correlation for scores. Log loss is the mean"
    )
    print("squared error for scores, which the mean of the log losses leaves out. Intervals: 95%, over data sets.")
    roles = {name: SETS[name].role if name in SETS else HELD_OUT for name in {line["set"] for line in lines}}
    known = [line for line in lines if roles[line["set"]] != FINAL]
    for title, some in (
        ("all data sets", known),
        ("data sets that defaults were chosen on", [line for line in known if roles[line["set"]] == CHOSEN_ON]),
        ("data sets that played no part in choosing", [line for line in known if roles[line["set"]] == HELD_OUT]),
        ("data sets of the final check", [line for line in lines if roles[line["set"]] == FINAL]),
    ):
        if some:
            print(f"\n### {title.capitalize()}\n")
            print(*comparison(some, given.against, methods), sep="\n")
            print("", *summary(some, methods), sep="\n")
    for model in models:
        print(f"\n### {model}: accuracy / log loss\n")
        print(*details(lines, methods, model), sep="\n")
    if failed:
        print(f"\n{len(failed):,} jobs failed:")
        for error, number in Counter(f"{line['method']}: {line['error']}"[:200] for line in failed).most_common(20):
            print(f"{number:5,} {error}")


def main() -> None:
    """Run jobs, or show tables of their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="run the jobs that the results do not have yet")
    running.add_argument("--sets", type=Path, required=True, help="folder that quality_sets.py wrote")
    running.add_argument("--models", type=Path, nargs="+", required=True, help="folders of sentence-embedding models")
    running.add_argument("--out", type=Path, required=True, help="results, as JSON lines; new ones are appended")
    running.add_argument("--rows", type=numbers, default=numbers(SIZES), help=f"numbers of training rows (default: {SIZES})")
    running.add_argument("--seeds", type=int, default=SEEDS, help=f"number of random seeds (default: {SEEDS})")
    running.add_argument("--methods", type=words, default=[*METHODS], help=f"default: {','.join(METHODS)}")
    running.add_argument("--only", type=words, help="names of data sets, separated by commas (default: all but the final ones)")
    running.add_argument("--workers", type=int, default=1, help="number of processes that share the device (default: 1)")
    running.add_argument("--seconds", type=float, help="stop after this time; unfinished jobs are run by the next call")
    running.add_argument(
        "--job_seconds", type=float, help="stop a job after this time, as failed; the start of its process counts"
    )
    running.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    running.add_argument("--retry", action="store_true", help="run failed jobs again")
    running.set_defaults(call=run)
    showing = commands.add_parser("table", help="show results as Markdown tables")
    showing.add_argument("results", type=Path, nargs="+")
    showing.add_argument("--against", default="ours", choices=METHODS, help="method to compare the others with (default: ours)")
    showing.set_defaults(call=table)
    given = parser.parse_args()
    if unknown := [name for name in getattr(given, "methods", ()) if name not in METHODS]:
        parser.error(f"there is no method {unknown[0]}; use {', '.join(METHODS)}")
    given.call(given)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
