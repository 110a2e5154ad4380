"""What a study shows: every configuration on the validation split, the chosen one on the test split, and its seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from glassloop.base.errors import GlassloopError
from glassloop.base.files import replacing
from glassloop.base.output import plain as plain_values
from glassloop.predictor import Wanted, evaluate_run
from glassloop.runs.record import (
    CALIBRATION_NAME,
    CARD_NAME,
    FAILED,
    MODEL_NAME,
    RunRecord,
    predicted_splits,
    predictions_name,
    read_run,
)
from glassloop.runs.study import SeedRecord, StudyRecord
from glassloop.scores.comparisons import compare
from glassloop.scores.conclusions import (
    Comparison,
    SettingResult,
    SettingRuns,
    concluded,
    designed,
    ensemble_of,
    expected_best,
    setting_result,
)
from glassloop.scores.intervals import ScoredRows, scored_split
from glassloop.settings.study import setting_name
from glassloop.settings.training import DataSettings
from glassloop.study.trials import RUNS_NAME
from glassloop.training.evaluate import write_predictions

SOUP_NAME, WEIGHTS_NAME = "soup", "model.safetensors"


def cooked_soup(
    folder: Path, record: StudyRecord, final: Mapping[int, str], seeds: Mapping[int, ScoredRows], key: str, positive: str | None
) -> dict[str, object] | None:
    """Average the weights of the final runs, score the model on validation, and keep it only if it beats the mean of them.

    Returns:
        Its score, its difference to the mean of the runs with an interval, and whether it is offered; None if there is none.
    """
    models = [folder / RUNS_NAME / name / MODEL_NAME for name in final.values()]
    soup = folder / SOUP_NAME
    if not all((model / WEIGHTS_NAME).is_file() for model in models) or len(seeds) < 2:
        return None
    shutil.rmtree(soup, ignore_errors=True)
    average_weights(models, soup)
    rows = soup_rows(soup, record, next(iter(seeds.values())))
    difference = compare(seeds, {-1: rows}, key, positive) if rows else None
    if rows is None or difference is None:
        shutil.rmtree(soup)
        return None
    good = difference.interval.low > 0 if record.greater_is_better else difference.interval.high < 0
    if not good:
        shutil.rmtree(soup)
    found = setting_result(SettingRuns("soup", {0: rows}), key, positive)
    interval = {"low": difference.interval.low, "high": difference.interval.high}
    return {"validation": found.mean, "difference": difference.value, **interval, "offered": good}


def average_weights(models: list[Path], target: Path) -> None:
    """Write a model whose weights are the mean of those of several models, with the other files of the first."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    shutil.copytree(models[0], target, ignore=shutil.ignore_patterns(WEIGHTS_NAME, CARD_NAME, CALIBRATION_NAME))
    mean: dict[str, torch.Tensor] = {}
    for number, model in enumerate(models, 1):
        with safe_open(model / WEIGHTS_NAME, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                weight = opened.get_tensor(name)
                if weight.is_floating_point():
                    before = mean.get(name, torch.zeros(weight.shape, dtype=torch.float64))
                    mean[name] = before + (weight.double() - before) / number
                else:
                    mean.setdefault(name, weight)
    kinds = {name: value.float() if value.dtype == torch.float64 else value for name, value in mean.items()}
    with replacing(target / WEIGHTS_NAME) as writing:
        save_file(kinds, writing, metadata={"format": "pt"})


def soup_rows(soup: Path, record: StudyRecord, like: ScoredRows) -> ScoredRows | None:
    """Return the predictions of the soup on the validation split; None if they cannot be computed."""
    base = record.base
    data = {"validation_share": DataSettings().validation_share, **base.data}
    wanted = Wanted(base.source or "quickstart", "validation", data, device=str(base.training.get("device", "auto")))
    try:
        found = evaluate_run(str(soup), wanted).results[0].rows
    except GlassloopError:
        return None
    return replace(found, references=like.references)


VALIDATION, TEST = "validation", "test"
Say = Callable[[str], None]


def conclude(folder: Path, record: StudyRecord, say: Say) -> StudyRecord:
    """Return the record with its results. The test split is evaluated here, once, with the chosen setting."""
    finished = [name for name, run in record.runs.items() if run.finished]
    if not finished or record.chosen is None:
        return record
    first = read_run(folder / RUNS_NAME / finished[0])
    key = record.metric if record.metric in first.metrics else first.metrics[0]
    found = Scores(folder, record, first, key)
    chosen = setting_name(record.tried[record.chosen])
    results: dict[str, object] = {"metric": key, "positive_label": first.positive_label, "chosen": chosen, **found.compared()}
    final = {run.seed: name for name, run in record.runs_of(record.chosen, final=True).items() if run.finished}
    if final:
        tested = tuple(dict.fromkeys([*record.test_evaluations, chosen])) if found.test(final, say) else record.test_evaluations
        record = replace(record, test_evaluations=tested)
        results["final"] = {split: found.together(final, split) for split in (VALIDATION, TEST)}
        if len(tested) > 1:
            results["warning"] = f"the test split was used for {len(tested)} settings: treat its scores as validation scores"
        if len(final) > 1:
            results["soup"] = cooked_soup(folder, record, final, found.scored(final, VALIDATION), key, first.positive_label)
    return replace(record, results=plain(results))


class Scores:
    """Reads the stored predictions of the runs of a study.

    Args:
        folder: The folder of the study.
        record: The study.
        first: The record of one of its finished runs.
        key: The metric.
    """

    def __init__(self, folder: Path, record: StudyRecord, first: RunRecord, key: str) -> None:
        self.folder, self.record, self.key, self.positive = folder, record, key, first.positive_label
        self.device = str(record.base.training.get("device", "auto"))

    @property
    def baseline(self) -> float | None:
        """The validation score of always giving the most frequent answer."""
        found = [run.baseline for run in self.record.runs.values() if run.baseline]
        return found[0].get(self.key) if found else None

    def scored(self, runs: Mapping[int, str], split: str) -> dict[int, ScoredRows]:
        """Return the stored predictions of runs for a split."""
        found = {}
        for number, name in runs.items():
            path = self.folder / RUNS_NAME / name
            if split in predicted_splits(path):
                found[number] = scored_split(path, read_run(path), split)
        return found

    def runs_of(self, number: int) -> SettingRuns:
        """Return the runs of a setting with their validation rows; equal seeds and folds have equal numbers."""
        runs, folds = self.record.runs_of(number), self.record.study.folds
        named = {self.place(run, folds): name for name, run in runs.items() if run.finished}
        lost = sum(run.status == FAILED for run in runs.values())
        return SettingRuns(setting_name(self.record.tried[number]), self.scored(named, VALIDATION), lost)

    def place(self, run: SeedRecord, folds: tuple[str, ...]) -> int:
        """Return a number for the seed and the fold of a run."""
        return run.seed * len(folds) + folds.index(run.fold or folds[0])

    def compared(self) -> dict[str, object]:
        """Return the results of all settings and the comparisons with the chosen one, on the validation split."""
        record = self.record
        settings = [self.runs_of(number) for number in range(len(record.tried))]
        chosen = settings[record.chosen or 0]
        shown = []
        comparisons: dict[str, Comparison] = {}
        sentence = ""
        usable = [setting for setting in settings if setting.seeds]
        if chosen.seeds:
            found = concluded(usable, self.key, self.positive, self.baseline, chosen.name)
            comparisons, sentence = {one.name: one for one in found.comparisons}, found.sentence
        for number, setting in enumerate(settings):
            result = setting_result(setting, self.key, self.positive, self.baseline)
            runs = [*record.runs_of(number).values()]
            ended = [
                part.fraction
                for part in record.rounds
                if any(run.scores_at(part.fraction) or run.status == FAILED for run in runs) and number in part.settings
            ]
            reached = max(ended, default=0.0)  # 0 if the budget ended before
            scores = [scores[record.metric] for run in runs if (scores := run.scores_at(reached)) and record.metric in scores]
            shown.append(
                {
                    "number": number,
                    "name": setting.name,
                    "values": dict(record.tried[number]),
                    "trained": reached,
                    "selection": sum(scores) / len(scores) if scores else None,
                    "selection_points": scores,
                    "validation": described(result) if setting.seeds else None,
                    "failed": result.failed,
                    "runs": len(runs),
                    "comparison": compared_values(comparisons.get(setting.name)),
                }
            )
        rows = max((len(one) for setting in usable for one in setting.seeds.values()), default=0)
        lower = not record.greater_is_better
        values = [point for setting in usable for point in setting_result(setting, self.key, self.positive).points.values()]
        return {
            "sentence": sentence,
            "design": str(designed(record.study.seeds, rows, usable, self.key, self.positive, comparisons=len(comparisons)))
            if rows
            else "",
            "settings": shown,
            "baseline": self.baseline,
            "expected_best": [asdict(one) for one in expected_best(values, lower_is_better=lower)] if values else [],
        }

    def test(self, final: Mapping[int, str], say: Say) -> bool:
        """Evaluate the final runs on the test split, unless that was done. Return whether there is one with labels."""
        for name in final.values():
            path = self.folder / RUNS_NAME / name
            if TEST in predicted_splits(path):
                continue
            facts = read_run(path).data.splits.get(TEST)
            if facts is None or facts.unlabelled:
                return False
            try:
                found = evaluate_run(str(path), Wanted(split=TEST, device=self.device))
            except GlassloopError as error:
                say(f"the test split cannot be evaluated: {error.problem}")
                return False
            write_predictions(path / predictions_name(TEST), found.examples, found.results[0])
        return True

    def together(self, final: Mapping[int, str], split: str) -> dict[str, object] | None:
        """Return mean and interval of the final runs on a split, and the score of all of them as one model."""
        seeds = self.scored(final, split)
        if not seeds:
            return None
        result = setting_result(SettingRuns("final", seeds), self.key, self.positive)
        ensemble = None
        if len(seeds) > 1:
            one = setting_result(SettingRuns("ensemble", {0: ensemble_of([*seeds.values()])}), self.key, self.positive)
            ensemble = described(one)
        return {**described(result), "ensemble": ensemble}


def described(result: SettingResult) -> dict[str, object]:
    """Return the result of a setting as plain values."""
    interval = result.interval
    return {
        "mean": result.mean,
        "deviation": result.deviation,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "points": [*result.points.values()],
    }


def compared_values(comparison: Comparison | None) -> dict[str, object] | None:
    """Return the comparison of a setting with the chosen one as plain values."""
    if comparison is None:
        return None
    found = comparison.difference
    return {
        "difference": found.value,
        "low": found.interval.low,
        "high": found.interval.high,
        "p_value": found.p_value,
        "corrected": found.corrected,
        "verdict": str(comparison.verdict),
    }


def plain(results: dict[str, object]) -> dict[str, object]:
    """Return results as JSON can hold them: a number that is not finite is null."""
    found = plain_values(results)
    return found if isinstance(found, dict) else {}
