"""`glassloop evaluate` on a folder of several seeds: each seed, their mean and deviation, and all seeds as one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from glassloop.command_result import CommandResult
from glassloop.ensemble import finished_runs
from glassloop.evaluation import Evaluated, Wanted, evaluate_run
from glassloop.measures import short_metrics
from glassloop.outcomes import Outcome
from glassloop.run_folder.record import FINISHED
from glassloop.run_folder.seeds_json import MeasuresRecord, SeedRecord, read_seeds
from glassloop.show.contents import outcomes_content
from glassloop.show.seeds import show_seeds
from glassloop.statistics.ensembles import averaged_logits


def evaluate_seeds(folder: Path, wanted: Wanted, target: Path | None) -> CommandResult:
    """Evaluate each finished seed in a folder, and all of them as one model, whose predictions are written to `target`."""
    runs = finished_runs(folder)
    found = {seed: evaluate_run(str(run), wanted) for seed, run in runs.items()}
    first = next(iter(found.values()))
    together = replace(first, outcomes=[together_of(parts, first) for parts in zip(*outcomes_of(found), strict=True)])
    record = replace(read_seeds(folder), seeds={seed: seed_record(one) for seed, one in found.items()})
    titles = ", ".join(map(first.title, first.outcomes))
    show_seeds(record, Console(), titles, short_metrics(together.metrics))
    if target:
        together.save(target)
    return CommandResult(
        {
            "run": folder,
            "data": first.source,
            "seeds": {seed: {"run": runs[seed], "splits": outcomes_content(one.outcomes)} for seed, one in found.items()},
            "mean": record.mean,
            "standard_deviation": record.standard_deviation,
            "baseline": record.baseline,
            "together": short_metrics(together.metrics),
            "out": target,
        }
    )


def outcomes_of(found: Mapping[int, Evaluated]) -> list[Sequence[Outcome]]:
    """Return the evaluations of each seed, one per split."""
    return [one.outcomes for one in found.values()]


def together_of(parts: Sequence[Outcome], first: Evaluated) -> Outcome:
    """Return the evaluation of all seeds as one model on a split, without a loss."""
    examples, outcome = first.examples, parts[0]
    logits = averaged_logits([part.found.logits for part in parts], examples.task)
    names = examples.labels.names if examples.labels else ["score"]
    scores = outcome.measures.scores(logits, outcome.found.labels, examples.task, names)
    metrics = {f"{outcome.prefix}_{name}": value for name, value in scores.items()}
    return replace(outcome, found=replace(outcome.found, logits=logits, loss=None, metrics=metrics))


def seed_record(found: Evaluated) -> SeedRecord:
    """Return the evaluation of one seed as `train --seeds` records it."""
    outcomes, measures = found.outcomes, found.outcomes[0].measures
    baseline = {f"{outcome.prefix}_{key}": value for outcome in outcomes for key, value in (outcome.baseline or {}).items()}
    return SeedRecord(
        FINISHED,
        metrics=short_metrics(found.metrics),
        baseline=short_metrics(baseline),
        measures=MeasuresRecord(measures.keys, measures.positive),
        rows={name: fact.fingerprint for name, fact in found.examples.facts.items()},
    )
