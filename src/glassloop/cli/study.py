"""`glassloop study`: try settings with several seeds."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from glassloop.base.output import CommandResult
from glassloop.cli.options import Config, Json, Model, NewHead, TrainingData, completed_runs, given_settings, with_settings
from glassloop.settings.study import STRATEGIES, vary_of
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.training.progress import starting

VARY_HELP = (
    "Setting to vary: learning_rate=2e-5,5e-5, learning_rate=log:1e-5..1e-3 or weight_decay=linear:0..0.1. Can be repeated."
)
SEEDS_HELP = "Number of random seeds for each setting, starting at --seed. [default: 3]"
STRATEGY_HELP = f"How to search: {', '.join(STRATEGIES)}. auto is grid for up to 6 settings, else halving."
BUDGET_HELP = "The most that the search may cost: a time (30m, 2h) or runs (200_runs)."
FOLD_HELP = "Choose settings by cross-validation with this many folds. Default: on a tenth of the training rows."
SAMPLES_HELP = "Number of settings to draw for ranges, random and optuna. [default: 16]"
RESUME_HELP = "Continue this study. Without a value, the one in --output_dir."
AT_ONCE_HELP = "Number of runs to train at the same time on each GPU, or on the CPU. Default: as many as fit."
ON_HELP = "Train on a Ray cluster: ray for the local or running one, or ray://host:port."


@with_settings(TrainingArguments, DataSettings)
def study(
    data: TrainingData = None,
    vary: Annotated[list[str] | None, Option(metavar="<name=values>", help=VARY_HELP)] = None,
    seeds: Annotated[int | None, Option(metavar="<int>", help=SEEDS_HELP)] = None,
    strategy: Annotated[str | None, Option(help=STRATEGY_HELP, autocompletion=lambda: [*STRATEGIES])] = None,
    budget: Annotated[str | None, Option(help=BUDGET_HELP)] = None,
    fold: Annotated[int | None, Option(metavar="<int>", help=FOLD_HELP)] = None,
    samples: Annotated[int | None, Option(metavar="<int>", help=SAMPLES_HELP)] = None,
    model: Model = None,
    config: Config = None,
    new_head: NewHead = False,
    resume: Annotated[str | None, Option(help=RESUME_HELP, autocompletion=completed_runs)] = None,
    at_once: Annotated[int | None, Option(min=1, metavar="<int>", help=AT_ONCE_HELP)] = None,
    on: Annotated[str | None, Option(help=ON_HELP)] = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Try settings with several seeds, choose one, and compare them."""
    search = {"seeds": seeds, "strategy": strategy, "budget": budget, "fold": fold, "samples": samples}
    given = given_settings(config, data, model, new_head, options, **search, vary=vary_of(vary) if vary else None)
    with starting(plain=bool(options.get("disable_tqdm"))):
        from glassloop.study.study import study as run_study
    return run_study(given, resume, at_once=at_once, on=on)
