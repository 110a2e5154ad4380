"""What the tests of the data package share: an error is right only when both its sentences are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from glassloop.base.errors import DataError


@pytest.fixture
def refused():
    """`with refused(problem, remedy):` the block must raise a `DataError` (or `kind`) that says exactly this."""

    @contextmanager
    def check(problem: str, remedy: str, kind: type[Exception] = DataError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert (caught.value.problem, caught.value.remedy) == (problem, remedy)

    return check
