"""The model soup of the final runs: their weights averaged into one model, kept only if it is better on validation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.evaluation import Wanted, evaluate_run
from glassloop.files import replacing
from glassloop.run_folder.layout import CALIBRATION_NAME, CARD_NAME, MODEL_NAME
from glassloop.run_folder.study_json import StudyRecord
from glassloop.settings import DataSettings
from glassloop.statistics.conclusions import SettingRuns, setting_result
from glassloop.statistics.paired import compare
from glassloop.statistics.scored import ScoredRows
from glassloop.study.trials import RUNS_NAME

SOUP_NAME, WEIGHTS_NAME = "soup", "model.safetensors"


def cooked_soup(
    folder: Path, record: StudyRecord, final: Mapping[int, str], seeds: Mapping[int, ScoredRows], key: str, positive: str | None
) -> dict[str, object] | None:
    """Average the weights of the final runs, score the model on validation, and keep it only if it beats the mean of them.

    Args:
        folder: The folder of the study. The model is kept in soup/.
        record: The study.
        final: The name of the final run of each seed.
        seeds: Their predictions on the validation split.
        key: The metric.
        positive: The class that f1, precision and recall refer to.

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
        found = evaluate_run(str(soup), wanted).outcomes[0].found
    except GlassloopError:
        return None
    from glassloop.metrics import decide

    return ScoredRows(like.task, like.labels, decide(found.logits, like.task), like.references, found.logits)
