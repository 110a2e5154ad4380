"""`load_dataset`, `load_metric` and the module `evaluate` as scripts call them: local files first, no metric is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError
from glassloop.base.network import hub_unreachable, is_hub_name, offline
from glassloop.compat.substitution import LEDGER
from glassloop.data.glue import GLUE_TASKS, find_glue_files
from glassloop.data.sources import load_dataset as own_dataset
from glassloop.scores.metrics import PLAIN, Numbers, Option
from glassloop.scores.metrics import Metric as OwnMetric
from glassloop.scores.metrics import load_metric as own_metric

if TYPE_CHECKING:
    from datasets import Dataset


GLUE_NAMES = ("glue", "nyu-mll/glue")

REMOVED = {**dict.fromkeys(("trust_remote_code", "script_version", "task", "ignore_verifications")), "use_auth_token": "token"}

FORMATS = ("csv", "json", "text", "parquet", "arrow", "pandas", "xml", "imagefolder", "audiofolder", "webdataset")


def load_dataset(path: str, name: str | None = None, *more: object, **named: object) -> object:
    """Return a data set as `datasets.load_dataset` does. GLUE is read from local files if they are there."""
    from datasets import load

    LEDGER.rename("load_dataset", named, REMOVED, "removed in datasets 4")
    if path in GLUE_NAMES and name in GLUE_TASKS and not more and find_glue_files(name, None):
        LEDGER.note(f'load_dataset("glue", "{name}")', "glassloop.load_dataset", "reads the files of GLASSLOOP_DATA")
        splits, split = own_dataset("glue", name), named.get("split")
        return splits if split is None else chosen(splits, split)
    reason = why_offline() if is_hub_name(path) and path not in FORMATS else None
    try:
        with offline("datasets.config", reason is not None):
            return load.load_dataset(path, name, *more, **named)
    except Exception as error:
        if reason:
            lost = f"glassloop: the hub cannot be reached ({reason}), and this machine has no copy of the data set {path}"
            folder = f"the folder that contains glue/{GLUE_TASKS[name].folder}/" if name in GLUE_TASKS else ""
            error.add_note(f"{lost}; set GLASSLOOP_DATA to {folder}" if folder else lost)
        raise


@cache
def why_offline() -> str | None:
    """Return why the hub cannot be reached, asked once per process; None if it can."""
    return hub_unreachable()


def chosen(splits: Mapping[str, Dataset], split: object) -> Dataset | list[Dataset]:
    """Return the rows that a split such as `train[:10%]+validation` means, or a list of them."""
    from datasets import ReadInstruction, concatenate_datasets

    if isinstance(split, list | tuple):
        return [chosen(splits, one) for one in split]
    wanted = split if isinstance(split, ReadInstruction) else ReadInstruction.from_spec(str(split))
    parts = []
    for one in wanted.to_absolute({name: len(rows) for name, rows in splits.items()}):
        rows = splits[one.splitname]
        start, end = one.from_ or 0, len(rows) if one.to is None else one.to
        parts.append(rows if (start, end) == (0, len(rows)) else rows.select(range(start, end)))
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def set_caching_enabled(wanted: bool) -> None:
    import datasets

    (datasets.enable_caching if wanted else datasets.disable_caching)()


def set_progress_bar_enabled(wanted: bool) -> None:
    import datasets

    (datasets.enable_progress_bars if wanted else datasets.disable_progress_bars)()


# --- the module `evaluate`
__version__ = "0.4"


class Metric:
    """One or several metrics of the same rows, which are also taken by place, as in old versions."""

    def __init__(self, *metrics: OwnMetric | Metric) -> None:
        self.metrics = metrics
        self.name: str = ", ".join(metric.name for metric in metrics)
        self.config_name: str | None = metrics[0].config_name if metrics else None

    def add(self, prediction: Numbers = None, reference: Numbers = None, **named: Numbers) -> None:  # type: ignore[assignment]
        for metric in self.metrics:
            metric.add(prediction=named.get("predictions", prediction), reference=named.get("references", reference))

    def add_batch(self, predictions: Numbers, references: Numbers) -> None:
        for metric in self.metrics:
            metric.add_batch(predictions=predictions, references=references)

    def compute(
        self, predictions: Numbers | None = None, references: Numbers | None = None, **options: Option
    ) -> dict[str, float]:
        scores: dict[str, float] = {}
        for metric in self.metrics:  # options of several metrics are those of the ones that have options
            has_none = len(self.metrics) > 1 and metric.name in ("accuracy", "matthews_correlation")
            scores |= metric.compute(predictions=predictions, references=references, **{} if has_none else options)
        return scores


def load_metric(
    path: str, config_name: str | None = None, *more: object, called: str = "load_metric", **named: object
) -> Metric:
    """Return a metric of Glassloop by its name; if it has none, that of `evaluate`. Raises if that is not installed."""
    name = Path(path).stem if path.endswith(".py") else path.rpartition("/")[2]
    try:
        metric = Metric(own_metric(name, config_name))
    except SettingsError:
        try:
            evaluate = import_module("evaluate")
        except ModuleNotFoundError:
            evaluate = sys.modules[__name__]
        if evaluate is sys.modules[__name__]:  # this module stands for it
            raise
        theirs: Metric = evaluate.load(path, config_name, *more, **named)
        return theirs
    call = f'{called}("{path}"' + (f', "{config_name}")' if config_name else ")")
    LEDGER.note(call, "glassloop.load_metric", "computes the metric without a download")
    return metric


load = partial(load_metric, called="evaluate.load")


def combine(evaluations: Iterable[str | Metric], force_prefix: bool = False) -> Metric:
    return Metric(*(load(one) if isinstance(one, str) else one for one in evaluations))


def list_evaluation_modules(*arguments: object, **named: object) -> list[str]:
    return ["glue", *PLAIN]


list_metrics = list_evaluation_modules
