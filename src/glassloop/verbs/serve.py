"""`glassloop serve`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import completed_runs
from glassloop.show.stages import starting
from glassloop.verbs.shared_options import RUN_HELP, Device, Json, Precision


def serve_command(
    runs: Annotated[list[str], typer.Argument(help=f"{RUN_HELP} Several are served by name.", autocompletion=completed_runs)],
    host: Annotated[str, typer.Option("--host", help="Address to listen on. Default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on. 0 chooses a free one.")] = 8000,
    max_inputs: Annotated[int, typer.Option("--max_inputs", help="Maximum number of texts or pairs per request.")] = 32,
    max_characters: Annotated[
        int, typer.Option("--max_characters", help="Maximum number of characters per request.")
    ] = 1_000_000,
    max_payload: Annotated[int, typer.Option("--max_payload", help="Maximum number of bytes per request body.")] = 2_000_000,
    max_requests: Annotated[int, typer.Option("--max_requests", help="Maximum number of concurrent requests.")] = 512,
    queue_seconds: Annotated[float, typer.Option("--queue_seconds", help="Longest time a request may wait.")] = 30.0,
    read_seconds: Annotated[
        float, typer.Option("--read_seconds", help="Longest time a client may take to send headers or a body.")
    ] = 10.0,
    drain_seconds: Annotated[
        float, typer.Option("--drain_seconds", help="Longest time to answer accepted requests after SIGTERM.")
    ] = 30.0,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch_tokens", help="Tokens of a batch. Default: measured at the start.")
    ] = None,
    api_key_file: Annotated[
        str | None, typer.Option("--api_key_file", help="File with the API key. Default: the variable GLASSLOOP_API_KEY.")
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            "--allowed_hosts",
            help="Further host names that clients may use, separated by commas: models.example.com,.internal or * for any.",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
) -> CommandResult:
    """Answer requests for predictions over HTTP."""
    with starting():
        from glassloop.commands.serve import serve
        from glassloop.serving.limits import Limits

    limits = Limits(max_inputs, max_characters, max_payload, max_requests, queue_seconds, read_seconds)
    names = [name.strip() for name in allowed_hosts.split(",")] if allowed_hosts is not None else []
    return serve(runs, host, port, device, limits, batch_tokens, drain_seconds, api_key_file, precision, names)
