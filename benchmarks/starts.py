"""What a training starts from: how large a share of the regression on embeddings, for how many epochs, at which learning rate.

    python benchmarks/starts.py run --sets SETS --model MODEL --out RESULTS.jsonl [--workers 6]
    python benchmarks/starts.py run --sets SETS --model MODEL --out RESULTS.jsonl --rows 200,1000 --epochs 3,6 --shares 0.3,1
    python benchmarks/starts.py run --sets SETS --model MODEL --out NOTES.jsonl --notes
    python benchmarks/starts.py table RESULTS.jsonl [--by_set]

SETS is a folder of `quality_sets.py`; banking:20 is banking with 20 of its labels. MODEL is a BERT-like encoder. Models that
differ only in their rows, first head and learning rate are trained side by side: their weights lie in one block, and each
operation of a step runs for all of them, which a GPU does in little more time than for one. Without dropout (`--dropout 0`)
each model ends as it would alone (`--stack 1`); with dropout, its random numbers depend on its neighbours.

Without options, each number of rows has the epochs, learning rates and shares of `MAIN`, from which the default rule was
chosen. `--notes` trains with the settings of the course instead. Options replace values of either, in all combinations that
exist: the regression reads a pair in two towers, the head of the family in one sequence. Finished models are lines of the
results; the same call continues after a kill. Log losses are measured at the best temperature for the test rows, and at 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality import FLOOR, SCHEMES, Part, Row, grouped, interval, label_names, mean, numbers, read_part, read_results, words
from quality_sets import CHOSEN_ON, CLASSES, SCORE, SETS, SEVERAL
from torch.nn import functional

from glassloop.models.loading import declared_by
from glassloop.models.pooled import INITIAL_DEVIATION, Pooling, pooled
from glassloop.predict.baselines import FittedHead, fit_linear
from glassloop.scores.calibration import skill_of
from glassloop.settings.training import ONE_SEQUENCE, TWO_TOWERS

ONE_TEXT = "one_text"
FROZEN, REGRESSION, FAMILY, MEAN = "frozen", "regression", "family", "mean"
HEADS = {  # and what they read
    REGRESSION: (ONE_TEXT, TWO_TOWERS),
    FAMILY: (ONE_TEXT, ONE_SEQUENCE),
    MEAN: (ONE_TEXT, TWO_TOWERS, ONE_SEQUENCE),
}
MAX_TOKENS, MULTIPLE, TEST_BATCH, EMBEDDING_BATCH = 128, 8, 64, 256
BETAS, EPSILON, MAX_NORM = (0.9, 0.999), 1e-8, 1.0  # of AdamW, and of the gradient of a model
BIAS_OF_ABSENT = -6.0  # of a class without training rows, to which the regression is not fitted
TEMPERATURES = [math.exp(power) for power in np.linspace(-1.5, 2.2, 75)]
SETS_OF_TABLE = (*(name for name, found in SETS.items() if found.role == CHOSEN_ON), "banking:20")
Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]


# --- what is trained -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plan:
    """Trainings that are all combinations of these values."""

    epochs: tuple[int, ...]
    rates: tuple[float, ...]
    shares: tuple[float, ...] = (1.0,)
    heads: tuple[str, ...] = (REGRESSION,)
    forms: tuple[str, ...] = (TWO_TOWERS,)  # of pairs
    draws: int = 3  # of training rows
    batch: int = 16
    warmup: float = 0.1
    weight_decay: float = 0.01


ALL_SHARES, SHARES_OF_PAIRS = (0.15, 0.3, 0.5, 1.0), (0.25, 0.5, 1.0)
# The main table: trainings by the number of rows, of single texts and of pairs.
MAIN = {
    1: {
        50: [Plan((20,), (5e-5, 1e-4), ALL_SHARES)],
        200: [Plan((6,), (5e-5, 1e-4), ALL_SHARES)],
        1_000: [Plan((3,), (5e-5, 1e-4), ALL_SHARES)],
        4_000: [Plan((2, 3), (5e-5,), (0.3, 1.0), (REGRESSION, MEAN), draws=2)],
    },
    2: {
        50: [Plan((5,), (2e-5, 5e-5), SHARES_OF_PAIRS)],
        200: [Plan((5,), (2e-5, 5e-5), SHARES_OF_PAIRS)],
        1_000: [Plan((3,), (2e-5, 5e-5), SHARES_OF_PAIRS)],
        4_000: [
            Plan((2, 4), (2e-5, 5e-5), (0.4, 1.0), draws=2),
            Plan((4,), (1e-4,), heads=(MEAN,), forms=(ONE_SEQUENCE,), draws=2),
        ],
    },
}
NOTES = Plan((3,), (5e-5,), heads=(FAMILY,), forms=(ONE_SEQUENCE,), draws=2, batch=8, warmup=0.0, weight_decay=0.0)
NOTES_BY_ROWS = {50: [NOTES], 200: [NOTES], 1_000: [NOTES], 5_000: [replace(NOTES, draws=1)]}


@dataclass(frozen=True)
class Training:
    """One model: its draw of training rows, what it starts from and how it is trained."""

    draw: int
    form: str
    head: str
    share: float = 0.0  # of the regression
    rate: float = 0.0
    epochs: int = 0
    batch: int = 0
    warmup: float = 0.0
    weight_decay: float = 0.0

    @property
    def shape(self) -> tuple[object, ...]:
        """What models that are trained side by side have in common."""
        return self.form, self.head, self.epochs, self.batch, self.warmup, self.weight_decay


def trainings_of(given: argparse.Namespace, rows: int, texts: int) -> list[Training]:
    """Return the trainings of a number of rows, for a number of texts per row. Options replace the values of plans."""
    by_rows = NOTES_BY_ROWS if given.notes else MAIN[texts]
    plans = by_rows[max((size for size in by_rows if size <= rows), default=min(by_rows))]
    options = {entry.name: value for entry in fields(Plan) if (value := getattr(given, entry.name, None)) is not None}
    found: list[Training] = []
    for plan in (replace(one, **options) for one in plans):
        forms = (ONE_TEXT,) if texts == 1 else plan.forms
        draws, others = range(1, plan.draws + 1), (plan.batch, plan.warmup, plan.weight_decay)
        found += [
            Training(draw, form, head, share, rate, epochs, *others)
            for epochs, form, head in product(plan.epochs, forms, plan.heads)
            if form in HEADS[head]
            for draw, share, rate in product(draws, plan.shares if head == REGRESSION else (0.0,), plan.rates)
        ]
    return [*dict.fromkeys(found)]


# --- the data ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tokens:
    """The padded texts of a part, as numbers of the words in use."""

    ids: torch.Tensor
    types: torch.Tensor
    mask: torch.Tensor
    lengths: Array
    per_row: int  # texts

    def batch(self, rows: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids, types and mask (models x texts x tokens) of rows (models x rows)."""
        texts = (rows[..., None] * self.per_row + np.arange(self.per_row)).reshape(len(rows), -1)
        longest = -(-int(self.lengths[texts].max()) // MULTIPLE) * MULTIPLE
        chosen = torch.from_numpy(texts).to(self.ids.device)
        return self.ids[chosen, :longest], self.types[chosen, :longest], self.mask[chosen, :longest]

    @property
    def by_length(self) -> Array:
        return np.argsort(-self.lengths.reshape(-1, self.per_row).sum(axis=1), kind="stable")


class Task:
    """A data set as token ids, and the encoder that all models start from."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.pool, test, self.kind = read_set(name, given.sets)
        self.test = test.take(range(min(given.test_rows or len(test.labels), len(test.labels))))
        self.names = label_names(self.kind, self.pool)
        self.outputs = 1 if self.kind == SCORE else len(self.names)
        self.device = torch.device(given.device)
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        encoder = AutoModel.from_pretrained(given.model).float()
        self.config = encoder.config
        self.pretrained: Tensors = {name: value.detach().to(self.device) for name, value in encoder.state_dict().items()}
        self.declared = declared_by(str(given.model))[0] or Pooling("mean")
        self.own_form = TWO_TOWERS if len(self.pool.texts[0]) == 2 else ONE_TEXT  # of the regression
        forms = (TWO_TOWERS, ONE_SEQUENCE) if self.own_form == TWO_TOWERS else (ONE_TEXT,)
        self.encoded = {form: self.encode(form) for form in forms}

    def encode(self, form: str) -> tuple[torch.Tensor, Tokens, Tokens]:
        """Return the words in use, and both parts as their numbers: models then have no vectors of other words."""
        found = []
        for part in (self.pool, self.test):
            columns = part.columns if form == ONE_SEQUENCE else [[text for row in part.texts for text in row]]
            options = {"truncation": True, "max_length": MAX_TOKENS, "padding": True, "pad_to_multiple_of": MULTIPLE}
            found.append(self.tokenizer(*columns, return_tensors="np", return_token_type_ids=True, **options))
        used = np.unique(np.concatenate([one["input_ids"].ravel() for one in found]))
        parts = []
        for one in found:
            grids = np.searchsorted(used, one["input_ids"]), one["token_type_ids"], one["attention_mask"] == 1
            ids, types, mask = (torch.from_numpy(grid).to(self.device) for grid in grids)
            parts.append(Tokens(ids, types, mask, one["attention_mask"].sum(axis=1), 1 + (form == TWO_TOWERS)))
        return torch.from_numpy(used).to(self.device), parts[0], parts[1]

    def targets(self, part: Part) -> torch.Tensor:
        wanted = torch.from_numpy(part.targets(self.kind, self.names)).to(self.device)
        return wanted if self.kind == CLASSES else wanted.float()

    def pooling(self, head: str, form: str) -> Pooling | None:
        """Return what a head reads; None for the pooler of the family."""
        if head == FAMILY:
            return None
        pooling = Pooling("mean") if head == MEAN else self.declared
        return replace(pooling, towers=form == TWO_TOWERS)

    def width(self, head: str, form: str) -> int:
        """Return how many features a head reads."""
        pooling, width = self.pooling(head, form), int(self.config.hidden_size)
        return width if pooling is None else pooling.num_features(width)

    def rows_of(self, draw: int, number: int) -> Array:
        return np.random.default_rng(draw).permutation(len(self.pool.labels))[:number]

    def fitted(self, features: Array, part: Part) -> FittedHead | None:
        """Fit the regression; None if all rows have the same class."""
        targets, outputs, scheme = part.targets(self.kind, self.names), self.outputs, SCHEMES[self.kind]
        if self.kind == CLASSES:
            present, targets = np.unique(targets, return_inverse=True)
            outputs = len(present)
            if outputs < 2:
                return None
        linear = fit_linear(features, targets, scheme, outputs)
        skill = skill_of(linear.held_out, targets, scheme, outputs)
        if self.kind == CLASSES:
            weights, bias = np.zeros((features.shape[1], self.outputs)), np.full(self.outputs, BIAS_OF_ABSENT)
            weights[:, present], bias[present] = linear.weights, linear.bias
            linear = replace(linear, weights=weights, bias=bias)
        return FittedHead(linear, np.arange(len(features)), 0.0, skill, features.mean(axis=0))

    def random_head(self, draw: int, width: int) -> Tensors:
        generator = torch.Generator().manual_seed(draw)
        weight = torch.randn(self.outputs, width, generator=generator) * INITIAL_DEVIATION
        return {"weight": weight, "bias": torch.zeros(self.outputs)}


def read_set(name: str, sets: Path) -> tuple[Part, Part, str]:
    """Return pool and test rows of a data set, and its task. After a colon is the number of labels to keep."""
    name, _, most = name.partition(":")
    pool, test = (read_part(sets / name / f"{part}.csv") for part in ("pool", "test"))
    if most:
        labels = sorted({*pool.labels})
        kept = labels[:: -(-len(labels) // int(most))]
        pool, test = (part.take(np.flatnonzero(np.isin(part.labels, kept))) for part in (pool, test))
    return pool, test, SETS[name].task


# --- models side by side -------------------------------------------------------------------------------------------------
class Stack:
    """Models with the same shapes, whose weights lie in one block: the first dimension of everything is the model."""

    def __init__(self, task: Task, form: str, head: str, heads: Sequence[Tensors]) -> None:
        used, self.number, self.config = task.encoded[form][0], len(heads), task.config
        self.pooling, self.dropout = task.pooling(head, form), 0.0
        values = {}
        for name, value in task.pretrained.items():
            if "position_ids" in name or (name.startswith("pooler") and self.pooling is not None):
                continue
            value = value[used] if "word_embeddings" in name else value
            value = value[:MAX_TOKENS] if "position_embeddings" in name else value
            values[name] = value.expand(self.number, *value.shape)
        for name in ("weight", "bias"):
            values[f"head.{name}"] = torch.stack([one[name] for one in heads]).to(task.device)
        self.flat = torch.cat([value.flatten(1) for value in values.values()], dim=1)
        self.slope, self.first, self.second = (torch.zeros_like(self.flat) for _ in range(3))
        self.is_matrix = torch.zeros_like(self.flat[:1])  # only matrices have weight decay
        self.weights: Tensors = {}
        start = 0
        for name, value in values.items():
            part = slice(start, start := start + value[0].numel())
            self.weights[name] = self.flat[:, part].view(value.shape).detach().requires_grad_()
            self.weights[name].grad = self.slope[:, part].view(value.shape)
            self.is_matrix[:, part] = value.ndim > 2

    def dropped(self, states: torch.Tensor) -> torch.Tensor:
        return functional.dropout(states, self.dropout) if self.dropout else states

    def linear(self, states: torch.Tensor, name: str) -> torch.Tensor:
        return torch.baddbmm(self.weights[f"{name}.bias"][:, None], states, self.weights[f"{name}.weight"].mT)

    def normalized(self, states: torch.Tensor, name: str) -> torch.Tensor:
        scaled = functional.layer_norm(states.float(), states.shape[-1:], eps=self.config.layer_norm_eps)
        return scaled * self.weights[f"{name}.weight"][:, None] + self.weights[f"{name}.bias"][:, None]

    def hidden(self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the vectors of all tokens: models x (texts x tokens) x width."""
        models, texts, length = ids.shape
        one, heads = torch.arange(models, device=ids.device)[:, None, None], self.config.num_attention_heads
        words, places, kinds = (
            self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        states = (words[one, ids] + places[:, None, :length] + kinds[one, types]).flatten(1, 2)
        states = self.dropped(self.normalized(states, "embeddings.LayerNorm"))
        seen = mask.reshape(models * texts, 1, 1, length)
        for number in range(self.config.num_hidden_layers):
            layer = f"encoder.layer.{number}"
            query, key, value = (
                self.linear(states, f"{layer}.attention.self.{name}").view(models * texts, length, heads, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=self.dropout)
            mixed = self.linear(mixed.transpose(1, 2).reshape(states.shape), f"{layer}.attention.output.dense")
            states = self.normalized(self.dropped(mixed) + states, f"{layer}.attention.output.LayerNorm")
            inner = functional.gelu(self.linear(states, f"{layer}.intermediate.dense"))
            outer = self.dropped(self.linear(inner, f"{layer}.output.dense"))
            states = self.normalized(outer + states, f"{layer}.output.LayerNorm")
        return states

    def features(self, tokens: Tokens, rows: Array) -> torch.Tensor:
        """Return what the heads read: models x rows x features."""
        ids, types, mask = tokens.batch(rows)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
            hidden = self.hidden(ids, types, mask).float()
        by_text = hidden.view(mask.numel() // mask.shape[-1], mask.shape[-1], -1)
        if self.pooling is None:
            first = by_text[:, 0].view(*rows.shape, -1)
            return self.dropped(torch.tanh(self.linear(first, "pooler.dense")))
        vectors = pooled(by_text, mask.flatten(0, 1), self.pooling.mode)
        return self.pooling.features(vectors).view(*rows.shape, -1)

    def logits(self, tokens: Tokens, rows: Array) -> torch.Tensor:
        return self.linear(self.features(tokens, rows), "head").float()

    @torch.no_grad()
    def answers(self, tokens: Tokens) -> torch.Tensor:
        """Return the logits of all rows: models x rows x outputs."""
        order = tokens.by_length
        parts = [order[start : start + TEST_BATCH] for start in range(0, len(order), TEST_BATCH)]
        found = torch.cat([self.logits(tokens, np.tile(part, (self.number, 1))) for part in parts], dim=1)
        return found[:, torch.from_numpy(np.argsort(order)).to(found.device)]


def adamw(
    flat: torch.Tensor, slope: torch.Tensor, first: torch.Tensor, second: torch.Tensor, decayed: torch.Tensor,
    rates: torch.Tensor, corrections: torch.Tensor,
) -> None:  # fmt: skip
    """Make a step of AdamW after clipping the gradient of each model, and clear the gradients."""
    clipped = slope * torch.clamp(MAX_NORM / (slope.norm(dim=1, keepdim=True) + 1e-6), max=1.0)
    first.lerp_(clipped, 1 - BETAS[0])
    second.lerp_(clipped * clipped, 1 - BETAS[1])
    flat.mul_(1 - rates * decayed)
    flat.sub_(rates * (first / corrections[0]) / ((second / corrections[1]).sqrt() + EPSILON))
    slope.zero_()


def batches_of(trainings: Sequence[Training], rows: Sequence[Array]) -> Iterator[Array]:
    """Yield the rows of each step (models x rows). Models with the same draw have the same batches."""
    generators = [np.random.default_rng((training.draw, 5)) for training in trainings]
    for _ in range(trainings[0].epochs):
        orders = np.stack([own[random.permutation(len(own))] for random, own in zip(generators, rows, strict=True)])
        yield from (orders[:, start : start + trainings[0].batch] for start in range(0, orders.shape[1], trainings[0].batch))


def train(stack: Stack, task: Task, trainings: Sequence[Training], rows: Sequence[Array], dropout: float) -> None:
    """Train models side by side: each has a learning rate, a clipped gradient and a sum of losses of its own."""
    torch.manual_seed(len(rows[0]))
    shared, tokens, targets = trainings[0], task.encoded[trainings[0].form][1], task.targets(task.pool)
    rates = torch.tensor([[training.rate] for training in trainings], device=task.device)
    update = torch.compile(adamw, dynamic=True) if task.device.type == "cuda" else adamw
    steps = shared.epochs * -(-len(rows[0]) // shared.batch)
    warm, decayed = shared.warmup * steps, stack.is_matrix * shared.weight_decay
    stack.dropout = dropout
    for step, batch in enumerate(batches_of(trainings, rows)):
        wanted = targets[torch.from_numpy(batch).to(task.device)]
        losses_of(stack.logits(tokens, batch), wanted, task.kind).flatten(1).mean(1).sum().backward()
        factor = min((step + 1) / warm if step < warm else (steps - step) / max(steps - warm, 1), 1.0)
        corrections = torch.tensor([1 - beta ** (step + 1) for beta in BETAS], device=task.device)
        with torch.no_grad():
            update(stack.flat, stack.slope, stack.first, stack.second, decayed, rates * factor, corrections)
    stack.dropout = 0.0


def losses_of(logits: torch.Tensor, wanted: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the loss of each row, or of each of its labels."""
    if kind == SCORE:
        return (logits.squeeze(-1) - wanted).square()
    if kind == SEVERAL:
        return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return functional.cross_entropy(logits.movedim(-1, 1), wanted, reduction="none")


def judged(logits: torch.Tensor, wanted: torch.Tensor, kind: str) -> Row:
    """Return the figures of one model on test rows. Those with a label that it does not know have no log loss."""
    if kind == SCORE:
        error = float(losses_of(logits, wanted, kind).mean())
        correlation = float(torch.corrcoef(torch.stack([logits[:, 0], wanted]).double())[0, 1].nan_to_num())
        return {"accuracy": correlation, "log_loss": error, "raw_log_loss": error, "temperature": 1.0}
    known: Any = slice(None)
    if kind == SEVERAL:
        chosen = (logits > 0).float()
        accuracy = 2 * float((chosen * wanted).sum()) / max(float((chosen + wanted).sum()), 1)
    else:
        known, accuracy = wanted >= 0, float((logits.argmax(1) == wanted).float().mean())

    def loss(temperature: float) -> float:
        return float(losses_of(logits[known] / temperature, wanted[known], kind).clamp(max=-math.log(FLOOR)).mean())

    best = min(TEMPERATURES, key=loss)
    return {"accuracy": accuracy, "log_loss": loss(best), "raw_log_loss": loss(1.0), "temperature": best}


# --- running the jobs ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """All models of one number of training rows of a data set, without those that the results have."""

    set: str
    rows: int
    trainings: list[Training]
    given: argparse.Namespace

    def line(self, training: Training, figures: Row) -> str:
        identity = {"model": self.given.model.name, "set": self.set, "rows": self.rows, **asdict(training)}
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in figures.items()}
        return json.dumps(identity | rounded) + "\n"


def run_job(job: Job) -> str:
    """Train all models of a job, and return what to show of it."""
    began = time.perf_counter()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // job.given.workers))
    warnings.filterwarnings("ignore", message=".*gradient layout contract")  # gradients lie in a block, too
    try:
        task = Task(job.set, job.given)
        regressions = fit_regressions(job, task)
        able = [training for training in job.trainings if training.draw in regressions and training.head != FROZEN]
        for some in grouped(able, lambda training: training.shape).values():
            for start in range(0, len(some), job.given.stack):
                run_stack(job, task, some[start : start + job.given.stack], regressions)
    except Exception:  # such as too little memory: other jobs may have enough
        return f"{job.set} {job.rows} failed:\n{traceback.format_exc()}"
    finally:
        torch.cuda.empty_cache()  # for the other processes
    return f"{job.set} {job.rows}: {len(able)} models in {time.perf_counter() - began:.0f} s"


def fit_regressions(job: Job, task: Task) -> dict[int, FittedHead]:
    """Return the regression of each draw of rows, and write the figures of those that the results do not have."""
    form, found, lines = task.own_form, {}, []
    frozen = Stack(task, form, REGRESSION, [task.random_head(0, task.width(REGRESSION, form))])
    _, pool, test = task.encoded[form]

    @torch.no_grad()
    def embedded(tokens: Tokens, rows: Array) -> torch.Tensor:
        parts = (rows[None, start : start + EMBEDDING_BATCH] for start in range(0, len(rows), EMBEDDING_BATCH))
        return torch.cat([frozen.features(tokens, part)[0] for part in parts])

    of_test = embedded(test, np.arange(len(task.test.labels)))
    for draw in sorted({training.draw for training in job.trainings}):
        rows = task.rows_of(draw, job.rows)
        if (head := task.fitted(embedded(pool, rows).cpu().numpy(), task.pool.take(rows))) is None:
            continue
        found[draw] = head
        if (training := Training(draw, form, FROZEN)) in job.trainings:
            weight, bias = (head.tensors[name].to(task.device) for name in ("weight", "bias"))
            figures = judged(functional.linear(of_test, weight, bias), task.targets(task.test), task.kind)
            lines.append(job.line(training, {**figures, "skill": head.skill}))
    append(job.given.out, lines)
    return found


def run_stack(job: Job, task: Task, trainings: Sequence[Training], regressions: dict[int, FittedHead]) -> None:
    """Train models side by side, and write their figures."""
    shared, began = trainings[0], time.perf_counter()
    heads = [
        replace(regressions[training.draw], share=training.share).tensors
        if training.head == REGRESSION
        else task.random_head(training.draw, task.width(shared.head, shared.form))
        for training in trainings
    ]
    stack = Stack(task, shared.form, shared.head, heads)
    train(stack, task, trainings, [task.rows_of(training.draw, job.rows) for training in trainings], job.given.dropout)
    logits, wanted = stack.answers(task.encoded[shared.form][2]), task.targets(task.test)
    facts = {"seconds": time.perf_counter() - began, "models": len(trainings)}
    figures = [judged(own, wanted, task.kind) for own in logits]
    skills = [{"skill": regressions[training.draw].skill} for training in trainings]
    append(
        job.given.out,
        [job.line(one, {**own, **skill, **facts}) for one, own, skill in zip(trainings, figures, skills, strict=True)],
    )


def append(path: Path, lines: Sequence[str]) -> None:
    """Write lines at once: several processes write into the same file."""
    with path.open("ab", buffering=0) as opened:
        opened.write("".join(lines).encode())


def jobs_of(given: argparse.Namespace) -> list[Job]:
    """Return the jobs with models that the results do not have yet."""
    names = [entry.name for entry in fields(Training)]
    done: dict[tuple[str, str, int], set[Training]] = defaultdict(set)
    for line in read_results(given.out):
        done[line["model"], line["set"], line["rows"]].add(Training(**{name: line[name] for name in names}))
    jobs = []
    for rows, name in product(given.rows or (NOTES_BY_ROWS if given.notes else MAIN[1]), given.only):
        pool = read_set(name, given.sets)[0]
        if rows > len(pool.labels):
            continue
        texts = len(pool.texts[0])
        wanted = trainings_of(given, rows, texts)
        frozen = {training.draw: Training(training.draw, TWO_TOWERS if texts == 2 else ONE_TEXT, FROZEN) for training in wanted}
        finished = done[given.model.name, name, rows]
        if left := [training for training in (*frozen.values(), *wanted) if training not in finished]:
            jobs.append(Job(name, rows, left, given))
    return jobs


def run(given: argparse.Namespace) -> None:
    if (kind := json.loads((given.model / "config.json").read_text(encoding="utf-8")).get("model_type")) != "bert":
        raise SystemExit(f"{given.model} is of the type {kind}; use an encoder of the type bert")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(given)
    print(f"{len(jobs):,} jobs with {sum(len(job.trainings) for job in jobs):,} models", flush=True)
    with get_context("spawn").Pool(given.workers) as workers:
        for number, shown in enumerate(workers.imap_unordered(run_job, jobs), start=1):
            print(f"{number:4,}/{len(jobs):,} {shown}", flush=True)
        workers.close()
        workers.join()


# --- the tables ----------------------------------------------------------------------------------------------------------
def described(line: Row) -> str:
    share = f" {line['share']:g}" if line["head"] == REGRESSION else ""
    form = {ONE_TEXT: "", TWO_TOWERS: ", towers", ONE_SEQUENCE: ", sequence"}[line["form"]]
    return f"{line['head']}{share}{form}, {line['epochs']} x {line['batch']}, {line['rate']:g}"


def table(given: argparse.Namespace) -> None:
    """Print the difference of each training from the frozen encoder: the mean over data sets, and its interval."""
    lines = [line for path in given.results for line in read_results(path)]
    for model, rows in sorted({(line["model"], line["rows"]) for line in lines}):
        own = [line for line in lines if (line["model"], line["rows"]) == (model, rows)]
        frozen = {(line["set"], line["draw"]): line for line in own if line["head"] == FROZEN}
        trained = grouped((line for line in own if (line["set"], line["draw"]) in frozen and line["head"] != FROZEN), described)
        print(f"\n### {model}, {rows:,} rows, against the frozen encoder\n")
        print("| start, epochs x batch, learning rate | sets | points of accuracy | log loss | log loss, no temperature | s |")
        print("|---|---:|---|---|---|---:|")
        for name, some in sorted(trained.items()):
            apart = {key: differences(some, frozen, key) for key in ("accuracy", "log_loss", "raw_log_loss")}
            shown = [interval([*one.values()], 1 if key == "accuracy" else 3) if one else "" for key, one in apart.items()]
            seconds = mean(line["seconds"] / line["models"] for line in some)
            print(f"| {name} | {len(apart['accuracy'])} | {' | '.join(shown)} | {seconds:.1f} |")
        if given.by_set:
            print(*details(trained, frozen), sep="\n")


def details(trained: dict[str, list[Row]], frozen: dict[tuple[str, int], Row]) -> list[str]:
    """Return a table of points of accuracy and log loss by data set."""
    names = sorted({name for name, _ in frozen})
    rows = ["", "| points / log loss | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for name, some in sorted(trained.items()):
        points, losses = (differences(some, frozen, key, scores=True) for key in ("accuracy", "log_loss"))
        cells = [f"{points[one]:+.1f} / {losses[one]:+.3f}" if one in points else "" for one in names]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def differences(lines: list[Row], frozen: dict[tuple[str, int], Row], key: str, scores: bool = False) -> dict[str, float]:
    """Return the mean difference of each data set. Squared errors are no log losses: only with `scores` they count."""
    factor = 100 if key == "accuracy" else 1
    return {
        name: factor * mean(line[key] - frozen[name, line["draw"]][key] for line in some)
        for name, some in grouped(lines, lambda line: line["set"]).items()
        if scores or key == "accuracy" or SETS[name.partition(":")[0]].task != SCORE
    }


def main() -> None:
    """Train models, or show tables of their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="train the models that the results do not have yet")
    running.add_argument("--sets", type=Path, required=True, help="folder that quality_sets.py wrote")
    running.add_argument("--model", type=Path, required=True, help="folder of a sentence-embedding model of the type bert")
    running.add_argument("--out", type=Path, required=True, help="results, as JSON lines; new ones are appended")
    running.add_argument("--only", type=words, default=[*SETS_OF_TABLE], help=f"default: {','.join(SETS_OF_TABLE)}")
    running.add_argument("--notes", action="store_true", help="the settings of the course in place of the main table's")
    running.add_argument("--rows", type=numbers, help="numbers of training rows")
    running.add_argument("--draws", type=int, help="number of draws of training rows")
    running.add_argument("--heads", type=words, help=f"what heads start from: {', '.join(HEADS)}")
    running.add_argument("--forms", type=words, help=f"how pairs are read: {TWO_TOWERS}, {ONE_SEQUENCE}")
    running.add_argument("--shares", type=decimals, help="shares of the regression")
    running.add_argument("--epochs", type=numbers, help="numbers of epochs")
    running.add_argument("--rates", type=decimals, help="learning rates")
    running.add_argument("--batch", type=int, help="batch size")
    running.add_argument("--dropout", type=float, default=0.1, help="default: 0.1; keep results of others in another file")
    running.add_argument("--test_rows", type=int, help="judge on the first test rows only, to try something quickly")
    running.add_argument("--stack", type=int, default=15, help="maximum number of models side by side (default: 15)")
    running.add_argument("--workers", type=int, default=1, help="number of processes that share the device (default: 1)")
    running.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    running.set_defaults(call=run)
    showing = commands.add_parser("table", help="show results as Markdown tables")
    showing.add_argument("results", type=Path, nargs="+")
    showing.add_argument("--by_set", action="store_true", help="also show each data set")
    showing.set_defaults(call=table)
    given = parser.parse_args()
    for option, known in (("heads", [*HEADS]), ("forms", [TWO_TOWERS, ONE_SEQUENCE])):
        if unknown := [word for word in getattr(given, option, None) or () if word not in known]:
            parser.error(f"there is no {unknown[0]} among the {option}; use {', '.join(known)}")
    given.call(given)


def decimals(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


if __name__ == "__main__":
    main()
