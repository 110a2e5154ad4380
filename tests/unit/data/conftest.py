"""What the tests of the data package share: a cache of a test's own, and an error that is right only in both sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassloop.base.errors import DataError


@pytest.fixture
def fresh_cache(tmp_path_factory, monkeypatch) -> Path:
    """Nothing is found in the cache that the test itself has not put there."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GLASSLOOP_CACHE", str(place))
    return place


@pytest.fixture
def refused():
    """`with refused(problem, remedy):` the block must raise a `DataError` (or `kind`) that says exactly this."""

    @contextmanager
    def check(problem: str, remedy: str, kind: type[Exception] = DataError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert (caught.value.problem, caught.value.remedy) == (problem, remedy)

    return check
