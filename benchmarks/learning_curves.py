"""Whether the intervals of `glassloop inspect --learning_curve` contain the truth: rows are hidden, and then found again.

    python benchmarks/learning_curves.py --sets SETS [--trials 60] [--model quickstart]

A trial draws rows of a data set, shows a part of them to the learning curve, and compares its interval for twice as many rows
with the score of a regression that is trained on twice as many, and evaluated on rows that neither has seen.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from glassloop.data.sources import load_examples
from glassloop.diagnosis.embeddings import sampled
from glassloop.diagnosis.learning_curve import measured_curve, rightness, scores_of
from glassloop.diagnosis.rows import Sample, surveyed
from glassloop.models.linear import fit_linear

NAMES = "sentiment questions subjectivity emotion paraphrases sick duplicates".split()
MOST_ROWS = 2_000
SIZES = (150, 300, 500)
LEAST_EVALUATED = 300


def score(sample: Sample, rows: np.ndarray, rest: np.ndarray) -> float:
    """The score on other rows of a regression that is trained on some rows."""
    labels = sample.survey.examples.num_labels
    fitted = fit_linear(sample.features[rows], sample.targets[rows], sample.task, labels, sample.groups[rows])
    part = rightness(fitted.outputs(sample.features[rest]), sample.targets[rest], sample.task)
    return scores_of(part, sample.targets, rest, sample.task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--most_rows", type=int, default=MOST_ROWS)
    options = parser.parse_args()
    data = {}
    for name in options.names:
        folder = options.sets / name
        examples = load_examples(folder / "pool.csv", test=str(folder / "test.csv"), validation_share=0, label="label")
        data[name] = sampled(surveyed(examples), options.model, None, "cpu", options.most_rows)
    inside = gains = 0
    for trial in range(options.trials):
        name, size = options.names[trial % len(options.names)], SIZES[trial // len(options.names) % len(SIZES)]
        sample, random = data[name], np.random.default_rng(trial)
        size = min(size, (len(sample) - LEAST_EVALUATED) // 2)
        order = random.permutation(len(sample))
        shown, both, rest = order[:size], order[: 2 * size], order[2 * size :]
        labels = sample.survey.examples.num_labels
        curve = measured_curve(sample.features[shown], sample.targets[shown], sample.task, labels, sample.groups[shown])
        one = curve.doubled
        before, after = score(sample, shown, rest), score(sample, both, rest)
        is_inside, gain_inside = one.low <= after <= one.high, one.gain_low <= after - before <= one.gain_high
        inside, gains = inside + is_inside, gains + gain_inside
        line = {"set": name, "rows": size, "before": before, "truth": after, "low": one.low, "high": one.high}
        line |= {"gain": one.gain, "gain_low": one.gain_low, "gain_high": one.gain_high, "inside": is_inside}
        print(
            json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}), flush=True
        )
    print(f"score: {inside} of {options.trials}, gain: {gains} of {options.trials} intervals contain the truth")


if __name__ == "__main__":
    main()
