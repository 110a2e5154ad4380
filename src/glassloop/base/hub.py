"""Check within seconds whether the model hub can be reached, before a library retries for half a minute."""

from __future__ import annotations

import os
import re
import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

PROBE_SECONDS = 3.0


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def hub_unreachable(seconds: float = PROBE_SECONDS) -> str | None:
    """Return why the hub cannot be reached, or None if a connection could be opened within `seconds`."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    try:
        host, port = hub_address()
    except ValueError:
        return "HF_ENDPOINT or the proxy setting is not a valid address"
    reason = ["no answer in time"]

    def probe() -> None:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            reason[0] = ""
        except (OSError, UnicodeError) as error:
            reason[0] = str(getattr(error, "strerror", None) or error)

    prober = threading.Thread(target=probe, daemon=True)  # a name lookup has no timeout
    prober.start()
    prober.join(seconds + 0.5)
    return reason[0] or None


def hub_address() -> tuple[str, int]:
    """Return the host and port to connect to: those of the hub, or of the proxy in front of it."""
    target = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not target.hostname:
        raise ValueError("no host")
    return target.hostname, target.port or (443 if target.scheme == "https" else 80)


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form of a hub name: `name` or `owner/name`."""
    return bool(HUB_NAME.fullmatch(name)) and len(name) <= 96 and ".." not in name and "--" not in name
