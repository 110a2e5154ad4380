"""What a study varies and may cost: every form of values, every default, and all problems at once."""

from __future__ import annotations

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.study import Budget, Choices, Range, StudySettings, parsed, study_settings, vary_of, vary_text


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
        "budget is 'soon', not a time such as 30m or 2h",
        'unknown setting "learning_rat" to vary; did you mean "learning_rate"?',
        "seed cannot be varied",
        "optim is not a number, so it cannot be drawn from a range",
        "weight_decay is -1.0, not 0 or more",
        'max_grad_norm="linear:2..1" is not a range',
    ):
        assert part in problem
    assert "seed: use seeds" in remedy
    for given, problem in [
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
    ]:
        with pytest.raises(SettingsError) as raised:
            study_settings(given)
        assert problem in raised.value.problem


def test_strategy_settings_and_folds_follow_from_values_and_budget() -> None:
    few, many = {"learning_rate": "1e-5,2e-5"}, {"learning_rate": "1e-5,2e-5,3e-5", "warmup_steps": "0,0.1,0.2"}
    assert (StudySettings(few).chosen_strategy, StudySettings(few).num_settings) == ("grid", 2)
    assert (StudySettings(many).chosen_strategy, StudySettings(many).num_settings) == ("halving", 9)
    drawn = StudySettings({"learning_rate": "log:1e-5..1e-3"})
    assert (drawn.chosen_strategy, drawn.num_settings, drawn.grid_size) == ("halving", 16, None)
    assert StudySettings(few, strategy="random").num_settings == 2, "there are no more"
    vary = {"learning_rate": "log:1e-5..1e-3"}
    assert StudySettings(vary, seeds=5, budget="200_runs").num_settings == 40
    assert StudySettings(vary, seeds=5, budget="200_runs", samples=8).num_settings == 8
    assert StudySettings(vary, seeds=5, budget="50 runs", fold=5).num_settings == 2
    assert StudySettings(vary, budget="1.5h").limit == Budget(seconds=5400)
    assert StudySettings(vary, budget="30m").limit == Budget(seconds=1800)
    assert StudySettings({"max_steps": "1,2"}).folds == ("1/10",)
    assert StudySettings({"max_steps": "1,2"}, fold=3).folds == ("1/3", "2/3", "3/3")
    assert StudySettings({"max_steps": "1,2"}, seeds=2, fold=3).runs_per_setting == 6
    grid = StudySettings({"max_steps": "1,2", "group_by_length": "true,false"}).grid()
    assert [tuple(values.values()) for values in grid] == [(1, True), (1, False), (2, True), (2, False)]


# --- The values of varied settings: every form, with the type of the setting, and all wrong ones named.
def test_values_have_the_type_of_their_setting_and_a_range_is_drawn_on_its_scale() -> None:
    for name, text, found in [
        ("learning_rate", "2e-5, 5e-5,1", Choices((2e-5, 5e-5, 1.0))),
        ("per_device_train_batch_size", "8,16", Choices((8, 16))),
        ("group_by_length", "true,False", Choices((True, False))),
        ("max_length", "none,64", Choices((None, 64))),
        ("lr_scheduler_type", "linear,cosine", Choices(("linear", "cosine"))),
        ("model", "quickstart,runs/run-001/model", Choices(("quickstart", "runs/run-001/model"))),
        ("learning_rate", "log:1e-5..1e-3", Range(1e-5, 1e-3, log=True)),
        ("weight_decay", "linear:0..0.1", Range(0.0, 0.1)),
        ("per_device_train_batch_size", "linear:4..16", Range(4.0, 16.0, whole=True)),
    ]:
        assert parsed(name, text) == found
    assert [Range(1e-5, 1e-3, log=True).at(share) for share in (0.0, 0.5, 1.0)] == [1e-5, 1e-4, 1e-3]
    assert [Range(0.0, 0.1).at(share) for share in (0.0, 0.123456, 1.0)] == [0.0, 0.0123, 0.1]
    assert Range(4, 16, whole=True).at(0.49) == 10
    assert str(Range(1e-5, 1e-3, log=True)) == "log:1e-05..0.001"


def test_options_and_lists_become_settings_and_all_wrong_ones_are_named() -> None:
    assert vary_of(["learning-rate=1e-5,2e-5", "seed_x= 1"]) == {"learning_rate": "1e-5,2e-5", "seed_x": "1"}
    with pytest.raises(SettingsError) as raised:
        vary_of(["learning_rate", "a=1", "a=2"])
    assert raised.value.problem == '--vary "learning_rate" is not name=values; --vary names a twice'
    assert [vary_text(value) for value in ([1e-5, 2e-5], (True, None), "log:1..2", 8)] == [
        "1e-05,2e-05", "true,none", "log:1..2", "8",
    ]  # fmt: skip
