"""What a server counts, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from glassloop.serve.batching import Meters

NAMES = {
    *("glassloop_requests_total", "glassloop_inputs_total", "glassloop_tokens_total", "glassloop_truncated_total"),
    *("glassloop_expired_total", "glassloop_disconnected_total", "glassloop_queue_tokens"),
    *(
        f"glassloop_{name}_{part}"
        for name in ("request_seconds", "tokenize_seconds", "queue_seconds", "inference_seconds", "batch_tokens")
        for part in ("bucket", "count", "sum")
    ),
}


def test_prometheus_reads_every_name_and_value() -> None:
    meters = Meters()
    meters.requests.labels("/predict", 200).inc(3)
    meters.requests.labels('"\n\\', 400).inc()
    for counter in (meters.inputs, meters.tokens, meters.truncated):
        counter.labels("model").inc(2)
    meters.request.observe(0.02)
    meters.gauges = {"glassloop_queue_tokens": 5}
    families = [*text_string_to_metric_families(meters.text().decode())]
    samples = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    assert {name for name, *_ in samples} == NAMES, "and nothing about when a metric was created"
    assert samples["glassloop_requests_total", "/predict", "200"] == 3
    assert samples["glassloop_requests_total", '"\n\\', "400"] == 1
    assert samples["glassloop_expired_total",] == 0
    assert samples["glassloop_request_seconds_bucket", "0.01"] == 0
    assert samples["glassloop_request_seconds_bucket", "0.025"] == 1
    assert samples["glassloop_queue_tokens",] == 5
    assert meters.answered == 4


def test_two_servers_of_a_process_do_not_share_numbers() -> None:
    one, other = Meters(), Meters()
    one.expired.inc()
    assert b"glassloop_expired_total 1.0" in one.text()
    assert b"glassloop_expired_total 0.0" in other.text()
