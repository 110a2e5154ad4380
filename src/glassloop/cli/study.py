"""`glassloop study`: try settings with several seeds."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from glassloop.base.output import CommandResult
from glassloop.cli.options import Config, Json, Model, NewHead, TrainingData, completed_runs, given_settings, with_settings
from glassloop.settings.study import VARY_HELP, StudySettings, vary_of
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.training.progress import starting

RESUME_HELP = "Continue this study. Without a value, the one in --output_dir."
AT_ONCE_HELP = (
    "Number of runs to train at the same time on each GPU, or on the CPU. Default: as many as fit and have enough to do."
)
ON_HELP = "Train on a Ray cluster: ray for the local or running one, or ray://host:port."


@with_settings(StudySettings, TrainingArguments, DataSettings)
def study(
    data: TrainingData = None,
    vary: Annotated[list[str] | None, Option(metavar="<name=values>", help=VARY_HELP)] = None,
    model: Model = None,
    config: Config = None,
    new_head: NewHead = False,
    resume: Annotated[str | None, Option(help=RESUME_HELP, autocompletion=completed_runs)] = None,
    at_once: Annotated[int | None, Option(min=1, metavar="<int>", help=AT_ONCE_HELP)] = None,
    on: Annotated[str | None, Option(help=ON_HELP)] = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Try configurations with several seeds, choose one, and compare them."""
    given = given_settings(config, data, model, new_head, {**options, "vary": vary_of(vary) if vary else None})
    with starting(plain=bool(options.get("disable_tqdm"))):
        from glassloop.study.study import study as run_study
    return run_study(given, resume, at_once=at_once, on=on)
