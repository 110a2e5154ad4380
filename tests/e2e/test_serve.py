"""`glassloop serve` in its own process: clients of the hub, slow and rude clients, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from commands import environment, run_command

from glassloop import Predictor


@pytest.fixture(scope="module")
def run(lively_dir, session_cache, tmp_path_factory) -> Path:
    """A finished run on pairs."""
    from glassloop.settings.file import GivenSettings
    from glassloop.study.run import train_run

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {"output_dir": str(tmp_path_factory.mktemp("served") / "pairs"), "max_steps": 3, "learning_rate": 5e-3}
        settings |= {"device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
        return train_run(GivenSettings("quickstart", str(lively_dir), settings, {"rows": 29, "split_seed": 3}))


class Server:
    """A running server: its process and its address."""

    def __init__(self, run: Path, log: Path, *options: str, **more: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "glassloop", "serve", str(run), "--port", "0", "--device", "cpu", *options]
        with log.open("wb") as opened:
            self.process = subprocess.Popen(command, stdout=opened, stderr=opened, env=environment(**more))
        deadline = time.monotonic() + 90
        while (found := re.search(r"on (http://\S+)", log.read_text())) is None:
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        self.address = found[1]
        self.host, self.port = "127.0.0.1", int(self.address.rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=30)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory) -> Iterator[Server]:
    found = Server(run, tmp_path_factory.mktemp("log") / "serve.log", "--read_seconds", "1")
    yield found
    if found.process.poll() is None:
        found.end()


PAIR = ["a good film", "the film is good"]


def test_a_client_of_the_hub_gets_its_answers(server: Server, run: Path) -> None:
    from huggingface_hub import InferenceClient

    found = InferenceClient(model=server.address).text_classification(PAIR, top_k=2)  # type: ignore[arg-type]
    wanted = Predictor(run, device="cpu").predict([tuple(PAIR)])[0].scores
    assert {one.label: one.score for one in found} == pytest.approx(wanted, abs=1e-5)


def test_many_clients_get_the_answers_to_their_own_questions(server: Server, run: Path) -> None:
    pairs = [(f"{'very ' * (number % 30)}good", f"bad {'film ' * (number % 17)}") for number in range(60)]
    wanted = [one.scores for one in Predictor(run, device="cpu").predict(pairs)]
    with httpx.Client(base_url=server.address) as client, ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda pair: client.post("/v1/predict", json={"inputs": [pair]}).json(), pairs)]
    for answer, scores in zip(found, wanted, strict=True):
        assert answer["predictions"][0]["probabilities"] == pytest.approx(scores, abs=1e-4)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not bind threads to cores")
def test_the_models_have_bound_threads_and_requests_have_free_ones(run: Path, tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("this machine has one core")
    server = Server(run, tmp_path / "log", OMP_NUM_THREADS="")
    numbers = [int(folder.name) for folder in Path(f"/proc/{server.process.pid}/task").iterdir()]
    threads = {number: os.sched_getaffinity(number) for number in numbers}
    assert server.end() == 0
    assert len(threads[server.process.pid]) == 1, "the main thread runs the models"
    assert list(threads.values()).count(cores) >= 2, "the event loop and the tokenizer"


def test_slow_headers_and_bodies_are_cut_off(server: Server) -> None:
    with server.connect() as slow, server.connect() as slow_body:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
        slow_body.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert httpx.post(f"{server.address}/predict", json={"inputs": PAIR}).status_code == 200, "others are served"
        assert slow.recv(1000) == b""
        assert slow_body.recv(1000).startswith(b"HTTP/1.1 408")


def test_large_headers_are_refused_although_they_come_at_once(server: Server) -> None:
    for size, accepted in ((20_000, True), (100_000, False)):
        answer = b""
        with server.connect() as rude, suppress(ConnectionError):
            rude.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * size + b"\r\n\r\n")
            answer = rude.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200") == accepted


def test_another_host_is_refused(server: Server) -> None:
    assert httpx.get(f"{server.address}/info", headers={"host": "rebound.example"}).status_code == 400
    assert httpx.get(f"{server.address}/info", headers={"origin": "https://evil.example"}).status_code == 403
    assert httpx.get(f"{server.address}/info", headers={"host": f"localhost:{server.port}"}).status_code == 200


def test_huge_headers_are_refused(server: Server) -> None:
    with server.connect() as rude:
        answer = b""
        try:
            rude.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)
            answer = rude.recv(1000)
        except ConnectionError:
            pass  # cut off while it was sending
        assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.address}/health").status_code == 200


def test_clients_that_leave_are_dropped(server: Server) -> None:
    body = json.dumps({"inputs": [PAIR] * 32}).encode()
    for _ in range(10):
        with server.connect() as leaving:
            leaving.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    deadline = time.monotonic() + 30
    while "glassloop_active_requests 0" not in httpx.get(f"{server.address}/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_port_in_use_is_two_lines(server: Server, run: Path, tmp_path: Path) -> None:
    ended = run_command("serve", str(run), "--port", str(server.port), "--device", "cpu", folder=tmp_path)
    assert ended.code == 6
    assert f"port {server.port} of 127.0.0.1 is in use" in ended.err
    assert "Traceback" not in ended.err


def test_no_text_of_a_request_is_in_the_log(server: Server) -> None:
    httpx.post(f"{server.address}/predict", json={"inputs": ["secretword", "other"]})
    httpx.post(f"{server.address}/predict?secretword", content=b"secretword")
    assert "secretword" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_signal_answers_what_was_accepted_and_exits_with_0(run: Path, tmp_path: Path, number: int) -> None:
    server = Server(run, tmp_path / "log", GLASSLOOP_API_KEY="key")
    assert httpx.post(f"{server.address}/predict", json={"inputs": PAIR}).status_code == 401
    key = {"authorization": "Bearer key"}
    body = {"inputs": [[text * 10 for text in PAIR]] * 32}
    with httpx.Client(base_url=server.address, headers=key) as client, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.post, "/predict", json=body) for _ in range(8)]
        while "glassloop_active_requests 0" in client.get("/metrics").text and not all(one.done() for one in waiting):
            time.sleep(0.001)
        os.kill(server.process.pid, number)
        statuses = set()
        for one in waiting:
            try:
                statuses.add(one.result().status_code)
            except httpx.TransportError:
                statuses.add(0)  # not accepted: the connection was refused or closed
    assert server.process.wait(60) == 0
    assert 200 in statuses
    assert statuses <= {200, 503, 0}
    assert "stopped after" in server.log.read_text().splitlines()[-1]  # and no library reports leaks
