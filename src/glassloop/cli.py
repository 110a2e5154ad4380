"""The command: outside words into calls, errors into exit codes. No logic, and nothing heavy imported before it is needed."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from glassloop import __version__
from glassloop.config import DataSettings
from glassloop.errors import GlassloopError

app = typer.Typer(
    help="Fine-tune pretrained transformer encoders on texts and pairs of texts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command; an error of ours is two lines on standard error and its exit code, without a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments, prog_name="glassloop")
    except GlassloopError as error:
        if len(arguments) < len(sys.argv) - 1:
            traceback.print_exc()
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def with_settings(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every field of the dataclasses `kinds`: name, type, default and help are the field's."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        for kind in kinds:
            hints = get_type_hints(kind)
            for entry in fields(kind):
                option = typer.Option(f"--{entry.name}", help=entry.metadata["help"])
                annotation: Any = Annotated[(hints[entry.name], option)]
                keyword = inspect.Parameter.KEYWORD_ONLY
                own.append(inspect.Parameter(entry.name, keyword, default=entry.default, annotation=annotation))
        command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        command.__annotations__ = {entry.name: entry.annotation for entry in own}
        return command

    return decorate


def say_version(wanted: bool) -> None:
    if wanted:
        print(f"glassloop {__version__}")
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
    **settings: Any,
) -> None:
    """Show a data set as the model will see it: splits, labels, lengths, padding, one row token by token."""
    from glassloop.data.sources import load_examples
    from glassloop.modeling import load_config, load_tokenizer, longest_input
    from glassloop.overview import show_data

    examples = load_examples(data, **settings)
    tokenizer = load_tokenizer(model)
    length = longest_input(tokenizer, load_config(model)) if max_length is None else max_length
    show_data(examples, tokenizer, length, batch_size, settings["seed"], (data, model))


@app.command()
def doctor() -> None:
    """Look at this machine: Python, torch, devices, bf16, packaged model, hub, disk; and what to do."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glassloop.doctor import BAD, examine

    findings = examine()
    styles = {"good": ("✓", "green"), "fair": ("!", "yellow"), "bad": ("✗", "red")}
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        sign, style = styles[finding.state]
        table.add_row(Text(sign, style=style), finding.name, Text(finding.found), Text(finding.remedy, style="dim"))
    Console().print(table)
    if any(finding.state == BAD for finding in findings):
        raise typer.Exit(1)
