"""Whether the model hub can be reached: asked once, in seconds, before a library starts to wait and retry for half a minute."""

from __future__ import annotations

import os
import re
import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies

PROBE_SECONDS = 3.0
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def hub_unreachable(seconds: float = PROBE_SECONDS) -> str | None:
    """Why the hub cannot be reached, in a few words; None where a connection could be opened within `seconds`."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    proxy = getproxies().get(endpoint.scheme or "https")
    target = urlsplit(proxy) if proxy else endpoint
    if not target.hostname:
        return "HF_ENDPOINT or the proxy setting is not an address"
    reason = ["no answer in time"]

    def probe() -> None:
        try:
            port = target.port or (443 if target.scheme == "https" else 80)
            socket.create_connection((target.hostname or "", port), timeout=seconds).close()
            reason[0] = ""
        except (OSError, ValueError) as error:
            reason[0] = str(getattr(error, "strerror", None) or error)

    prober = threading.Thread(target=probe, daemon=True)  # looking up a name has no time limit of its own
    prober.start()
    prober.join(seconds + 0.5)
    return reason[0] or None


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form of a hub name: `name` or `owner/name`."""
    return bool(HUB_NAME.fullmatch(name)) and len(name) <= 96 and ".." not in name and "--" not in name
