"""Start the live page: choose a port, print the address, and serve until Ctrl-C."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path

from glassloop.base.errors import ResourceError, SettingsError, did_you_mean
from glassloop.base.files import names_beside, user_path
from glassloop.base.output import say, show
from glassloop.runs.status import RUNS_DIR

HOST, FIRST_PORT, MOST_PORTS = "127.0.0.1", 8000, 20
NICENESS = 10  # trainings on the same machine come first


def start_page(folder: str | None, port: int | None, *, open_browser: bool) -> None:
    """Serve the runs of a folder, by default runs/, until the user stops it. Port: the first free one from 8000, 0 for any."""
    root = root_of(folder)
    try:
        import uvicorn

        from glassloop.web.app import application
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed", "pip install 'glassloop[web]'") from error
    token = secrets.token_urlsafe(16)
    with opened_socket(port) as listening:
        address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
        say(f"shows the runs in {root}; press Ctrl-C to stop")
        show(address)
        with suppress(OSError):
            os.nice(NICENESS)
        if open_browser and not webbrowser.open(address):
            say("no browser was found; open the address yourself")
        quiet = {"lifespan": "off", "log_level": "critical", "access_log": False, "server_header": False}
        config = uvicorn.Config(application(root, token), timeout_graceful_shutdown=1, **quiet)
        uvicorn.Server(config).run(sockets=[listening])


def root_of(folder: str | None) -> Path:
    root = RUNS_DIR if folder is None else user_path(folder)
    missing = folder is not None and not root.exists()
    if missing or (root.exists() and not root.is_dir()):
        problem = f"does not exist{did_you_mean(root.name, names_beside(root))}" if missing else "is not a folder"
        raise SettingsError(f"{root} {problem}", "name a folder with runs, or one run folder")
    return root


def opened_socket(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine only. Raises `ResourceError` if the port is in use."""
    if port is not None:
        return bound(port)
    for number in range(FIRST_PORT, FIRST_PORT + MOST_PORTS):
        with suppress(ResourceError):
            listening = bound(number)
            if number != FIRST_PORT:
                say(f"port {FIRST_PORT} is in use; using port {number}")
            return listening
    return bound(0)


def bound(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        code = getattr(error, "errno", None)  # not its text, which names the address as Python writes it
        problem = "it is in use" if code == errno.EADDRINUSE else os.strerror(code) if code else str(error)
        remedy = "choose another with --port, or --port 0 for a free one"
        raise ResourceError(f"port {port} cannot be opened: {problem}", remedy) from error
