"""What a server accepts and how it refuses the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from glassloop.base.errors import SettingsError

# The error types of text-embeddings-inference.
EMPTY, VALIDATION, TOKENIZER, BACKEND, OVERLOADED, UNHEALTHY = (
    "Empty",
    "Validation",
    "Tokenizer",
    "Backend",
    "Overloaded",
    "Unhealthy",
)


@dataclass(frozen=True)
class Limits:
    """What a server accepts, under the names of the options.

    Attributes:
        max_inputs: Texts or pairs of one request.
        max_characters: Characters of all texts of one request.
        max_payload: Bytes of the body of one request.
        max_requests: Requests that are answered or wait at the same time, and as many whose bodies are being received.
        queue_seconds: Seconds that a request may wait for its answer.
        read_seconds: Seconds in which a client must send its headers, and then its body.
    """

    max_inputs: int = 32
    max_characters: int = 1_000_000
    max_payload: int = 2_000_000
    max_requests: int = 512
    queue_seconds: float = 30.0
    read_seconds: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            refuse_number(entry.name, getattr(self, entry.name))


def refuse_number(name: str, value: float, *, zero: bool = False) -> None:
    """Raise `SettingsError` unless the value of an option is finite and positive, or 0 where `zero` allows it."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        wanted = "a number of 0 or more" if zero else "a positive number"
        raise SettingsError(f"{name} is {value}, not {wanted}", f"set {name} to {wanted}, or omit it")


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the server
    """A request that is not answered with a prediction.

    Args:
        status: The HTTP status.
        kind: The error type.
        message: What is wrong. It never contains a text of the request.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after = status, kind, message, retry_after


def invalid(message: str) -> Refused:
    """Return the refusal of a request with the wrong content."""
    return Refused(422, VALIDATION, message)


def too_large(message: str) -> Refused:
    """Return the refusal of a request that exceeds a limit."""
    return Refused(413, VALIDATION, message)


def empty(message: str) -> Refused:
    """Return the refusal of a request without content."""
    return Refused(400, EMPTY, message)


def overloaded(message: str, retry_after: float = 1.0) -> Refused:
    """Return the refusal of a request that would wait too long."""
    return Refused(429, OVERLOADED, message, max(1, round(retry_after)))


def draining() -> Refused:
    """Return the refusal of a request while the server shuts down."""
    return Refused(503, UNHEALTHY, "the server is shutting down", 1)
