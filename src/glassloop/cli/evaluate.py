"""`glassloop evaluate`: score a trained model on a split of its own or of other data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.files import user_path
from glassloop.base.output import CommandResult
from glassloop.cli.options import Device, Json, Run, given_for, with_settings
from glassloop.runs.record import FINISHED
from glassloop.runs.study import MeasuresRecord, SeedRecord, read_seeds
from glassloop.settings.training import DataSettings
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.predictor import Evaluated, Wanted
    from glassloop.scores.result import Baselines

METRIC_HELP = "Metrics to compute, separated by commas. Default: those of the run."
POSITIVE_HELP = "Class whose F1 is reported. Default: the class chosen for the run."
BASELINES_HELP = "Compare with the majority only, and do not fit the baselines of the run again for other rows."
OUT_HELP = "File for the predictions of the rows: .csv, .tsv or .jsonl."


@with_settings(DataSettings)
def evaluate(
    run: Run,
    data: Annotated[str | None, Argument(help="Data to evaluate on. Default: the data of the run.")] = None,
    split: Annotated[str | None, Option(help="Split to evaluate. Default: every validation split.")] = None,
    metric: Annotated[list[str] | None, Option(metavar="<str>", help=METRIC_HELP)] = None,
    positive_label: Annotated[str | None, Option(help=POSITIVE_HELP)] = None,
    out: Annotated[str | None, Option("-o", "--out", help=OUT_HELP)] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the file of --out if it exists.")] = False,
    device: Device = "auto",
    batch_size: Annotated[int, Option(min=1, metavar="<int>", help="Batch size.")] = 64,
    no_baselines: Annotated[bool, Option("--no_baselines", help=BASELINES_HELP)] = False,
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
    wanted = Wanted(data, split, given, tuple(metric or ()), positive_label, device, batch_size, not no_baselines)
    target = user_path(out) if out is not None else None
    if target:
        refuse_target(target)  # before the model is loaded
        if not overwrite:
            refuse_existing(target)
    if has_seeds(user_path(run)):
        return evaluate_seeds(user_path(run), wanted, target)
    evaluated = evaluate_run(run, wanted)
    for result in evaluated.results:
        show_result(Console(), result, evaluated.title(result))
    if target:
        evaluated.save(target)
    return CommandResult({"run": run, "data": evaluated.source, "splits": results_content(evaluated.results), "out": target})


def evaluate_seeds(folder: Path, wanted: Wanted, target: Path | None) -> CommandResult:
    """Evaluate each finished seed in a folder, and all of them as one model, whose predictions are written to `target`."""
    from rich.console import Console

    from glassloop.predictor import evaluate_run, finished_runs
    from glassloop.scores.conclusions import ensemble_of
    from glassloop.study.seeds import show_seeds
    from glassloop.training.evaluate import by_split, results_content

    def seed_record(evaluated: Evaluated) -> SeedRecord:  # as `train --seeds` writes it
        metrics, baseline = by_split(evaluated.results)
        measures = evaluated.results[0].measures
        rows = {name: fact.fingerprint for name, fact in evaluated.examples.facts.items()}
        names = MeasuresRecord(measures.keys, measures.positive)
        return SeedRecord(status=FINISHED, validation=metrics, baseline=baseline, measures=names, rows=rows)

    runs = finished_runs(folder)
    fitted: dict[tuple[str, ...], Baselines] = {}  # once for all seeds
    by_seed = {seed: evaluate_run(str(run), wanted, fitted) for seed, run in runs.items()}
    first = next(iter(by_seed.values()))
    together = []  # the result of all seeds as one model on each split, without a loss
    for parts in zip(*(one.results for one in by_seed.values()), strict=True):
        rows = ensemble_of([part.rows for part in parts])
        metrics = parts[0].measures.scores(rows.logits, rows.references, rows.task, rows.labels or ["score"])
        together.append(replace(parts[0], rows=rows, metrics=metrics))
    record = replace(read_seeds(folder), seeds={seed: seed_record(one) for seed, one in by_seed.items()})
    scores, _ = by_split(together)
    show_seeds(record, Console(), ", ".join(map(first.title, first.results)), scores, first.results[0].baselines)
    if target:
        replace(first, results=together).save(target)
    seeds = {seed: {"run": runs[seed], "splits": results_content(one.results)} for seed, one in by_seed.items()}
    means = {"mean": record.mean, "standard_deviation": record.standard_deviation, "baseline": record.baseline}
    content = {"run": folder, "data": first.source, "seeds": seeds, **means, "baselines": first.results[0].baselines}
    return CommandResult({**content, "together": scores, "out": target})
