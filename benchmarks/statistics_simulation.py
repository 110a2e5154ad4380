"""Simulated rows, seeds and studies with a known truth: how often intervals cover and verdicts are right, as Markdown tables.

`PYTHONPATH=tests python benchmarks/statistics_simulation.py [studies] [part ...]`. Takes about ten minutes for 2,000 studies.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from simulated_rows import population, simulated, true_accuracy, two_models

from glassloop.scores.statistics import (
    BETTER,
    SAME,
    WORSE,
    compare,
    compare_all,
    decided,
    metric_estimate,
    seeds_estimate,
    seeds_to_detect,
)

STUDIES = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
ROWS, SKILL = 300, 1.3
ACCURACIES = (0.6, 0.8, 0.93)
CLASSES, PER_CLASS = (2, 5, 20, 100), (3, 5, 10, 30)
SPREADS = (0.0, 0.05, 0.15, 0.4, 1.0)
SEEDS = (2, 3, 5, 10, 20)
LEAST_SHOWN = 0.05  # of models, to state how often their intervals cover


def percent(values: list[bool]) -> str:
    """Return the share that is true."""
    return f"{np.mean(values):.1%}" if values else "–"


def print_by_rows(keys: Sequence[str], cells: Mapping[tuple[object, ...], str]) -> None:
    """Print one line per metric, number of classes and kind of frequencies, with a column per number of rows."""
    print("\n| metric | classes | frequencies | " + " | ".join(f"{rows} rows per class" for rows in PER_CLASS) + " |")
    print("|---" * (3 + len(PER_CLASS)) + "|")
    for key, classes, skewed in product(keys, CLASSES, (False, True)):
        found = " | ".join(cells[key, classes, skewed, rows] for rows in PER_CLASS)
        print(f"| {key} | {classes} | {'skewed' if skewed else 'equal'} | {found} |", flush=True)


def row_coverage() -> None:
    """Print how often the interval of one model's metric contains the truth, and for how many models there is one."""
    keys, cells = ("accuracy", "f1", "matthews_correlation", "f1_macro"), {}
    for classes, skewed, rows in product(CLASSES, (False, True), PER_CLASS):
        generator = np.random.default_rng([classes, rows, skewed])
        covered: dict[str, list[bool]] = {key: [] for key in keys}
        for study in range(STUDIES):
            truth = population(generator, classes, ACCURACIES[study % 3], skewed=skewed)
            drawn = truth.rows(generator, rows * classes)
            for key in keys:
                if found := metric_estimate(drawn, key, drawn.labels[-1]).interval:
                    covered[key].append(truth.truth(key) in found)
        for key, found in covered.items():
            share = len(found) / STUDIES
            shown = "" if share == 1 else f" ({share:.0%} shown)"
            cells[key, classes, skewed, rows] = percent(found) + shown if share > LEAST_SHOWN else "none"
    print_by_rows(keys, cells)


def difference_coverage() -> None:
    """Print how often the interval of the difference of two models contains the truth."""
    keys, cells = ("accuracy", "matthews_correlation", "f1_macro"), {}
    for classes, skewed, rows in product(CLASSES, (False, True), PER_CLASS):
        generator = np.random.default_rng([classes, rows, skewed])
        covered: dict[str, list[bool]] = {key: [] for key in keys}
        for study in range(STUDIES):
            sides = [population(generator, classes, ACCURACIES[study % 3], skewed=skewed) for _ in range(2)]
            first, second, other = two_models(generator, *sides, rows * classes)
            for key in keys:
                found = compare({0: first}, {0: second}, key).interval
                covered[key].append(other.truth(key) - sides[0].truth(key) in found)
        for key in keys:
            cells[key, classes, skewed, rows] = percent(covered[key])
    print_by_rows(keys, cells)


def seed_coverage() -> None:
    """Print how often the interval of a setting's mean contains the truth."""
    print("\n| seeds | " + " | ".join(f"spread {spread}" for spread in SPREADS) + " |\n" + "|---" * (1 + len(SPREADS)) + "|")
    for seeds in SEEDS:
        cells = []
        for spread in SPREADS:
            generator, truth = np.random.default_rng(100 + seeds), true_accuracy(SKILL, spread)
            drawn = (simulated(generator, ROWS, seeds, (SKILL,), spread)[0].values() for _ in range(STUDIES))
            found = [seeds_estimate([*runs], "accuracy").interval for runs in drawn]
            cells.append(percent([interval is not None and truth in interval for interval in found]))
        print(f"| {seeds} | {' | '.join(cells)} |", flush=True)


def verdicts() -> None:
    """Print how often a study is wrong: calls equal settings better or worse, or misses a true difference with an interval."""
    head = ["others", "seeds", "spread", "one interval covers 0", "all cover", "false better", "better or worse"]
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for others, seeds, spread in (*product((2,), SEEDS, (0.0, 0.15, 0.4)), (8, 3, 0.15), (8, 10, 0.15)):
        generator, first_covers, covers, better, wrong = np.random.default_rng(200 + seeds), [], [], [], []
        for _ in range(STUDIES):
            first, *rest = simulated(generator, ROWS, seeds, (SKILL,) * (others + 1), spread)
            found = compare_all(first, rest, "accuracy")
            kinds = {decided(one, "accuracy").kind for one in found}
            first_covers.append(0.0 in compare(first, rest[0], "accuracy").interval)
            covers.append(all(0.0 in one.interval for one in found))
            better.append(BETTER in kinds)
            wrong.append(bool(kinds & {BETTER, WORSE}))
        shares = " | ".join(map(percent, (first_covers, covers, better, wrong)))
        print(f"| {others} | {seeds} | {spread} | {shares} |", flush=True)


def mixed_studies() -> None:
    """Print how often any verdict or interval of a study is wrong if half of the settings differ from the first."""
    print("\n| seeds | spread | any interval misses | any verdict is wrong |\n|---|---|---|---|")
    for seeds, spread in product((2, 3, 5, 10), (0.05, 0.15)):
        generator, missed, wrong = np.random.default_rng(250 + seeds), [], []
        skills = (SKILL, SKILL, SKILL, SKILL + 0.15, SKILL + 0.4)
        truths = [true_accuracy(skill, spread) - true_accuracy(SKILL, spread) for skill in skills[1:]]
        for _ in range(STUDIES):
            first, *rest = simulated(generator, ROWS, seeds, skills, spread)
            found = compare_all(first, rest, "accuracy")
            kinds = [decided(one, "accuracy", margin=0.02).kind for one in found]
            missed.append(any(truth not in one.interval for one, truth in zip(found, truths, strict=True)))
            bad = {BETTER: lambda truth: truth <= 0, WORSE: lambda truth: truth >= 0, SAME: lambda truth: abs(truth) > 0.02}
            wrong.append(any(kind in bad and bad[kind](truth) for kind, truth in zip(kinds, truths, strict=True)))
        print(f"| {seeds} | {spread} | {percent(missed)} | {percent(wrong)} |", flush=True)


def seeds_needed() -> None:
    """Print the predicted number of seeds, and the first number with which 80 % of simulated studies are decided."""
    print("\n| true gain | spread of seeds | predicted seeds | first number with 80 % power |\n|---|---|---|---|")
    for gain, spread in ((0.3, 0.25), (0.25, 0.15), (0.4, 0.15), (0.3, 0.4)):
        generator, studies = np.random.default_rng(300), max(STUDIES // 4, 50)
        pilot = compare(*simulated(generator, 3000, 200, (1.2, 1.2 + gain), spread), "accuracy")
        truth = true_accuracy(1.2 + gain, spread) - true_accuracy(1.2, spread)
        deviation = (pilot.spread.seeds.variance * 200) ** 0.5 if pilot.spread.seeds else 0.0
        predicted = seeds_to_detect(truth, deviation, pilot.spread.rows.variance)
        for seeds in range(2, 60):
            drawn = (simulated(generator, 3000, seeds, (1.2, 1.2 + gain), spread) for _ in range(studies))
            if np.mean([decided(compare(*sides, "accuracy"), "accuracy").kind == BETTER for sides in drawn]) >= 0.8:
                break
        print(f"| {truth:.3f} | {spread} | {predicted} | {seeds} |", flush=True)


if __name__ == "__main__":
    parts = (row_coverage, difference_coverage, seed_coverage, verdicts, mixed_studies, seeds_needed)
    wanted = sys.argv[2:] or [part.__name__ for part in parts]
    for part in parts:
        if part.__name__ in wanted:
            part()
