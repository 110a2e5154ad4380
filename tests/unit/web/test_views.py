"""What the list and the page of a run say."""

from __future__ import annotations

from pathlib import Path

from watched_runs import lock_as, write_watched

from glassloop.runs.listing import Found
from glassloop.web.views import list_view, quoted, run_view
from glassloop.web.watch import Watcher


def page_of(tmp_path: Path, name: str = "a") -> str:
    watcher = Watcher(tmp_path)
    run = watcher.run(name)
    assert run is not None
    return run_view(run, watcher.curves(run), "/token/").page()


def test_an_empty_folder_says_how_to_start(tmp_path: Path) -> None:
    view = list_view(tmp_path / "runs", [], Found({}), "/t/")
    assert "glassloop train quickstart" in view.page()
    assert "form" not in view.tools


def test_the_list_says_what_it_leaves_out(tmp_path: Path) -> None:
    write_watched(tmp_path / "a")
    page = list_view(tmp_path, Watcher(tmp_path).runs(), Found({}, links=2, complete=False), "/t/").page()
    assert "2 links lead out of the folder and are not followed." in page
    assert "more folders than this page reads" in page


def test_the_tab_says_how_many_runs_train(tmp_path: Path) -> None:
    lock_as(write_watched(tmp_path / "a"), 1, "far-away")
    view = list_view(tmp_path, Watcher(tmp_path).runs(), Found({}), "/t/")
    assert view.tab == f"(1) {tmp_path.name}"
    assert "1 run in" in view.head


def test_a_run_that_can_be_resumed_says_how(tmp_path: Path) -> None:
    write_watched(tmp_path / "it's", resumed=2)
    page = page_of(tmp_path, "it's")
    assert "glassloop train --resume " in page
    assert "&#x27;" in page
    assert "after step 2" in page
    assert "train: 27 rows" in page


def test_a_damaged_run_shows_its_curves(tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a")
    (run / "run.json").write_text("{")
    with (run / "history.jsonl").open("a") as opened:
        opened.write("oops\n")
    page = page_of(tmp_path)
    assert "The record of this run cannot be read" in page
    assert "A line of history.jsonl is damaged" in page
    assert "<figure" in page
    assert "--resume" not in page


def test_a_run_before_its_first_entry(tmp_path: Path) -> None:
    write_watched(tmp_path / "a", steps=0)
    page = page_of(tmp_path)
    assert "Nothing was logged yet." in page
    assert "There is no evaluation yet." in page


def test_names_in_addresses() -> None:
    assert quoted("a b/ü?#%\udcff") == "a%20b/%C3%BC%3F%23%25%FF"
