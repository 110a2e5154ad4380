"""The queue: batches by tokens, short requests before long ones, deadlines, clients that left, failures; what is counted."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import CountingModel, start

from glassloop.serve.batching import Batcher, Job, Meters
from glassloop.serve.limits import Refused


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def batcher(clock: Clock) -> Batcher:
    """A queue whose threads are not started: tests run its steps themselves."""
    return Batcher([CountingModel(), CountingModel()], 10, Meters(), clock)


def add(batcher: Batcher, *sizes: int, model: int = 0, seconds: float = 30.0) -> Job:
    job = batcher.submit(model, [["w " * size for size in sizes]], seconds)
    assert batcher.incoming.get() is job
    job.texts = batcher.models[model].encoded(job.columns)
    batcher.add(job, job.texts.rows)
    return job


def sizes_of(batcher: Batcher) -> list[int]:
    return [entry.row.num_tokens for entry in batcher.next_batch()]


def refusal_of(job: Job) -> tuple[int, str, str]:
    with pytest.raises(Refused) as caught:
        job.future.result(0)
    return caught.value.status, caught.value.kind, caught.value.message


def test_a_batch_holds_as_many_tokens_as_the_budget_of_one_model_and_no_client_that_left(batcher: Batcher) -> None:
    for size in (4, 3, 3, 5):
        add(batcher, size)
    assert [sizes_of(batcher), sizes_of(batcher)] == [[3, 3, 4], [5]]
    assert batcher.waiting_tokens == 0
    add(batcher, 40)
    assert sizes_of(batcher) == [40], "a text longer than the budget is a batch"
    add(batcher, 3).left = True
    add(batcher, 4)
    assert sizes_of(batcher) == [4]
    assert batcher.waiting_tokens == 0
    add(batcher, 2)
    add(batcher, 3, model=1)
    add(batcher, 2)
    assert [[entry.job.model for entry in batcher.next_batch()] for _ in range(2)] == [[0, 0], [1]]


def test_a_short_request_passes_a_long_one_which_does_not_wait_for_ever(batcher: Batcher, clock: Clock) -> None:
    batcher.seconds_per_token = 0.1
    add(batcher, *[10] * 8)
    clock.now += 1.5  # the first two texts of the long request are due before the short one
    add(batcher, 3)
    assert [sizes_of(batcher) for _ in range(9)] == [[10], [3], *[[10]] * 7]
    batcher.seconds_per_token = 0.1
    long = add(batcher, 20)
    for _ in range(30):
        clock.now += 0.1
        add(batcher, 10)
    order = [batcher.next_batch() for _ in range(31)]
    place = next(place for place, batch in enumerate(order) if batch[0].job is long)
    assert place <= 10, "only what came in the first second is due before it"


def test_what_waited_too_long_and_one_failing_text_are_refused(batcher: Batcher, clock: Clock) -> None:
    job = add(batcher, 3, seconds=2.0)
    clock.now += 3
    assert batcher.next_batch() == []
    assert refusal_of(job) == (429, "Overloaded", "the request waited too long in the queue")
    assert b"glassloop_expired_total 1.0" in batcher.meters.text()
    assert b"glassloop_expired_total 0.0" in Meters().text(), "two servers of a process do not share numbers"
    batcher.budget = 100
    jobs = [add(batcher, size) for size in (3, 13, 5)]
    batcher.answer(batcher.next_batch())
    assert [job.future.result(0).logits[0, 0] for job in (jobs[0], jobs[2])] == [3, 5]
    assert refusal_of(jobs[1]) == (424, "Backend", "the model failed: RuntimeError")


def test_threads_answer_in_the_order_of_the_texts_and_end() -> None:
    model = CountingModel()
    batcher = Batcher([model], 8, Meters())
    with ExitStack() as stack:
        thread = start(stack, batcher)
        jobs = [batcher.submit(0, [["w " * size for size in (5, 1, 4)]], 30.0) for _ in range(20)]
    for job in jobs:
        assert job.future.result(0).logits[:, 0].tolist() == [5, 1, 4]
    assert all(sum(batch) <= 8 for batch in model.batches)
    assert not any((batcher.is_alive, thread.is_alive(), batcher.tokenizer.is_alive()))


def test_texts_that_cannot_be_tokenized_are_refused() -> None:
    class Broken(CountingModel):
        def encoded(self, columns):
            raise ValueError("the text itself")

    batcher = Batcher([Broken()], 8, Meters())
    with ExitStack() as stack:
        start(stack, batcher)
        job = batcher.submit(0, [["secret"]], 30.0)
    assert refusal_of(job) == (422, "Tokenizer", "the texts cannot be tokenized: ValueError")


def test_models_run_in_the_thread_that_calls_run() -> None:
    """A second thread that computes would have an OpenMP pool of its own: more threads than cores."""
    threads: list[int] = []

    class Noting(CountingModel):
        def forward(self, rows):
            threads.append(threading.get_ident())
            return super().forward(rows)

    batcher = Batcher([Noting()], 2, Meters())
    assert not batcher.is_alive
    jobs = [batcher.submit(0, [["w"]], 30.0) for _ in range(5)]
    batcher.end()
    batcher.run()
    assert all(job.future.done() for job in jobs)
    assert {*threads} == {threading.get_ident()}


def test_a_queue_that_failed_is_not_alive() -> None:
    batcher = Batcher([CountingModel()], 8, Meters())
    batcher.next_batch = lambda: 1 / 0  # type: ignore[method-assign]
    batcher.submit(0, [["w"]], 30.0)
    with pytest.raises(ZeroDivisionError):
        batcher.run()
    assert batcher.tokenizer.is_alive()
    assert not batcher.is_alive
    batcher.end()


# --- what is counted, read by Prometheus' own parser -------------------------------------------------------------
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
    assert [samples["glassloop_request_seconds_bucket", bound] for bound in ("0.01", "0.025")] == [0, 1]
    assert samples["glassloop_queue_tokens",] == 5
    assert meters.answered == 4
