"""Limits and refusals."""

from __future__ import annotations

from dataclasses import fields

import pytest

from glassloop.serve.limits import Count, Histogram, Limits, Meters, draining, empty, invalid, overloaded, too_large


def test_every_refusal_has_the_status_and_type_of_text_embeddings_inference() -> None:
    found = [empty("a"), too_large("b"), invalid("c"), overloaded("d", 3.6), draining()]
    assert [(one.status, one.kind) for one in found] == [
        (400, "Empty"),
        (413, "Validation"),
        (422, "Validation"),
        (429, "Overloaded"),
        (503, "Unhealthy"),
    ]
    assert [one.retry_after for one in found] == [None, None, None, 4, 1]
    assert overloaded("d", 0.0).retry_after == 1


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [entry.name for entry in fields(Limits)])
def test_a_limit_is_positive(says, name: str, value: float) -> None:
    with says(f"{name} is {value}, not a positive number", f"set {name} to a positive number, or omit it"):
        Limits(**{name: value})


# --- Counters and histograms, read by Prometheus' own parser where it is installed.


def test_a_counter() -> None:
    count = Count("a_total", "What.", ("route", "status"))
    count.add("/x", "200")
    count.add("/x", "200", number=2)
    count.add('"\n\\', "400")
    assert [*count.lines()][2:] == [
        'a_total{route="\\"\\n\\\\",status="400"} 1',
        'a_total{route="/x",status="200"} 3',
    ]
    assert [*Count("b_total", "None yet.").lines()][-1] == "b_total 0"


def test_a_histogram_counts_up() -> None:
    found = Histogram("s", "Seconds.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.observe(value)
    assert [*found.lines()][2:] == [
        's_bucket{le="1.0"} 2',
        's_bucket{le="2.0"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 12.0",
        "s_count 4",
    ]


def test_prometheus_reads_everything() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    meters = Meters()
    meters.requests.add("/predict", "200")
    meters.request.observe(0.02)
    families = {one.name: one for one in parser.text_string_to_metric_families(meters.text({"glassloop_queue_tokens": 5}))}
    assert families["glassloop_requests"].samples[0].labels == {"route": "/predict", "status": "200"}
    assert families["glassloop_request_seconds"].type == "histogram"
    assert families["glassloop_queue_tokens"].samples[0].value == 5
    assert len(families) == len(vars(meters)) + 1
