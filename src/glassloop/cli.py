"""The command line: turn options into calls and errors into exit statuses. Each command imports heavy packages itself."""

from __future__ import annotations

import sys
import traceback
from io import TextIOWrapper
from typing import Annotated

import typer

from glassloop import __version__
from glassloop.arguments import TrainingArguments
from glassloop.errors import GlassloopError, resource_error, show
from glassloop.help_page import GroupedCommand
from glassloop.options import choices_of, completed_runs, given_for, with_resume_value, with_settings
from glassloop.processes import report
from glassloop.report import Report, error_report, output_of, show_report
from glassloop.settings import FILE_SETTINGS, DataSettings, refuse_invalid_bytes
from glassloop.show.stages import starting
from glassloop.stages import show_on
from glassloop.wrong_options import usage_error

app = typer.Typer(
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # panels of rich cut off the names of long options in a terminal of 80 columns
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "token_normalize_func": lambda name: name.replace("-", "_"),  # --learning-rate is --learning_rate
    },
)
DATA_HELP = "Data to {}: a file, a folder, glue/mrpc, quickstart, or a hub name."
MODEL_HELP = "Model: a folder, a run folder, a hub name, or quickstart."
RUN_HELP = "Run folder, folder of a model, or folder of several seeds."
Run = Annotated[str, typer.Argument(help=RUN_HELP, autocompletion=completed_runs)]
Device = Annotated[str, typer.Option("--device", help="Device: cuda, mps, cpu, or auto.", autocompletion=choices_of("device"))]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON. All other output goes to standard error.")]


def main() -> None:
    """Run the command. An error prints two lines on standard error and sets the exit status, without a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character gets its number
    as_json = "--json" in arguments
    with output_of(as_json) as output:
        found = result_of(arguments, debug)
    if as_json and isinstance(found, Report):
        show_report(found, output)
    sys.exit(found.exit_status if isinstance(found, Report) else found)


def result_of(arguments: list[str], debug: bool) -> Report | int | None:
    """Run the command and return its result, or its exit status. An error is printed and returned as a result."""
    try:
        refuse_invalid_bytes(arguments)
        found: Report | int | None = app(
            args=with_resume_value(arguments), prog_name="glassloop", standalone_mode=False, obj=debug
        )
        return found
    except KeyboardInterrupt:
        return 130
    except Exception as raised:
        known = raised if isinstance(raised, GlassloopError) else usage_error(raised, option_names(), arguments)
        known = known or resource_error(raised)
        if known is None:
            raise
        if debug:
            traceback.print_exc()
        return error_report(known) if report(known) else known.exit_code
    finally:
        show_on(None)


def option_names() -> dict[str, list[str]]:
    """Return the names of the options of each command, without the dashes in front; under "" those before the command."""
    root = typer.main.get_command(app)
    flags = {
        verb: ["--help", *(flag for entry in command.params for flag in (*entry.opts, *entry.secondary_opts))]
        for verb, command in {"": root, **root.commands}.items()  # type: ignore[attr-defined]
    }
    return {
        verb: [flag.lstrip("-").replace("-", "_") for flag in found if flag.startswith("-")] for verb, found in flags.items()
    }


def show_version(wanted: bool) -> None:
    """Print the version and exit, if wanted."""
    if wanted:
        show(f"glassloop {__version__}")
        raise typer.Exit


@app.callback()
def about(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fine-tune pretrained transformer encoders on texts and pairs of texts.

    Add --debug anywhere to show the traceback of an error.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.command("data", cls=GroupedCommand)
@with_settings(DataSettings)
def data_command(
    data: Annotated[str, typer.Argument(help=DATA_HELP.format("show"))] = "quickstart",
    model: Annotated[str, typer.Option("--model", help="Model whose tokenizer to use.")] = "quickstart",
    max_length: Annotated[int | None, typer.Option("--max_length", help="Maximum number of tokens per row.")] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Batch size used to measure padding.")] = 8,
    as_json: Json = False,
    **options: object,
) -> Report:
    """Show the splits, labels, lengths and padding of a data set."""
    with starting():
        from glassloop.commands.data import describe_data

    return describe_data(data, model, max_length, batch_size, given_for(DataSettings, options))


@app.command("train", cls=GroupedCommand)
@with_settings(TrainingArguments, DataSettings)
def train_command(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help=DATA_HELP.format("train on"))] = None,
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    config: Annotated[
        str | None, typer.Option("--config", help="TOML file with settings. Command-line options override it.")
    ] = None,
    new_head: Annotated[
        bool, typer.Option("--new_head", help="Replace the classification head of a model that has one.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Resume this run folder. Without a value, resume --output_dir.",
            autocompletion=completed_runs,
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --resume, start again from step 0. Old checkpoints are kept.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="<int>", help="Number of processes on this machine.")
    ] = 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
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
    as_json: Json = False,
    **options: object,
) -> Report:
    """Fine-tune a model, evaluate it, and save it in a run folder."""
    with starting(plain=bool(options.get("disable_tqdm"))):
        from glassloop.commands.train import train
    from glassloop.settings_file import GivenSettings, read_settings

    training, settings = given_for(TrainingArguments, options), given_for(DataSettings, options)
    given = read_settings(config).overridden_by(GivenSettings(data, model, training, settings, new_head))
    return train(
        given,
        resume,
        restart=restart,
        processes=processes,
        seeds=seeds,
        seeds_at_once=seeds_at_once,
        as_json=as_json,
        debug=bool(context.obj),
    )


@app.command("evaluate", cls=GroupedCommand)
@with_settings(DataSettings)
def evaluate_command(
    run: Run,
    data: Annotated[str | None, typer.Argument(help="Data to evaluate on. Default: the data of the run.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split to evaluate. Default: every validation split.")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="<str>", help="Metrics to compute, separated by commas. Default: those of the run."),
    ] = None,
    positive_label: Annotated[
        str | None, typer.Option("--positive_label", help="Class whose F1 is reported. Default: the class chosen for the run.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="File for the predictions of the rows: .csv, .tsv or .jsonl.")
    ] = None,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, metavar="<int>", help="Batch size.")] = 64,
    as_json: Json = False,
    **options: object,
) -> Report:
    """Evaluate a trained model and compare it with a baseline."""
    with starting():
        from glassloop.commands.evaluate import evaluate
        from glassloop.evaluation import Wanted

    given = given_for(DataSettings, options)
    return evaluate(run, Wanted(data, split, given, tuple(metric or ()), positive_label, device, batch_size), out)


@app.command("predict", cls=GroupedCommand)
@with_settings(DataSettings, only=FILE_SETTINGS)
def predict_command(
    run: Run,
    text: Annotated[str | None, typer.Argument(help="Text to predict.")] = None,
    text_pair: Annotated[str | None, typer.Argument(help="Second text of a pair.")] = None,
    file: Annotated[str | None, typer.Option("--file", help="Data file whose rows to predict.")] = None,
    out: Annotated[str | None, typer.Option("-o", "--out", help="Output file: .csv, .tsv or .jsonl.")] = None,
    text_column: Annotated[
        str | None, typer.Option("--text", help="Column with the text. Default: the text column of the run.")
    ] = None,
    pair_column: Annotated[str | None, typer.Option("--text_pair", help="Column with the second text of a pair.")] = None,
    device: Device = "auto",
    as_json: Json = False,
    **options: object,
) -> Report:
    """Predict one text, one pair of texts, or every row of a file."""
    with starting(lines=file is not None):  # one answer needs no log
        from glassloop.commands.predict import predict

    return predict(run, text, text_pair, file, out, text_column, pair_column, device, given_for(DataSettings, options))


@app.command("init", cls=GroupedCommand)
@with_settings(DataSettings)
def init_command(
    data: Annotated[str, typer.Argument(help=DATA_HELP.format("train on"))] = "quickstart",
    model: Annotated[str, typer.Option("--model", help=MODEL_HELP)] = "quickstart",
    out: Annotated[str, typer.Option("-o", "--out", help="File to write.")] = "run.toml",
    **options: object,
) -> None:
    """Write a commented settings file for glassloop train --config."""
    with starting(lines=False):
        from glassloop.commands.init import write_template

    write_template(data, model, out, given_for(DataSettings, options))


@app.command("eject", cls=GroupedCommand)
def eject_command(
    run: Annotated[str, typer.Argument(help="Run folder.", autocompletion=completed_runs)],
    out: Annotated[str | None, typer.Option("-o", "--out", help="New folder to write to. Default: RUN/ejected.")] = None,
) -> None:
    """Export a run as a plain PyTorch script with the same result."""
    from glassloop.commands.eject import eject

    eject(run, out)


@app.command("verify", cls=GroupedCommand)
@with_settings(DataSettings)
def verify_command(
    what: Annotated[str, typer.Argument(help="Run folder, or data to train on.")] = "quickstart",
    model: Annotated[str | None, typer.Option("--model", help=MODEL_HELP)] = None,
    as_json: Json = False,
    **options: object,
) -> Report:
    """Check that backends, processes and resume give equal results."""
    with starting(lines=False):
        from glassloop.commands.verify import verify

    return verify(what, model, given_for(DataSettings, options))


@app.command(cls=GroupedCommand)
def doctor(as_json: Json = False) -> Report:
    """Check this machine and suggest improvements."""
    from glassloop.commands.doctor import check_machine

    return check_machine()
