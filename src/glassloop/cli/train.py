"""`glassloop train`: fine-tune a model."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.base.result import CommandResult
from glassloop.cli.options import DATA_HELP, MODEL_HELP, Json, completed_runs, given_for, with_settings
from glassloop.settings.fields import DataSettings
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.settings.training import TrainingArguments
from glassloop.training.stage_display import starting


@with_settings(TrainingArguments, DataSettings)
def train(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help=DATA_HELP.format("train on"))] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    config: Annotated[str | None, typer.Option(help="TOML file with settings. Command-line options override it.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new_head", help="Replace the classification head of a model that has one.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Resume this run folder. Without a value, resume --output_dir.",
            autocompletion=completed_runs,
        ),
    ] = None,
    restart: Annotated[bool, typer.Option(help="With --resume, start again from step 0. Old checkpoints are kept.")] = False,
    processes: Annotated[int, typer.Option(min=1, metavar="<int>", help="Number of processes on this machine.")] = 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="<int>",
            help="Number of random seeds to train with, starting at --seed. Reports mean and standard deviation.",
        ),
    ] = None,
    seeds_at_once: Annotated[
        int | None,
        typer.Option(
            "--seeds_at_once",
            min=1,
            metavar="<int>",
            help="Number of seeds to train at the same time. Default: as many as fit on the GPU; 1 on a CPU.",
        ),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no_report", help="Do not write report.html at the end.")] = False,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Fine-tune a model, evaluate it, and save it in a run folder."""
    with starting(plain=bool(options.get("disable_tqdm"))):
        from glassloop.study.run import train as run_training
    training = given_for(TrainingArguments, options)
    settings = given_for(DataSettings, options)
    given = read_settings(config).overridden_by(GivenSettings(data, model, training, settings, new_head))
    return run_training(
        given,
        resume,
        restart=restart,
        processes=processes,
        seeds=seeds,
        seeds_at_once=seeds_at_once,
        with_report=not no_report,
        as_json=as_json,
        debug=bool(context.obj),
    )
