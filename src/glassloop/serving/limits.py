"""What a server accepts, and how it refuses the rest: a status, the error type of text-embeddings-inference, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, fields

from glassloop.errors import SettingsError

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
    """What a server accepts.

    Attributes:
        inputs: Texts or pairs of one request.
        characters: Characters of all texts of one request.
        payload: Bytes of the body of one request.
        requests: Requests that are answered or wait at the same time.
        queue_seconds: Seconds that a request may wait for its answer.
        read_seconds: Seconds in which a client must send its headers, and then its body.
    """

    inputs: int = 32
    characters: int = 1_000_000
    payload: int = 2_000_000
    requests: int = 512
    queue_seconds: float = 30.0
    read_seconds: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not getattr(self, entry.name) > 0:
                raise SettingsError(f"{entry.name} is {getattr(self, entry.name)}, not more than 0", "use a positive number")


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
