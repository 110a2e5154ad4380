"""What the tests of the data package share: an error is right only when both its sentences are."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from glassloop.errors import DataError


@pytest.fixture
def refused():
    """`with refused(problem, remedy):` the block must raise a `DataError` (or `kind`) that says exactly this."""

    @contextmanager
    def check(problem: str, remedy: str, kind: type[Exception] = DataError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert (caught.value.problem, caught.value.remedy) == (problem, remedy)

    return check


@pytest.fixture
def no_hang() -> Iterator[None]:
    """End a test that takes far longer than its work: half a minute, where linear code takes a second."""

    def stop(*_: object) -> None:
        raise TimeoutError("the work grows faster than the data")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
