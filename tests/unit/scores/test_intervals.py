"""Intervals equal those of SciPy and statsmodels, contain their value, and cover as they claim."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from run_folders import drawn_rows, write_drawn_run
from simulated_rows import population
from statsmodels.stats.proportion import proportion_confint

from glassloop.base.errors import ModelError, SettingsError
from glassloop.runs.record import read_run
from glassloop.scores import statistics as stats
from glassloop.scores.metrics import COMPUTED, metrics_for
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", [1, 7, 408, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_equals_statsmodels(number: int, share: float, level: float) -> None:
    successes = round(share * number)
    found = stats.wilson(successes, number, level)
    assert (found.low, found.high) == pytest.approx(proportion_confint(successes, number, 1 - level, "wilson"), abs=1e-12)
    assert 0 <= found.low <= successes / number <= found.high <= 1
    assert found.level == level


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("task", "key"), [(CLASSES, "f1"), (SCORE, "mse"), (CLASSES, "matthews_correlation"), (SCORE, "pearson")]
)
def test_the_interval_is_near_scipys_bootstrap(task: str, key: str) -> None:
    """Two methods for one interval: they agree on many rows."""
    rows = drawn_rows(1000, 1.0, task=task)
    found = stats.metric_estimate(rows, key, "equivalent" if key == "f1" else None)

    def metric(predictions: np.ndarray, references: np.ndarray) -> float:
        if key in ("f1", "matthews_correlation"):
            hits, given, wanted = (predictions & references).sum(), predictions.sum(), references.sum()
            number = len(references)
            if key == "f1":
                return float(2 * hits / (given + wanted))
            under = np.sqrt(float(given * (number - given)) * float(wanted * (number - wanted)))
            return float((number * hits - given * wanted) / under) if under else 0.0
        if key == "mse":
            return float(np.square(predictions - references).mean())
        return float(np.corrcoef(predictions, references)[0, 1])

    pair = (rows.predictions, rows.references)
    wanted = scipy.stats.bootstrap(
        pair, metric, paired=True, vectorized=False, n_resamples=1999, method="BCa", rng=np.random.default_rng(3)
    ).confidence_interval
    assert found.value == pytest.approx(metric(*pair))
    width = wanted.high - wanted.low
    assert found.interval is not None
    assert found.interval.low == pytest.approx(wanted.low, abs=0.07 * width)
    assert found.interval.high == pytest.approx(wanted.high, abs=0.07 * width)


def test_where_an_interval_would_be_false_there_is_none() -> None:
    perfect = drawn_rows(50, 100.0)
    found = stats.metric_estimate(perfect, "f1", "equivalent")
    assert found.value == 1.0
    positives = int(perfect.references.sum())
    assert found.interval == stats.wilson(positives, positives), "rows of the other class say nothing"
    same = stats.ScoredRows(SCORE, (), np.arange(9.0), np.arange(9.0), np.arange(9.0)[:, None])
    assert stats.metric_estimate(same, "mse").interval is None
    assert stats.metric_estimate(same, "pearson").interval is None
    # 100 rows of 20 classes: the bootstrap interval, 0.354 to 0.378, did not even contain the value of 0.390.
    rows = population(np.random.default_rng(1), 20, 0.6).rows(np.random.default_rng(2), 60)
    assert stats.metric_estimate(rows, "f1_macro").interval is None
    assert stats.metric_estimate(rows, "accuracy").interval is not None
    assert stats.is_biased(0.6, 1.0)
    assert not stats.is_biased(0.4, 1.0)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("task", "keys"), stats.ROW_METRICS.items())
@pytest.mark.parametrize("number", [1, 2, 3, 5, 12, 60])
def test_an_interval_contains_its_value_and_lies_in_the_range(task: str, keys: tuple[str, ...], number: int) -> None:
    shown = 0
    for seed, skill in enumerate((0.0, 0.5, 2.0, 100.0)):
        rows = drawn_rows(number, skill, seed, task, [*"abcd"])
        for key in keys:
            found = stats.metric_estimate(rows, key, "b" if task == CLASSES else None)
            if found.interval is not None:
                shown += 1
                assert found.value in found.interval
                assert found.interval.within_range(key) == found.interval
                assert found.interval.half_width > 0 or number == 1
    assert shown or task == SCORE


def test_wrong_arguments_are_named_and_an_interval_has_no_values_that_its_metric_cannot_have() -> None:
    with pytest.raises(SettingsError, match="level=95 is not between 0 and 1"):
        stats.normal_quantile(95)
    with pytest.raises(SettingsError, match="maybe is not one of the labels"):
        stats.row_metrics_of([drawn_rows(3)], "f1", "maybe")
    assert all({*keys} <= {*stats.ROW_METRICS[task]} for task, keys in COMPUTED.items())
    with pytest.raises(SettingsError, match='"mse" is not a known metric of single_label_classification'):
        stats.row_metric("mse", CLASSES, np.zeros(2), np.zeros(2))
    ranges = {"accuracy": (0.0, 1.0), "pearson": (-1.0, 1.0), "matthews_correlation": (-1.0, 1.0), "mse": (0.0, 3.0)}
    for key, (low, high) in ranges.items():
        found = stats.Interval(-3.0, 3.0, method="t").within_range(key)
        assert (found.low, found.high, found.method) == (low, high, "t")


def test_wilson_covers_as_it_claims_and_is_the_interval_of_a_share() -> None:
    """Exactly, from the binomial distribution."""
    for number, share in [(100, 0.8), (408, 0.85), (408, 0.95), (1725, 0.9)]:
        likely = scipy.stats.binom.pmf(np.arange(number + 1), number, share)
        covered = sum(likely[successes] for successes in range(number + 1) if share in stats.wilson(successes, number))
        assert 0.93 <= covered <= 0.97
    for rows, key in ((drawn_rows(100), "accuracy"), (drawn_rows(100, task=SEVERAL), "exact_match")):
        found, wanted = stats.metric_estimate(rows, key).interval, stats.wilson(rows.right.sum(), 100)
        assert found is not None
        assert (found.low, found.high, found.method) == pytest.approx((wanted.low, wanted.high, "wilson"))
    values = [0.81, 0.84, 0.79, 0.86, 0.83]
    found = stats.mean_interval(values)
    wanted = scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(wanted)
    assert stats.mean_interval([0.5]).interval is None
    rows = drawn_rows(200, task=SCORE)
    (error,), (correlation,) = (stats.row_metrics_of([rows], key) for key in ("mse", "pearson"))
    found, fisher = stats.metric_interval(error, "mse"), stats.metric_interval(correlation, "pearson")
    assert found is not None
    assert fisher is not None
    assert found.low * found.high == pytest.approx(error.value**2), "the same factor up and down"
    assert math.log(found.high / error.value) == pytest.approx(1.972 * error.variance**0.5 / error.value, rel=0.05)
    assert math.atanh(fisher.high) - math.atanh(correlation.value) == pytest.approx(1.96 / 197**0.5, rel=0.2)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("key", "classes", "rows"),
    [("f1_macro", 5, 10), ("f1", 2, 10), ("matthews_correlation", 5, 10), ("f1_macro", 20, 10), ("f1_macro", 20, 30)],
)
def test_intervals_over_rows_cover_as_they_claim(key: str, classes: int, rows: int) -> None:
    """Populations with a known truth, balanced and skewed, good and bad models; 1,000 studies have an error of 0.7 points."""
    generator, covered = np.random.default_rng(5), []
    for accuracy in (0.6, 0.75, 0.9):
        for skewed in (False, True):
            for _ in range(170):
                truth = population(generator, classes, accuracy, skewed=skewed)
                drawn = truth.rows(generator, rows * classes)
                found = stats.metric_estimate(drawn, key, drawn.labels[-1])
                if found.interval is not None:
                    assert found.value in found.interval
                    covered.append(truth.truth(key) in found.interval)
    assert len(covered) > 400
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize("key", ["pearson", "spearman", "mse"])
def test_intervals_of_scores_cover_as_they_claim(key: str) -> None:
    generator, covered = np.random.default_rng(8), []
    for study in range(1000):
        true = (0.3, 0.7, 0.95)[study % 3]
        truth = {"pearson": true, "spearman": 6 / math.pi * math.asin(true / 2), "mse": 2 - 2 * true}[key]
        references = generator.normal(size=30)
        predictions = true * references + (1 - true**2) ** 0.5 * generator.normal(size=30)
        found = stats.metric_estimate(stats.ScoredRows(SCORE, (), predictions, references, predictions[:, None]), key).interval
        covered.append(found is not None and truth in found)
    assert 0.93 <= np.mean(covered) <= 0.97


# --- Metrics equal those of measures.py, and the change of each row equals computing the metric without it.
CASES = [((CLASSES, key), width) for key in COMPUTED[CLASSES] for width in (2, 5)]
CASES += [((SEVERAL, key), 3) for key in COMPUTED[SEVERAL]] + [((SCORE, key), 1) for key in COMPUTED[SCORE]]


@pytest.mark.sample(len({scored for scored, _ in CASES}) + 1)  # each metric, and one of them for two and for five classes
@pytest.mark.parametrize(("scored", "width"), CASES, ids=str)
def test_every_change_is_that_of_the_metric_without_the_row(scored: tuple[str, str], width: int) -> None:
    (task, key), number = scored, 40
    rows = drawn_rows(number, 0.7, task=task, labels=[*"abcde"][:width])
    if task == SCORE:
        rows.predictions.round(1, out=rows.predictions)  # with ties
    positive = None if task != CLASSES else 1 if width == 2 else 3
    metric = metrics_for(task, max(width, 1), keys=(key,), positive=positive)

    def reference(kept: np.ndarray) -> float:
        return float(metric.compute(predictions=rows.predictions[kept], references=rows.references[kept])[key])

    found = stats.row_metric(key, task, rows.predictions, rows.references, positive)
    every = np.arange(number)
    changes = reference(every) - np.array([reference(np.delete(every, row)) for row in every])
    assert found.value == pytest.approx(reference(every), abs=1e-12)
    near = 0.03 * np.abs(changes).max() if key.startswith("spearman") else 1e-12  # ranks: of a small part of each row
    np.testing.assert_allclose(found.changes, changes, atol=near)
    assert found.bias == pytest.approx(-(number - 1) * found.changes.mean())


def test_variances_and_covariances_equal_known_formulas() -> None:
    share = drawn_rows(400)
    found = stats.row_metric("accuracy", CLASSES, share.predictions, share.references)
    assert found.variance == pytest.approx(found.value * (1 - found.value) / 399)
    scores = drawn_rows(400, task=SCORE)
    error = stats.row_metric("mse", SCORE, scores.predictions, scores.references)
    assert error.variance == pytest.approx(scipy.stats.sem(np.square(scores.predictions - scores.references)) ** 2)
    for key in ("pearson", "spearman"):
        correlation = stats.row_metric(key, SCORE, scores.predictions, scores.references)
        assert correlation.variance == pytest.approx((1 - correlation.value**2) ** 2 / 400, rel=0.25)
    models = [drawn_rows(300, 1.0, seed) for seed in range(3)]
    changes = np.stack([stats.row_metric("accuracy", CLASSES, one.predictions, one.references).changes for one in models])
    np.testing.assert_allclose(stats.covariance_of(changes), np.cov([one.right for one in models]) / 300)


def test_what_a_row_counts_for_a_metric() -> None:
    classes = np.array([0, 0, 0, 1])
    found = stats.row_metric("f1_macro", CLASSES, classes, classes)
    assert (found.value, found.changes.tolist()) == (1.0, [0.0, 0.0, 0.0, 0.5])
    for key in ("pearson", "spearmanr"):
        found = stats.row_metric(key, SCORE, np.full(3, 0.1), np.arange(3.0))
        assert (found.value, found.changes.tolist()) == (0.0, [0.0, 0.0, 0.0])
    # 1,000 rows with three of a class say as much about its F1 as these three.
    references = np.zeros(1000, dtype=int)
    references[:3] = 1
    counted = {key: stats.row_metric(key, CLASSES, references, references).counted for key in ("accuracy", "f1", "recall")}
    assert counted == {"accuracy": 1000, "f1": 3, "recall": 3}
    assert stats.row_metric("f1_macro", CLASSES, references, references).counted == pytest.approx(4 / (1 / 997 + 1 / 3))
    assert stats.row_metric("matthews_correlation", CLASSES, references, references).counted == pytest.approx(12, abs=0.1)
    assert stats.balanced_rows(np.array([25, 25, 25, 25])) == 100
    for key in ["f1", "precision", "recall", "f1_macro", "matthews_correlation"]:
        assert stats.row_metric(key, CLASSES, np.zeros(4, dtype=int), np.ones(4, dtype=int)).value == 0.0


# --- The predictions of a run as arrays.
FILE = Path("made-predictions.jsonl")


def test_predictions_of_a_run_come_back_as_arrays_and_a_missing_split_is_named(tmp_path: Path) -> None:
    for task in [CLASSES, SEVERAL, SCORE]:
        rows = drawn_rows(30, task=task)
        folder = write_drawn_run(tmp_path / task, rows)
        found = stats.scored_split(folder, read_run(folder), "validation")
        assert (found.task, found.labels, len(found)) == (task, rows.labels, 30)
        np.testing.assert_array_equal(found.predictions, rows.predictions)
        np.testing.assert_array_equal(found.references, rows.references)
        np.testing.assert_array_equal(found.logits, rows.logits)
    rows = stats.scored_rows(
        [{"logits": [1, -1], "label": ["a"]}, {"logits": [1, 1], "label": ["a"]}], SEVERAL, ["a", "b"], FILE
    )
    assert rows.right.tolist() == [True, False]
    folder = write_drawn_run(tmp_path / "run", drawn_rows(5))
    with pytest.raises(SettingsError, match='no predictions for the split "test"'):
        stats.scored_split(folder, read_run(folder), "test")


def test_labels_and_logits_that_are_not_those_of_the_run_are_one_error() -> None:
    for label in [{}, {"label": "c"}, {"label": ["a"]}]:
        with pytest.raises(ModelError, match=r"made-predictions\.jsonl: the predictions do not fit the run's labels") as caught:
            stats.scored_rows([{"logits": [1.0, 2.0], **label}], CLASSES, ["a", "b"], FILE)
        assert caught.value.remedy == "restore the file, or train again"
    for logits in [
        *(None, "text", [1.0], [1.0, float("nan")], ["1.0", "2.0"], [1.0, "text"], [1e308, -1e308], [1.0, 2**80]),
        *([[1.0, 2.0]], [1.0, [2.0]], {"a": 1}, [None, None], [1.0, 2.0, 3.0]),
    ]:
        sound = {"logits": [1.0, 2.0], "label": "a"}
        with pytest.raises(ModelError) as caught:
            stats.scored_rows([sound, {"logits": logits, "label": "a"}], CLASSES, ["a", "b"], FILE)
        assert caught.value.problem == "made-predictions.jsonl, line 2: logits are not 2 finite numbers of a model"
    for label in ["text", None, 1e308, [1.0]]:
        with pytest.raises(ModelError, match="a label is not a number"):
            stats.scored_rows([{"logits": [1.0], "label": label}], SCORE, None, FILE)
