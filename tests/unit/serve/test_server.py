"""Ports. tests/e2e/test_serve.py runs the server itself."""

from __future__ import annotations

import pytest

from glassloop.base.errors import ResourceError
from glassloop.serve.server import bound_socket


def test_a_port_in_use_is_one_clear_line(says) -> None:
    with bound_socket("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with says(f"port {port} of 127.0.0.1 is in use", "choose another one with --port", ResourceError):
            bound_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "problem"),
    [
        ("127.0.0.1", 70_000, "port is 70000, not a number from 0 to 65535"),
        ("no.such.host.invalid", 0, "there is no host no.such.host.invalid"),
    ],
)
def test_addresses_that_cannot_be(says, host: str, port: int, problem: str) -> None:
    with says(problem):
        bound_socket(host, port)
