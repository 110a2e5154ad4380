"""The live page in a real browser during a real training: it appears, grows, is killed, resumed, and becomes its report."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import LiveServer
from run_folders import STRANGE, log_steps, write_watched
from trials import STEP, Hook, Servers, write_data

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SETTINGS = ("--max_steps", "60", "--logging_steps", "1", "--eval_strategy", "steps", "--eval_steps", "10",
            "--save_strategy", "steps", "--save_steps", "10", "--batch_size", "4",
            "--device", "cpu", "--backend", "plain")  # fmt: skip
PATIENCE = 60_000  # milliseconds; other tests may use the machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def live(folder: Path) -> Iterator[LiveServer]:
    """The page of a folder. At the end it stops by Ctrl-C, without a word more than at its start."""
    server = LiveServer(folder)
    yield server
    assert server.stop() == (130, f"glassloop: shows the runs in {folder}; press Ctrl-C to stop\n")


def sees(page: Page, text: str, where: str = "body") -> None:
    """Wait until a text is in the page."""
    page.locator(where).filter(has_text=text).first.wait_for(timeout=PATIENCE)


def loss_points(page: Page) -> int:
    """Return how many values the data table of the first chart has."""
    return page.locator("figure").first.locator("details tbody tr").count()


def test_a_training_from_its_start_to_its_report(
    live: LiveServer, open_page: Any, folder: Path, servers: Servers, tiny_model_dir: Path, tmp_path: Path
) -> None:
    page = open_page(live.address)
    sees(page, "There is no run yet")
    data = str(write_data(tmp_path / "data"))
    arguments = ["train", data, "--model", str(tiny_model_dir), "--output_dir", str(folder / "first")]
    pauses = [Hook(STEP, 21, f"await:{tmp_path / 'second'}"), Hook(STEP, 41, f"await:{tmp_path / 'never'}")]
    first = servers.start(*arguments, *SETTINGS, hooks=pauses)

    sees(page, "running", "#runs")
    page.get_by_role("link", name="first").click()
    sees(page, "step 20 of 60")
    page.evaluate("window.same = true")
    assert loss_points(page) == 20
    page.locator(".legend button").nth(1).click()
    page.locator("details.data summary").first.click()
    (tmp_path / "second").touch()
    sees(page, "step 40 of 60")
    assert loss_points(page) == 40, "the curve has grown"
    assert page.evaluate("window.same"), "without a reload"
    assert page.locator(".legend button").nth(1).get_attribute("aria-pressed") == "false", "the reader's choice is kept"
    assert page.locator("details.data").first.get_attribute("open") is not None

    first.send(signal.SIGKILL)
    sees(page, "killed", ".tag")
    sees(page, "Its process was killed after step 40.")
    sees(page, f"glassloop train --resume {folder / 'first'}")

    resumed = servers.start("train", "--resume", str(folder / "first"), hooks=[Hook(STEP, 11, f"await:{tmp_path / 'third'}")])
    sees(page, "step 50 of 60")
    sees(page, "running", ".tag")
    assert page.locator("figure").first.locator("svg text", has_text="resumed").count() == 1
    assert page.evaluate("window.same")

    (tmp_path / "third").touch()
    sees(page, "Results", "h2")
    assert not page.evaluate("window.same"), "the report is another page"
    assert page.locator("svg text", has_text="resumed").count() > 0
    assert resumed.wait().code == 0

    shutil.copytree(folder / "first", folder / "second")
    page.get_by_role("link", name="All runs").click()
    sees(page, "second", "#runs")
    for box in page.locator("#runs input").all():
        box.check()
    page.get_by_role("link", name="Compare 2 runs").click()
    sees(page, "Settings that differ")
    assert page.locator("figure").first.locator(".legend button").all_inner_texts() == ["first", "second"]


def test_what_a_reader_has_chosen_in_the_list_is_kept(live: LiveServer, open_page: Any, folder: Path) -> None:
    write_watched(folder / "one")
    write_watched(folder / "two", steps=2)
    page = open_page(live.address)
    sees(page, "2 runs in")
    page.locator("#runs input").first.check()
    page.locator("th button", has_text="Run").click()
    page.locator("input[type=search]").fill("failed")
    log_steps(folder / "two", 6)
    sees(page, "75%", "#runs")
    write_watched(folder / "three", steps=2)
    sees(page, "three", "#runs")
    sees(page, "3 rows")
    assert page.locator("#runs input:checked").count() == 1
    assert page.locator("#runs tr a").all_inner_texts() == ["one", "two", "three"], "sorted by name; a new run comes last"
    page.locator("input[type=search]").fill("three")
    assert page.locator("#runs tr:visible").count() == 1


def test_a_run_that_is_removed_while_it_is_watched(live: LiveServer, open_page: Any, folder: Path) -> None:
    run = write_watched(folder / "one")
    page = open_page(f"{live.address}run/one")
    sees(page, "step 4 of 8")
    shutil.move(run, folder / ".gone")
    sees(page, "This run folder was removed.", "#connection")
    assert page.locator("figure").count() == 4, "what was read last stays"
    shutil.move(folder / ".gone", run)
    page.locator("#connection:empty").wait_for(state="attached", timeout=PATIENCE)


def test_a_page_says_that_its_server_has_stopped(live: LiveServer, browser: Browser, folder: Path) -> None:
    """Without `open_page`: the browser reports the refused connection."""
    page = browser.new_page()
    page.goto(live.address)
    sees(page, "There is no run yet")
    live.stop()
    sees(page, "glassloop ui has stopped.", "#connection")
    page.close()


def test_hostile_names_execute_nothing(live: LiveServer, open_page: Any, folder: Path) -> None:
    name = f"{STRANGE} </script><script>alert(1)</script> %41?#,".replace("/", "")
    write_watched(folder / name, positive_label=STRANGE, metrics=("f1", STRANGE), device=STRANGE)
    write_watched(folder / "finished", steps=8, finished=True, positive_label=STRANGE, device=STRANGE)
    page = open_page(live.address)
    for link in ("step", "finished"):
        page.goto(live.address)
        sees(page, "2 runs in")
        page.locator("#runs tr", has_text="finished" if link == "finished" else "failed").locator("a").click()
        page.locator("h2").first.wait_for(timeout=PATIENCE)
        page.wait_for_timeout(1500)
        assert page.title() != "owned"
        assert page.locator("img").count() == 0
