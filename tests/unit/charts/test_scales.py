"""Test ranges, ticks and the numbers written at them."""

from __future__ import annotations

import pytest

from glassloop.report.charts.figure import (
    COUNT,
    LINEAR,
    LOG,
    PERCENT,
    Axis,
    multiples,
    number_text,
    round_step,
    scale_of,
    value_text,
)


@pytest.mark.parametrize(
    ("values", "axis", "ticks"),
    [
        ([0.1, 0.72], Axis(), ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8"]),
        ([0.813, 0.861], Axis(), ["0.81", "0.82", "0.83", "0.84", "0.85", "0.86", "0.87"]),
        ([0, 4321], Axis(), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ([0.0, 5e-5], Axis(), ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5"]),
        ([0.0, 1.7e-4], Axis(), ["0", "5e-5", "1e-4", "1.5e-4", "2e-4"]),
        ([0.2, 0.9], Axis(kind=PERCENT, low=0, high=1), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        ([3], Axis(kind=COUNT), ["0", "1", "2", "3"]),
        ([0.02, 70], Axis(kind=LOG), ["0.01", "0.1", "1", "10", "100"]),
        ([1.5, 8], Axis(kind=LOG), ["1", "2", "5", "10"]),
        ([-30, 45], Axis(), ["-40", "-20", "0", "20", "40", "60"]),
    ],
)
def test_ticks_are_round_numbers_around_the_data(values: list[float], axis: Axis, ticks: list[str]) -> None:
    scale = scale_of(axis, values, 0, 100, 7)
    assert [scale.written(tick) for tick in scale.ticks] == ticks
    assert all(0 <= scale.place(value) <= 100 for value in values)


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [-2.0], [float("nan"), 1.0], [float("inf"), 2.0], [1e-300], [1e300]])
@pytest.mark.parametrize("kind", [LINEAR, LOG, PERCENT, COUNT])
def test_any_data_has_a_scale(values: list[float], kind: str) -> None:
    scale = scale_of(Axis(kind=kind), values, 10, 90)
    assert scale.low < scale.high
    assert all(10 <= scale.place(value) <= 90 for value in [*values, 0.5] if value == value)
    assert all(scale.written(tick) for tick in scale.ticks)


def test_places_are_proportional() -> None:
    scale = scale_of(Axis(), [0, 10], 0, 200)
    assert [scale.place(value) for value in (0, 2.5, 10, 11)] == [0, 50, 200, 200]
    logarithmic = scale_of(Axis(kind=LOG), [1, 100], 0, 200)
    assert logarithmic.place(10) == pytest.approx(100)
    assert logarithmic.place(0) == 0, "zero has no logarithm and is drawn at the end"


def test_steps_and_multiples() -> None:
    assert round_step(1, 5) == 0.2
    assert round_step(3, 6, COUNT) == 1
    assert multiples(0.1, 0.35, 0.1) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345, "12,345"), (0.123456, "0.1235"), (2.5e-5, "2.50e-5"), (3.2e6, "3.2M"), (2e9, "2G"), (7.0, "7"), (0, "0")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_value_without_number_is_a_dash() -> None:
    assert value_text(None) == value_text(float("nan")) == "–"
    assert value_text(0.256, PERCENT) == "25.6 %"


def test_small_ticks_stay_distinct() -> None:
    scale = scale_of(Axis(), [0, 2.9e-4], 0, 100)
    assert [scale.written(tick) for tick in scale.ticks] == ["0", "5e-5", "1e-4", "1.5e-4", "2e-4", "2.5e-4", "3e-4"]


@pytest.mark.parametrize("kind", [LINEAR, LOG, PERCENT, COUNT])
@pytest.mark.parametrize("end", [1.0, 3e38, 1e-300])
def test_an_axis_with_equal_ends_has_a_length(kind: str, end: float) -> None:
    """All rows of a run may have one confidence."""
    scale = scale_of(Axis(kind=kind, low=end, high=end), [end], 0, 100)
    assert 0 <= scale.place(end) <= 100
