"""How honest the gain of `glassloop calibrate` is: cross-fitted and in-sample gains against the true gain, over drawn samples.

    python benchmarks/calibration_simulation.py [--samples 1000] [--shift -1]

Rows have two classes; the margin of a row is normal around a place that depends on its class. With `--shift -0.2` a limit of
0.5 is nearly the best, so that there is nothing to gain; with -1 it is not. The true gain of what is fitted on a sample is
computed on 400,000 other rows. Covered: how often the 95 % interval of the cross-fitted gain includes the true gain.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import drawn_thresholds
from drawn_thresholds import drawn_binary, f1_at, population, true_gain

from glassloop.runs.record import Target
from glassloop.scores.calibration import fitted_calibration, margins_of, row_losses, target_gains


def true_loss_gain(temperature: float) -> float:
    """Return what a temperature changes in the loss of very many rows."""
    margin, wanted = population()
    signed = np.where(wanted, -margin, margin)
    return float((np.logaddexp(0, signed / temperature) - np.logaddexp(0, signed)).mean())


def simulate(number: int, samples: int, folds: int) -> None:
    """Print the mean gains of many samples of `number` rows."""
    target, found = Target("f1"), []
    stored = []
    for seed in range(samples):
        rows = drawn_binary(np.random.default_rng([number, seed]), number)
        fitted = fitted_calibration(rows, target, folds=folds)
        limit = fitted.limits[0]
        margins = margins_of(rows, None)
        if limit is None or margins is None:
            continue
        own = target_gains(margins, np.full((number, 1), limit.margin), target)[0]
        crossed, loss = fitted.target_gains[0], fitted.temperature_gains[0]
        true, true_loss = true_gain(limit.margin), true_loss_gain(fitted.temperature)
        own_loss = float((row_losses(rows, fitted.temperature) - row_losses(rows)).mean())
        inside = (crossed.low or 0.0) <= true <= (crossed.high or 0.0)
        inside_loss = (loss.low or 0.0) <= true_loss <= (loss.high or 0.0)
        found.append((true, crossed.change, own.change, inside, true_loss, loss.change, own_loss, inside_loss))
        stored.append((fitted.thresholds_help, true))
    table = np.array(found, dtype=np.float64)
    means, errors = table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(len(table))
    kept = np.array([true for helps, true in stored if helps])
    for name, place in {"F1": 0, "loss": 4}.items():
        true, crossed, own, covered = means[place : place + 4]
        cells = [f"{number:,}", folds, name, f"{true:+.4f}", f"{crossed:+.4f} ± {errors[place + 1]:.4f}", f"{own:+.4f}"]
        print("|", " | ".join(map(str, [*cells, f"{covered:.1%}"])), "|")
    share, gained = len(kept) / len(table), kept.sum() / len(table)
    print(f"  thresholds stored in {share:.0%} of the samples; mean true gain over all samples {gained:+.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--shift", type=float, default=drawn_thresholds.SHIFT)
    given = parser.parse_args()
    drawn_thresholds.SHIFT = given.shift
    print(f"F1 at 0.5: {f1_at(0.0):.4f}; best possible: {max(f1_at(limit) for limit in np.linspace(-2, 2, 401)):.4f}")
    print("| rows | folds | score | true gain | cross-fitted | on the fitted rows | covered |\n|---|---|---|---|---|---|---|")
    for number, folds in ((150, 10), (400, 10), (400, 5), (2000, 10)):
        simulate(number, given.samples, folds)


if __name__ == "__main__":
    main()
