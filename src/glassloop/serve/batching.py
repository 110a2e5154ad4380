"""One queue for all requests: the next batch is chosen by number of tokens, and what a server does is counted."""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from glassloop.base.errors import GlassloopError, no_memory
from glassloop.data.encoding import EncodedText, EncodedTexts
from glassloop.data.interfaces import Texts
from glassloop.serve.limits import BACKEND, TOKENIZER, Refused, overloaded

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)


class Meters(Collector):
    """Everything that a server counts. `gauges` are present values, which the server sets before they are read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.gauges: Mapping[str, float] = {}
        self.requests = self.counter("glassloop_requests", "Answered requests.", "route", "status")
        self.inputs = self.counter("glassloop_inputs", "Texts and pairs that were predicted.", "model")
        self.tokens = self.counter("glassloop_tokens", "Tokens that were predicted.", "model")
        self.truncated = self.counter("glassloop_truncated", "Texts and pairs that were truncated.", "model")
        self.expired = self.counter("glassloop_expired", "Requests that waited too long.")
        self.gone = self.counter("glassloop_disconnected", "Requests whose client closed the connection.")
        self.request = self.histogram("glassloop_request_seconds", "Time to answer a request.")
        self.tokenizing = self.histogram("glassloop_tokenize_seconds", "Time to tokenize a request.")
        self.queueing = self.histogram("glassloop_queue_seconds", "Time from the arrival of a request to its last batch.")
        self.inference = self.histogram("glassloop_inference_seconds", "Time of a forward pass.")
        self.batch_tokens = self.histogram("glassloop_batch_tokens", "Tokens of a batch.", TOKENS)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Return a number that grows, by its labels."""
        return Counter(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...] = SECONDS) -> Histogram:
        """Return how often a value fell between some bounds."""
        return Histogram(name, text, buckets=bounds, registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, without the time at which each one was created."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        for name, value in self.gauges.items():
            yield GaugeMetricFamily(name, "Present value.", value)

    @property
    def answered(self) -> int:
        """The number of requests that were answered."""
        return sum(
            int(one.value) for family in self.requests.collect() for one in family.samples if one.name.endswith("_total")
        )

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self)


BINDING = "OMP_PROC_BIND"


# Whoever sets one of these has decided how many threads there are, and where they run.
CHOICES = (BINDING, "OMP_NUM_THREADS", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def bind_threads() -> Set[int]:
    """Let OpenMP bind each of its threads to a core. Return the cores that this process may use; none if nothing changes.

    Call it before torch is imported. On a machine with few cores, the threads of a small operation otherwise often share a core
    for some milliseconds, because clients and the server itself run on the other one.
    """
    # Unbound, the two threads of an operation often shared one core for some milliseconds. Nothing is bound if somebody
    # set the number of threads: several such servers would all use the first cores.
    if not hasattr(os, "sched_getaffinity") or "torch" in sys.modules or any(os.environ.get(name) for name in CHOICES):
        return set()
    os.environ[BINDING] = "true"
    return os.sched_getaffinity(0)


def free_thread(cores: Set[int]) -> None:
    """Let the calling thread, which OpenMP has bound with its own, run on all of these cores again."""
    if cores:
        os.sched_setaffinity(0, cores)


START_SECONDS_PER_TOKEN = 1e-4  # until a batch has been measured


class Model(Protocol):
    """What a queue needs of a predictor."""

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts as token ids."""

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        """Return the logits of encoded texts."""


@dataclass(frozen=True)
class Answered:
    """The logits of a request, and its texts as token ids."""

    logits: np.ndarray
    texts: EncodedTexts


@dataclass(eq=False)
class Job:
    """A request in the queue."""

    model: int
    columns: Texts
    deadline: float
    arrived: float
    truncate: bool = True
    future: Future[Answered] = field(default_factory=Future)
    texts: EncodedTexts | None = None
    logits: list[np.ndarray | None] = field(default_factory=list)
    missing: int = 0
    left: bool = False  # the client is gone, or the job was refused

    def refuse(self, error: Refused) -> None:
        """End the job with an error."""
        self.left = True
        with suppress(Exception):  # the client is gone
            self.future.set_exception(error)


@dataclass(order=True)
class Entry:
    """One text of a job. Entries are run in the order of `due`: when the text would be done if its job were alone."""

    due: float
    number: int
    row: EncodedText = field(compare=False)
    job: Job = field(compare=False)
    place: int = field(compare=False)


class Batcher:
    """A thread of its own turns waiting texts into token ids, and the thread that calls `run` runs one batch after the other.

    A batch starts as soon as the models are free: a lone request never waits for others. What arrives in the meantime is in the
    next batch. A text of n tokens is due n times the measured time of a token after its request arrived, added up over the
    texts of a request, so that a short request passes a long one, but only requests that arrived before the long one was due.

    A server calls `run` in the thread that loaded the models. OpenMP keeps a pool of threads for each thread that computes.
    With two pools there are more threads than cores. Then waiting threads sleep instead of spinning, and a small batch takes up
    to 1.6 times as long.

    Args:
        models: The models, by their number.
        budget: The number of tokens of a batch.
        meters: Counts what happens.
        clock: Returns the time in seconds.
        cores: The cores for everything but the models, if OpenMP has bound the calling thread to one.
    """

    def __init__(
        self,
        models: Sequence[Model],
        budget: int,
        meters: Meters,
        clock: Callable[[], float] = time.monotonic,
        cores: Set[int] = frozenset(),
    ) -> None:
        self.models, self.budget, self.meters, self.clock, self.cores = models, budget, meters, clock, cores
        self.seconds_per_token = START_SECONDS_PER_TOKEN
        self.incoming: SimpleQueue[Job | None] = SimpleQueue()
        self.entries: list[Entry] = []
        self.changed = threading.Condition()
        self.number, self.waiting_tokens, self.closing, self.running = 0, 0, False, False
        self.tokenizer = threading.Thread(target=self.tokenize, name="tokenizer", daemon=True)

    def end(self) -> None:
        """Let `run` return when everything that waits is answered."""
        self.incoming.put(None)

    def submit(self, model: int, columns: Texts, seconds: float, *, truncate: bool = True) -> Job:
        """Add a request to the queue; its future gets the answer, or a `Refused` after `seconds`."""
        now = self.clock()
        job = Job(model, columns, now + seconds, now, truncate)
        self.incoming.put(job)
        return job

    @property
    def is_alive(self) -> bool:
        """Whether texts are turned into token ids, and batches are run."""
        return self.tokenizer.is_alive() and self.running

    @property
    def waiting_seconds(self) -> float:
        """How long the work in the queue will take."""
        return self.waiting_tokens * self.seconds_per_token

    def tokenize(self) -> None:
        """Turn the texts of waiting jobs into token ids, until the queue is closed."""
        free_thread(self.cores)
        while (job := self.incoming.get()) is not None:
            if job.left:
                continue
            began = self.clock()
            try:
                job.texts = self.models[job.model].encoded(job.columns)
            except Exception as error:
                problem = error.problem if isinstance(error, GlassloopError) else type(error).__name__
                job.refuse(Refused(422, TOKENIZER, f"the texts cannot be tokenized: {problem}"))
                continue
            self.meters.tokenizing.observe(self.clock() - began)
            if not job.truncate and (long := next((row for row in job.texts.rows if row.cut.num_rows), None)) is not None:
                most = f"the model takes {long.num_tokens:,}"
                job.refuse(Refused(413, "Validation", f"a text has {long.cut.longest:,} tokens, but {most}; set truncate"))
                continue
            self.add(job, job.texts.rows)
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def add(self, job: Job, rows: Sequence[EncodedText]) -> None:
        """Add the texts of a job to the entries."""
        # Ordered by when a text would be done if its request were alone: first come, first served lets one long
        # request delay everybody, and shortest first can starve it.
        with self.changed:
            job.logits, job.missing, tokens = [None] * len(rows), len(rows), 0
            for place, row in enumerate(rows):
                tokens += row.num_tokens
                self.number += 1
                due = job.arrived + tokens * self.seconds_per_token
                heapq.heappush(self.entries, Entry(due, self.number, row, job, place))
            self.waiting_tokens += tokens
            self.changed.notify_all()

    def next_batch(self) -> list[Entry]:
        """Return the entries of the next batch: those due first, of one model, up to the budget; expired jobs are refused."""
        # No waiting time for other requests: what arrives during a forward pass forms the next batch. A lone
        # request is answered at once, and under load batches fill by themselves.
        batch: list[Entry] = []
        others: list[Entry] = []
        tokens, now = 0, self.clock()
        while self.entries and tokens < self.budget:
            entry = heapq.heappop(self.entries)
            size = entry.row.num_tokens
            if not entry.job.left and now > entry.job.deadline:
                entry.job.refuse(overloaded("the request waited too long in the queue", self.waiting_seconds))
                self.meters.expired.inc()
            if entry.job.left:
                self.waiting_tokens -= size
            elif batch and (entry.job.model != batch[0].job.model or tokens + size > self.budget):
                others.append(entry)
                if len(others) > len(batch) + 64:
                    break
            else:
                batch.append(entry)
                tokens += size
        for entry in others:
            heapq.heappush(self.entries, entry)
        self.waiting_tokens -= tokens
        return sorted(batch, key=lambda entry: entry.row.num_tokens)

    def run(self) -> None:
        """Start the tokenizer, and run one batch after the other in this thread until `end` was called and nothing waits."""
        # One thread does everything that torch computes, from loading on. OpenMP keeps a pool of threads for each
        # computing thread, and with two pools a lone request took 20 instead of 13 ms.
        self.tokenizer.start()
        self.running = True
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.entries or self.closing)
                    if not self.entries and self.closing:
                        return
                    batch = self.next_batch()
                if batch:
                    self.answer(batch)
        finally:
            self.running = False

    def answer(self, batch: Sequence[Entry]) -> None:
        """Run a batch and give each job its logits. If it fails, each text is run alone, and those that fail are refused."""
        began = self.clock()
        tokens = sum(entry.row.num_tokens for entry in batch)
        try:
            logits = self.models[batch[0].job.model].forward([entry.row for entry in batch])
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    self.answer([entry])
                return
            batch[0].job.refuse(Refused(424, BACKEND, f"the model failed: {type(error).__name__}"))
            return
        seconds = self.clock() - began
        self.seconds_per_token += 0.1 * (seconds / max(tokens, 1) - self.seconds_per_token)
        self.meters.inference.observe(seconds)
        self.meters.batch_tokens.observe(tokens)
        for entry, row in zip(batch, logits, strict=True):
            job = entry.job
            job.logits[entry.place] = row
            job.missing -= 1
            if not job.missing and not job.left and job.texts is not None:
                self.meters.queueing.observe(began - job.arrived)
                with suppress(Exception):  # the client is gone
                    job.future.set_result(Answered(np.stack([row for row in job.logits if row is not None]), job.texts))


SIZES = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)


ENOUGH = 0.95  # of the largest number of tokens per second


MEASURED_SECONDS = 3.0


ROW_TOKENS = 64


class Measured(Protocol):
    """What is measured: the model of a predictor."""

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts as token ids."""

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        """Return the logits of encoded texts."""


def measured_budget(
    model: Measured, max_length: int, seconds: float = MEASURED_SECONDS, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Return the smallest number of tokens of a batch that reaches almost the highest speed. Small batches answer sooner.

    Args:
        model: The model.
        max_length: The most tokens of a text.
        seconds: When to stop trying larger batches.
        clock: Returns the time in seconds.
    """
    # The smallest batch with 95% of the highest speed: larger ones only add waiting time.
    row = sample_row(model, min(ROW_TOKENS, max_length))
    speeds: dict[int, float] = {}
    began = clock()
    for size in SIZES:
        rows = [row] * max(1, size // max(1, row.num_tokens))
        try:
            times = []
            for _ in range(3):
                start = clock()
                model.forward(rows)
                times.append(clock() - start)
        except Exception as error:
            if not speeds or not no_memory(error):
                raise
            break
        speeds[size] = len(rows) * row.num_tokens / max(min(times), 1e-9)
        if clock() - began > seconds or speeds[size] < 0.8 * max(speeds.values()):
            break
    return next(size for size, speed in speeds.items() if speed >= ENOUGH * max(speeds.values()))


def sample_row(model: Measured, length: int) -> EncodedText:
    """Return a text of at most `length` tokens."""
    row = model.encoded([["a " * length]]).rows[0]
    return EncodedText({name: list(cells[:length]) for name, cells in row.inputs.items()})


def warm_up(model: Measured, budget: int, max_length: int) -> None:
    """Run batches of many sizes up to the budget, so that kernels are compiled before the first request."""
    row = sample_row(model, min(ROW_TOKENS, max_length))
    for tokens in (*range(16, 129, 16), *range(192, min(budget, 1_024) + 1, 64)):
        whole, rest = divmod(tokens, row.num_tokens)
        short = EncodedText({name: cells[:rest] for name, cells in row.inputs.items()})
        model.forward([row] * whole + [short] * (rest > 0))
