"""`glassloop serve`: answer requests for the predictions of one or several runs over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.collection import freeze_objects
from glassloop.command_result import CommandResult
from glassloop.errors import SettingsError, counted, listed, say
from glassloop.files import user_path
from glassloop.hosts import hosts_of, is_loopback
from glassloop.serving.cores import bind_threads
from glassloop.serving.limits import Limits, refuse_number

if TYPE_CHECKING:
    from glassloop.serving.hosted import Hosted

KEY_VARIABLE = "GLASSLOOP_API_KEY"


def serve(
    runs: Sequence[str],
    host: str,
    port: int,
    device: str,
    limits: Limits,
    batch_tokens: int | None = None,
    drain_seconds: float = 30.0,
    api_key_file: str | None = None,
    precision: str = "auto",
    allowed_hosts: Sequence[str] = (),
) -> CommandResult:
    """Load the models, check them, measure the size of batches, and answer requests until a signal."""
    refuse_number("drain_seconds", drain_seconds, zero=True)
    if batch_tokens is not None:
        refuse_number("batch_tokens", batch_tokens)
    cores = bind_threads()
    try:
        from glassloop.serving.app import Service
        from glassloop.serving.server import bound_socket, serve_on
    except ModuleNotFoundError as error:
        raise SettingsError(f"serve needs the package {error.name}", 'pip install "glassloop[web]"') from error
    from glassloop.serving.batching import Batcher
    from glassloop.serving.meters import Meters

    key = api_key(api_key_file)
    with bound_socket(host, port) as opened:
        address = opened.getsockname()
        hosts = hosts_of(host, address[0], allowed_hosts)
        if key is None and not is_loopback(address[0]):
            raise SettingsError(
                f"without an API key, every machine that reaches {address[0]} could use the models",
                f"set {KEY_VARIABLE} or --api_key_file, or listen on 127.0.0.1",
            )
        hosted, budget = prepared(runs, device, precision, batch_tokens)
        first, predictors, meters = hosted[0].predictor, [model.predictor for model in hosted], Meters()
        service = Service(hosted, Batcher(predictors, budget, meters, cores=cores), limits, meters, key, hosts)
        shown = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
        names = listed(model.name for model in hosted)
        line = f"serving {names} on {shown} ({first.backend.name} on {first.backend.device}, {budget:,} tokens per batch)"
        serve_on(opened, service, drain_seconds, lambda: say(line))
    answered = sum(meters.requests.values.values())
    say(f"stopped after {counted(answered, 'request', 'requests')}")
    return CommandResult({"runs": [*runs], "requests": answered})


def prepared(runs: Sequence[str], device: str, precision: str, batch_tokens: int | None) -> tuple[list[Hosted], int]:
    """Load and check the models, and run some batches. Return the models, and the number of tokens of a batch."""
    from glassloop.serving.budget import measured_budget, warm_up
    from glassloop.serving.hosted import load_hosted

    hosted = load_hosted(runs, device, precision)
    for model in hosted:
        rows = counted(model.checked, "stored prediction", "stored predictions")
        done = "repeated" if model.predictor.agreement is None else "compared"
        say(f"{model.name}: {done} {rows}" if model.checked else f"{model.name}: no stored predictions to check")
    predictors = [model.predictor for model in hosted]
    budget = batch_tokens or min(measured_budget(predictor, predictor.max_length) for predictor in predictors)
    for predictor in predictors:
        warm_up(predictor, budget, predictor.max_length)
    freeze_objects()  # what is loaded stays: walking over it would delay requests
    return hosted, budget


def api_key(name: str | None) -> str | None:
    """Return the API key in a file, or in the variable GLASSLOOP_API_KEY; None if there is none."""
    if name is None:
        return os.environ.get(KEY_VARIABLE) or None
    path: Path = user_path(name)
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{path}: the API key cannot be read", "name a text file with the key") from error
    if not found:
        raise SettingsError(f"{path}: the file is empty", "write the API key into it")
    return found
