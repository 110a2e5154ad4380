"""What the tests of the real command share."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import tiny_model

from glassloop import load_tokenizer


@pytest.fixture(scope="session")
def english_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with the real English vocabulary, which stands for bert-base-uncased where a test asks for it."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    tokenizer = load_tokenizer("quickstart")
    tiny_model(vocab_size=len(tokenizer), max_position_embeddings=512).base_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cache(session_cache: Path) -> dict[str, str]:
    return {"GLASSLOOP_CACHE": str(session_cache)}
