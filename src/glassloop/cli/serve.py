"""`glassloop serve`: answer requests over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, counted, listed
from glassloop.base.files import user_path
from glassloop.base.network import hosts_of, is_loopback
from glassloop.base.output import CommandResult, say
from glassloop.base.records import freeze_objects
from glassloop.cli.options import RUN_HELP, Device, Json, Precision, completed_runs
from glassloop.serve.limits import Limits, refuse_number
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.serve.hosted import Hosted

KEY_VARIABLE = "GLASSLOOP_API_KEY"
HOSTS_HELP = "Further host names that clients may use, separated by commas: models.example.com,.internal or * for any."


def serve(
    runs: Annotated[list[str], Argument(help=f"{RUN_HELP} Several are served by name.", autocompletion=completed_runs)],
    host: Annotated[str, Option(help="Address to listen on. 127.0.0.1 is this machine only.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on. 0 chooses a free one.")] = 8000,
    max_inputs: Annotated[int, Option(help="Maximum number of texts or pairs per request.")] = 32,
    max_characters: Annotated[int, Option(help="Maximum number of characters per request.")] = 1_000_000,
    max_payload: Annotated[int, Option(help="Maximum number of bytes per request body.")] = 2_000_000,
    max_requests: Annotated[int, Option(help="Maximum number of concurrent requests.")] = 512,
    queue_seconds: Annotated[float, Option(help="Maximum time in seconds that a request may wait.")] = 30.0,
    read_seconds: Annotated[float, Option(help="Maximum time in seconds for a client to send headers or a body.")] = 10.0,
    drain_seconds: Annotated[float, Option(help="Maximum time in seconds to answer accepted requests after SIGTERM.")] = 30.0,
    batch_tokens: Annotated[
        int | None, Option(help="Maximum number of tokens per batch. Default: measured at the start.")
    ] = None,
    api_key_file: Annotated[str | None, Option(help=f"File with the API key. Default: the variable {KEY_VARIABLE}.")] = None,
    allowed_hosts: Annotated[str | None, Option(help=HOSTS_HELP)] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
) -> CommandResult:
    """Answer requests for predictions over HTTP."""
    refuse_number("drain_seconds", drain_seconds, zero=True)
    if batch_tokens is not None:
        refuse_number("batch_tokens", batch_tokens)
    limits = Limits(max_inputs, max_characters, max_payload, max_requests, queue_seconds, read_seconds)
    with starting():
        try:
            from glassloop.serve.batching import Batcher, Meters, bind_threads

            cores = bind_threads()  # before the first operation of torch starts its threads
            from glassloop.serve.app import Service
            from glassloop.serve.server import bound_socket, serve_on
        except ModuleNotFoundError as error:
            raise SettingsError(f"serve needs the package {error.name}", 'pip install "glassloop[web]"') from error

    key = api_key(api_key_file)
    names = [name.strip() for name in allowed_hosts.split(",")] if allowed_hosts is not None else []
    with bound_socket(host, port) as opened:
        address = opened.getsockname()
        hosts = hosts_of(host, address[0], names)
        if key is None and not is_loopback(address[0]):
            problem = f"without an API key, every machine that reaches {address[0]} could use the models"
            raise SettingsError(problem, f"set {KEY_VARIABLE} or --api_key_file, or listen on 127.0.0.1")
        hosted, budget = prepared(runs, device, precision, batch_tokens)
        batcher = Batcher([model.predictor for model in hosted], budget, Meters(), cores=cores)
        service = Service(hosted, batcher, limits, key, hosts)
        url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
        backend = hosted[0].predictor.backend
        served = listed(model.name for model in hosted)
        line = f"serving {served} on {url} ({backend.name} on {backend.device}, {budget:,} tokens per batch)"
        serve_on(opened, service, drain_seconds, lambda: say(line))
    answered = batcher.meters.answered
    say(f"stopped after {counted(answered, 'request', 'requests')}")
    return CommandResult({"runs": [*runs], "requests": answered})


def prepared(runs: Sequence[str], device: str, precision: str, batch_tokens: int | None) -> tuple[list[Hosted], int]:
    """Load and check the models, and run some batches. Return the models, and the number of tokens of a batch."""
    from glassloop.serve.hosted import load_hosted, measured_budget, warm_up

    hosted = load_hosted(runs, device, precision)
    for model in hosted:
        rows = counted(model.checked, "stored prediction", "stored predictions")
        done = "repeated" if model.predictor.agreement is None else "compared"
        say(f"{model.name}: {done} {rows}" if model.checked else f"{model.name}: no stored predictions to check")
        for warning in model.predictor.warnings:
            say(f"{model.name}: {warning}")
    predictors = [model.predictor for model in hosted]
    budget = batch_tokens or min(measured_budget(predictor) for predictor in predictors)
    for predictor in predictors:
        warm_up(predictor, budget)
    freeze_objects()  # what is loaded stays: walking over it would delay requests
    return hosted, budget


def api_key(name: str | None) -> str | None:
    if name is None:
        return os.environ.get(KEY_VARIABLE) or None
    path = user_path(name)
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{path}: the API key cannot be read", "name a text file with the key") from error
    if not key:
        raise SettingsError(f"{path}: the file is empty", "write the API key into it")
    return key
