"""The three tiers of tests: which cases `make test-fast`, `make test` and `make test-all` run.

- `@pytest.mark.sample(2)` on a parametrised test: `make test` runs two of its cases, chosen so that they cover as many
  parameter values as possible. The other cases become `exhaustive`.
- `@pytest.mark.exhaustive` on a test or a `pytest.param`: only `make test-all` and CI run it. For a whole test, only where
  another test checks the same promise.
- `@pytest.mark.slow`: `make test-fast` skips it. All tests outside tests/unit and tests/architecture are slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ONLY_EXHAUSTIVE = pytest.StashKey[set[str]]()
FAST_FOLDERS = tuple(Path(__file__).parent / name for name in ("architecture", "unit"))


def function_of(item: pytest.Item) -> str:
    """Return the identifier of a test function, without the parameters of one case."""
    return item.nodeid.partition("[")[0]


def values_of(case: pytest.Item) -> dict[str, str]:
    """Return the parameters of a case. `callspec.indices` would count the cases of stacked parameters, not their values."""
    return {name: repr(value) for name, value in case.callspec.params.items()}


def sampled(cases: Sequence[dict[str, str]], number: int) -> set[int]:
    """Return the positions of the cases to keep: each one adds as many parameter values as possible, the first one wins."""
    covered: set[tuple[str, str]] = set()
    kept: set[int] = set()
    while len(kept) < min(number, len(cases)):
        rest = (position for position in range(len(cases)) if position not in kept)
        best = max(rest, key=lambda position: len({*cases[position].items()} - covered))
        kept.add(best)
        covered |= {*cases[best].items()}
    return kept


def assign_tiers(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that a sample leaves out as exhaustive, and the tests outside the fast folders as slow."""
    samples: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in FAST_FOLDERS):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("sample"):
            samples.setdefault(function_of(item), []).append(item)
    for cases in samples.values():
        kept = sampled([values_of(case) for case in cases], cases[0].get_closest_marker("sample").args[0])
        for position, case in enumerate(cases):
            if position not in kept:
                case.add_marker(pytest.mark.exhaustive)


def only_exhaustive(items: Iterable[pytest.Item]) -> set[str]:
    """Return the test functions of which `make test` runs no case."""
    exhaustive: dict[str, bool] = {}
    for item in items:
        name = function_of(item)
        exhaustive[name] = exhaustive.get(name, True) and item.get_closest_marker("exhaustive") is not None
    return {name for name, every in exhaustive.items() if every}
