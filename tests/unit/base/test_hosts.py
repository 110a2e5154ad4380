"""Hosts and origins that a server answers to."""

from __future__ import annotations

import socket

import pytest

from glassloop.base.network import AllowedHosts, hosts_of, is_loopback

LOCAL = hosts_of("127.0.0.1", "127.0.0.1")
EVERYWHERE = hosts_of("0.0.0.0", "0.0.0.0", ["models.example.com", ".internal"])


def refused(hosts: AllowedHosts, host: str, origin: str | None = None) -> str | None:
    headers = [(b"host", host.encode("latin-1"))] + ([(b"origin", origin.encode())] if origin is not None else [])
    return hosts.refuses(headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"])
def test_names_of_this_machine(host: str) -> None:
    assert refused(LOCAL, host) is None
    assert refused(EVERYWHERE, host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil:8000", "", ":8000", "evil:127.0.0.1", "user@localhost"),
        *("localhost:", "localhost:99999999", "localhost/x", "[localhost]", "[::1", "::1", "192.168.1.5", "models.example.com"),
    ],
)
def test_other_names(host: str) -> None:
    assert refused(LOCAL, host) == "Host"


@pytest.mark.parametrize(
    "host", ["192.168.1.5:8000", "[fe80::1]", "models.example.com", "a.b.internal:80", socket.gethostname()]
)
def test_a_server_on_all_interfaces(host: str) -> None:
    """An IP address cannot be rebound, so that all of them are allowed; other names must be given."""
    assert refused(EVERYWHERE, host) is None


@pytest.mark.parametrize("host", ["evil.example", "x.models.example.com", "internal", "evilinternal", "127.0.0.1.evil.example"])
def test_names_that_were_not_given(host: str) -> None:
    assert refused(EVERYWHERE, host) == "Host"


def test_any_name() -> None:
    assert refused(hosts_of("127.0.0.1", "127.0.0.1", ["*"]), "evil.example", "https://evil.example") is None


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://[", "file://", "http://localhost.evil.example"])
def test_pages_of_other_sites(origin: str) -> None:
    assert refused(LOCAL, "localhost", origin) == "Origin"


@pytest.mark.parametrize("origin", ["http://localhost:8000", "http://127.0.0.1", "https://LOCALHOST", "http://[::1]:8000"])
def test_pages_of_this_machine(origin: str) -> None:
    assert refused(LOCAL, "localhost:8000", origin) is None


def test_there_is_one_host() -> None:
    assert LOCAL.refuses([]) == "Host"
    assert LOCAL.refuses([(b"host", b"localhost"), (b"Host", b"localhost")]) == "Host"


@pytest.mark.parametrize("name", ["", "http://example.com", "example.com:80", "a b", "*.example.com", "é.example"])
def test_what_is_no_name_of_a_host(says, name: str) -> None:
    with says(f'allowed_hosts contains "{name}", which is not the name of a host'):
        hosts_of("127.0.0.1", "127.0.0.1", [name])


def test_loopback_addresses() -> None:
    assert [
        is_loopback(address) for address in ("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0")
    ] == [*(True, True, True, False, False, False, False)]
