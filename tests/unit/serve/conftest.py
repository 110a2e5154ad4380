"""One running service on two runs for all tests of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from served import make_service
from starlette.testclient import TestClient

from glassloop.serve.app import Service, make_app


@pytest.fixture(scope="session")
def service(text_run, seeds_folder, session_cache) -> Iterator[Service]:
    """The run on single texts, and the folder of several seeds."""
    with ExitStack() as stack:
        yield make_service(stack, [text_run, seeds_folder])


@pytest.fixture(scope="session")
def pair_service(pair_run, session_cache) -> Iterator[Service]:
    with ExitStack() as stack:
        yield make_service(stack, [pair_run])


@pytest.fixture
def client(service: Service) -> TestClient:
    return client_of(service)


@pytest.fixture
def pair_client(pair_service: Service) -> TestClient:
    return client_of(pair_service)


def client_of(service: Service) -> TestClient:
    return TestClient(make_app(service), base_url="http://localhost:8000", raise_server_exceptions=True)
