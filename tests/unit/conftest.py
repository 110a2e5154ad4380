"""What the unit tests share: an error whose sentences are read, and a few encoded pairs to train on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from glassloop.errors import SettingsError


@pytest.fixture
def says():
    """`with says(problem, remedy):` the block must raise a `SettingsError` (or `kind`) with exactly these sentences."""

    @contextmanager
    def check(problem: str, remedy: str | None = None, kind: type[Exception] = SettingsError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert caught.value.problem == problem
        assert remedy is None or caught.value.remedy == remedy

    return check


@pytest.fixture(scope="session")
def few(tiny_tokenizer, session_cache):
    """Encoded pairs: 29 to train on (no multiple of any batch size), ten each for validation and test."""
    from glassloop import encode, load_examples

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        pairs = load_examples("quickstart", rows=29, seed=3)
        return {name: encoding.rows for name, encoding in encode(pairs, tiny_tokenizer, 64).items()}
