"""`glassloop train`: fine-tune a model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from glassloop.base.output import CommandResult
from glassloop.cli.options import DATA_HELP, MODEL_HELP, Json, completed_runs, given_for, with_settings
from glassloop.runs.record import read_run
from glassloop.settings.file import GivenSettings, read_settings, write_settings
from glassloop.settings.training import DataSettings, TrainingArguments, data_settings
from glassloop.training.callbacks import leave_on_signal
from glassloop.training.processes import launch
from glassloop.training.progress import starting


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
        import glassloop.study.run  # noqa: F401 - torch and transformers take seconds
    training = given_for(TrainingArguments, options)
    settings = given_for(DataSettings, options)
    given = read_settings(config).overridden_by(GivenSettings(data, model, training, settings, new_head))
    return train_given(
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


def train_given(
    given: GivenSettings,
    resume: str | None = None,
    *,
    restart: bool = False,
    processes: int = 1,
    seeds: int | None = None,
    seeds_at_once: int | None = None,
    with_report: bool = True,
    as_json: bool = False,
    debug: bool = False,
) -> CommandResult:
    """Train one run, in this process or in several, or one run per random seed, and return the result."""
    from glassloop.study.run import train_run
    from glassloop.study.seeds import train_with_seeds
    from glassloop.training.evaluate import run_content

    leave_on_signal()
    if resume is None:
        given.checked()  # a resumed run is checked together with the settings it was started with
    if seeds is not None or seeds_at_once is not None:
        return train_with_seeds(
            given, seeds, seeds_at_once, resume, restart=restart, processes=processes, with_report=with_report
        )
    if processes > 1:
        flags = {"--restart": restart, "--json": as_json, "--debug": debug, "--no_report": not with_report}
        train_in_processes(given, resume, processes, [flag for flag, wanted in flags.items() if wanted])
    folder = train_run(given, resume, restart=restart, with_report=with_report)
    return CommandResult(run_content(folder, read_run(folder)))


def train_in_processes(given: GivenSettings, resume: str | None, processes: int, flags: Sequence[str]) -> NoReturn:
    """Run the same training in several processes and exit. Model and data are checked first, to report an error once."""
    from glassloop.data.sources import load_examples
    from glassloop.models.loading import load_config

    if resume is None:
        load_config(given.model or "quickstart")
        load_examples(given.source or "quickstart", **asdict(data_settings(given.data)))
    with tempfile.TemporaryDirectory(prefix="glassloop-") as scratch:
        path = Path(scratch) / "settings.toml"
        write_settings(path, given)
        resuming = [] if resume is None else [f"--resume={resume}"]
        launch(["train", "--config", str(path), *resuming, *flags], processes)
