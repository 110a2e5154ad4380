"""The results of commands as plain values, for `--json`. Their names are documented in docs/reference/json.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from glassloop.data.encoding import Encoding, notes_on
from glassloop.data.examples import Examples
from glassloop.data.truncation import LengthLimit
from glassloop.measures import Measures, short_metrics
from glassloop.outcomes import Outcome
from glassloop.run_folder.history import last_step
from glassloop.run_folder.layout import seed_name
from glassloop.run_folder.record import RunRecord, SplitFacts, held_out_splits
from glassloop.run_folder.seeds_json import SeedsRecord

Content = dict[str, object]


def data_content(examples: Examples, encoded: Mapping[str, Encoding], data: str, model: str, limit: LengthLimit) -> Content:
    """Return what `glassloop data` found."""
    return {
        "data": data,
        "model": model,
        "max_length": limit.max_length,
        "task": examples.task,
        "columns": examples.columns,
        "labels": examples.labels.names if examples.labels else None,
        "splits": {name: split_content(fact, encoded[name]) for name, fact in examples.facts.items()},
        "notes": [*examples.notes, *notes_on(dict(encoded), limit)],
    }


def split_content(fact: SplitFacts, encoding: Encoding) -> Content:
    """Return the counts of one split."""
    return {
        "rows": fact.num_rows,
        "labels": None if fact.unlabelled else fact.label_counts,
        "duplicates": fact.num_duplicates,
        "also_in_train": fact.num_in_train,
        "conflicts": fact.num_conflicts,
        "truncated": encoding.truncation.num_rows,
        "mean_tokens": float(encoding.lengths.mean()),
        "longest_tokens": int(encoding.lengths.max()),
    }


def outcomes_content(outcomes: Iterable[Outcome]) -> Content:
    """Return the evaluation of each split."""
    return {
        outcome.split: {
            "rows": len(outcome.found.logits),
            "metrics": outcome.metrics,
            "baseline": outcome.baseline,
            "positive_label": outcome.measures.positive,
            "classes": outcome.classes or None,
            "balanced_accuracy": outcome.balanced[0] if outcome.balanced else None,
            "verdict": outcome.verdict.sentence if outcome.verdict else None,
            "advice": outcome.verdict.advice if outcome.verdict else (),
        }
        for outcome in outcomes
    }


def run_content(folder: Path, record: RunRecord) -> Content:
    """Return the result of `glassloop train`, from the record of the run."""
    return {
        "run": folder,
        "status": record.status,
        "data": record.data.source,
        "model": record.model.name,
        "seed": record.settings.seed,
        "steps": last_step(folder),
        "seconds": record.seconds,
        "stop_reason": record.stop_reason,
        "best_step": record.best_step,
        "training": record.result,
        "splits": recorded_splits(record),
    }


def recorded_splits(record: RunRecord) -> Content:
    """Return the evaluation of each validation split, from the record of the run."""
    measures = Measures(record.metrics, record.positive_label)
    names = held_out_splits(record.data.splits)
    found: dict[str, Content] = {}
    for name in names if record.evaluation else ():
        part = "" if name == names[0] else name.removeprefix("validation_")
        metrics, baseline = (
            {measures.parted(key)[1]: value for key, value in scores.items() if measures.parted(key)[0] == part}
            for scores in (short_metrics(record.evaluation or {}), record.baseline or {})
        )
        found[name] = {
            "rows": record.data.splits[name].num_rows,
            "metrics": metrics,
            "baseline": baseline,
            "positive_label": record.positive_label,
            "classes": record.classes if not part else None,
            "balanced_accuracy": record.balanced_accuracy if not part else None,
            "verdict": record.verdict if not part else None,
            "advice": record.advice if not part else (),
        }
    return dict(found)


def seeds_content(record: SeedsRecord) -> Content:
    """Return the result of `glassloop train --seeds`."""
    return {
        "run": record.folder,
        "status": record.status,
        "data": record.settings.source or "quickstart",
        "model": record.settings.model or "quickstart",
        "seeds": {
            seed: {
                "run": record.folder / seed_name(seed),
                "status": entry.status,
                "seconds": entry.seconds,
                "metrics": entry.metrics,
                "exit_status": entry.exit_code,
                "error": " ".join(entry.error) or None,
            }
            for seed, entry in record.seeds.items()
        },
        "mean": record.mean,
        "standard_deviation": record.standard_deviation,
        "baseline": record.baseline,
    }
