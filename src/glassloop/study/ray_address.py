"""The address of a Ray cluster, checked before any work: Ray itself tries for minutes to reach one that is not there."""

from __future__ import annotations

import re
import socket
from importlib.util import find_spec

from glassloop.errors import ResourceError, SettingsError, visible

LOCAL = "ray"  # the running cluster, or this machine
ADDRESS = re.compile(r"(?:ray://)?(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")
MOST_SECONDS = 10.0


def refuse_unreachable(address: str) -> None:
    """Raise if Ray is not installed, if this is not the address of a cluster, or if nothing answers there.

    Args:
        address: "ray", ray://host:port or host:port.

    Raises:
        SettingsError: If Ray is not installed or the address has another form.
        ResourceError: If there is no connection.
    """
    if find_spec("ray") is None:
        raise SettingsError("--on ray needs the package ray", "pip install 'glassloop[ray]'")
    if address == LOCAL:
        return
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise SettingsError(f"--on {visible(address)} is not the address of a Ray cluster", "use ray, or ray://host:10001")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), MOST_SECONDS).close()
    except (OSError, OverflowError) as error:
        problem = f"the Ray cluster {address} cannot be reached: {error}"
        raise ResourceError(problem, "start it with ray start --head, or check the address") from error
