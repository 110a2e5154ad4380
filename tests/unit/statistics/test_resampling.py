"""Draws of rows: grouped into cells without changing the result, seeded, as many rows as the data."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_runs import drawn_rows

from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.resampling import (
    MANY_CELLS,
    RESAMPLES,
    RESAMPLES_OF_MANY,
    Cells,
    cells_of,
    drawn_values,
    draws,
    resamples_for,
)


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_cells_keep_every_row(task: str) -> None:
    models = [drawn_rows(300, skill, seed, task) for seed, skill in enumerate((0.5, 2.0))]
    cells = cells_of(models)
    assert cells.rows == 300
    if task == CLASSES:
        assert len(cells.frequencies) <= 8, "label and two answers"
    key = {CLASSES: "f1_macro", SEVERAL: "f1_macro", SCORE: "pearson"}[task]
    alone = [cells_of([model]).points(key)[0] for model in models]
    np.testing.assert_allclose(cells.points(key), alone)


@pytest.mark.parametrize("number", [3, 60])
def test_every_draw_has_as_many_rows_as_the_data(number: int) -> None:
    frequencies = np.arange(1, number + 1) * 3
    cells = Cells(CLASSES, np.zeros(number, dtype=int), (np.zeros(number, dtype=int),), frequencies)
    counts = np.concatenate([*draws(cells, 4000, seed=1)])
    assert counts.shape == (4000, number)
    assert (counts.sum(axis=1) == cells.rows).all()
    np.testing.assert_allclose(counts.mean(axis=0), frequencies, rtol=0.1)
    expected = frequencies * (1 - frequencies / cells.rows)
    np.testing.assert_allclose(counts.var(axis=0), expected, rtol=0.15)


def test_draws_of_single_rows_are_multinomial_too() -> None:
    cells = cells_of([drawn_rows(50, task=SCORE)])
    counts = np.concatenate([*draws(cells, 4000)])
    np.testing.assert_allclose(counts.mean(), 1.0)
    np.testing.assert_allclose(counts.var(axis=0).mean(), 1 - 1 / 50, rtol=0.03)


def test_equal_seeds_give_equal_draws() -> None:
    cells = cells_of([drawn_rows(50)])
    first, same, other = (drawn_values(cells, "accuracy", resamples=20, seed=seed) for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()
    assert first.shape == (20, 1)


def test_very_many_cells_need_fewer_draws() -> None:
    few, many = (Cells(SCORE, np.zeros(1), (), np.ones(number)) for number in (MANY_CELLS, MANY_CELLS + 1))
    assert (resamples_for(few, None), resamples_for(many, None), resamples_for(many, 7)) == (RESAMPLES, RESAMPLES_OF_MANY, 7)
