"""What a study of several configurations shows: intervals, comparisons with verdicts, several seeds as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from glassloop.base.errors import SettingsError, counted, did_you_mean, visible
from glassloop.scores import statistics
from glassloop.scores.metrics import LOWER_IS_BETTER, Array, decide, probabilities
from glassloop.scores.statistics import BETTER, SAME, UNDECIDED, WORSE, Difference, Interval, ScoredRows, compare
from glassloop.settings.training import CLASSES, SCORE

MOST_PAIRS = 10  # of settings whose rows are compared to plan a design
LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class SettingRuns:
    """The runs of one setting: the predictions of each finished seed, on rows that all settings share."""

    name: str
    seeds: Mapping[int, ScoredRows]
    lost: int = 0  # number of runs that ended without predictions, such as diverged ones


@dataclass(frozen=True)
class SettingResult:
    """The result of one setting: the metric of each finished seed, with mean, standard deviation and 95% interval."""

    name: str
    points: Mapping[int, float]
    mean: float | None  # None without finished seeds
    deviation: float | None  # None for fewer than two
    interval: Interval | None  # of the mean over seeds and rows; over rows only for one seed; None for too few rows
    failed: int  # number of runs at or below the baseline, or without a result
    runs: int


@dataclass(frozen=True)
class Comparison:
    """One setting compared with the reference: `difference.value` is the setting minus the reference."""

    name: str
    difference: Difference
    verdict: statistics.ComparisonVerdict


@dataclass(frozen=True)
class Conclusion:
    """The results of all settings, the comparisons of each with the reference, and a sentence about them."""

    reference: str
    results: tuple[SettingResult, ...]
    comparisons: tuple[Comparison, ...]
    sentence: str

    @property
    def correction(self) -> str:
        """What the comparisons are corrected for, in words; empty for a single one."""
        number = len(self.comparisons)
        words = f"intervals of differences and p-values corrected for {number:,} comparisons, 95% for all together"
        return words if number > 1 else ""


def setting_result(setting: SettingRuns, key: str, positive: str | None = None, baseline: float | None = None) -> SettingResult:
    """Return the result of one setting. `baseline` is the metric of always giving the most frequent answer, if it has one."""
    runs = len(setting.seeds) + setting.lost
    if not setting.seeds:
        return SettingResult(setting.name, {}, None, None, None, setting.lost, runs)
    estimate = statistics.seeds_estimate([*setting.seeds.values()], key, positive)
    points = dict(zip(setting.seeds, estimate.points, strict=True))
    sign = -1 if key in LOWER_IS_BETTER else 1
    worse = 0 if baseline is None else sum(sign * point <= sign * baseline for point in estimate.points)
    failed = setting.lost + worse
    return SettingResult(setting.name, points, estimate.value, estimate.deviation, estimate.interval, failed, runs)


def concluded(
    settings: Sequence[SettingRuns], key: str, positive: str | None = None, baseline: float | None = None,
    reference: str | None = None, *, margin: float | None = None,
) -> Conclusion:  # fmt: skip
    """Return the results of all settings, on the same rows, and the verdict of each against the reference."""
    # By default that is the first with a result, and differences up to one point, or 5 % of an error, do not matter.
    usable = {setting.name: setting for setting in settings if setting.seeds}
    if not usable:
        raise SettingsError("no setting has a result", "train at least one of them to its end")
    if reference is not None and reference not in usable:
        problem = f"{visible(reference)} is not a setting with a result{did_you_mean(reference, usable)}"
        raise SettingsError(problem, "name one of the settings")
    first = usable[reference or next(iter(usable))]
    others = [setting for setting in usable.values() if setting is not first]
    results = tuple(setting_result(setting, key, positive, baseline) for setting in settings)
    differences = statistics.compare_all(first.seeds, [other.seeds for other in others], key, positive)
    mean = next(result.mean for result in results if result.name == first.name) or 0.0
    limit = statistics.margin_for(key, mean) if margin is None else margin
    comparisons = tuple(
        Comparison(other.name, difference, statistics.decided(difference, key, limit))
        for other, difference in zip(others, differences, strict=True)
    )
    return Conclusion(first.name, results, comparisons, sentence_of(first.name, comparisons, limit))


def sentence_of(reference: str, comparisons: Sequence[Comparison], margin: float) -> str:
    """Return what the comparisons with the reference show, in one sentence."""
    if not comparisons:
        return f"{reference} is the only setting with a result."
    kinds = [comparison.verdict.kind for comparison in comparisons]
    of_others, words = f" of {counted(len(kinds), 'other setting', 'other settings')}", []
    if BETTER in kinds:
        words.append(f"worse than {', '.join(one.name for one in comparisons if one.verdict.kind == BETTER)}")
    more = [one.verdict.more_seeds for one in comparisons if one.verdict.more_seeds is not None]
    about = f" (about {counted(min(more), 'more seed', 'more seeds')} would decide the first)" if more else ""
    phrases = {WORSE: "better than ", SAME: f"within {margin:.3g} of ", UNDECIDED: "undecided against "}
    for kind, phrase in phrases.items():
        if number := kinds.count(kind):
            words.append(f"{phrase}{number}{of_others}{about if kind == UNDECIDED else ''}")
            of_others = ""  # named once
    return f"{reference} is {'; '.join(words)}."


def designed(
    seeds: int, rows: int, settings: Sequence[SettingRuns], key: str, positive: str | None = None, comparisons: int = 1
) -> str:
    """Return which differences so many seeds of each setting and rows detect with a probability of 80 %, in words."""
    size = f"{counted(seeds, 'seed', 'seeds')} and {counted(rows, 'row', 'rows')}"
    usable = [setting for setting in settings if len(setting.seeds) > 1]
    results = [setting_result(setting, key, positive) for setting in usable]
    pairs = [*combinations(usable, 2)][:MOST_PAIRS]
    spreads = [compare(one.seeds, other.seeds, key, positive).spread for one, other in pairs]
    deviation = math.sqrt(np.mean([(result.deviation or 0.0) ** 2 for result in results])) if usable else 0.0
    row_variance = float(np.mean([one.rows.variance * one.num_rows / rows for one in spreads])) if spreads else 0.0
    if seeds < 2 or not (deviation or row_variance):  # not known yet, or all runs gave the same answers
        why = "one seed shows no spread" if seeds < 2 else "the spread of seeds is not known yet"
        smallest = statistics.detectable_by_rows(rows)
        return f"{size}: differences above {100 * smallest:.1f} points between two single models; {why}"
    smallest = statistics.detectable_by_seeds(seeds, deviation, row_variance, alpha=statistics.ALPHA / max(comparisons, 1))
    why = f"seeds vary by {100 * deviation:.1f}"
    why += f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    return f"{size}: differences above {100 * smallest:.1f} points ({why})"


@dataclass(frozen=True)
class ExpectedBest:
    """The expected best score among `runs` runs, with its standard deviation."""

    runs: int
    value: float
    deviation: float


def expected_best(scores: Sequence[float], *, lower_is_better: bool = False) -> list[ExpectedBest]:
    """Return the expected validation performance against the number of runs (Dodge et al. 2019) from the scores of all runs."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    if lower_is_better:
        ordered = ordered[::-1]
    share = np.arange(len(ordered) + 1) / len(ordered)
    expected = []
    for runs in range(1, len(ordered) + 1):
        weights = np.diff(share**runs)  # the probability that each score is the best of so many runs
        mean = float(weights @ ordered)
        expected.append(ExpectedBest(runs, mean, math.sqrt(max(float(weights @ (ordered - mean) ** 2), 0.0))))
    return expected


def averaged_logits(logits: Sequence[Array], task: str) -> Array:
    """Return logits whose probabilities are the mean of those of several models; for scores, the mean score."""
    # Seeds as one model average probabilities: a majority vote has ties and no scores.
    if task == SCORE:
        return np.asarray(np.mean(logits, axis=0))
    mean = np.mean([probabilities(one, task) for one in logits], axis=0)
    finite = np.clip(mean, LEAST_PROBABILITY, None if task == CLASSES else 1 - LEAST_PROBABILITY)
    return np.asarray(np.log(finite) if task == CLASSES else np.log(finite) - np.log1p(-finite))


def ensemble_of(seeds: Sequence[ScoredRows]) -> ScoredRows:
    """Return the predictions of several seeds as one model. All must have been evaluated on the same rows."""
    logits = averaged_logits([seed.logits for seed in seeds], seeds[0].task)
    return replace(seeds[0], logits=logits, predictions=decide(logits, seeds[0].task))
