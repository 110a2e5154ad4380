"""Whether the hub can be reached, asked quickly and through the proxy; and the hosts that a server answers to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Event
from unittest.mock import Mock

import pytest

from glassloop.base.network import PROBE_SECONDS, hosts_of, hub_unreachable, is_hub_name, is_loopback

NO_ADDRESS = "HF_ENDPOINT or the proxy setting is not a valid address"
HUB = ("huggingface.co", 443)
PROXY = ("proxy.example", 3128)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine says about hub and proxies is not what is tested here."""
    names = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for name in (*names, *map(str.upper, names)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that are connected to; none of them is real."""
    addresses: list[tuple[str, int]] = []
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: addresses.append(address) or Mock())
    return addresses


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name server or a firewall that never answers."""
    release = Event()

    def hang(*_, **__):
        release.wait(20)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    yield
    release.set()


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, HUB),
        *(({"HF_HUB_OFFLINE": value}, "HF_HUB_OFFLINE is set") for value in ("1", "true", "TRUE", "Yes", "on")),
        *(({"HF_HUB_OFFLINE": value}, HUB) for value in ("", "0", "false", "no", "off")),
        ({"HF_ENDPOINT": ""}, HUB),
        ({"HF_ENDPOINT": "https://mirror.example"}, ("mirror.example", 443)),
        ({"HF_ENDPOINT": "http://mirror.example"}, ("mirror.example", 80)),
        ({"HF_ENDPOINT": "https://mirror.example:8443/hub/"}, ("mirror.example", 8443)),
        ({"HF_ENDPOINT": "http://[::1]:8080"}, ("::1", 8080)),
        *(
            ({"HF_ENDPOINT": endpoint}, NO_ADDRESS)
            for endpoint in ("nonsense", "http://", "https://[::1", "http://host:port", "http://host:99999", "://x")
        ),
        *(({name: "http://proxy.example:3128"}, PROXY) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")),
        *(({"HTTPS_PROXY": proxy}, PROXY) for proxy in ("http://name:word@proxy.example:3128", "proxy.example:3128")),
        ({"HTTPS_PROXY": "http://proxy.example"}, ("proxy.example", 80)),
        ({"HTTP_PROXY": "http://proxy.example:3128"}, HUB),  # not for https
        *(
            ({"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": spared}, HUB)
            for spared in ("huggingface.co", "localhost,.co", "*")
        ),
        *(({"HTTPS_PROXY": proxy}, NO_ADDRESS) for proxy in ("http://", "http://[::1", "http://proxy.example:port")),
    ],
    ids=str,
)
def test_the_hub_the_endpoint_or_the_proxy_is_asked(
    settings: dict[str, str], address: tuple[str, int] | str, asked: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or no connection is opened, and the reason returned."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert hub_unreachable() == (address if isinstance(address, str) else None)
    assert asked == ([] if isinstance(address, str) else [address])


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "HTTPS_PROXY"])
def test_an_address_that_takes_a_connection_is_reachable_and_a_closed_port_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_unreachable() is None
    assert hub_unreachable() == "Connection refused"


def test_a_name_that_cannot_be_one_is_not_waited_for_and_errors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("x" * 64, "a..b"):
        monkeypatch.setenv("HF_ENDPOINT", f"https://{label}.invalid")
        assert hub_unreachable() not in (None, "no answer in time"), "waited for a name that no server can know"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    for function, error in (("getaddrinfo", unknown), ("create_connection", TimeoutError("timed out"))):
        monkeypatch.setattr(socket, function, Mock(side_effect=error))
        assert hub_unreachable() == (error.strerror or "timed out")


def test_a_silent_address_is_given_up_in_time(silence: None) -> None:
    assert hub_unreachable(0.1) == "no answer in time"
    assert hub_unreachable.__defaults__ == (PROBE_SECONDS,)
    assert PROBE_SECONDS + 0.5 < 4


HUB_NAMES = ("bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "owner/name.with_dots", "0wner/9", "x" * 96)
OTHER_NAMES = (
    *("x" * 97, "x" * 300, "", ".", "..", "../x", "a/../b", "a..b", "a--b", "a/b/c", "a//b", "/absolute/path", "/a", "a/"),
    *("~/model", "~name", "-x", ".hidden", "owner/.hidden", "two words", " a", "a ", "a\n", "a\nb", "\na", "a\0b", "a\\b"),
    *("C:\\model", "a:b", "a@b", "https://huggingface.co/a/b", "a?b=c", "a%2e%2e", "\x1b[31m", "a\u202eb"),
)


def test_what_has_the_form_of_a_hub_name() -> None:
    assert [name for name in HUB_NAMES + OTHER_NAMES if is_hub_name(name)] == [*HUB_NAMES]


# --- hosts and origins that a server answers to --------------------------------------------------------------------
LOCAL = hosts_of("127.0.0.1", "127.0.0.1")
EVERYWHERE = hosts_of("0.0.0.0", "0.0.0.0", ["models.example.com", ".internal"])
ANY = hosts_of("127.0.0.1", "127.0.0.1", ["*"])
HOSTS = [
    *((hosts, host, None) for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]")
      for hosts in (LOCAL, EVERYWHERE)),
    *((LOCAL, host, "Host") for host in (
        "evil.example", "127.0.0.1.evil.example", "localhost.evil:8000", "", ":8000", "evil:127.0.0.1", "user@localhost",
        "localhost:", "localhost:99999999", "localhost/x", "[localhost]", "[::1", "::1", "192.168.1.5", "models.example.com",
    )),
    # An IP address cannot be rebound, so all of them are allowed on all interfaces; other names must be given.
    *((EVERYWHERE, host, None) for host in (
        "192.168.1.5:8000", "[fe80::1]", "models.example.com", "a.b.internal:80", socket.gethostname(),
    )),
    *((EVERYWHERE, host, "Host") for host in (
        "evil.example", "x.models.example.com", "internal", "evilinternal", "127.0.0.1.evil.example",
    )),
    (ANY, "evil.example", None),
]  # fmt: skip


def test_the_names_and_pages_that_a_server_answers_to(says) -> None:
    for hosts, host, header in HOSTS:
        assert hosts.refuses([(b"host", host.encode("latin-1"))]) == header
    for origin, header in [
        *((page, None) for page in ("http://localhost:8000", "http://127.0.0.1", "https://LOCALHOST", "http://[::1]:8000")),
        *((page, "Origin") for page in ("https://evil.example", "null", "", "http://[", "file://", "http://localhost.evil")),
    ]:
        assert LOCAL.refuses([(b"host", b"localhost:8000"), (b"origin", origin.encode())]) == header
    assert ANY.refuses([(b"host", b"evil.example"), (b"origin", b"https://evil.example")]) is None
    assert LOCAL.refuses([]) == LOCAL.refuses([(b"host", b"localhost"), (b"Host", b"localhost")]) == "Host"
    for name in ("", "http://example.com", "example.com:80", "a b", "*.example.com", "é.example"):
        with says(f'allowed_hosts contains "{name}", which is not the name of a host'):
            hosts_of("127.0.0.1", "127.0.0.1", [name])
    addresses = ("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0")
    assert [address for address in addresses if is_loopback(address)] == ["127.0.0.1", "127.1.2.3", "::1"]
