"""What a study varies and may cost: every form of values, every default, and all problems at once."""

from __future__ import annotations

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.study import Budget, StudySettings, study_settings


def test_every_problem_is_reported_before_any_work() -> None:
    with pytest.raises(SettingsError) as raised:
        StudySettings(
            {"learning_rat": "1", "seed": "1,2", "optim": "log:1..2", "weight_decay": "-1,0", "max_grad_norm": "linear:2..1"},
            seeds=0, strategy="gird", budget="soon", fold=1,
        )  # fmt: skip
    problem, remedy = raised.value.problem, raised.value.remedy
    for part in (
        "seeds is 0, not a whole number of 1 or more",
        "fold is 1, not a whole number of 2 or more",
        'strategy is "gird", not one of auto, grid, random, halving, optuna',
        'budget is "soon", not a time such as 30m or 2h',
        'unknown setting "learning_rat" to vary; did you mean "learning_rate"?',
        "seed cannot be varied",
        "optim is not a number, so it cannot be drawn from a range",
        "weight_decay is -1.0, not 0 or more",
        'max_grad_norm="linear:2..1" is not a range',
    ):
        assert part in problem
    assert "seed: use seeds" in remedy


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"vary": {}}, "the study varies no setting"),
        ({"vary": {"learning_rate": "1e-5,1e-5"}}, "learning_rate has a value twice: 1e-05,1e-05"),
        ({"vary": {"learning_rate": "log:1e-5..1e-3"}, "strategy": "grid"}, "a grid cannot contain ranges: learning_rate"),
        ({"vary": {"learning_rate": "1e-5,2e-5"}, "budget": "2_runs"}, "a budget of 2 runs is less than the 3 runs of one"),
        (
            {"vary": {"learning_rate": "1e-5,2e-5"}, "budget": "5_runs", "strategy": "grid"},
            "the grid needs 6 runs, but the budget is 5",
        ),
        ({"vary": {"learning_rate": "log:0..1"}}, "is not a range from a smaller to a larger number above 0"),
        ({"vary": {"max_steps": "linear:1.5..3"}}, 'max_steps="linear:1.5..3" needs whole numbers'),
        ({"vary": 3}, "vary in [study] is not a table"),
        ({"vary": {"max_steps": "3"}, "sead": 3}, 'unknown setting "sead" in [study]; did you mean "seeds"?'),
    ],
)
def test_wrong_settings(given: dict, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        study_settings(given)
    assert problem in raised.value.problem


def test_the_strategy_is_chosen_by_the_number_of_settings() -> None:
    few, many = {"learning_rate": "1e-5,2e-5"}, {"learning_rate": "1e-5,2e-5,3e-5", "warmup_steps": "0,0.1,0.2"}
    assert (StudySettings(few).chosen_strategy, StudySettings(few).num_settings) == ("grid", 2)
    assert (StudySettings(many).chosen_strategy, StudySettings(many).num_settings) == ("halving", 9)
    drawn = StudySettings({"learning_rate": "log:1e-5..1e-3"})
    assert (drawn.chosen_strategy, drawn.num_settings, drawn.grid_size) == ("halving", 16, None)
    assert StudySettings(few, strategy="random").num_settings == 2, "there are no more"


def test_the_budget_limits_settings() -> None:
    vary = {"learning_rate": "log:1e-5..1e-3"}
    assert StudySettings(vary, seeds=5, budget="200_runs").num_settings == 40
    assert StudySettings(vary, seeds=5, budget="200_runs", samples=8).num_settings == 8
    assert StudySettings(vary, seeds=5, budget="50 runs", fold=5).num_settings == 2
    assert StudySettings(vary, budget="1.5h").limit == Budget(seconds=5400)
    assert StudySettings(vary, budget="30m").limit == Budget(seconds=1800)


def test_folds_are_all_parts_of_the_rows_or_one_tenth() -> None:
    assert StudySettings({"max_steps": "1,2"}).folds == ("1/10",)
    assert StudySettings({"max_steps": "1,2"}, fold=3).folds == ("1/3", "2/3", "3/3")
    assert StudySettings({"max_steps": "1,2"}, seeds=2, fold=3).runs_per_setting == 6


def test_a_grid_varies_the_last_setting_fastest() -> None:
    grid = StudySettings({"max_steps": "1,2", "group_by_length": "true,false"}).grid()
    assert [tuple(values.values()) for values in grid] == [(1, True), (1, False), (2, True), (2, False)]
