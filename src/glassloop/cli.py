"""The command: outside words into calls, errors into exit codes. No logic, and nothing heavy imported before it is needed."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Annotated, Any, get_type_hints

import typer

from glassloop import __version__
from glassloop.arguments import TrainingArguments
from glassloop.errors import GlassloopError, SettingsError, printable, resource_error, show
from glassloop.processes import launch, report
from glassloop.settings import DataSettings, data_settings, refuse_invalid_bytes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command; an error of ours is two lines on standard error and its exit code, without a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    for place, argument in enumerate(arguments):
        if argument == "--resume" and (place + 1 == len(arguments) or arguments[place + 1].startswith("--")):
            arguments[place] = "--resume=newest"
    try:
        refuse_invalid_bytes(arguments)
        app(args=arguments, prog_name="glassloop")
    except GlassloopError as error:
        if len(arguments) < len(sys.argv) - 1:
            traceback.print_exc()
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as raised:
        found = resource_error(raised)
        if found is None or len(arguments) < len(sys.argv) - 1:
            raise
        report(found)
        sys.exit(found.exit_code)


class NoNumber(str):
    """What was given where a number is asked for."""


def number_or_text(kind: type) -> Callable[[str], Any]:
    """Reads a number; what is none stays text, so that the settings can say all that is wrong with them at once."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return NoNumber(text)

    return read


NUMBERS: dict[Any, dict[str, Any]] = {
    hint: {"parser": number_or_text(kind), "metavar": name}
    for kind, name in ((int, "INTEGER"), (float, "FLOAT"))
    for hint in (kind, kind | None)
}


NAMES = str | tuple[str, ...] | None  # from Python; a flag takes them as one text, with commas


def with_settings(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every field of the dataclasses `kinds`: name, type, default and help are the field's.

    The command gets only what was given on the command line, so that a file of settings can fill the rest.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        for kind in kinds:
            hints = {name: str | None if hint == NAMES else hint for name, hint in get_type_hints(kind).items()}
            for entry in fields(kind):
                if all(entry.name != known.name for known in own):
                    shown = False if entry.default is None else str(entry.default)
                    both = f"/--no-{entry.name}" if hints[entry.name] in (bool, bool | None) else ""  # a file may say yes
                    number: dict[str, Any] = NUMBERS.get(hints[entry.name], {})
                    option = typer.Option(f"--{entry.name}{both}", help=entry.metadata["help"], show_default=shown, **number)
                    annotation: Any = Annotated[(hints[entry.name] | None, option)]
                    keyword = inspect.Parameter.KEYWORD_ONLY
                    own.append(inspect.Parameter(entry.name, keyword, default=None, annotation=annotation))
        command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        command.__annotations__ = {entry.name: entry.annotation for entry in own}
        return command

    return decorate


def given_for(kind: type, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given and that belong to `kind`."""
    names = [entry.name for entry in fields(kind)]
    return {name: value for name, value in flags.items() if name in names and value is not None}


def say_version(wanted: bool) -> None:
    if wanted:
        show(f"glassloop {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=say_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Fine-tune pretrained transformer encoders on texts and pairs of texts.

    --debug, anywhere, shows the traceback of an error.
    """


@app.command("data")
@with_settings(DataSettings)
def data_command(
    data: Annotated[str, typer.Argument(help="quickstart, glue/mrpc, a file, a folder, or a hub name.")] = "quickstart",
    model: Annotated[
        str, typer.Option("--model", help="Whose tokenizer to use: quickstart, a folder, a hub name.")
    ] = "quickstart",
    max_length: Annotated[int | None, typer.Option("--max_length", help="Most tokens a row may have.")] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Rows in a batch, for the padding figures.")] = 8,
    **flags: Any,
) -> None:
    """Show a data set as the model will see it: splits, labels, lengths, padding, one row token by token."""
    from glassloop.data.sources import load_examples
    from glassloop.models.inputs import longest_input
    from glassloop.models.loading import load_config, load_tokenizer
    from glassloop.show.data_overview import show_data

    examples = load_examples(data, **asdict(data_settings(given_for(DataSettings, flags))))
    tokenizer = load_tokenizer(model)
    length = longest_input(tokenizer, load_config(model)) if max_length is None else max_length
    show_data(examples, tokenizer, length, batch_size, TrainingArguments.seed, (data, model))


@app.command("train")
@with_settings(TrainingArguments, DataSettings)
def train_command(
    data: Annotated[str | None, typer.Argument(help="quickstart, glue/mrpc, a file, a folder, or a hub name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="quickstart, a folder, or a hub name.")] = None,
    config: Annotated[str | None, typer.Option("--config", help="A TOML file of settings; flags go before it.")] = None,
    new_head: Annotated[bool, typer.Option("--new_head", help="A fresh head even where the model has one.")] = False,
    resume: Annotated[str | None, typer.Option("--resume", help="Resume this run folder; no value: --output_dir.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="With --resume: start again; old checkpoints are kept.")] = False,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes to train with on this machine.")] = 1,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Number of random seeds, from --seed on.")] = None,
    seeds_at_once: Annotated[int | None, typer.Option("--seeds_at_once", min=1, help="Seeds side by side.")] = None,
    **flags: Any,
) -> None:
    """Fine-tune a model on a data set, evaluate it, and write everything to a run folder."""
    from glassloop.commands.train import look_first
    from glassloop.engine.signals import leave_on_signal
    from glassloop.settings_file import check_settings, read_config

    leave_on_signal()
    written = read_config(config)
    training = written["training"] | given_for(TrainingArguments, flags)
    settings = written["data"] | given_for(DataSettings, flags)
    if resume is None:
        check_settings(training, settings)
    elif unread := [f"{name} is {value!r}, not a number" for name, value in flags.items() if isinstance(value, NoNumber)]:
        raise SettingsError("; ".join(unread), "glassloop train --help lists every setting")  # the rest goes with the run's own
    source, name = data or written["source"], model or written["model"]
    if seeds is not None or seeds_at_once is not None:
        from glassloop.seeds import train_seeds

        given = {"source": source, "model": name, "training": training, "data": settings, "new_head": new_head}
        resumed: dict[str, Any] = {"resume": resume, "restart": restart}
        train_seeds(given, count=seeds, at_once=seeds_at_once, processes=processes, config=config, **resumed)
        return
    if processes > 1:
        if resume is None:
            look_first(source or "quickstart", name or "quickstart", settings)
        launch(processes)
    from glassloop.commands.train import train_run

    train_run(source, name, training, settings, new_head=new_head, resume=resume, restart=restart)


@app.command("evaluate")
@with_settings(DataSettings)
def evaluate_command(
    run: Annotated[str, typer.Argument(help="The folder of a run, or of a model.")],
    data: Annotated[str | None, typer.Argument(help="Other data than the run's own.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split to evaluate. Default: every validation split.")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cuda, mps or cpu.")] = "auto",
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Rows in a batch.")] = 64,
    positive_label: Annotated[
        str | None, typer.Option("--positive_label", help="Class whose F1 is reported. Default: that of the run.")
    ] = None,
    **flags: Any,
) -> None:
    """Score a trained model on a split, beside the majority baseline."""
    from glassloop.commands.evaluate import evaluate_run

    evaluate_run(run, data, split, device, batch_size, given_for(DataSettings, flags), positive_label)


@app.command("predict")
def predict_command(
    run: Annotated[str, typer.Argument(help="The folder of a run, or of a model.")],
    text: Annotated[str | None, typer.Argument(help="A text.")] = None,
    text_pair: Annotated[str | None, typer.Argument(help="The second text of a pair.")] = None,
    file: Annotated[str | None, typer.Option("--file", help="Predict every row of a data file instead.")] = None,
    out: Annotated[str | None, typer.Option("--out", help="Where to: .csv, .tsv or .jsonl.")] = None,
    text_column: Annotated[str | None, typer.Option("--text", help="Column of the text; by default the run's.")] = None,
    pair_column: Annotated[str | None, typer.Option("--text_pair", help="Column of the second text.")] = None,
    delimiter: Annotated[str | None, typer.Option("--delimiter", help="Sign between the columns of the file.")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cuda, mps or cpu.")] = "auto",
) -> None:
    """Predict one text or pair, or every row of a file."""
    from glassloop.commands.predict import predict_file, predict_text

    if file is not None:
        predict_file(run, file, out, text_column, pair_column, delimiter, device)
    else:
        predict_text(run, text, text_pair, device)


@app.command("init")
@with_settings(DataSettings)
def init_command(
    data: Annotated[str, typer.Argument(help="The data to train on.")] = "quickstart",
    model: Annotated[str, typer.Option("--model", help="quickstart, a folder, or a hub name.")] = "quickstart",
    out: Annotated[str, typer.Option("--out", help="The file to write.")] = "run.toml",
    **flags: Any,
) -> None:
    """Look at the data and write a commented file of settings for glassloop train --config."""
    from glassloop.commands.init import write_config

    write_config(data, model, out, given_for(DataSettings, flags))


@app.command("eject")
def eject_command(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    out: Annotated[str | None, typer.Option("--out", help="A new folder; by default RUN/ejected.")] = None,
) -> None:
    """Write a run as one plain PyTorch file that ends in the same weights."""
    from glassloop.commands.eject import eject_run
    from glassloop.files import user_path

    folder = user_path(run)
    script = eject_run(folder, user_path(out) if out else folder / "ejected")
    show(f"wrote {script}; run it in its folder: python {script.name}")


@app.command("verify")
@with_settings(DataSettings)
def verify_command(
    what: Annotated[str, typer.Argument(help="The folder of a run, or data as for train.")] = "quickstart",
    model: Annotated[str | None, typer.Option("--model", help="quickstart, a folder, or a hub name.")] = None,
    **flags: Any,
) -> None:
    """Show, on your own model and data, that doors, accumulation, processes and resume agree."""
    from glassloop.commands.verify import verify

    if not verify(what, model, given_for(DataSettings, flags)):
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Look at this machine: Python, torch, devices, bf16, packaged model, hub, disk; and what to do."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glassloop.machine import BAD, examine

    findings = examine()
    styles = {"good": ("✓", "green"), "fair": ("!", "yellow"), "bad": ("✗", "red")}
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        sign, style = styles[finding.state]
        table.add_row(
            Text(sign, style=style), finding.name, Text(printable(finding.found)), Text(printable(finding.remedy), style="dim")
        )
    Console().print(table)
    if any(finding.state == BAD for finding in findings):
        raise typer.Exit(1)
