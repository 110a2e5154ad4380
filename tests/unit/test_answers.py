"""What a predictor is asked and what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassloop.base.errors import DataError
from glassloop.predict.answers import Answering, columns_of
from glassloop.runs.record import Columns
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

LOGITS = np.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.4]])
NAMES = ("a", "b", "c")
COLUMNS = Columns("sentence1", "sentence2", ("label",))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["x", "y"], [["x", "y"]]),
        ([("x", "y")], [["x"], ["y"]]),
        ([["x", "y"], ("z", "w")], [["x", "z"], ["y", "w"]]),
        ([{"sentence1": "x", "sentence2": "y", "label": "1"}], [["x"], ["y"]]),
        ([{"text": "x", "text_pair": "y"}], [["x"], ["y"]]),
        ([{"text": "x"}], [["x"]]),
    ],
)
def test_forms(given: list[Any], found: list[list[str]]) -> None:
    assert columns_of(given, COLUMNS) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["x", ("y", "z")], "text 2 is a pair, but text 1 is a text"),
        ([("x", "y", "z")], "text 1 has 3 parts, but a pair has two"),
        ([{"texts": "x"}], 'text 1 has the keys texts, but no "text"'),
        (["x", 3], 'text 2 is "3", not text'),
        ([("x", None)], 'text 1 is "None", not text'),
    ],
)
def test_what_is_no_text(given: list[Any], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        columns_of(given, COLUMNS)
    assert caught.value.problem == problem


def test_temperature_changes_probabilities_not_the_answer() -> None:
    plain, warm = Answering(CLASSES, NAMES), Answering(CLASSES, NAMES, temperature=2.0)
    assert [one.label for one in plain.describe(LOGITS)] == [one.label for one in warm.describe(LOGITS)] == ["a", "b"]
    np.testing.assert_allclose(warm.shares(LOGITS), plain.shares(LOGITS / 2))
    assert warm.describe(LOGITS)[0].logits == LOGITS[0].tolist()


def test_thresholds_of_several_labels() -> None:
    found = Answering(SEVERAL, NAMES, thresholds={"a": 0.95, "c": 0.2}).describe(LOGITS)
    assert [one.label for one in found] == [["b", "c"], ["b", "c"]]


def test_thresholds_of_classes() -> None:
    assert [one.label for one in Answering(CLASSES, NAMES, thresholds={"c": 0.3}).describe(LOGITS)] == ["a", "c"]
    assert [one.label for one in Answering(CLASSES, NAMES, thresholds={"a": 0.9}).describe(LOGITS)] == ["b", "b"]
    every = Answering(CLASSES, NAMES, thresholds=dict.fromkeys(NAMES, 0.99))
    assert [one.label for one in every.describe(LOGITS)] == ["a", "b"], "if none reaches its threshold, the most likely"


def test_a_score() -> None:
    (found,) = Answering(SCORE, ("score",)).describe(np.array([[1.5]]))
    assert (found.label, found.scores, found.logits) == (1.5, {}, [1.5])


def test_wrong_settings(says) -> None:
    with says("temperature is 0.0, not a positive number", "use 1 for no change"):
        Answering(CLASSES, NAMES, temperature=0.0)
    with says('there is a threshold for "x", which is not a label', "labels: a, b, c"):
        Answering(CLASSES, NAMES, thresholds={"x": 0.5})
    with says("a threshold is 2, not a probability", "use a number from 0 to 1"):
        Answering(CLASSES, NAMES, thresholds={"a": 2})
