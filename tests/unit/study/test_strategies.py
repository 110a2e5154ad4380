"""Optuna behind the interface of the strategies: batches, the same proposals after a restart, an error without it."""

from __future__ import annotations

import sys

import pytest

from glassloop.base.errors import SettingsError
from glassloop.runs.study import RoundRecord
from glassloop.settings.study import StudySettings
from glassloop.study.strategies import Next, Played, first_settings, next_optuna_round, next_round

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


# --- Which settings are trained next: a pure function of what was tried and how it scored.
def played_by(study: StudySettings, goodness: list[float]) -> list[Played]:
    """All rounds of a search in which each setting always has the same score."""
    tried, rounds = [], []
    while (found := next_round(study, 7, tried, rounds)) is not None:
        tried += found.added
        rounds.append(Played(found.round, {number: (goodness[number], 0.0) for number in found.round.settings}))
    return rounds


def test_a_grid_trains_every_setting_to_its_end_and_halving_stops_the_weaker_half_at_each_rung() -> None:
    rounds = played_by(StudySettings({"learning_rate": "1e-5,2e-5,3e-5"}), [0.1, 0.3, 0.2])
    assert [one.round for one in rounds] == [RoundRecord((0, 1, 2), 1.0)]
    study = StudySettings({"learning_rate": ",".join(f"{number}e-5" for number in range(1, 9))})
    goodness = [0.1, 0.8, 0.2, 0.7, 0.3, 0.9, 0.4, 0.6]
    wanted = [RoundRecord((*range(8),), 0.25), RoundRecord((1, 3, 5, 7), 0.5), RoundRecord((1, 5), 1.0)]
    assert [one.round for one in played_by(study, goodness)] == wanted
    scores = {0: (0.5, -0.9), 1: (0.5, -0.2), 2: (0.7, -3.0), 3: (0.5, -0.9), 4: (0.5, -1.0)}
    study = StudySettings({"max_steps": "1,2,3,4,5"}, strategy="halving")
    found = next_round(study, 1, study.grid(), [Played(RoundRecord((0, 1, 2, 3, 4), 0.25), scores)])
    assert found.round == RoundRecord((0, 1, 2), 0.5), "3 is as good as 0, but comes later"


def test_drawn_settings_depend_on_the_seed_only_and_differ() -> None:
    study = StudySettings({"learning_rate": "log:1e-5..1e-3", "warmup_steps": "0,0.1"}, samples=12)
    first = first_settings(study, 3)
    assert first == first_settings(study, 3) != first_settings(study, 4)
    assert len(first) == 12
    assert all(first.count(values) == 1 for values in first)
    assert all(1e-5 <= values["learning_rate"] <= 1e-3 for values in first)
    study = StudySettings({"max_steps": "1,2,3,4"}, strategy="random", samples=4)
    found = [values["max_steps"] for values in first_settings(study, 1)]
    assert sorted(found) == [1, 2, 3, 4]
    assert next_round(study, 1, [], []).round.fraction == 1.0
