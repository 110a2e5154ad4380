"""Clients for benchmarks of servers: as little work per request as possible, because they share the machine with the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np


def request_bytes(path: str, body: object) -> bytes:
    """Return a POST request with a JSON body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Connection:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the open streams."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        return self.streams

    def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request, and return status and body. A broken connection raises `OSError` or `EOFError`."""
        kept = self.streams is not None
        try:
            return await self.answer(request)
        except (OSError, EOFError) as error:
            if not kept or getattr(error, "partial", b""):
                raise
        return await self.answer(request)  # the server had closed an idle connection

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Send a request once, and return status and body."""
        try:
            reader, writer = await self.open()
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            if fields.get("connection", "").lower() == "close":
                self.close()
            return int(lines[0].split()[1]), body
        except BaseException:
            self.close()
            raise


@dataclass
class Load:
    """What a load measured: the seconds of each answer, and how long all took."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0
    took: float = 0.0

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return len(self.seconds) / max(self.took, 1e-9)

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the answers came, in milliseconds."""
        return float(np.percentile(self.seconds, share)) * 1_000


def repeated(requests: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the requests again and again."""
    while True:
        yield from requests


async def closed_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Let each client send its next request when the last one is answered: the largest load."""
    load, source, began = Load(), repeated(requests), time.perf_counter()

    async def client() -> None:
        connection = Connection(port)
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            status, _ = await connection.ask(next(source))
            load.seconds.append(time.perf_counter() - start)
            load.errors += status != 200
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.took = time.perf_counter() - began
    return load


async def open_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float, rate: float) -> Load:
    """Send requests at a mean rate and at random moments (a Poisson process, the same each time), whatever the answers.

    A request that finds no free connection waits, and that counts.
    """
    moments = np.cumsum(np.random.default_rng(0).exponential(1 / rate, int(rate * seconds)))
    load, source, began = Load(), repeated(requests), time.perf_counter()
    due: asyncio.Queue[float | None] = asyncio.Queue()

    async def client() -> None:
        connection = Connection(port)
        while (start := await due.get()) is not None:
            status, _ = await connection.ask(next(source))
            load.seconds.append(time.perf_counter() - start)
            load.errors += status != 200
        connection.close()

    async def timetable() -> None:
        for moment in moments.tolist():
            start = began + moment
            await asyncio.sleep(max(0.0, start - time.perf_counter()))
            due.put_nowait(start)
        for _ in range(clients):
            due.put_nowait(None)

    await asyncio.gather(timetable(), *(client() for _ in range(clients)))
    load.took = time.perf_counter() - began
    return load
