"""`glassloop train`: fine-tune a model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

from typer import Context, Option

from glassloop.base.output import CommandResult
from glassloop.cli.options import Config, Json, Model, NewHead, TrainingData, completed_runs, given_settings, with_settings
from glassloop.markup.terminal import show_timing
from glassloop.runs.record import read_run, seed_name
from glassloop.runs.study import read_seeds
from glassloop.settings.file import GivenSettings, write_settings
from glassloop.settings.training import DataSettings, TrainingArguments, data_settings, refuse_settings_of_steps
from glassloop.training.callbacks import leave_on_signal
from glassloop.training.processes import launch
from glassloop.training.progress import starting

RESUME_HELP = "Resume this run folder. Without a value, resume --output_dir."
SEEDS_HELP = "Number of random seeds to train with, starting at --seed. Reports mean and standard deviation."
TIMING_HELP = "Show at the end how long each stage took. With --seeds: of the first seed."
AT_ONCE_HELP = "Number of seeds to train at the same time. Default: 1; on several GPUs 1 each; more if runs are long and fit."


@with_settings(TrainingArguments, DataSettings)
def train(
    context: Context,
    data: TrainingData = None,
    model: Model = None,
    config: Config = None,
    new_head: NewHead = False,
    resume: Annotated[str | None, Option(help=RESUME_HELP, autocompletion=completed_runs)] = None,
    restart: Annotated[bool, Option(help="With --resume, start again from step 0. Old checkpoints are kept.")] = False,
    processes: Annotated[int, Option(min=1, metavar="<int>", help="Number of processes on this machine.")] = 1,
    seeds: Annotated[int | None, Option(min=1, metavar="<int>", help=SEEDS_HELP)] = None,
    at_once: Annotated[int | None, Option(min=1, metavar="<int>", help=AT_ONCE_HELP)] = None,
    no_report: Annotated[bool, Option("--no_report", help="Do not write report.html at the end.")] = False,
    timing: Annotated[bool, Option("--timing", help=TIMING_HELP)] = False,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Fine-tune a model, evaluate it, and save it in a run folder."""
    several = seeds is not None or at_once is not None
    given = given_settings(config, data, model, new_head, options)
    with starting(plain=bool(options.get("disable_tqdm"))) as clock:
        if several:  # torch is imported only where they train
            from glassloop.study import tasks

            tasks.start_early()
            context.call_on_close(tasks.end_spare)
            from glassloop.study.seeds import train_with_seeds
        else:
            if processes == 1 and options.get("baselines") is not False:
                from glassloop.models.words import start_early

                start_early()
            if processes == 1:
                from glassloop.backends.machine import open_gpu_early

                open_gpu_early(str(given.training.get("device", "auto")))
            from glassloop.study.run import train_run
            from glassloop.training.evaluate import run_content

    leave_on_signal()
    refuse_wrong(given, resume)
    if several:
        result = train_with_seeds(
            given, seeds, at_once, resume, restart=restart, processes=processes, with_report=not no_report
        )
        if timing and (finished := read_seeds(Path(str(result.content["run"]))).finished):
            run = read_run(Path(str(result.content["run"])) / seed_name(min(finished)))
            show_timing(run.stages, resumed=run.resumed)
        return result
    if processes > 1:
        flags = {
            "--restart": restart,
            "--json": as_json,
            "--debug": bool(context.obj),
            "--no_report": no_report,
            "--timing": timing,
        }
        train_in_processes(given, resume, processes, [flag for flag, wanted in flags.items() if wanted])
    folder = train_run(given, resume, restart=restart, with_report=not no_report, clock=clock, timing=timing)
    return CommandResult(run_content(folder, read_run(folder)))


def refuse_wrong(given: GivenSettings, resume: str | None) -> None:
    """Raise one `SettingsError` with everything that is wrong with the settings, before any work."""
    refuse_settings_of_steps(given.training)
    if resume is None:
        given.checked()  # a resumed run is checked together with the settings it was started with


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
