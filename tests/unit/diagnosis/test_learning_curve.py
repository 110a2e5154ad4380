"""The learning curve: nested parts, a power law with intervals that contain the truth, and the classes that gain."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from glassloop.base.errors import DataError
from glassloop.cli.inspect import inspect
from glassloop.diagnosis.learning_curve import MORE, Point, forecast, measured_curve, nested, sizes_of
from glassloop.models.linear import fit_linear
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def law(rows: float) -> float:
    return 0.9 - 0.9 * rows**-0.4


def test_a_power_law_is_extended_and_intervals_grow_with_the_distance() -> None:
    points = [
        Point(rows, tuple(law(rows) + shift for shift in (-0.004, -0.002, 0.0, 0.002, 0.004))) for rows in (50, 100, 200, 400)
    ]
    found = forecast(points, 500, [125, 250, 500, 1000], 500)
    for one in found:
        assert one.low < law(one.rows) < one.high
        assert one.gain_low < law(one.rows) - law(500) < one.gain_high
        assert one.gain == pytest.approx(law(one.rows) - law(500), abs=0.01)
    widths = [one.gain_high - one.gain_low for one in found]
    assert widths == sorted(widths)
    gains = [one.gain for one in found]
    assert gains == sorted(gains)


def test_a_flat_curve_gains_nothing() -> None:
    points = [Point(rows, (0.80, 0.81, 0.79, 0.80, 0.80)) for rows in (50, 100, 200, 400)]
    one = forecast(points, 500, [500], 500)[0]
    assert one.gain_low <= one.gain < 0.01
    assert one.low < 0.8 < one.high


def test_intervals_contain_the_score_of_twice_the_rows() -> None:
    """Rows are hidden and found again: with a known distribution, in most trials the truth is inside."""
    inside, trials = 0, 4
    for seed in range(trials):
        drawn = np.random.default_rng(seed)
        direction = drawn.normal(size=10)
        features = drawn.normal(size=(4000, 10)).astype(np.float32)
        targets = (features @ direction + 3 * drawn.normal(size=4000) > 0).astype(np.int64)
        curve = measured_curve(features[:120], targets[:120], CLASSES, 2, np.arange(120), ("no", "yes"))
        fitted = fit_linear(features[:240], targets[:240], CLASSES, 2)
        truth = float((fitted.outputs(features[240:]).argmax(axis=1) == targets[240:]).mean())
        inside += curve.doubled.low <= truth <= curve.doubled.high
    assert inside >= 3


def test_the_parts_are_nested_and_have_the_classes_in_their_shares() -> None:
    targets = np.array([0] * 80 + [1] * 20)
    rest = np.random.default_rng(0).permutation(100)
    order = nested(rest, targets, CLASSES)
    assert sorted(order.tolist()) == list(range(100))
    for size in (10, 25, 50):
        assert abs((targets[order[:size]] == 1).mean() - 0.2) <= 0.1
    assert nested(rest, targets, SCORE) is rest
    assert sizes_of(1000) == [50, 100, 200, 400, 800]
    assert sizes_of(100) == [20, 40, 80]


def test_every_task_has_a_curve_and_the_class_that_gains_is_named() -> None:
    drawn = np.random.default_rng(2)
    features = drawn.normal(size=(300, 20)).astype(np.float32)
    scores = features[:, 0] + 0.3 * drawn.normal(size=300)
    labels = np.stack([features[:, 0] > 0, features[:, 1] > 0], axis=1).astype(np.int64)
    classes = np.where(drawn.random(300) < 0.5, 0, 1 + (features @ drawn.normal(size=20) > 0))
    features[classes == 0] += 8  # always right, so that it cannot gain
    groups = np.arange(300)
    for task, targets, number in ((SCORE, scores, 1), (SEVERAL, labels, 2), (CLASSES, classes, 3)):
        curve = measured_curve(features, targets, task, number, groups, ("sure", "left", "right")[:number])
        assert [point.rows for point in curve.points] == [30, 60, 120, 240]
        assert len(curve.forecasts) == len(MORE)
        assert curve.evaluated == 300
        assert curve.points[-1].mean > curve.points[0].mean
        assert curve.sentence().startswith("300 more rows: +")
    changes = {one.label: one.after - one.before for one in curve.classes}
    assert max(changes["left"], changes["right"]) > changes["sure"] + 0.02
    assert curve.classes[0].label != "sure"
    assert all(one.low <= one.after - one.before <= one.high for one in curve.classes)


def test_few_rows_are_an_error_that_says_how_many(tmp_path: Path, tiny_model_dir: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([["text", "label"], *([f"film {number}", "ab"[number % 2]] for number in range(20))])
    with pytest.raises(DataError, match="at least 60 different rows with labels, but there are 20"):
        inspect(str(path), str(tiny_model_dir), learning_curve=True, device="cpu")


def test_the_command_prints_the_curve_and_the_page_shows_it(tmp_path: Path, tiny_model_dir: Path, capsys) -> None:
    path, page = tmp_path / "rows.csv", tmp_path / "page.html"
    words = "the a is was film story very not and of".split()
    rows = [
        [f"{words[n % 10]} {words[n // 10 % 10]} {('bad', 'good')[n % 2]} {words[n // 30 % 10]} {n}", "ab"[n % 2]]
        for n in range(80)
    ]
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([["text", "label"], *rows])
    content = inspect(str(path), str(tiny_model_dir), deep=True, learning_curve=True, out=str(page), device="cpu").content
    assert content["learning_curve"].rows == 80
    assert "80 more rows: +" in capsys.readouterr().out
    assert 'id="learning-curve"' in page.read_text()
    alone = inspect(str(path), str(tiny_model_dir), learning_curve=True, device="cpu").content
    assert [*alone] == ["data", "model", "learning_curve"]
    assert alone["learning_curve"] == content["learning_curve"]
