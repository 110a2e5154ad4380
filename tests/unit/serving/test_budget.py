"""The size of batches is what the machine shows, on a clock that the test turns."""

from __future__ import annotations

import pytest
from served import CountingModel

from glassloop.serve.batching import SIZES, measured_budget, warm_up


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
    assert measured_budget(machine, 128, seconds=1e9, clock=lambda: machine.now) == wanted


def test_a_batch_that_does_not_fit_ends_the_search() -> None:
    machine = Machine(1.0, most=4_096)
    assert measured_budget(machine, 128, seconds=1e9, clock=lambda: machine.now) == 4_096


def test_the_search_ends_in_time() -> None:
    machine = Machine(1.0)
    assert measured_budget(machine, 128, seconds=5.0, clock=lambda: machine.now) < SIZES[-1]


def test_another_error_is_not_hidden() -> None:
    model = CountingModel()
    model.failing = True
    with pytest.raises(RuntimeError):
        measured_budget(model, 128)


def test_many_sizes_are_run_before_the_first_request() -> None:
    model = CountingModel()
    warm_up(model, 512, 40)
    assert [sum(batch) for batch in model.batches] == [*range(16, 129, 16), *range(192, 513, 64)]
