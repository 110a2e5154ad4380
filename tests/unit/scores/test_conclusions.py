"""The conclusions of a study: results, comparisons, designs, and the expected best score."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from run_folders import drawn_rows
from simulated_rows import simulated

from glassloop.base.errors import SettingsError
from glassloop.scores import conclusions
from glassloop.scores.conclusions import SettingRuns, averaged_logits, concluded, designed, ensemble_of, setting_result
from glassloop.scores.metrics import probabilities
from glassloop.scores.statistics import detectable_by_seeds, holm, metric_estimate, seeds_estimate
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

NAMES = ("weak", "middle", "strong")


@pytest.fixture
def settings() -> list[SettingRuns]:
    drawn = simulated(np.random.default_rng(1), 400, 5, (1.0, 1.05, 2.5))
    return [SettingRuns(name, seeds) for name, seeds in zip(NAMES, drawn, strict=True)]


def test_the_result_of_a_setting_counts_failed_runs(settings: list[SettingRuns]) -> None:
    found = setting_result(settings[0], "accuracy", baseline=0.5)
    wanted = seeds_estimate([*settings[0].seeds.values()], "accuracy")
    assert [*found.points.values()] == [*wanted.points]
    assert (found.mean, found.deviation, found.interval) == (wanted.value, wanted.deviation, wanted.interval)
    assert (found.failed, found.runs) == (0, 5)
    alone = setting_result(SettingRuns("one", {0: settings[0].seeds[0]}), "accuracy")
    assert (alone.interval, alone.deviation) == (metric_estimate(settings[0].seeds[0], "accuracy").interval, None)
    points = sorted(setting_result(settings[0], "accuracy").points.values())
    lost = SettingRuns("weak", settings[0].seeds, lost=2)
    assert setting_result(lost, "accuracy", baseline=points[0]).failed == 3, "one at the baseline and two without a result"
    assert setting_result(lost, "accuracy", baseline=points[0]).runs == 7
    nothing = setting_result(SettingRuns("gone", {}, lost=3), "accuracy")
    assert (nothing.mean, nothing.failed, nothing.interval) == (None, 3, None)
    errors = SettingRuns("scores", {seed: drawn_rows(50, 1.0, seed, SCORE) for seed in range(2)})
    assert setting_result(errors, "mse", baseline=0.0).failed == 2, "less is better"


def test_all_are_compared_with_the_reference(settings: list[SettingRuns]) -> None:
    found = concluded([*settings, SettingRuns("gone", {}, lost=1)], "accuracy", reference="strong")
    assert [one.name for one in found.results] == [*NAMES, "gone"]
    assert [one.name for one in found.comparisons] == ["weak", "middle"]
    assert {one.verdict.kind for one in found.comparisons} == {"worse"}
    assert found.sentence == "strong is better than 2 of 2 other settings."
    p_values = [one.difference.p_value for one in found.comparisons]
    assert [one.difference.corrected for one in found.comparisons] == holm(p_values)
    found = concluded(settings, "accuracy")
    assert found.reference == "weak"
    assert found.sentence.startswith("weak is worse than strong; undecided against 1")
    wide = concluded(settings[:2], "accuracy", margin=0.5)
    assert wide.sentence == "weak is within 0.5 of 1 of 1 other setting."
    assert concluded(settings[:1], "accuracy").sentence == "weak is the only setting with a result."
    with pytest.raises(SettingsError, match='"midle" is not a setting with a result; did you mean "middle"'):
        concluded(settings, "accuracy", reference="midle")
    with pytest.raises(SettingsError, match="no setting has a result"):
        concluded([SettingRuns("gone", {})], "accuracy")


def test_intervals_and_verdicts_are_corrected_for_the_number_of_comparisons(settings: list[SettingRuns]) -> None:
    several, single = concluded(settings, "accuracy"), concluded(settings[:2], "accuracy")
    assert [one.difference.interval.level for one in several.comparisons] == [pytest.approx(0.975)] * 2
    assert [one.interval.level for one in several.results if one.interval] == [0.95] * 3, "single settings are not corrected"
    assert several.correction.endswith("corrected for 2 comparisons, 95% for all together")
    assert single.correction == ""
    reach = [found.comparisons[0].difference.interval for found in (several, single)]
    assert reach[0].half_width > reach[1].half_width
    margin = (reach[0].high + reach[1].high) / 2  # between both intervals
    assert concluded(settings[:2], "accuracy", margin=margin).comparisons[0].verdict.kind == "no difference"
    assert concluded(settings, "accuracy", margin=margin).comparisons[0].verdict.kind == "undecided"
    # The value of each side is biased, but about equally, so that the difference has an interval.
    twenty = [*"abcdefghijklmnopqrst"]
    sides = [SettingRuns(name, {0: drawn_rows(60, 1.0, seed, labels=twenty)}) for seed, name in enumerate("ab")]
    found = concluded(sides, "f1_macro")
    assert [one.interval for one in found.results] == [None, None]
    assert found.comparisons[0].difference.value in found.comparisons[0].difference.interval


def test_a_design_knows_the_rows_and_the_spread_of_runs(settings: list[SettingRuns]) -> None:
    def smallest(*given, **options) -> float:
        return float(designed(*given, **options).partition("above ")[2].partition(" ")[0])

    assert designed(5, 408, (), "accuracy") == (
        "5 seeds and 408 rows: differences above 4.4 points between two single models; the spread of seeds is not known yet"
    )
    assert designed(1, 408, settings, "accuracy").endswith("one seed shows no spread")
    deviations = [setting_result(one, "accuracy").deviation or 0 for one in settings]
    deviation = math.sqrt(np.mean(np.square(deviations)))
    vary = f"seeds vary by {100 * deviation:.1f}"
    assert designed(5, 400, settings, "accuracy").endswith(f" points ({vary})")
    several = designed(5, 400, settings, "accuracy", comparisons=23)
    assert several.endswith(f" points ({vary}, corrected for 23 comparisons)")
    found = smallest(5, 400, settings, "accuracy")
    assert smallest(5, 400, settings[:1], "accuracy") == pytest.approx(100 * detectable_by_seeds(5, deviations[0]), abs=0.05)
    assert found > 100 * detectable_by_seeds(5, deviation), "rows add to it"
    assert smallest(20, 400, settings, "accuracy") < found < smallest(5, 400, settings, "accuracy", comparisons=23)


def test_the_expected_best_score_equals_all_draws_and_probabilities_are_averaged() -> None:
    scores = [0.5, 0.7, 0.6, 0.9]
    for lower, best in ((False, max), (True, min)):
        found = conclusions.expected_best(scores, lower_is_better=lower)
        assert [one.runs for one in found] == [1, 2, 3, 4]
        for one in found:
            drawn = [best(chosen) for chosen in product(scores, repeat=one.runs)]
            assert one.value == pytest.approx(np.mean(drawn))
            assert one.deviation == pytest.approx(np.std(drawn))
    seeds = [drawn_rows(60, 1.0, seed, SCORE) for seed in range(3)]
    np.testing.assert_allclose(ensemble_of(seeds).predictions, np.mean([rows.predictions for rows in seeds], axis=0))
    for task in [CLASSES, SEVERAL]:
        seeds = [drawn_rows(60, 1.0, seed, task) for seed in range(3)]
        found = ensemble_of(seeds)
        wanted = np.mean([probabilities(rows.logits, task) for rows in seeds], axis=0)
        np.testing.assert_allclose(probabilities(found.logits, task), wanted, rtol=1e-9)
        np.testing.assert_array_equal(found.predictions, wanted.argmax(axis=1) if task == CLASSES else wanted >= 0.5)
        np.testing.assert_array_equal(found.references, seeds[0].references)

        certain = np.array([[1000.0, -1000.0]])
        assert np.isfinite(averaged_logits([certain, certain], task)).all()
