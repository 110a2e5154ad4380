"""Optuna behind the interface of the strategies: batches, the same proposals after a restart, an error without it."""

from __future__ import annotations

import sys

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.study import StudySettings
from glassloop.study.strategies import Next, Played, next_optuna_round

STUDY = StudySettings(
    {"learning_rate": "log:1e-5..1e-3", "optim": "sgd,adagrad", "max_steps": "linear:1..9"}, strategy="optuna", samples=10
)


def search() -> list[Next]:
    tried, rounds, found = [], [], []
    while (more := next_optuna_round(STUDY, 5, tried, rounds)) is not None:
        tried += more.added
        found.append(more)
        scores = {number: (tried[number]["max_steps"] / 10, 0.0) for number in more.round.settings}
        rounds.append(Played(more.round, scores))
    return found


def test_settings_come_in_batches_up_to_the_wanted_number_and_the_same_again() -> None:
    pytest.importorskip("optuna")
    found = search()
    assert [len(one.added) for one in found] == [4, 4, 2]
    assert [one.round.settings for one in found] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    for one in found:
        for values in one.added:
            assert 1e-5 <= values["learning_rate"] <= 1e-3
            assert values["optim"] in ("sgd", "adagrad")
            assert isinstance(values["max_steps"], int)
    assert search() == found


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match="strategy optuna needs the package optuna") as raised:
        next_optuna_round(STUDY, 5, [], [])
    assert raised.value.remedy == "pip install 'glassloop[optuna]'"
