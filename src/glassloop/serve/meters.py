"""What a server counts: metrics of prometheus-client in a registry of their own, so that two servers do not share numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
