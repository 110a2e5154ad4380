"""Whether the hub can be reached: asked quickly, through the proxy where there is one, and never for long."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Event

import pytest

from glassloop.base.network import PROBE_SECONDS, hub_unreachable, is_hub_name

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

NO_ADDRESS = "HF_ENDPOINT or the proxy setting is not a valid address"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine says about hub and proxies is not what is tested here."""
    names = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for name in (*names, *map(str.upper, names)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of a socket that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that are connected to; none of them is real."""
    addresses: list[tuple[str, int]] = []

    class Connection:
        def close(self) -> None:
            pass

    def connect(address: tuple[str, int], timeout: float) -> Connection:
        addresses.append(address)
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
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


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "Yes", "on"])
def test_offline_by_choice_opens_no_connection(value: str, asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub_unreachable() == "HF_HUB_OFFLINE is set"
    assert asked == []


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off"])
def test_online_by_choice_asks(value: str, asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub_unreachable() is None
    assert asked == [("huggingface.co", 443)]


def test_an_address_that_takes_a_connection_is_reachable(listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening}")
    assert hub_unreachable() is None


def test_a_closed_port_is_not(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    assert hub_unreachable() == "Connection refused"


def test_a_name_that_does_not_resolve_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    assert hub_unreachable() == "Name or service not known"


@pytest.mark.parametrize("label", ["x" * 64, "a..b"])
def test_a_name_that_cannot_be_one_is_not(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"https://{label}.invalid")
    assert hub_unreachable() not in (None, "no answer in time"), "waited for a name that no server can know"


def test_a_silent_address_is_given_up_in_time(silence: None) -> None:
    assert hub_unreachable(0.1) == "no answer in time"


def test_by_default_it_is_given_up_within_four_seconds(silence: None) -> None:
    assert hub_unreachable() == "no answer in time"
    assert PROBE_SECONDS + 0.5 < 4


def test_a_time_out_of_the_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", slow)
    assert hub_unreachable() == "timed out"


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "https://[::1", "http://host:port", "http://host:99999", "://x"])
def test_what_is_no_address_is_reported(endpoint: str, asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert hub_unreachable() == NO_ADDRESS
    assert asked == []


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        (None, ("huggingface.co", 443)),
        ("", ("huggingface.co", 443)),
        ("https://mirror.example", ("mirror.example", 443)),
        ("http://mirror.example", ("mirror.example", 80)),
        ("https://mirror.example:8443/hub/", ("mirror.example", 8443)),
        ("http://[::1]:8080", ("::1", 8080)),
    ],
)
def test_the_endpoint_is_asked(
    endpoint: str | None, address: tuple[str, int], asked: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    if endpoint is not None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert hub_unreachable() is None
    assert asked == [address]


# --- proxies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "proxy", "address"),
    [
        ("HTTPS_PROXY", "http://proxy.example:3128", ("proxy.example", 3128)),
        ("https_proxy", "http://proxy.example:3128", ("proxy.example", 3128)),
        ("HTTPS_PROXY", "http://name:word@proxy.example:3128", ("proxy.example", 3128)),
        ("HTTPS_PROXY", "proxy.example:3128", ("proxy.example", 3128)),
        ("HTTPS_PROXY", "http://proxy.example", ("proxy.example", 80)),
        ("ALL_PROXY", "http://proxy.example:3128", ("proxy.example", 3128)),
        ("HTTP_PROXY", "http://proxy.example:3128", ("huggingface.co", 443)),  # not for https
    ],
)
def test_the_proxy_is_asked_instead(
    name: str, proxy: str, address: tuple[str, int], asked: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy)
    assert hub_unreachable() is None
    assert asked == [address]


@pytest.mark.parametrize("spared", ["huggingface.co", "localhost,.co", "*"])
def test_no_proxy_is_honoured(spared: str, asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", spared)
    assert hub_unreachable() is None
    assert asked == [("huggingface.co", 443)]


def test_a_dead_proxy_is_reported(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed}")
    assert hub_unreachable() == "Connection refused"


@pytest.mark.parametrize("proxy", ["http://", "http://[::1", "http://proxy.example:port"])
def test_a_proxy_that_is_no_address_is_reported(proxy: str, asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert hub_unreachable() == NO_ADDRESS
    assert asked == []


# --- names -------------------------------------------------------------------------------------------------------

NAMES = {
    "bert-base-uncased": True,
    "sentence-transformers/all-MiniLM-L6-v2": True,
    "owner/name.with_dots": True,
    "0wner/9": True,
    "x" * 96: True,
    "x" * 97: False,
    "x" * 300: False,
    "": False,
    ".": False,
    "..": False,
    "../x": False,
    "a/../b": False,
    "a..b": False,
    "a--b": False,
    "a/b/c": False,
    "a//b": False,
    "/absolute/path": False,
    "/a": False,
    "a/": False,
    "~/model": False,
    "~name": False,
    "-x": False,
    ".hidden": False,
    "owner/.hidden": False,
    "two words": False,
    " a": False,
    "a ": False,
    "a\n": False,
    "a\nb": False,
    "\na": False,
    "a\0b": False,
    "a\\b": False,
    "C:\\model": False,
    "a:b": False,
    "a@b": False,
    "https://huggingface.co/a/b": False,
    "a?b=c": False,
    "a%2e%2e": False,
    "\x1b[31m": False,
    "a\u202eb": False,
}


@pytest.mark.parametrize(("name", "is_one"), NAMES.items(), ids=[ascii(name)[:40] for name in NAMES])
def test_what_has_the_form_of_a_hub_name(name: str, is_one: bool) -> None:
    assert is_hub_name(name) is is_one
