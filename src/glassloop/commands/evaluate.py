"""`glassloop evaluate`: score a trained model on a split of its own or of other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console

from glassloop.commands.predict import say_special_tokens
from glassloop.data.encoding import encode
from glassloop.data.sources import load_examples
from glassloop.errors import DataError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.files import find_path
from glassloop.measures import chosen_measures, recorded_measures
from glassloop.outcomes import outcome_of, prefixes, validation_names
from glassloop.predictor import Predictor
from glassloop.run_folder.record import split_changes
from glassloop.settings import CLASSES
from glassloop.show.results import show_outcome


def evaluate_run(
    run: str,
    data: str | None,
    split: str | None,
    device: str,
    batch_size: int,
    given: Mapping[str, object],
    positive: str | None = None,
) -> dict[str, float]:
    """Print and return the metrics of a trained model.

    Args:
        run: Folder of a run or of a model.
        data: Data to evaluate on. Default: the data of the run.
        split: Split to evaluate. Default: every validation split.
        device: Device to evaluate on.
        batch_size: Rows per batch.
        given: Data settings that override those of the run.
        positive: Class whose F1 is reported. Default: that of the run.
    """
    predictor = Predictor(run, device=device, batch_size=batch_size)
    described = predictor.run.data if predictor.run else None
    source = data if data is not None else described.source if described else None
    if source is None:
        problem = f"{run} is a model without a run, so there is no data to evaluate on"
        raise SettingsError(problem, "name the data: glassloop evaluate MODEL DATA")
    stored = described.given() if described else {}
    settings = {**stored, **given}
    if data is not None:  # all rows of other data, under the column names of the run's own
        public = data.startswith(("glue", "quickstart"))
        columns = asdict(described.columns) if described and not public else {}
        named = {name: value for name, value in columns.items() if value}
        separator = {"label_separator": stored["label_separator"]} if "label_separator" in stored else {}
        settings = {"validation_share": 0, **separator, **({} if "text" in given or "label" in given else named), **given}
    examples = load_examples(source, outputs=predictor.outputs, **{**settings, "task": predictor.task})
    names = [split] if split else validation_names(examples) or [*examples.splits][:1]
    for name in names:
        if name not in examples.splits:
            near = did_you_mean(name, examples.splits)
            raise SettingsError(f"the data has no split {visible(name)}{near}", f"use one of {listed(examples.splits)}")
        if examples.facts[name].unlabelled:
            remedy = "choose another split with --split, or use glassloop predict"
            raise SettingsError(f"the split {name} has no labels to compare with", remedy)
    compared = dict.fromkeys(("train", *names))
    if described and data is None and (changed := split_changes(described.splits, examples.facts, compared)):
        raise DataError(
            f"{source}: the data has changed since the run: {'; '.join(changed)}",
            "restore the data; to evaluate on other data, name it: glassloop evaluate RUN DATA",
        )
    encoded = encode(examples, predictor.tokenizer, predictor.max_length)
    known = examples.measures
    if (record := predictor.run) is not None:
        known = recorded_measures(record.metrics, record.positive_label, predictor.task, predictor.names)
    measures = chosen_measures(known, predictor.task, predictor.names, positive)
    alone = find_path(source) if len(examples.splits) == 1 else None  # a file has no splits
    counted_rows = described.splits.get("train") if described and data is not None and predictor.task == CLASSES else None
    trained_on = counted_rows.label_counts if counted_rows else None
    metrics: dict[str, float] = {}
    for name, prefix in zip(names, prefixes(names), strict=True):
        say_special_tokens(encoded[name].typed)
        found = predictor.evaluate(rows := encoded[name].rows, measures, prefix)
        metrics |= found.metrics
        shown = alone.name if alone and alone.is_file() else name
        outcome = outcome_of(examples, name, found, measures, prefix, trained_on)
        show_outcome(Console(), outcome, f"{shown} ({counted(len(rows), 'row', 'rows')})")
    return metrics
