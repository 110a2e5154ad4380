"""The routes: list, run and comparison as pages and as updates; nothing in a run folder leads to an error."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_study import drawn_study
from run_folders import STRANGE, drawn_rows, lock_as, log_steps, write_drawn_seeds, write_fake_run, write_watched
from starlette.testclient import TestClient

from glassloop.base.records import write_sealed
from glassloop.runs.history import START, note_moment
from glassloop.runs.study import write_study
from glassloop.study.conclusions import conclude
from glassloop.web import watch
from glassloop.web.app import application
from glassloop.web.watch import Report

TOKEN = "token"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SCAN_SECONDS", -1.0)
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Reads the runs of tmp_path. An exception in the server fails the test."""
    return TestClient(application(tmp_path, TOKEN), base_url=f"http://127.0.0.1/{TOKEN}/")


def parts(client: TestClient, path: str) -> dict[str, str]:
    found: dict[str, str] = client.get(path, params={"update": "1"}).json()["parts"]
    return found


def test_the_list_of_runs(client: TestClient, tmp_path: Path) -> None:
    assert "There is no run yet" in client.get("").text
    write_watched(tmp_path / "first", steps=8, finished=True)
    write_watched(tmp_path / "study" / "seed-1")
    page = client.get("").text
    assert '<a href="/token/run/first">first</a>' in page
    assert '<a href="/token/run/study/seed-1">study/seed-1</a>' in page
    assert "accuracy 0.7500" in page
    assert "1 min 15 s" in page
    assert client.get(f"http://127.0.0.1/{TOKEN}", follow_redirects=False).headers["location"] == f"/{TOKEN}/"


def test_a_run_while_it_trains(client: TestClient, tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a", steps=2)
    lock_as(run, 1, "far-away")
    page = client.get("run/a").text
    assert "step 2 of 8, epoch 0.50, 2 s per step, about 12 s left" in page
    assert page.count("<figure") == 4
    before = parts(client, "run/a")
    log_steps(run, 4)
    after = parts(client, "run/a")
    assert "step 4 of 8" in after["head"]
    assert before["curves"] != after["curves"]
    assert before["about"] == after["about"]


def test_an_update_is_sent_once(client: TestClient, tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a", steps=2)
    first = client.get("run/a?update=1")
    again = client.get("run/a?update=1", headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    log_steps(run, 3)
    assert client.get("run/a?update=1", headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_a_finished_run_is_its_report(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassloop.web.app.made", lambda *folders: Report("<h1>The report</h1>"))
    run = write_watched(tmp_path / "a", steps=8)
    assert not client.get("run/a?update=1").json()["reload"]
    shutil.rmtree(run)
    write_watched(run, steps=8, finished=True)
    assert client.get("run/a?update=1").json()["reload"]
    assert client.get("run/a").text == "<h1>The report</h1>"
    monkeypatch.setattr("glassloop.web.app.made", lambda *folders: Report(problem="No report."))
    shutil.rmtree(run)
    write_watched(run, steps=8, finished=True)
    assert "No report." in client.get("run/a").text
    assert not client.get("run/a?update=1").json()["reload"]


def test_two_runs_side_by_side(client: TestClient, tmp_path: Path) -> None:
    write_watched(tmp_path / "a", steps=8, finished=True)
    write_watched(tmp_path / "b b", steps=4, max_length=128)
    page = client.get("compare", params=[("run", "a"), ("run", quote("b b"))]).text
    assert page.count("<figure") == 5
    assert "<td" in page
    assert "max_length" in page
    assert "learning_rate</td>" not in page, "the same in both"
    assert "0.7500" in page
    for query in ("", "?run=a", "?run=a&run=a", "?run=a&run=..", "?run=a&run=%00"):
        assert client.get(f"compare{query}").status_code == client.get(f"comparison{query}").status_code == 404


def test_the_comparison_with_its_tests(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_watched(tmp_path / name, steps=8, finished=True)
    found = client.get("comparison?run=a&run=b")
    assert found.status_code == 200
    assert "These runs cannot be compared" in found.text, "they have no predictions"
    assert "All runs" in found.text
    monkeypatch.setattr("glassloop.web.watch.compare_runs", lambda folders: folders)
    monkeypatch.setattr("glassloop.web.watch.comparison_page", lambda found: '<header class="top">compared')
    write_watched(tmp_path / "c", steps=8, finished=True)
    assert "← All runs" in client.get("comparison?run=a&run=c").text


def test_a_run_that_is_removed_while_it_is_watched(client: TestClient, tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a")
    assert client.get("run/a?update=1").status_code == 200
    shutil.rmtree(run)
    assert client.get("run/a?update=1").json() == {"gone": True}
    assert client.get("run/a").status_code == 404
    assert client.get("").status_code == 200


PATHS = ("run/%2e%2e", "run/%2e%2e/%2e%2e/etc/passwd", "run//etc/passwd", "run/%2Fetc%2Fpasswd", "run/", "run/.", "nothing",
         "run/a%00", "run/" + "x" * 4000, "run/%ff%fe", "run/a/%2e%2e/a", "run/a/", "run/link")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_only_runs_that_were_found_can_be_asked_for(path: str, client: TestClient, tmp_path: Path) -> None:
    outside = write_watched(tmp_path.parent / f"{tmp_path.name}-outside")
    write_watched(tmp_path / "a")
    (tmp_path / "link").symlink_to(outside)
    assert client.get(path).status_code == 404


def test_hostile_names_and_texts_are_escaped(client: TestClient, tmp_path: Path) -> None:
    name = f"{STRANGE} %41?#,".replace("/", "")
    run = write_watched(tmp_path / name, positive_label=STRANGE, metrics=(STRANGE,), started=STRANGE, device=STRANGE)
    with (run / "history.jsonl").open("a") as opened:
        opened.write(json.dumps({"step": 5, STRANGE: 1.0, f"eval_{STRANGE}": 0.5}) + "\n")
    write_watched(tmp_path / os.fsdecode(b"bytes \xff\xfe"))
    addresses = re.findall(r'href="/token/(run/[^"]+)"', client.get("").text)
    assert len(addresses) == 2
    pages = [client.get("").text, *(client.get(address.replace("&amp;", "&")).text for address in addresses)]
    names = [address.removeprefix("run/") for address in addresses]
    pages.append(client.get("compare", params=[("run", name) for name in names]).text)
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
    for path in ("", "run/a", "run/a?update=1", "compare?run=a&run=b"):
        assert client.get(path).status_code == 200


def test_many_runs(client: TestClient, tmp_path: Path) -> None:
    first = write_watched(tmp_path / "run-0")
    for number in range(1, 300):
        shutil.copytree(first, tmp_path / f"run-{number}")
    assert client.get("").text.count('<input type="checkbox"') == 300


def test_seeds_and_studies_are_listed_and_opened(client: TestClient, tmp_path: Path) -> None:
    write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(20, 1.0, seed) for seed in (1, 2)})
    study = tmp_path / "study"
    record = drawn_study(study)
    write_study(study, record)
    page = client.get("").text
    assert '<a href="/token/run/seeds">seeds</a>' in page
    assert "2 of 2 runs" in page
    found = client.get("run/seeds").text
    assert "2 random seeds, 2 finished." in found
    assert '<a href="/token/run/seeds/seed-1">seeds/seed-1</a>' in found
    assert "There is no result yet." in client.get("run/study").text
    write_study(study, conclude(study, record, print))
    assert ">Verdict</h2>" in client.get("run/study").text
    assert "final-seed-1" in client.get("run/study").text
    (study / "study.json").write_text("{")
    assert "There is no report" in client.get("run/study").text
    assert client.get("run/nothing").status_code == 404


def test_a_run_of_a_trainer_ends_as_its_report_and_cannot_be_resumed_by_command(client: TestClient, tmp_path: Path) -> None:
    record = write_fake_run(tmp_path / "t")
    (tmp_path / "t" / "run.json").rename(tmp_path / "t" / "trainer.json")
    assert "Confusion matrix" in client.get("run/t").text
    write_sealed(tmp_path / "t" / "trainer.json", replace(record, status="running"))
    note_moment(tmp_path / "t", START, 0, 60)
    page = client.get("run/t").text
    assert "An error ended it" in page
    assert "glassloop train" not in page
