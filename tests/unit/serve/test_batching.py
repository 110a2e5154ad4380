"""The queue: batches by tokens, short requests before long ones, deadlines, clients that left, failures."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from served import CountingModel, start

from glassloop.serve.batching import Batcher, Job, Meters
from glassloop.serve.hosted import SIZES, measured_budget, warm_up
from glassloop.serve.limits import Refused


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model() -> CountingModel:
    return CountingModel()


@pytest.fixture
def batcher(model: CountingModel, clock: Clock) -> Batcher:
    """A queue whose threads are not started: tests run its steps themselves."""
    return Batcher([model, CountingModel()], 10, Meters(), clock)


def add(batcher: Batcher, *sizes: int, model: int = 0, seconds: float = 30.0) -> Job:
    job = batcher.submit(model, [["w " * size for size in sizes]], seconds)
    assert batcher.incoming.get() is job
    job.texts = batcher.models[model].encoded(job.columns)
    batcher.add(job, job.texts.rows)
    return job


def sizes_of(batcher: Batcher) -> list[int]:
    return [entry.row.num_tokens for entry in batcher.next_batch()]


def test_a_batch_holds_as_many_tokens_as_the_budget(batcher: Batcher) -> None:
    for size in (4, 3, 3, 5):
        add(batcher, size)
    assert sizes_of(batcher) == [3, 3, 4]
    assert sizes_of(batcher) == [5]
    assert batcher.waiting_tokens == 0


def test_a_text_longer_than_the_budget_is_a_batch(batcher: Batcher) -> None:
    add(batcher, 40)
    assert sizes_of(batcher) == [40]


def test_a_short_request_passes_a_long_one_that_came_before(batcher: Batcher, clock: Clock) -> None:
    batcher.seconds_per_token = 0.1
    add(batcher, *[10] * 8)
    clock.now += 1.5  # the first two texts of the long request are due before the short one
    add(batcher, 3)
    assert [sizes_of(batcher) for _ in range(9)] == [[10], [3], *[[10]] * 7]


def test_a_long_request_does_not_wait_for_ever(batcher: Batcher, clock: Clock) -> None:
    batcher.seconds_per_token = 0.1
    long = add(batcher, 20)
    for _ in range(30):
        clock.now += 0.1
        add(batcher, 10)
    order = [batcher.next_batch() for _ in range(31)]
    place = next(place for place, batch in enumerate(order) if batch[0].job is long)
    assert place <= 10, "only what came in the first second is due before it"


def test_a_batch_is_of_one_model(batcher: Batcher) -> None:
    add(batcher, 2)
    add(batcher, 3, model=1)
    add(batcher, 2)
    assert [[entry.job.model for entry in batcher.next_batch()] for _ in range(2)] == [[0, 0], [1]]


def test_what_waited_too_long_is_refused(batcher: Batcher, clock: Clock) -> None:
    job = add(batcher, 3, seconds=2.0)
    clock.now += 3
    assert batcher.next_batch() == []
    with pytest.raises(Refused) as caught:
        job.future.result(0)
    assert (caught.value.status, caught.value.message) == (429, "the request waited too long in the queue")
    assert b"glassloop_expired_total 1.0" in batcher.meters.text()


def test_a_client_that_left_is_skipped(batcher: Batcher) -> None:
    add(batcher, 3).left = True
    add(batcher, 4)
    assert sizes_of(batcher) == [4]
    assert batcher.waiting_tokens == 0


def test_one_failing_text_does_not_take_the_others_with_it(batcher: Batcher, model: CountingModel) -> None:
    batcher.budget = 100
    jobs = [add(batcher, size) for size in (3, 13, 5)]
    batcher.answer(batcher.next_batch())
    assert [job.future.result(0).logits[0, 0] for job in (jobs[0], jobs[2])] == [3, 5]
    with pytest.raises(Refused) as caught:
        jobs[1].future.result(0)
    assert (caught.value.status, caught.value.message) == (424, "the model failed: RuntimeError")


def test_threads_answer_in_the_order_of_the_texts_and_end(model: CountingModel) -> None:
    batcher = Batcher([model], 8, Meters())
    with ExitStack() as stack:
        thread = start(stack, batcher)
        jobs = [batcher.submit(0, [["w " * size for size in (5, 1, 4)]], 30.0) for _ in range(20)]
    for job in jobs:
        assert job.future.result(0).logits[:, 0].tolist() == [5, 1, 4]
    assert all(sum(batch) <= 8 for batch in model.batches)
    assert not batcher.is_alive
    assert not thread.is_alive()
    assert not batcher.tokenizer.is_alive()


def test_texts_that_cannot_be_tokenized_are_refused() -> None:
    class Broken(CountingModel):
        def encoded(self, columns):
            raise ValueError("the text itself")

    batcher = Batcher([Broken()], 8, Meters())
    with ExitStack() as stack:
        start(stack, batcher)
        job = batcher.submit(0, [["secret"]], 30.0)
    with pytest.raises(Refused) as caught:
        job.future.result(0)
    assert (caught.value.status, caught.value.kind) == (422, "Tokenizer")
    assert "secret" not in caught.value.message
    assert "text itself" not in caught.value.message


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


def test_a_queue_that_failed_is_not_alive(model: CountingModel) -> None:
    batcher = Batcher([model], 8, Meters())
    batcher.next_batch = lambda: 1 / 0  # type: ignore[method-assign]
    batcher.submit(0, [["w"]], 30.0)
    with pytest.raises(ZeroDivisionError):
        batcher.run()
    assert batcher.tokenizer.is_alive()
    assert not batcher.is_alive
    batcher.end()


# --- The size of batches is what the machine shows, on a clock that the test turns.


class Machine(CountingModel):
    """A forward pass takes some time to start, and then the same time for every token."""

    def __init__(self, start: float, most: int = 10**9) -> None:
        super().__init__()
        self.now, self.start_seconds, self.most = 0.0, start, most

    def forward(self, rows):
        tokens = sum(row.num_tokens for row in rows)
        if tokens > self.most:
            raise MemoryError("out of memory")
        self.now += self.start_seconds + tokens * 1e-5
        return super().forward(rows)


@pytest.mark.parametrize(("start", "wanted"), [(0.0, 256), (1e-3, 2_048), (5e-3, 16_384)])
def test_the_smallest_batch_that_is_fast(start: float, wanted: int) -> None:
    machine = Machine(start)
    assert measured_budget(machine, seconds=1e9, clock=lambda: machine.now) == wanted


def test_a_batch_that_does_not_fit_ends_the_search() -> None:
    machine = Machine(1.0, most=4_096)
    assert measured_budget(machine, seconds=1e9, clock=lambda: machine.now) == 4_096


def test_the_search_ends_in_time() -> None:
    machine = Machine(1.0)
    assert measured_budget(machine, seconds=5.0, clock=lambda: machine.now) < SIZES[-1]


def test_another_error_is_not_hidden() -> None:
    model = CountingModel()
    model.failing = True
    with pytest.raises(RuntimeError):
        measured_budget(model)


def test_many_sizes_are_run_before_the_first_request() -> None:
    model = CountingModel()
    model.max_length = 40
    warm_up(model, 512)
    assert [sum(batch) for batch in model.batches] == [*range(16, 129, 16), *range(192, 513, 64)]
