"""What a server accepts, how it refuses the rest, and its counters and histograms."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from threading import Lock

from glassloop.base.errors import SettingsError

# The error types of text-embeddings-inference.
EMPTY, VALIDATION, TOKENIZER, BACKEND, OVERLOADED, UNHEALTHY = (
    "Empty",
    "Validation",
    "Tokenizer",
    "Backend",
    "Overloaded",
    "Unhealthy",
)


@dataclass(frozen=True)
class Limits:
    """What a server accepts, under the names of the options.

    Attributes:
        max_inputs: Texts or pairs of one request.
        max_characters: Characters of all texts of one request.
        max_payload: Bytes of the body of one request.
        max_requests: Requests that are answered or wait at the same time, and as many whose bodies are being received.
        queue_seconds: Seconds that a request may wait for its answer.
        read_seconds: Seconds in which a client must send its headers, and then its body.
    """

    max_inputs: int = 32
    max_characters: int = 1_000_000
    max_payload: int = 2_000_000
    max_requests: int = 512
    queue_seconds: float = 30.0
    read_seconds: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            refuse_number(entry.name, getattr(self, entry.name))


def refuse_number(name: str, value: float, *, zero: bool = False) -> None:
    """Raise `SettingsError` unless the value of an option is finite and positive, or 0 where `zero` allows it."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        wanted = "a number of 0 or more" if zero else "a positive number"
        raise SettingsError(f"{name} is {value}, not {wanted}", f"set {name} to {wanted}, or omit it")


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the server
    """A request that is not answered with a prediction.

    Args:
        status: The HTTP status.
        kind: The error type.
        message: What is wrong. It never contains a text of the request.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after = status, kind, message, retry_after


def invalid(message: str) -> Refused:
    """Return the refusal of a request with the wrong content."""
    return Refused(422, VALIDATION, message)


def too_large(message: str) -> Refused:
    """Return the refusal of a request that exceeds a limit."""
    return Refused(413, VALIDATION, message)


def empty(message: str) -> Refused:
    """Return the refusal of a request without content."""
    return Refused(400, EMPTY, message)


def overloaded(message: str, retry_after: float = 1.0) -> Refused:
    """Return the refusal of a request that would wait too long."""
    return Refused(429, OVERLOADED, message, max(1, round(retry_after)))


def draining() -> Refused:
    """Return the refusal of a request while the server shuts down."""
    return Refused(503, UNHEALTHY, "the server is shutting down", 1)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)


class Count:
    """A number that grows, by its labels.

    Args:
        name: Its name.
        text: What it counts.
        labels: The names of its labels.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels, self.lock = name, text, labels, Lock()
        self.values: Counter[tuple[str, ...]] = Counter()

    def add(self, *labels: str, number: int = 1) -> None:
        """Add a number under the values of the labels."""
        with self.lock:
            self.values[labels] += number

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} counter"
        for values, number in sorted(self.values.items()) or ([((), 0)] if not self.labels else []):
            shown = ",".join(f'{label}="{escaped(value)}"' for label, value in zip(self.labels, values, strict=True))
            yield f"{self.name}{{{shown}}} {number}" if shown else f"{self.name} {number}"


class Histogram:
    """How often a value fell between given bounds.

    Args:
        name: Its name.
        text: What is measured.
        bounds: The upper bounds.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.text, self.bounds, self.lock = name, text, bounds, Lock()
        self.counts, self.total = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        with self.lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} histogram"
        number = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            number += count
            yield f'{self.name}_bucket{{le="{bound}"}} {number}'
        yield f"{self.name}_sum {self.total}"
        yield f"{self.name}_count {number}"


def escaped(value: str) -> str:
    """Return the value of a label as the text format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Meters:
    """Everything that a server counts."""

    def __init__(self) -> None:
        self.requests = Count("glassloop_requests_total", "Answered requests.", ("route", "status"))
        self.inputs = Count("glassloop_inputs_total", "Texts and pairs that were predicted.", ("model",))
        self.tokens = Count("glassloop_tokens_total", "Tokens that were predicted.", ("model",))
        self.truncated = Count("glassloop_truncated_total", "Texts and pairs that were truncated.", ("model",))
        self.expired = Count("glassloop_expired_total", "Requests that waited too long.")
        self.gone = Count("glassloop_disconnected_total", "Requests whose client closed the connection.")
        self.request = Histogram("glassloop_request_seconds", "Time to answer a request.")
        self.tokenizing = Histogram("glassloop_tokenize_seconds", "Time to tokenize a request.")
        self.queueing = Histogram("glassloop_queue_seconds", "Time from the arrival of a request to its last batch.")
        self.inference = Histogram("glassloop_inference_seconds", "Time of a forward pass.")
        self.batch_tokens = Histogram("glassloop_batch_tokens", "Tokens of a batch.", TOKENS)

    def text(self, gauges: dict[str, float]) -> str:
        """Return everything in the text format, with the present values of `gauges`."""
        lines = [line for part in vars(self).values() for line in part.lines()]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"
