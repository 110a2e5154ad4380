"""The comparison of runs as values: metrics with intervals, differences with tests and verdicts, and single rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.comparing.settings import different_settings
from glassloop.comparing.sides import Entry, SideRows, common_split, read_rows, read_side, with_short_names
from glassloop.errors import SettingsError, listed
from glassloop.measures import Measures, default_measures
from glassloop.metric_values import Array
from glassloop.run_folder.record import RunRecord
from glassloop.settings import CLASSES, SCORE
from glassloop.statistics.conclusions import Conclusion, SettingRuns, concluded
from glassloop.statistics.row_metrics import OF_CLASSES, OF_LABELS, OF_SCORES
from glassloop.statistics.scored import has_rows_right


@dataclass(frozen=True)
class RowDifference:
    """A row on which the first and another side differ.

    Attributes:
        row: Its number in the split, from 0.
        first: Share of the first side's seeds that get it right, or its mean absolute error.
        second: The same for the other side.
        entry: Texts and label.
        first_answer: The prediction of the first side's first seed.
        second_answer: The prediction of the other side's first seed.
    """

    row: int
    first: float
    second: float
    entry: Entry
    first_answer: object
    second_answer: object


def answer_text(value: object) -> str:
    """Return a label, several labels, or a score."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no label"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class RowDifferences:
    """The rows on which another side does better and worse than the first, those with the largest difference first."""

    name: str
    better: tuple[RowDifference, ...]
    worse: tuple[RowDifference, ...]
    num_better: int
    num_worse: int
    num_equal: int


@dataclass(frozen=True)
class ComparedRuns:
    """The comparison of all sides with the first.

    Attributes:
        split: The split whose rows were compared.
        num_rows: Number of rows.
        sides: The sides with their predictions.
        measures: The metrics.
        settings: The settings that differ, with the value of each side.
        conclusions: For each metric, the results of all sides and their comparisons with the first.
        rows: For each other side, the rows on which it differs from the first.
    """

    split: str
    num_rows: int
    sides: tuple[SideRows, ...]
    measures: Measures
    settings: dict[str, list[str]]
    conclusions: dict[str, Conclusion]
    rows: tuple[RowDifferences, ...]

    @property
    def names(self) -> list[str]:
        """The names of the sides."""
        return [side.name for side in self.sides]

    @property
    def has_several_seeds(self) -> bool:
        """Whether a side has more than one seed."""
        return any(len(side.seeds) > 1 for side in self.sides)

    def content(self) -> dict[str, object]:
        """Return the comparison as plain values for `--json`, without the texts of rows."""
        return {
            "split": self.split,
            "rows": self.num_rows,
            "positive_label": self.measures.positive,
            "runs": {side.name: {str(seed): path for seed, path in side.side.folders.items()} for side in self.sides},
            "settings": {name: dict(zip(self.names, values, strict=True)) for name, values in self.settings.items()},
            "metrics": {
                key: {
                    "results": {one.name: one for one in found.results},
                    "comparisons": {
                        one.name: {
                            "difference": one.difference.value,
                            "interval": one.difference.interval,
                            "p_value": one.difference.p_value,
                            "corrected_p_value": one.difference.corrected,
                            "comparisons": one.difference.comparisons,
                            "test": one.difference.method,
                            "verdict": one.verdict,
                            "sentence": str(one.verdict),
                        }
                        for one in found.comparisons
                    },
                }
                for key, found in self.conclusions.items()
            },
            "row_differences": {
                one.name: {
                    "better": one.num_better,
                    "worse": one.num_worse,
                    "equal": one.num_equal,
                    "better_rows": [row.row for row in one.better],
                    "worse_rows": [row.row for row in one.worse],
                }
                for one in self.rows
            },
        }


def compare_runs(
    names: Sequence[str], split: str | None = None, margin: float | None = None, most_rows: int = 100
) -> ComparedRuns:
    """Compare runs on the same rows: every other one with the first.

    Args:
        names: Run folders, or folders of several seeds.
        split: The split to compare on. Default: validation, or the first that all runs have predictions for.
        margin: The largest difference that does not matter.
        most_rows: How many rows to list for each direction.

    Raises:
        SettingsError: If there are fewer than two different runs, or if their rows, labels or tasks differ.
        ModelError: If a folder is not a run folder, or is damaged.
    """
    if len(names) < 2:
        raise SettingsError("a comparison needs two runs", "name two or more run folders: glassloop compare RUN RUN")
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise SettingsError(f"margin is {margin}, not a number of 0 or more", "use a share such as 0.01")
    sides = with_short_names([read_side(name) for name in names])
    paths = [str(path.resolve()) for side in sides for path in side.folders.values()]
    if twice := [path for path in dict.fromkeys(paths) if paths.count(path) > 1]:
        raise SettingsError(f"{listed(twice, 2)} is compared with itself", "name each run once")
    chosen = common_split(sides, split)
    found = read_rows(sides, chosen)
    measures = measures_of(found[0].side.record)
    runs = [SettingRuns(side.name, side.seeds) for side in found]
    baseline = (found[0].side.record.baseline or {}) if chosen == "validation" else {}
    conclusions = {key: concluded(runs, key, measures.positive, baseline.get(key), margin=margin) for key in measures.keys}
    rows = tuple(row_differences(found[0], other, most_rows) for other in found[1:])
    size = len(next(iter(found[0].seeds.values())))
    return ComparedRuns(chosen, size, tuple(found), measures, different_settings(sides), conclusions, rows)


def measures_of(record: RunRecord) -> Measures:
    """Return the metrics of a run that can be computed from stored predictions, else the default ones of its task."""
    task, labels = record.data.task, record.data.labels or ("score",)
    known = OF_CLASSES if task == CLASSES else OF_SCORES if task == SCORE else OF_LABELS
    keys = tuple(key for key in record.metrics if key in known)
    return Measures(keys, record.positive_label) if keys else default_measures(task, labels)


def quality_of(side: SideRows) -> Array:
    """Return the share of seeds that get each row right; for scores, minus the mean absolute error of each row."""
    if has_rows_right(side.side.record.data.task):
        return np.asarray(np.mean([rows.right for rows in side.seeds.values()], axis=0))
    return -np.asarray(np.mean([np.abs(rows.predictions - rows.references) for rows in side.seeds.values()], axis=0))


def row_differences(first: SideRows, other: SideRows, most: int) -> RowDifferences:
    """Return the rows on which two sides differ."""
    before, after = quality_of(first), quality_of(other)
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")
    own, theirs = next(iter(first.entries.values())), next(iter(other.entries.values()))
    texts = first.side.record.data.columns.texts

    def described(row: int) -> RowDifference:
        entry = {name: own[row].get(name) for name in (*texts, "label")}
        answers = own[row].get("prediction"), theirs[row].get("prediction")
        return RowDifference(row, abs(float(before[row])), abs(float(after[row])), entry, *answers)

    better, worse = (order[change[order] > 0].tolist(), order[change[order] < 0].tolist())
    return RowDifferences(
        other.name,
        tuple(map(described, better[:most])),
        tuple(map(described, worse[:most])),
        len(better),
        len(worse),
        len(change) - len(better) - len(worse),
    )
