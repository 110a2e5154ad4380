"""Small real data for the promises about the numbers: generated pairs, encoded for the tiny models."""

from __future__ import annotations

import pytest

from glassloop import encode, load_examples


@pytest.fixture(scope="session")
def pairs(session_cache):
    """Sixty-one generated pairs for training (no multiple of any batch size), ten each for validation and test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        return load_examples("quickstart", rows=61, split_seed=3)


@pytest.fixture(scope="session")
def encoded(pairs, tiny_tokenizer, session_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        return encode(pairs, tiny_tokenizer, 64)
