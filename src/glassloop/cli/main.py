"""The command line: turn options into calls and errors into exit statuses. Each command imports heavy packages itself."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated

import typer

from glassloop.base import output as outputs
from glassloop.base.errors import GlassloopError, ResourceError, resource_error
from glassloop.base.output import CommandResult, TolerantStream, say, show
from glassloop.base.records import package_version
from glassloop.cli.options import GroupedCommand, GroupedCommands, end_of_own, underscored, usage_error, with_resume_value
from glassloop.settings.training import refuse_invalid_bytes
from glassloop.training.processes import report as report_error

app = typer.Typer(
    cls=GroupedCommands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # panels of rich cut off the names of long options in a terminal of 80 columns
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "token_normalize_func": lambda name: name.replace("-", "_"),  # --learning-rate is --learning_rate
    },
)

COMMANDS = {  # by group, in the order of the help page; each has a module of its name
    "Train": ("inspect", "clean", "train", "study", "config"),
    "Results": ("list", "ui", "report", "compare", "evaluate", "calibrate"),
    "Use": ("predict", "serve", "export", "push"),
    "Tools": ("port", "run", "verify", "doctor"),
}
FUNCTIONS = {"list": "list_runs", "run": "run_script"}  # others have the names of their commands
# Earlier names, which are not shown, and the modules they are in now.
FORMER = {"data": "inspect", "init": "config", "eject": "export"}
FILE_COMMANDS = {
    "train",
    "study",
    "run",
    "calibrate",
    "export",
    "push",
    "report",
    "config",
    "init",
    "eject",
    "serve",
    "ui",
    "clean",
}
FILE_OPTIONS = {"--file", "--out", "-o", "--in_place", "--in-place"}  # of commands that print their result without them
BROKEN_PIPE = 128 + signal.SIGPIPE  # as a shell reports it


def add_command(name: str, module: str, function: str, group: str | None) -> None:
    interspersed = {"allow_interspersed_args": name != "run"}  # what follows the script belongs to it
    command = getattr(import_module(f"glassloop.cli.{module}"), function)
    app.command(name, cls=GroupedCommand, context_settings=interspersed, rich_help_panel=group, hidden=group is None)(command)


for group, names in COMMANDS.items():
    for name in names:
        add_command(name, name, FUNCTIONS.get(name, name), group)
for name, module in FORMER.items():
    add_command(name, module, name if module == "export" else module, None)


def command() -> None:
    """Run the command as all that this process does."""
    try:
        main()
    except SystemExit as left:
        if sys.argv[1:2] != ["run"] and (left.code is None or isinstance(left.code, int)):  # a script may need a usual end
            end_process(left.code or 0)
        raise


def end_process(status: int) -> None:
    """End the process as Python does: wait for threads and run what was registered for the end. But free no object."""
    # Python would free each object and unload each library, which takes a second after torch was used.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status & 0xFF)


def main() -> None:
    """Run the command. An error prints two lines on standard error and sets the exit status, without a traceback."""
    end = end_of_own(sys.argv[1:]) + 1
    own = [argument for argument in sys.argv[1:end] if argument != "--debug"]
    debug = len(own) < len(sys.argv[1:end])
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character gets its number
    as_json = "--json" in own
    with outputs.tolerant_streams() as standard:
        with outputs.output_of(as_json) as output:
            found = result_of(own, debug, sys.argv[end:])
        if as_json and isinstance(found, CommandResult):
            outputs.show_result(found, output)
        status = found.exit_status if isinstance(found, CommandResult) else found or 0
        # Other commands write a file or a folder, and what they print is not their result.
        writes_files = {argument.partition("=")[0] for argument in own} & FILE_OPTIONS or {*own[:1]} & FILE_COMMANDS
        prints_its_result = bool({"--json", "-h", "--help", "--version"} & {*own}) or not writes_files
        status = status or status_of_output(standard, needed=prints_its_result)
    sys.exit(status)


def status_of_output(output: TolerantStream, *, needed: bool) -> int:
    """Return the exit status of a command that succeeded: not 0 if standard output is its result and could not be written."""
    output.flush()
    if output.closed_from_start and needed:  # a child process may have printed the result
        output.lose(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    if output.error is None:
        return 0
    if isinstance(output.error, BrokenPipeError):  # the reader has seen enough, as in `| head -1`
        return BROKEN_PIPE if needed else 0
    problem = f"standard output cannot be written: {getattr(output.error, 'strerror', None) or output.error}"
    if not needed:
        say(problem)
        return 0
    error = ResourceError(problem, "write it to another file or disk")
    report_error(error)
    return error.exit_code


def result_of(arguments: list[str], debug: bool, of_script: Sequence[str] = ()) -> CommandResult | int | None:
    """Run the command and return its result, or its exit status. An error is printed and returned as a result."""
    try:
        refuse_invalid_bytes(arguments)
        every = [*with_resume_value(arguments), *of_script]
        found: CommandResult | int | None = app(args=every, prog_name="glassloop", standalone_mode=False, obj=debug)
        return found
    except KeyboardInterrupt:
        return 130
    except SystemExit as left:  # of a launcher of several processes
        if isinstance(left.code, str):
            raise
        return left.code
    except Exception as raised:
        known = raised if isinstance(raised, GlassloopError) else usage_error(raised, option_names(), arguments)
        known = known or resource_error(raised)
        if known is None:
            raise
        if debug:
            traceback.print_exc()
        return outputs.error_result(known) if report_error(known) else known.exit_code
    finally:
        outputs.show_on(None)


def option_names() -> dict[str, list[str]]:
    """Return the names of the options of each command, without the dashes in front; under "" those before the command."""
    root = typer.main.get_command(app)
    flags = {
        verb: ["--help", *(flag for entry in command.params for flag in (*entry.opts, *entry.secondary_opts))]
        for verb, command in {"": root, **root.commands}.items()  # type: ignore[attr-defined]
    }
    return {verb: [underscored(flag) for flag in names if flag.startswith("-")] for verb, names in flags.items()}


def show_version(wanted: bool) -> None:
    if wanted:
        show(f"glassloop {package_version('glassloop')}")
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
