"""Which Host and Origin headers a server answers to, so that a web page elsewhere cannot use it through a visitor's browser.

A site can let its own name lead to 127.0.0.1 (DNS rebinding). The browser then takes a local server for that site and lets the
site's scripts read it, but it still sends the site's name as the Host.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from glassloop.base.errors import SettingsError, visible

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


EVERY = "*"


NAME = re.compile(r"(\*|\.?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?)")


HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d{1,5})?")  # an address of version 6 in brackets, or a name; a port


@dataclass(frozen=True)
class AllowedHosts:
    """The hosts whose names a server answers to.

    Attributes:
        names: Names and addresses. One that begins with a dot stands for all names that end with it, and `*` for every name.
        any_address: Whether every IP address is allowed. A site cannot make a browser send one: only names can be rebound.
    """

    names: frozenset[str]
    any_address: bool = False

    def refuses(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the header for which a request is refused, or None."""
        given: dict[bytes, list[str]] = {b"host": [], b"origin": []}
        for name, value in headers:
            if name.lower() in given:
                given[name.lower()].append(value.decode("latin-1").lower())
        if len(given[b"host"]) != 1 or not self.allows(host_name(given[b"host"][0])):
            return "Host"
        return None if all(self.allows(origin_host(origin)) for origin in given[b"origin"]) else "Origin"

    def allows(self, name: str | None) -> bool:
        """Return whether a name, in lower case, is that of an allowed host."""
        if not name:
            return False
        if name in self.names or EVERY in self.names or (self.any_address and is_address(name)):
            return True
        return any(name.endswith(ending) for ending in self.names if ending.startswith("."))


LOCAL = AllowedHosts(frozenset(LOCAL_HOSTS))


def host_name(header: str) -> str | None:
    """Return the host in a Host header without its port; None if it is not one."""
    found = HOST.fullmatch(header)
    return (found[1] or found[2]) if found else None


def origin_host(header: str) -> str | None:
    """Return the host in an Origin header, such as `https://example.com`; None if it is not one, or `null`."""
    try:
        return urlsplit(header).hostname
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return ip_address(address.partition("%")[0]).is_loopback


def hosts_of(host: str, address: str, given: Sequence[str] = ()) -> AllowedHosts:
    """Return the hosts that a server answers to.

    Args:
        host: The value of --host.
        address: The address it listens on.
        given: Further hosts.

    Raises:
        SettingsError: If `given` contains something that is not the name of a host.
    """
    for name in given:
        if not NAME.fullmatch(name.lower()) and not is_address(name):
            raise SettingsError(
                f"allowed_hosts contains {visible(name)}, which is not the name of a host",
                "use names without a scheme or a port, such as models.example.com,.internal",
            )
    names = {*LOCAL_HOSTS, host.lower(), address, *(name.lower() for name in given)}
    everywhere = ip_address(address.partition("%")[0]).is_unspecified
    return AllowedHosts(frozenset({*names, socket.gethostname().lower()} if everywhere else names), any_address=everywhere)
