"""The two caches of data and of token ids: whatever happens to their files, the rows that are trained on stay the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassloop.data.encoding import encode
from glassloop.data.sources import load_examples

ROWS = [{"text": f"the film {number} was {'good' if number % 3 else 'bad'}", "label": "ab"[number % 2]} for number in range(40)]
SEED = 20


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def loaded(tokenizer: Any) -> list[Any]:
    """All that training would see: texts, ids, labels, label names, notes, truncation."""
    examples = load_examples(ROWS)
    encoded = encode(examples, tokenizer, 9)
    rows = [(split.to_list(), encoded[name].rows.to_list()) for name, split in examples.splits.items()]
    truncations = [found.truncation for found in encoded.values()]
    return [rows, examples.labels, examples.notes, examples.facts, examples.columns, truncations]


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def fill(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.choice([b"null", b"[]", b"{}", b"\xff\xfe", b'{"files": {"x": []}}', b"[" * 100_000]))


def swap(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path, random.Random], object]] = [flip, flip, flip, cut, fill, swap, lambda path, _: path.unlink()]


@pytest.mark.parametrize("damage", range(len(DAMAGES)))
def test_damage_to_any_file_changes_no_row(damage: int, place: Path, tiny_tokenizer, tmp_path: Path, capfd) -> None:
    chance = random.Random(SEED + damage)
    expected = loaded(tiny_tokenizer)
    shutil.copytree(place, tmp_path / "intact")
    files = sorted(path.relative_to(place) for path in place.rglob("*") if path.is_file())
    assert len(files) >= 7, "two entries of token ids, one of data"
    for name in files:
        DAMAGES[damage](place / name, chance)
        capfd.readouterr()
        assert loaded(tiny_tokenizer) == expected, f"{name}, seed {SEED + damage}"
        said = capfd.readouterr().err.splitlines()
        assert len([line for line in said if "is damaged" in line]) <= 1
        assert said or name.name == "manifest.json", "a flipped blank in a manifest harms nothing"
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "intact", place)
