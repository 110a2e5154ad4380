"""What a server accepts and how it refuses the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

from glassloop.base.errors import SettingsError


@dataclass(frozen=True)
class Limits:
    """What a server accepts, under the names of the options."""

    max_inputs: int = 32  # texts or pairs of one request
    max_characters: int = 1_000_000  # of all texts of one request
    max_payload: int = 2_000_000  # bytes of the body of one request
    max_requests: int = 512  # that are answered or wait at the same time; as many again whose bodies are being received
    queue_seconds: float = 30.0  # that a request may wait for its answer
    read_seconds: float = 10.0  # in which a client must send its headers, and then its body

    def __post_init__(self) -> None:
        for entry in fields(self):
            refuse_number(entry.name, getattr(self, entry.name))


def refuse_number(name: str, value: float, *, zero: bool = False) -> None:
    """Raise `SettingsError` unless the value of an option is finite and positive, or 0 where `zero` allows it."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        wanted = "a number of 0 or more" if zero else "a positive number"
        raise SettingsError(f"{name} is {value}, not {wanted}", f"set {name} to {wanted}, or omit it")


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the server
    """A request that is not answered with a prediction: the HTTP status, and an error type of text-embeddings-inference."""

    # The message never contains a text of the request.
    def __init__(self, status: int, kind: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after = status, kind, message, retry_after


empty = partial(Refused, 400, "Empty")
too_large = partial(Refused, 413, "Validation")
invalid = partial(Refused, 422, "Validation")
draining = partial(Refused, 503, "Unhealthy", "the server is shutting down", 1)


def overloaded(message: str, retry_after: float) -> Refused:
    return Refused(429, "Overloaded", message, max(1, round(retry_after)))
