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
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from glassloop.base.errors import GlassloopError
from glassloop.data.encoding import EncodedText, EncodedTexts
from glassloop.data.interfaces import Texts
from glassloop.serve.limits import Refused, overloaded, too_large

if TYPE_CHECKING:
    from glassloop.predictor import Predictor  # it loads torch, which reads the variables below when it is imported

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
BINDING = "OMP_PROC_BIND"
# Whoever sets one of these has decided how many threads there are, and where they run.
CHOICES = (BINDING, "OMP_NUM_THREADS", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
START_SECONDS_PER_TOKEN = 1e-4  # until a batch has been measured
MOST_PASSED_OVER = 64  # entries of other models or too long for the rest of a batch, beyond as many as the batch has


class Meters(Collector):
    """Everything that a server counts. `gauges` are present values, which the server sets before they are read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.gauges: Mapping[str, float] = {}
        counter = partial(Counter, registry=self.registry)
        self.requests = counter("glassloop_requests", "Answered requests.", ["route", "status"])
        self.inputs = counter("glassloop_inputs", "Texts and pairs that were predicted.", ["model"])
        self.tokens = counter("glassloop_tokens", "Tokens that were predicted.", ["model"])
        self.truncated = counter("glassloop_truncated", "Texts and pairs that were truncated.", ["model"])
        self.expired = counter("glassloop_expired", "Requests that waited too long.")
        self.gone = counter("glassloop_disconnected", "Requests whose client closed the connection.")
        seconds = partial(Histogram, buckets=SECONDS, registry=self.registry)
        self.request = seconds("glassloop_request_seconds", "Time to answer a request.")
        self.tokenizing = seconds("glassloop_tokenize_seconds", "Time to tokenize a request.")
        self.queueing = seconds("glassloop_queue_seconds", "Time from the arrival of a request to its last batch.")
        self.inference = seconds("glassloop_inference_seconds", "Time of a forward pass.")
        self.batch_tokens = Histogram("glassloop_batch_tokens", "Tokens of a batch.", buckets=TOKENS, registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, without the time at which each one was created."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        for name, value in self.gauges.items():
            yield GaugeMetricFamily(name, "Present value.", value)

    @property
    def answered(self) -> int:
        (family,) = self.requests.collect()
        return sum(int(sample.value) for sample in family.samples if sample.name.endswith("_total"))

    def text(self) -> bytes:
        return generate_latest(self)


def bind_threads() -> Set[int]:
    """Let OpenMP, before torch is imported, bind each thread to a core. Return the cores of this process; none if unchanged."""
    # Unbound, the two threads of a small operation often shared one core for some milliseconds, because clients and the
    # server itself run on the other one. Nothing is bound if somebody set the number of threads: several such servers would
    # all use the first cores.
    if not hasattr(os, "sched_getaffinity") or "torch" in sys.modules or any(os.environ.get(name) for name in CHOICES):
        return set()
    os.environ[BINDING] = "true"
    return os.sched_getaffinity(0)


def free_thread(cores: Set[int]) -> None:
    """Let the calling thread, which OpenMP has bound with its own, run on all of these cores again."""
    if cores:
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class Answered:
    logits: np.ndarray
    texts: EncodedTexts


@dataclass(eq=False)
class Job:
    model: int
    columns: Texts
    deadline: float
    arrived: float
    truncate: bool = True
    future: Future[Answered] = field(default_factory=Future)
    texts: EncodedTexts | None = None
    logits: dict[int, np.ndarray] = field(default_factory=dict)  # by the place of the text
    left: bool = False  # the client is gone, or the job was refused

    def refuse(self, error: Refused) -> None:
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
    """A thread of its own turns waiting texts into token ids; the thread that calls `run` runs one batch after the other."""

    def __init__(
        self,
        models: Sequence[Predictor],
        budget: int,  # the number of tokens of a batch
        meters: Meters,
        clock: Callable[[], float] = time.monotonic,
        cores: Set[int] = frozenset(),  # for everything but the models, if OpenMP has bound the calling thread to one
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
        return self.tokenizer.is_alive() and self.running

    @property
    def waiting_seconds(self) -> float:
        return self.waiting_tokens * self.seconds_per_token

    def tokenize(self) -> None:
        free_thread(self.cores)
        while (job := self.incoming.get()) is not None:
            if job.left:
                continue
            began = self.clock()
            try:
                job.texts = self.models[job.model].encoded(job.columns)
            except Exception as error:
                problem = error.problem if isinstance(error, GlassloopError) else type(error).__name__
                job.refuse(Refused(422, "Tokenizer", f"the texts cannot be tokenized: {problem}"))
                continue
            self.meters.tokenizing.observe(self.clock() - began)
            if not job.truncate and (long := next((row for row in job.texts.rows if row.cut.num_rows), None)) is not None:
                most = f"the model takes {self.models[job.model].max_length:,}"
                job.refuse(too_large(f"a text has {long.cut.longest:,} tokens, but {most}; set truncate"))
                continue
            self.add(job, job.texts.rows)
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def add(self, job: Job, rows: Sequence[EncodedText]) -> None:
        # A text is due when it would be done if its request were alone: first come, first served lets one long request delay
        # everybody, and shortest first can starve it. A short request passes only long ones that are not due when it arrives.
        with self.changed:
            tokens = 0
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
        while self.entries and tokens < self.budget and len(others) <= len(batch) + MOST_PASSED_OVER:
            entry = heapq.heappop(self.entries)
            size = entry.row.num_tokens
            if not entry.job.left and now > entry.job.deadline:
                entry.job.refuse(overloaded("the request waited too long in the queue", self.waiting_seconds))
                self.meters.expired.inc()
            if entry.job.left:
                self.waiting_tokens -= size
            elif batch and (entry.job.model != batch[0].job.model or tokens + size > self.budget):
                others.append(entry)
            else:
                batch.append(entry)
                tokens += size
        for entry in others:
            heapq.heappush(self.entries, entry)
        self.waiting_tokens -= tokens
        return sorted(batch, key=lambda entry: entry.row.num_tokens)

    def run(self) -> None:
        """Start the tokenizer, and run one batch after the other in this thread until `end` was called and nothing waits."""
        # A server calls this in the thread that loaded the models. OpenMP keeps a pool of threads for each thread that
        # computes. With two pools there are more threads than cores, waiting threads sleep instead of spinning, and a lone
        # request took 20 instead of 13 ms.
        self.tokenizer.start()
        self.running = True
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.entries or self.closing)
                    if not self.entries:
                        return
                    batch = self.next_batch()
                if batch:
                    self.answer(batch)
        finally:
            self.running = False

    def answer(self, batch: Sequence[Entry]) -> None:
        """Run a batch and give each job its logits. If it fails, each text is run alone, and those that fail are refused."""
        began = self.clock()
        try:
            logits = self.models[batch[0].job.model].forward([entry.row for entry in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].job.refuse(Refused(424, "Backend", f"the model failed: {type(error).__name__}"))
            else:
                for entry in batch:
                    self.answer([entry])
            return
        seconds = self.clock() - began
        tokens = sum(entry.row.num_tokens for entry in batch)
        self.seconds_per_token += 0.1 * (seconds / max(tokens, 1) - self.seconds_per_token)
        self.meters.inference.observe(seconds)
        self.meters.batch_tokens.observe(tokens)
        for entry, row in zip(batch, logits, strict=True):
            job = entry.job
            job.logits[entry.place] = row
            if job.texts is not None and len(job.logits) == len(job.texts.rows) and not job.left:
                self.meters.queueing.observe(began - job.arrived)
                with suppress(Exception):  # the client is gone
                    job.future.set_result(Answered(np.stack([job.logits[place] for place in sorted(job.logits)]), job.texts))
