"""`glassloop study`: try settings with several seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.base.output import CommandResult
from glassloop.cli.options import DATA_HELP, MODEL_HELP, Json, completed_runs, given_for, with_settings
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.settings.study import STRATEGIES, vary_of
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.training.progress import starting


@with_settings(TrainingArguments, DataSettings)
def study(
    data: Annotated[str | None, typer.Argument(help=DATA_HELP.format("train on"))] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name=values>",
            help="Setting to vary: learning_rate=2e-5,5e-5, learning_rate=log:1e-5..1e-3 or weight_decay=linear:0..0.1. "
            "Can be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="<int>", help="Number of random seeds for each setting, starting at --seed. [default: 3]"),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help=f"How to search: {', '.join(STRATEGIES)}. auto is grid for up to 6 settings, else halving.",
            autocompletion=lambda: [*STRATEGIES],
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="The most that the search may cost: a time (30m, 2h) or runs (200_runs).")
    ] = None,
    fold: Annotated[
        int | None,
        typer.Option(
            metavar="<int>",
            help="Choose settings by cross-validation with this many folds. Default: on a tenth of the training rows.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="<int>", help="Number of settings to draw for ranges, random and optuna. [default: 16]"),
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    config: Annotated[str | None, typer.Option(help="TOML file with settings. Command-line options override it.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new_head", help="Replace the classification head of a model that has one.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(help="Continue this study. Without a value, the one in --output_dir.", autocompletion=completed_runs),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            "--at_once",
            min=1,
            metavar="<int>",
            help="Number of runs to train at the same time on each GPU, or on the CPU. Default: as many as fit.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Train on a Ray cluster: ray for the local or running one, or ray://host:port."),
    ] = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Try settings with several seeds, choose one, and compare them."""
    searching: dict[str, object] = {"seeds": seeds, "strategy": strategy, "budget": budget, "fold": fold, "samples": samples}
    searching["vary"] = vary_of(vary) if vary else None
    searching = {name: value for name, value in searching.items() if value is not None}
    training = given_for(TrainingArguments, options)
    settings = given_for(DataSettings, options)
    given = read_settings(config).overridden_by(GivenSettings(data, model, training, settings, new_head, searching))
    with starting(plain=bool(options.get("disable_tqdm"))):
        from glassloop.study.study import study as run_study
    return run_study(given, resume, at_once=at_once, on=on)
