"""Run the server: bind the port, cut off slow clients, and answer what waits before exiting after a signal."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassloop.base.errors import ResourceError, SettingsError
from glassloop.serve.app import Service, make_app
from glassloop.serve.batching import free_thread

MOST_HEADER_BYTES = 32_768
OPTIONS: dict[str, Any] = {
    **{"ws": "none", "lifespan": "off", "loop": "asyncio", "backlog": 2048, "timeout_keep_alive": 15},
    **{"log_config": None, "log_level": "critical", "access_log": False, "server_header": False, "proxy_headers": False},
    "h11_max_incomplete_event_size": MOST_HEADER_BYTES,
}


class LimitedConnection(h11.Connection):
    """HTTP whose headers have a limited size. h11 checks the size only of headers that have not arrived completely."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size > MOST_HEADER_BYTES:
                raise h11.RemoteProtocolError("the headers are too large", error_status_hint=431)
        return event


class TimedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP with a limit on the size of headers and on their time: a client that sends them slowly is cut off."""

    header_seconds = 10.0
    header_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.conn = LimitedConnection(h11.SERVER, MOST_HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end_timer()
        super().connection_lost(exc)

    def set_timer(self) -> None:
        """Start the time limit of the next headers, or end it when they have arrived."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.end_timer()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def end_timer(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None


class DrainingServer(uvicorn.Server):  # type: ignore[misc]
    """A server that answers what it has accepted after SIGTERM or SIGINT, and then returns."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals in the block, in the main thread, and do not raise them again: draining is a success."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain; a second SIGINT ends the server at once."""
        self.service.draining = True
        super().handle_exit(sig, frame)


def bound_socket(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise SettingsError(f"port is {port}, not a number from 0 to 65535", "set port to 8000, for example")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"there is no host {host}", "use 127.0.0.1, or 0.0.0.0 for all interfaces") from error
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise ResourceError(f"port {port} of {host} is in use", "choose another one with --port") from error
        raise ResourceError(f"port {port} of {host}: {error.strerror}", "choose another --port or --host") from error
    return opened


def serve_on(opened: socket.socket, service: Service, drain_seconds: float, started: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT, then answer what was accepted, for at most `drain_seconds`."""
    # The models run in the calling thread, which is the main one, and the event loop in another.
    protocol = type("Protocol", (TimedProtocol,), {"header_seconds": service.limits.read_seconds})
    config = uvicorn.Config(make_app(service), http=protocol, timeout_graceful_shutdown=round(drain_seconds), **OPTIONS)
    server = DrainingServer(config, service)

    async def run() -> None:
        asyncio.get_running_loop().call_soon(started)
        await server.serve(sockets=[opened])

    def answer_requests() -> None:
        try:
            asyncio.run(run())
        finally:
            service.draining = True
            service.batcher.end()

    with server.handling_signals(), ThreadPoolExecutor(1, "requests", free_thread, (service.batcher.cores,)) as pool:
        done = pool.submit(answer_requests)
        try:
            service.batcher.run()
        finally:
            server.should_exit = True
        done.result()
