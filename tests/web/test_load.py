"""Many readers do not change a training, and neither they nor a long history make the server grow."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
from commands import LiveServer
from run_folders import lock_as, write_watched
from trials import Servers, same_end, told, write_data

MEGABYTE = 1_000_000
CLIENTS = 50


def arguments(data: Path, model: Path, run: Path) -> list[str]:
    settings = "--max_steps 60 --logging_steps 1 --eval_strategy steps --eval_steps 10 --device cpu --batch_size 4"
    return ["train", str(data), "--model", str(model), "--output_dir", str(run), *settings.split()]


def test_fifty_readers_do_not_change_a_training(servers: Servers, tiny_model_dir: Path, tmp_path: Path) -> None:
    data, folder = write_data(tmp_path / "data"), tmp_path / "runs"
    folder.mkdir()
    alone = servers.run(*arguments(data, tiny_model_dir, tmp_path / "alone"))
    assert alone.code == 0, alone.err
    server, ended, codes = LiveServer(folder), threading.Event(), set[int]()

    def read() -> None:
        with httpx.Client(base_url=server.address, timeout=60) as client:
            tag = ""
            while not ended.is_set():
                for path in ("?update=1", "run/watched?update=1"):
                    answer = client.get(path, headers={"if-none-match": tag})
                    tag = answer.headers.get("etag", "")
                    codes.add(answer.status_code)
                ended.wait(1.0)  # as a page does

    readers = [threading.Thread(target=read) for _ in range(CLIENTS)]
    for reader in readers:
        reader.start()
    try:
        before = server.memory()
        watched = servers.run(*arguments(data, tiny_model_dir, folder / "watched"))
        grown = server.memory() - before
    finally:
        ended.set()
        for reader in readers:
            reader.join()
        status, err = server.stop()
    assert watched.code == 0, watched.err
    same_end(tmp_path / "alone", folder / "watched")
    assert codes <= {200, 304}
    assert grown < 60 * MEGABYTE, "with the packages that draw the report"
    assert (status, err.count("\n")) == (130, 1), err


def test_a_long_history_stays_small(tmp_path: Path) -> None:
    run = write_watched(tmp_path / "long")
    lock_as(run, 1, "far-away")
    lines = [
        json.dumps({"step": step, "epoch": 1.0, "loss": (step * 7919) % 1009 / 1009, "grad_norm": 1 / step})
        for step in range(1, 200_001)
    ]
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")
    server = LiveServer(tmp_path)
    try:
        with httpx.Client(base_url=server.address, timeout=60) as client:
            first = client.get("run/long?update=1")
            assert "step 200,000" in first.json()["parts"]["head"]
            assert len(first.content) < 0.3 * MEGABYTE
            before = server.memory()
            for step in range(200_001, 200_041):
                with (run / "history.jsonl").open("a") as opened:
                    opened.write(json.dumps({"step": step, "loss": 0.5}) + "\n")
                assert client.get("run/long?update=1").status_code == 200
            assert server.memory() - before < 15 * MEGABYTE
            assert not [name for name in server.open_files() if name.startswith(str(tmp_path))]
    finally:
        assert server.stop()[0] == 130


def test_a_wrong_start_is_one_message(tmp_path: Path, servers: Servers) -> None:
    server = LiveServer(tmp_path)
    try:
        used = servers.run("ui", str(tmp_path), "--port", server.address.split(":")[2].split("/")[0])
    finally:
        server.stop()
    assert (used.code, used.err.count("\n")) == (6, 2), used.err
    assert "is in use" in used.err
    wrong = {"missing": "settings: missing does not exist", "--port 70000": "invalid value for '--port'"}
    for words, expected in wrong.items():
        told(servers.run("ui", *words.split(), folder=tmp_path), 2, expected)
