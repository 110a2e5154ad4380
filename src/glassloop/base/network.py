"""The network: whether the model hub can be reached, and which hosts a server answers to."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from glassloop.base.errors import SettingsError, visible
from glassloop.base.files import assigned

PROBE_SECONDS = 3.0
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
NAME = re.compile(r"(\*|\.?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?)")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d{1,5})?")  # an address of version 6 in brackets, or a name; a port


def hub_unreachable(seconds: float = PROBE_SECONDS) -> str | None:
    """Return why the hub cannot be reached, or None if a connection could be opened within `seconds`."""
    # Asked before a library is: it would retry for half a minute.
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    try:  # the address of the hub, or of the proxy in front of it
        target = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
        proxies = getproxies()
        proxy = proxies.get(target.scheme) or proxies.get("all")
        if proxy and not proxy_bypass(target.hostname or ""):
            target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        address = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    except ValueError:
        address = "", 0
    if not address[0]:
        return "HF_ENDPOINT or the proxy setting is not a valid address"
    reason = ["no answer in time"]

    def probe() -> None:
        try:
            socket.create_connection(address, timeout=seconds).close()
            reason[0] = ""
        except (OSError, UnicodeError) as error:
            reason[0] = str(getattr(error, "strerror", None) or error)

    prober = threading.Thread(target=probe, daemon=True)  # a name lookup has no timeout
    prober.start()
    prober.join(seconds + 0.5)
    return reason[0] or None


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form of a hub name: `name` or `owner/name`."""
    return bool(HUB_NAME.fullmatch(name)) and len(name) <= 96 and ".." not in name and "--" not in name


@dataclass(frozen=True)
class AllowedHosts:
    """The hosts whose names a server answers to, so that a web page elsewhere cannot use it through a visitor's browser."""

    # A site can let its own name lead to 127.0.0.1 (DNS rebinding). The browser then takes a local server for that site and
    # lets the site's scripts read it, but it still sends the site's name as the Host.
    names: frozenset[str]  # and addresses; one that begins with a dot stands for all names with this end, `*` for every name
    any_address: bool = False  # allow every IP address: a site cannot make a browser send one, only names can be rebound

    def refuses(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the header for which a request is refused, or None."""
        texts = [(name.lower(), value.decode("latin-1").lower()) for name, value in headers]
        hosts = [HOST.fullmatch(text) for name, text in texts if name == b"host"]
        if len(hosts) != 1 or hosts[0] is None or not self.allows(hosts[0][1] or hosts[0][2]):
            return "Host"
        try:
            origins = [urlsplit(text).hostname for name, text in texts if name == b"origin"]
        except ValueError:  # not an address
            return "Origin"
        return None if all(map(self.allows, origins)) else "Origin"

    def allows(self, name: str | None) -> bool:
        """Return whether a name, in lower case, is that of an allowed host."""
        if not name or name in self.names or "*" in self.names:
            return bool(name)
        endings = tuple(ending for ending in self.names if ending.startswith("."))
        return name.endswith(endings) or (self.any_address and is_address(name))


LOCAL = AllowedHosts(frozenset(LOCAL_HOSTS))


def is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return ip_address(address.partition("%")[0]).is_loopback


def hosts_of(host: str, address: str, others: Sequence[str] = ()) -> AllowedHosts:
    """Return the hosts that a server with this --host answers to, which listens on an address."""
    for name in others:
        if not NAME.fullmatch(name.lower()) and not is_address(name):
            problem = f"allowed_hosts contains {visible(name)}, which is not the name of a host"
            raise SettingsError(problem, "use names without a scheme or a port, such as models.example.com,.internal")
    names = {*LOCAL_HOSTS, host.lower(), address, *(name.lower() for name in others)}
    everywhere = ip_address(address.partition("%")[0]).is_unspecified
    return AllowedHosts(frozenset({*names, socket.gethostname().lower()} if everywhere else names), any_address=everywhere)


def offline(constants_name: str, wanted: bool) -> AbstractContextManager[None]:
    """Let a library, by the module of its constants, use its cache without the requests it sends even for files there."""
    constants = import_module(constants_name)
    return assigned(constants, HF_HUB_OFFLINE=wanted or constants.HF_HUB_OFFLINE)
