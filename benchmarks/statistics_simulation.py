"""Simulated studies with a known truth: how often intervals cover and verdicts are right. Prints a Markdown table.

`PYTHONPATH=tests python benchmarks/statistics_simulation.py [studies]`. Takes about ten minutes for 3,000 studies.
"""

from __future__ import annotations

import sys

import numpy as np
from simulated_seeds import simulated, true_accuracy

from glassloop.statistics.paired import compare, corrected
from glassloop.statistics.power import seeds_to_detect
from glassloop.statistics.resampling import cells_of, drawn_values
from glassloop.statistics.several_seeds import seeds_estimate
from glassloop.statistics.verdicts import BETTER, WORSE, decided

STUDIES = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
ROWS, SKILL = 300, 1.3


def plain_multibootstrap(runs: list, generator: np.random.Generator) -> tuple[float, float]:
    """Return the percentile interval of seeds and rows drawn with replacement (Sellam et al. 2022)."""
    drawn = drawn_values(cells_of(runs), "accuracy", resamples=300, seed=int(generator.integers(1 << 31)))
    chosen = generator.integers(0, len(runs), size=drawn.shape)
    low, high = np.quantile(np.take_along_axis(drawn, chosen, axis=1).mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def coverage() -> None:
    """Print how often the interval of a setting's mean contains the truth."""
    print("| seeds | spread of seeds | coverage | plain multi-bootstrap |\n|---|---|---|---|")
    for seeds, spread in ((2, 0.15), (3, 0.15), (5, 0.05), (5, 0.15), (5, 0.4), (10, 0.15), (20, 0.15)):
        generator, truth, own, plain = np.random.default_rng(100 + seeds), true_accuracy(SKILL, spread), 0, 0
        for _ in range(STUDIES):
            runs = [*simulated(generator, ROWS, seeds, (SKILL,), spread)[0].values()]
            own += truth in seeds_estimate(runs, "accuracy", resamples=300, seed=int(generator.integers(1 << 31))).interval
            low, high = plain_multibootstrap(runs, generator)
            plain += low <= truth <= high
        print(f"| {seeds} | {spread} | {own / STUDIES:.1%} | {plain / STUDIES:.1%} |", flush=True)


def verdicts() -> None:
    """Print how often one of two settings that equal the first is called better or worse."""
    print("\n| seeds | spread of seeds | interval covers 0 | false better | false better or worse |\n|---|---|---|---|---|")
    for seeds, spread in ((2, 0.15), (3, 0.15), (5, 0.15), (5, 0.4), (10, 0.15)):
        generator, covered, better, wrong = np.random.default_rng(200 + seeds), 0, 0, 0
        for _ in range(STUDIES):
            first, *others = simulated(generator, ROWS, seeds, (SKILL,) * 3, spread)
            found = corrected([compare(first, other, "accuracy", resamples=200) for other in others])
            kinds = {decided(one, "accuracy").kind for one in found}
            covered += 0.0 in found[0].interval
            better += BETTER in kinds
            wrong += bool(kinds & {BETTER, WORSE})
        shares = (f"{number / STUDIES:.1%}" for number in (covered, better, wrong))
        print(f"| {seeds} | {spread} | {' | '.join(shares)} |", flush=True)


def seeds_needed() -> None:
    """Print the predicted number of seeds, and the first number with which 80 % of simulated studies are decided."""
    print("\n| true gain | spread of seeds | predicted seeds | first number with 80 % power |\n|---|---|---|---|")
    studies = max(STUDIES // 10, 50)
    for gain, spread in ((0.3, 0.25), (0.25, 0.15), (0.4, 0.4)):
        generator = np.random.default_rng(300)
        pilot = compare(*simulated(generator, 3000, 200, (1.2, 1.2 + gain), spread), "accuracy", resamples=300)
        truth = true_accuracy(1.2 + gain, spread) - true_accuracy(1.2, spread)
        deviation = (pilot.spread.seeds.variance * 200) ** 0.5 if pilot.spread.seeds else 0.0
        predicted = seeds_to_detect(truth, deviation, pilot.spread.rows.variance)
        for seeds in range(2, 60):
            drawn = (simulated(generator, 3000, seeds, (1.2, 1.2 + gain), spread) for _ in range(studies))
            if (
                np.mean([decided(compare(*sides, "accuracy", resamples=200), "accuracy").kind == BETTER for sides in drawn])
                >= 0.8
            ):
                break
        print(f"| {truth:.3f} | {spread} | {predicted} | {seeds} |", flush=True)


if __name__ == "__main__":
    coverage()
    verdicts()
    seeds_needed()
