"""Counters and histograms of a server, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock

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
