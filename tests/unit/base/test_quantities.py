"""Durations and sizes in words."""

from __future__ import annotations

import pytest

from glassloop.runs.listing import amount, duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"), (-5, "0 s"), (0.4, "0 s"), (45, "45 s"), (60, "1 min"), (200, "3 min 20 s"), (1000, "16 min"),
        (3600, "1 h"), (7500, "2 h 5 min"), (90_000, "1 d 1 h"), (86_400 * 40, "40 d"),
    ],
)  # fmt: skip
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_amounts() -> None:
    assert [amount(size) for size in (12, 2_000, 3_400_000, 1_250_000_000)] == ["12 B", "2 kB", "3 MB", "1.2 GB"]
