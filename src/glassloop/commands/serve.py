"""`glassloop serve`: answer requests for the predictions of one or several runs over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from glassloop.command_result import CommandResult
from glassloop.errors import SettingsError, counted, listed, say
from glassloop.files import user_path
from glassloop.serving.limits import Limits

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
    copies: int | None = None,
) -> CommandResult:
    """Load the models, check them, measure the size of batches, and answer requests until a signal."""
    try:
        from glassloop.serving.app import Service
        from glassloop.serving.server import bound_socket, serve_on
    except ModuleNotFoundError as error:
        raise SettingsError(f"serve needs the package {error.name}", 'pip install "glassloop[web]"') from error
    from glassloop.serving.batching import Batcher
    from glassloop.serving.budget import measured_budget, warm_up
    from glassloop.serving.hosted import further_copies, load_hosted
    from glassloop.serving.meters import Meters

    key = api_key(api_key_file)
    with bound_socket(host, port) as opened, divided_threads(device, copies) as number:
        hosted = load_hosted(runs, device, precision)
        for model in hosted:
            rows = counted(model.checked, "stored prediction", "stored predictions")
            done = "repeated" if model.predictor.agreement is None else "compared"
            say(f"{model.name}: {done} {rows}" if model.checked else f"{model.name}: no stored predictions to check")
        first = hosted[0].predictor
        budget = batch_tokens or min(measured_budget(model.predictor, model.predictor.max_length) for model in hosted)
        predictors, meters = [model.predictor for model in hosted], Meters()
        others = further_copies(runs, hosted, number - 1, device, precision)
        for predictor in (*predictors, *(one for part in others for one in part)):
            warm_up(predictor, budget, predictor.max_length)
        service = Service(hosted, Batcher(predictors, budget, meters, copies=others), limits, meters, key)
        address = opened.getsockname()
        shown = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
        names = listed(model.name for model in hosted)
        line = f"serving {names} on {shown} ({first.backend.name} on {first.backend.device}, {budget:,} tokens per batch)"
        serve_on(opened, service, drain_seconds, lambda: say(line))
    answered = sum(meters.requests.values.values())
    say(f"stopped after {counted(answered, 'request', 'requests')}")
    return CommandResult({"runs": [*runs], "requests": answered})


@contextmanager
def divided_threads(device: str, wanted: int | None) -> Iterator[int]:
    """Yield how many copies of each model run side by side, and give each its share of the threads of a CPU.

    A thread that waits for another one delays it. On a CPU whose cores also serve clients, two copies with half of the threads
    each answer more requests than one with all of them.

    Args:
        device: The device.
        wanted: The number of copies. Default: two on a CPU with two threads or more, else one.
    """
    import torch

    from glassloop.backends.choose import choose_device

    threads = torch.get_num_threads()
    if wanted is not None and wanted < 1:
        raise SettingsError(f"copies is {wanted}, not a positive number", "use 1 for one copy of each model")
    found = wanted or (2 if choose_device(device) == "cpu" and threads > 1 else 1)
    torch.set_num_threads(max(1, threads // found))
    try:
        yield found
    finally:
        torch.set_num_threads(threads)


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
