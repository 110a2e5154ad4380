"""The live page answers only its user, and nothing in a run folder leads to an error."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fake_study import drawn_study
from run_folders import STRANGE, drawn_rows, lock_as, log_steps, write_drawn_seeds, write_fake_run, write_watched
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from glassloop.base.records import write_sealed
from glassloop.runs.history import START, note_moment
from glassloop.runs.study import write_study
from glassloop.study.conclusions import conclude
from glassloop.web import watch
from glassloop.web.app import HEADERS, Guard, application, page_answer, path_parts, plain_answer
from glassloop.web.watch import Report

TOKEN = "token"


def guarded(app: Any = None) -> TestClient:
    guard = Guard(app or PlainTextResponse("inside"), TOKEN)
    return TestClient(guard, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def test_only_the_user_of_this_machine_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ["/", "/tokem", "/token2/", "/toke", "//token/", "/%00", "/" + "x" * 5000, "/tok%C3%A9n"]:
        answer = guarded().get(path)
        assert (answer.status_code, "inside" in answer.text) == (403, False)
        assert "the complete address that glassloop ui printed" in answer.text
    for status, hosts in [
        (200, ["127.0.0.1:8000", "localhost", "LOCALHOST:9000", "127.0.0.1"]),
        (400, ["evil.example", "127.0.0.1.evil.example", "localhost.evil:8000", "", "evil:127.0.0.1", "[::1]:8000"]),
    ]:
        assert [guarded().get("/token/", headers={"host": host}).status_code for host in hosts] == [status] * len(hosts)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert guarded().request(method, "/token/").status_code == 405
    asked: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(secrets, "compare_digest", lambda *pair: (asked.append(pair), False)[1])
    assert guarded().get("/guess/").status_code == 403
    assert asked == [(b"guess", b"token")]


def test_every_answer_is_secured_and_an_error_has_no_details(capsys: pytest.CaptureFixture[str]) -> None:
    meta = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; connect-src 'self'">"""
    for answer, policy in ((plain_answer("no", 404), "default-src 'none'"), (page_answer(meta), "connect-src 'self'")):
        assert policy in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers

    async def broken(*_: object) -> None:
        raise ValueError("secret \x1b[31m path")

    answer = guarded(broken).get("/token/")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert capsys.readouterr().err == "glassloop: a page could not be shown: ValueError: secret \\x1b[31m path\n"
    assert asyncio.run(Guard(broken, TOKEN)({"type": "websocket"}, broken, broken)) is None  # type: ignore[arg-type, func-returns-value]
    assert path_parts({"raw_path": b"/t/run/a%2Fb%FF/c?x=/y", "path": ""}) == [b"t", b"run", b"a/b\xff", b"c"]
    assert path_parts({"path": "/t/é"}) == [b"t", "é".encode()]
    assert path_parts({"path": ""}) == [b""]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Reads the runs of tmp_path. An exception in the server fails the test."""
    monkeypatch.setattr(watch, "SCAN_SECONDS", -1.0)
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)
    return TestClient(application(tmp_path, TOKEN), base_url=f"http://127.0.0.1/{TOKEN}/")


def test_the_list_of_runs(client: TestClient, tmp_path: Path) -> None:
    assert "There is no run yet" in client.get("").text
    first = write_watched(tmp_path / "first", steps=8, finished=True)
    write_watched(tmp_path / "study" / "seed-1")
    page = client.get("").text
    links = ('<a href="/token/run/first">first</a>', '<a href="/token/run/study/seed-1">study/seed-1</a>')
    for text in (*links, "accuracy 0.7500", "1 min 15 s"):
        assert text in page
    assert client.get(f"http://127.0.0.1/{TOKEN}", follow_redirects=False).headers["location"] == f"/{TOKEN}/"
    for number in range(298):
        shutil.copytree(first, tmp_path / f"run-{number}")
    assert client.get("").text.count('<input type="checkbox"') == 300, "many runs"


def test_a_run_while_it_trains_is_updated_once_and_a_finished_one_is_its_report(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_watched(tmp_path / "a", steps=2)
    lock_as(run, 1, "far-away")
    page = client.get("run/a").text
    assert "step 2 of 8, epoch 0.50, 2 s per step, about 12 s left" in page
    assert page.count("<figure") == 4
    before = client.get("run/a?update=1").json()["parts"]
    log_steps(run, 4)
    after = client.get("run/a?update=1").json()["parts"]
    assert "step 4 of 8" in after["head"]
    assert before["curves"] != after["curves"]
    assert before["about"] == after["about"]
    run = write_watched(tmp_path / "b", steps=2)
    first = client.get("run/b?update=1")
    known = {"if-none-match": first.headers["etag"]}
    again = client.get("run/b?update=1", headers=known)
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    log_steps(run, 3)
    assert client.get("run/b?update=1", headers=known).status_code == 200
    for report, reload in ((Report("<h1>The report</h1>"), True), (Report(problem="No report."), False)):
        monkeypatch.setattr("glassloop.web.app.made", lambda *folders, report=report: report)
        run = write_watched(tmp_path / "c", steps=8)
        assert not client.get("run/c?update=1").json()["reload"]
        shutil.rmtree(run)
        write_watched(run, steps=8, finished=True)
        assert client.get("run/c?update=1").json()["reload"] is reload
        assert (report.html or report.problem) in client.get("run/c").text
        shutil.rmtree(run)


def test_the_comparison_of_two_runs_and_its_tests(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_watched(tmp_path / "a", steps=8, finished=True)
    write_watched(tmp_path / "b b", steps=4, max_length=128)
    page = client.get("compare", params=[("run", "a"), ("run", quote("b b"))]).text
    assert page.count("<figure") == 5
    assert "max_length</td>" in page
    assert "learning_rate</td>" not in page, "the same in both"
    assert "0.7500" in page
    for query in ("", "?run=a", "?run=a&run=a", "?run=a&run=..", "?run=a&run=%00"):
        assert client.get(f"compare{query}").status_code == client.get(f"comparison{query}").status_code == 404
    for name in ("b", "c"):
        write_watched(tmp_path / name, steps=8, finished=True)
    answer = client.get("comparison?run=a&run=b")
    assert answer.status_code == 200
    assert "These runs cannot be compared" in answer.text, "they have no predictions"
    assert "All runs" in answer.text
    monkeypatch.setattr("glassloop.web.watch.compare_runs", lambda folders: folders)
    monkeypatch.setattr("glassloop.web.watch.comparison_page", lambda found: '<header class="top">compared')
    page = client.get("comparison?run=a&run=c").text
    assert page.startswith('<header class="top"><p class="way"><a href="/token/">← All runs</a></p>compared')


PATHS = ("run/%2e%2e", "run/%2e%2e/%2e%2e/etc/passwd", "run//etc/passwd", "run/%2Fetc%2Fpasswd", "run/", "run/.", "nothing",
         "run/a%00", "run/" + "x" * 4000, "run/%ff%fe", "run/a/%2e%2e/a", "run/a/", "run/link", "run/nothing")  # fmt: skip


def test_only_runs_that_were_found_and_are_still_there_can_be_asked_for(client: TestClient, tmp_path: Path) -> None:
    outside = write_watched(tmp_path.parent / f"{tmp_path.name}-outside")
    write_watched(tmp_path / "a")
    (tmp_path / "link").symlink_to(outside)
    assert {path: client.get(path).status_code for path in PATHS} == dict.fromkeys(PATHS, 404)
    run = write_watched(tmp_path / "gone")
    assert client.get("run/gone?update=1").status_code == 200
    shutil.rmtree(run)
    assert client.get("run/gone?update=1").json() == {"gone": True}
    assert client.get("run/gone").status_code == 404
    assert client.get("").status_code == 200


def test_hostile_names_and_texts_are_escaped(client: TestClient, tmp_path: Path) -> None:
    name = f"{STRANGE} %41?#,".replace("/", "")
    run = write_watched(tmp_path / name, positive_label=STRANGE, metrics=(STRANGE,), started=STRANGE, device=STRANGE)
    with (run / "history.jsonl").open("a") as opened:
        opened.write(json.dumps({"step": 5, STRANGE: 1.0, f"eval_{STRANGE}": 0.5}) + "\n")
    write_watched(tmp_path / os.fsdecode(b"bytes \xff\xfe"))
    addresses = re.findall(r'href="/token/(run/[^"]+)"', client.get("").text)
    assert len(addresses) == 2
    pages = [client.get("").text, *(client.get(address.replace("&amp;", "&")).text for address in addresses)]
    pages.append(client.get("compare", params=[("run", address.removeprefix("run/")) for address in addresses]).text)
    for page in pages:
        assert "<img" not in page
        assert "\u202e" not in page
        assert "There is no such run" not in page


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_never_lead_to_an_error(seed: int, client: TestClient, tmp_path: Path) -> None:
    draw, run = random.Random(seed), write_watched(tmp_path / "a", steps=8, finished=seed % 2 == 0)
    for path in sorted(run.iterdir()):
        content = bytearray(path.read_bytes())
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(content))
            content[place : place + draw.randint(0, 9)] = draw.randbytes(draw.randint(0, 5))
        path.write_bytes(bytes(content))
    write_watched(tmp_path / "b")
    for page in ("", "run/a", "run/a?update=1", "compare?run=a&run=b"):
        assert client.get(page).status_code == 200


def test_seeds_studies_and_runs_of_a_trainer_are_listed_and_opened(client: TestClient, tmp_path: Path) -> None:
    write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(20, 1.0, seed) for seed in (1, 2)})
    study = tmp_path / "study"
    record = drawn_study(study)
    write_study(study, record)
    page = client.get("").text
    assert '<a href="/token/run/seeds">seeds</a>' in page
    assert "2 of 2 runs" in page
    seeds = client.get("run/seeds").text
    assert "2 random seeds, 2 finished." in seeds
    assert '<a href="/token/run/seeds/seed-1">seeds/seed-1</a>' in seeds
    assert "There is no result yet." in client.get("run/study").text
    write_study(study, conclude(study, record, print))
    page = client.get("run/study").text
    assert ">Verdict</h2>" in page
    assert "final-seed-1" in page
    (study / "study.json").write_text("{")
    assert "There is no report" in client.get("run/study").text
    record = write_fake_run(tmp_path / "t")
    (tmp_path / "t" / "run.json").rename(tmp_path / "t" / "trainer.json")
    assert "Confusion matrix" in client.get("run/t").text
    write_sealed(tmp_path / "t" / "trainer.json", replace(record, status="running"))
    note_moment(tmp_path / "t", START, 0, 60)
    page = client.get("run/t").text
    assert "An error ended it" in page
    assert "glassloop train" not in page
