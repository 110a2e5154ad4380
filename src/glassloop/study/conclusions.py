"""What a study shows: every configuration on the validation split, the chosen one on the test split, and its seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from glassloop.base.errors import GlassloopError
from glassloop.base.files import replacing
from glassloop.base.output import json_value
from glassloop.predictor import Wanted, evaluate_run
from glassloop.report.study import Estimate, Gap, Results, Soup, Tried
from glassloop.runs.record import CALIBRATION_NAME, CARD_NAME, FAILED, MODEL_NAME, predicted_splits, predictions_name, read_run
from glassloop.runs.study import StudyRecord
from glassloop.scores import conclusions
from glassloop.scores.conclusions import Comparison, SettingResult, SettingRuns
from glassloop.scores.statistics import ScoredRows, compare, scored_split
from glassloop.settings.study import setting_name
from glassloop.settings.training import DataSettings
from glassloop.study.tasks import RUNS_NAME
from glassloop.training.evaluate import write_predictions

VALIDATION, TEST = "validation", "test"
SOUP_NAME, WEIGHTS_NAME = "soup", "model.safetensors"


def conclude(folder: Path, record: StudyRecord, say: Callable[[str], None]) -> StudyRecord:
    """Return the record with its results. The test split is evaluated here, once, with the chosen setting."""
    finished = [name for name, run in record.runs.items() if run.finished]
    if not finished or record.chosen is None:
        return record
    first = read_run(folder / RUNS_NAME / finished[0])
    key = record.metric if record.metric in first.metrics else first.metrics[0]
    scores = Scores(folder, record, key, first.positive_label)
    results = scores.compared()
    final = {run.seed: name for name, run in record.runs_of(record.chosen, final=True).items() if run.finished}
    if final:
        if scores.test([*final.values()], say):
            record = replace(record, test_evaluations=tuple(dict.fromkeys([*record.test_evaluations, results.chosen])))
        used = len(record.test_evaluations)
        warning = f"the test split was used for {used} settings: treat its scores as validation scores" if used > 1 else ""
        soup = scores.soup([*final.values()], scores.rows(final, VALIDATION)) if len(final) > 1 else None
        splits = {split: scores.together(final, split) for split in (VALIDATION, TEST)}
        results = replace(results, final=splits, warning=warning, soup=soup)
    # A number that is not finite is null in JSON.
    return replace(record, results=json_value(results))  # type: ignore[arg-type]  # a dataclass becomes a dict


class Scores:
    """Reads and compares the stored predictions of the runs of a study, by one metric."""

    def __init__(self, folder: Path, record: StudyRecord, key: str, positive: str | None) -> None:
        self.folder, self.record, self.key, self.positive = folder, record, key, positive
        self.device = str(record.base.training.get("device", "auto"))
        # The validation score of always giving the most frequent answer.
        self.baseline = next((run.baseline for run in record.runs.values() if run.baseline), {}).get(key)

    def rows(self, runs: Mapping[int, str], split: str) -> dict[int, ScoredRows]:
        paths = {number: self.folder / RUNS_NAME / name for number, name in runs.items()}
        stored = {number: path for number, path in paths.items() if split in predicted_splits(path)}
        return {number: scored_split(path, read_run(path), split) for number, path in stored.items()}

    def runs_of(self, number: int) -> SettingRuns:
        """Return the runs of a setting with their validation rows; equal seeds and folds have equal numbers."""
        runs, folds = self.record.runs_of(number), self.record.study.folds
        named = {run.seed * len(folds) + folds.index(run.fold or folds[0]): name for name, run in runs.items() if run.finished}
        lost = sum(run.status == FAILED for run in runs.values())
        return SettingRuns(setting_name(self.record.tried[number]), self.rows(named, VALIDATION), lost)

    def result(self, setting: SettingRuns) -> SettingResult:
        return conclusions.setting_result(setting, self.key, self.positive, self.baseline)

    def compared(self) -> Results:
        """Return the results of all settings and the comparisons with the chosen one, on the validation split."""
        record, key, positive = self.record, self.key, self.positive
        settings = [self.runs_of(number) for number in range(len(record.tried))]
        usable = [setting for setting in settings if setting.seeds]
        chosen = settings[record.chosen or 0]
        comparisons: dict[str, Comparison] = {}
        sentence = design = ""
        if chosen.seeds:
            conclusion = conclusions.concluded(usable, key, positive, self.baseline, chosen.name)
            comparisons = {one.name: one for one in conclusion.comparisons}
            sentence = conclusion.sentence
        if rows := max((len(one) for setting in usable for one in setting.seeds.values()), default=0):
            design = conclusions.designed(record.study.seeds, rows, usable, key, positive, len(comparisons))
        tried = tuple(self.described(number, one, comparisons.get(one.name)) for number, one in enumerate(settings))
        points = [point for setting in usable for point in self.result(setting).points.values()]
        best = tuple(conclusions.expected_best(points, lower_is_better=not record.greater_is_better)) if points else ()
        return Results(key, positive, chosen.name, sentence, design, "", self.baseline, tried, best)

    def described(self, number: int, setting: SettingRuns, comparison: Comparison | None) -> Tried:
        """Return what is known about a setting, and its comparison with the chosen one."""
        record, result = self.record, self.result(setting)
        runs = [*record.runs_of(number).values()]
        fractions = [part.fraction for part in record.rounds if number in part.settings]
        ended = (one for one in fractions if any(run.scores_at(one) or run.status == FAILED for run in runs))
        trained = max(ended, default=0.0)
        points = [scores[record.metric] for run in runs if record.metric in (scores := run.scores_at(trained) or {})]
        gap = None
        if comparison is not None:
            one, span = comparison.difference, comparison.difference.interval
            gap = Gap(one.value, span.low, span.high, one.p_value, one.corrected, str(comparison.verdict))
        selection = sum(points) / len(points) if points else None
        validation = estimate_of(result) if setting.seeds else None
        found = (selection, tuple(points), validation, gap)
        return Tried(number, setting.name, record.tried[number], trained, result.failed, len(runs), *found)

    def test(self, final: Sequence[str], say: Callable[[str], None]) -> bool:
        """Evaluate the final runs on the test split, unless that was done. Return whether there is one with labels."""
        for path in (self.folder / RUNS_NAME / name for name in final):
            if TEST in predicted_splits(path):
                continue
            facts = read_run(path).data.splits.get(TEST)
            if facts is None or facts.unlabelled:
                return False
            try:
                evaluation = evaluate_run(str(path), Wanted(split=TEST, device=self.device))
            except GlassloopError as error:
                say(f"the test split cannot be evaluated: {error.problem}")
                return False
            write_predictions(path / predictions_name(TEST), evaluation.examples, evaluation.results[0])
        return True

    def together(self, final: Mapping[int, str], split: str) -> Estimate | None:
        """Return mean and interval of the final runs on a split, and the score of all of them as one model."""
        if not (seeds := self.rows(final, split)):
            return None
        ensemble = SettingRuns("ensemble", {0: conclusions.ensemble_of([*seeds.values()])}) if len(seeds) > 1 else None
        mean = estimate_of(self.result(SettingRuns("final", seeds)))
        return replace(mean, ensemble=estimate_of(self.result(ensemble))) if ensemble else mean

    def soup(self, final: Sequence[str], seeds: Mapping[int, ScoredRows]) -> Soup | None:
        """Average the weights of the final runs, score the model on validation, and offer it only if it beats their mean."""
        models = [self.folder / RUNS_NAME / name / MODEL_NAME for name in final]
        soup = self.folder / SOUP_NAME
        if not all((model / WEIGHTS_NAME).is_file() for model in models) or len(seeds) < 2:
            return None
        shutil.rmtree(soup, ignore_errors=True)
        average_weights(models, soup)
        offered = False
        try:
            rows = self.soup_rows(soup, next(iter(seeds.values())))
            if rows is None:
                return None
            difference = compare(seeds, {-1: rows}, self.key, self.positive)
            interval = difference.interval
            offered = interval.low > 0 if self.record.greater_is_better else interval.high < 0
        finally:
            if not offered:
                shutil.rmtree(soup)
        mean = self.result(SettingRuns("soup", {0: rows})).mean
        return Soup(mean, difference.value, offered, interval.low, interval.high)

    def soup_rows(self, soup: Path, like: ScoredRows) -> ScoredRows | None:
        """Return the predictions of the soup on the validation split; None if they cannot be computed."""
        base = self.record.base
        data = {"validation_share": DataSettings().validation_share, **base.data}
        try:
            evaluation = evaluate_run(str(soup), Wanted(base.source or "quickstart", VALIDATION, data, device=self.device))
        except GlassloopError:
            return None
        return replace(evaluation.results[0].rows, references=like.references)


def estimate_of(result: SettingResult) -> Estimate:
    low, high = (result.interval.low, result.interval.high) if result.interval else (None, None)
    return Estimate(result.mean, result.deviation, low, high, tuple(result.points.values()))


def average_weights(models: Sequence[Path], target: Path) -> None:
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
    weights = {name: value.float() if value.dtype == torch.float64 else value for name, value in mean.items()}
    with replacing(target / WEIGHTS_NAME) as writing:
        save_file(weights, writing, metadata={"format": "pt"})
