"""`glassloop evaluate`: score a trained model on a split of its own or of other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.base.files import user_path
from glassloop.base.output import CommandResult
from glassloop.cli.options import Device, Json, Run, given_for, with_settings
from glassloop.runs.record import FINISHED
from glassloop.runs.study import MeasuresRecord, SeedRecord, read_seeds
from glassloop.settings.training import DataSettings
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.predictor import Evaluated, Wanted
    from glassloop.scores.result import Result


@with_settings(DataSettings)
def evaluate(
    run: Run,
    data: Annotated[str | None, typer.Argument(help="Data to evaluate on. Default: the data of the run.")] = None,
    split: Annotated[str | None, typer.Option(help="Split to evaluate. Default: every validation split.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="<str>", help="Metrics to compute, separated by commas. Default: those of the run."),
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option("--positive_label", help="Class whose F1 is reported. Default: the class chosen for the run.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="File for the predictions of the rows: .csv, .tsv or .jsonl.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")] = False,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, metavar="<int>", help="Batch size.")] = 64,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Evaluate a trained model and compare it with a baseline."""
    with starting():
        from rich.console import Console

        from glassloop.data.writers import refuse_existing, refuse_target
        from glassloop.predictor import Wanted, evaluate_run, has_seeds
        from glassloop.training.evaluate import results_content, show_result

    given = given_for(DataSettings, options)
    wanted = Wanted(data, split, given, tuple(metric or ()), positive_label, device, batch_size)
    target = user_path(out) if out is not None else None
    if target:
        refuse_target(target)  # before the model is loaded
        if not overwrite:
            refuse_existing(target)
    if has_seeds(user_path(run)):
        return evaluate_seeds(user_path(run), wanted, target)
    found = evaluate_run(run, wanted)
    for result in found.results:
        show_result(Console(), result, found.title(result))
    if target:
        found.save(target)
    return CommandResult({"run": run, "data": found.source, "splits": results_content(found.results), "out": target})


def evaluate_seeds(folder: Path, wanted: Wanted, target: Path | None) -> CommandResult:
    """Evaluate each finished seed in a folder, and all of them as one model, whose predictions are written to `target`."""
    from rich.console import Console

    from glassloop.predictor import evaluate_run, finished_runs
    from glassloop.study.seeds import show_seeds
    from glassloop.training.evaluate import by_split, results_content

    runs = finished_runs(folder)
    found = {seed: evaluate_run(str(run), wanted) for seed, run in runs.items()}
    first = next(iter(found.values()))
    by_seed = zip(*(one.results for one in found.values()), strict=True)
    together = replace(first, results=[together_of(parts) for parts in by_seed])
    record = replace(read_seeds(folder), seeds={seed: seed_record(one) for seed, one in found.items()})
    titles = ", ".join(map(first.title, first.results))
    scores, _ = by_split(together.results)
    show_seeds(record, Console(), titles, scores)
    if target:
        together.save(target)
    return CommandResult(
        {
            "run": folder,
            "data": first.source,
            "seeds": {seed: {"run": runs[seed], "splits": results_content(one.results)} for seed, one in found.items()},
            "mean": record.mean,
            "standard_deviation": record.standard_deviation,
            "baseline": record.baseline,
            "together": scores,
            "out": target,
        }
    )


def together_of(parts: Sequence[Result]) -> Result:
    """Return the result of all seeds as one model on a split, without a loss."""
    from glassloop.scores.conclusions import ensemble_of

    first = parts[0]
    rows = ensemble_of([part.rows for part in parts])
    scores = first.measures.scores(rows.logits, rows.references, rows.task, rows.labels or ["score"])
    return replace(first, rows=rows, metrics=scores)


def seed_record(found: Evaluated) -> SeedRecord:
    """Return the evaluation of one seed as `train --seeds` records it."""
    from glassloop.training.evaluate import by_split

    metrics, baseline = by_split(found.results)
    measures = found.results[0].measures
    return SeedRecord(
        status=FINISHED,
        validation=metrics,
        baseline=baseline,
        measures=MeasuresRecord(measures.keys, measures.positive),
        rows={name: fact.fingerprint for name, fact in found.examples.facts.items()},
    )
