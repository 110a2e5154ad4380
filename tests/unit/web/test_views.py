"""The charts of runs: which curves, in which order, with which marks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from run_folders import STRANGE, lock_as, write_watched

from glassloop.report.page import Section
from glassloop.runs.history import Curves
from glassloop.runs.listing import RunFolders
from glassloop.runs.record import Plan
from glassloop.runs.status import RunSummary
from glassloop.web import watch
from glassloop.web.views import (
    View,
    compare_view,
    compared_figures,
    comparison,
    latest_metrics,
    list_progress,
    list_view,
    local_time,
    moment,
    ordered,
    percent,
    progress_words,
    quoted,
    result_of,
    run_figures,
    run_view,
    settings,
    status_words,
    title_of,
    values_of,
)
from glassloop.web.watch import Watcher


def summary(tmp_path: Path, name: str, **more: object) -> tuple[RunSummary, Curves]:
    write_watched(tmp_path / name, **more)  # type: ignore[arg-type]
    watcher = Watcher(tmp_path)
    found = watcher.run(name)
    assert found is not None
    return found, watcher.curves(found)


def test_the_order_of_charts() -> None:
    names = ["grad_norm", "eval_f1", "learning_rate", "extra", "loss", "eval_loss", "eval_runtime", "eval_accuracy"]
    assert ordered(names) == ["loss", "eval_loss", "eval_f1", "eval_accuracy", "extra", "learning_rate", "grad_norm"]


def test_a_run_with_a_resume(tmp_path: Path) -> None:
    run, curves = summary(tmp_path, "a", steps=6, resumed=3)
    html = run_figures(run, curves)
    assert re.findall("<figcaption>(.*?)</figcaption>", html) == ["Loss", "Evaluations", "Learning rate", "Gradient norm"]
    assert html.count(">resumed</text>") == 2
    assert html.count(">best</text>") == 2, "the lowest evaluation loss"
    assert "accuracy 0.7500" in html


def test_the_best_of_a_score(tmp_path: Path) -> None:
    plan = Plan(8, 4, 4, 1, 0, 10, 4, 4, best_metric="eval_accuracy", greater_is_better=True)
    run, curves = summary(tmp_path, "a", steps=6, plan=plan)
    assert run_figures(run, curves).count(">best</text>") == 2
    run, curves = summary(tmp_path, "b", steps=2, plan=plan)
    assert ">best<" not in run_figures(run, curves), "one evaluation is no choice"


def test_several_runs_in_one_chart(tmp_path: Path) -> None:
    (one, first), (two, second) = summary(tmp_path, "one"), summary(tmp_path, "two", steps=1)
    html = compared_figures([one, two], [first, second])
    assert re.findall("<figcaption>(.*?)</figcaption>", html)[:2] == ["Training loss", "Evaluation loss"]
    assert html.count("</i>two</button>") == 3, "training loss, learning rate, gradient norm"


def test_a_long_history_is_drawn_with_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)
    run = write_watched(tmp_path / "a")
    lines = (
        f'{{"step": {step}, "loss": {(step * 7919) % 1009 / 1009}, "learning_rate": {1e-4 / step}}}\n'
        for step in range(1, 20_001)
    )
    (run / "history.jsonl").write_text("".join(lines))
    watcher = Watcher(tmp_path)
    found = watcher.run("a")
    assert found is not None
    curves = watcher.curves(found)
    assert curves.step == 20_000
    assert len(run_figures(found, curves)) < 200_000


def test_the_names_and_the_latest_values_of_metrics(tmp_path: Path) -> None:
    run, curves = summary(tmp_path, "a", positive_label="yes", metrics=("f1", "f1_macro"))
    assert title_of("eval_f1", run) == "F1 (yes)"
    assert title_of("eval_f1_macro", run) == "F1 (macro)"
    assert title_of("eval_my_score", run) == "My score"
    assert latest_metrics(curves) == {"eval_loss": 0.225, "eval_accuracy": 0.5}


# --- Runs side by side: results and what differs.


def test_results_and_differences(tmp_path: Path) -> None:
    write_watched(tmp_path / "a", steps=8, finished=True)
    write_watched(tmp_path / "b", steps=4, max_length=128)
    watcher = Watcher(tmp_path)
    runs = sorted(watcher.runs(), key=lambda run: run.name)
    sections = {section.name: section.body for section in compare_view(runs, [*map(watcher.curves, runs)], "/t/").sections}
    assert ">0.7500</td><td" in sections["results"], "the final evaluation of the first"
    assert ">0.5000</td></tr>" in sections["results"], "the latest evaluation of the second"
    assert '<td class="long">max_length</td><td class="long">64</td><td class="long">128</td>' in sections["settings"]
    assert "learning_rate" not in sections["settings"]
    assert "when all runs are finished" in sections["test"]


def test_equal_and_unknown_settings(tmp_path: Path) -> None:
    write_watched(tmp_path / "a")
    (run,) = Watcher(tmp_path).runs()
    assert "are the same" in settings([run, run])
    (tmp_path / "a" / "run.json").unlink()
    assert values_of(Watcher(tmp_path).runs()[0]) == {}


def test_finished_runs_are_compared_with_a_test(tmp_path: Path) -> None:
    write_watched(tmp_path / "a & b", finished=True)
    (run,) = Watcher(tmp_path).runs()
    html = comparison([run, run], "/t/")
    assert 'href="/t/comparison?run=a%2520%2526%2520b&amp;run=a%2520%2526%2520b"' in html
    assert "glassloop compare" in html


# --- A page and its updates have the same parts.


VIEW = View(STRANGE, "<p>head</p>", [Section("a", "A", "<p>one</p>"), Section("b", "B", "<p>two</p>")], 2.0, "<form></form>")


def test_the_page_and_its_update() -> None:
    page, update = VIEW.page(), json.loads(VIEW.update())
    for name, body in update["parts"].items():
        assert f'<div data-part="{name}">{body}</div>' in page
    assert [*update["parts"]] == ["head", "a", "b"]
    assert '<form></form><div data-part="a">' in page, "updates leave it alone"
    assert (update["seconds"], update["tab"], update["reload"]) == (2.0, STRANGE, False)
    assert STRANGE not in page


def test_the_script_may_ask_the_server() -> None:
    assert "connect-src 'self'" in VIEW.page()


# --- What the list and the page of a run say.


def page_of(tmp_path: Path, name: str = "a") -> str:
    watcher = Watcher(tmp_path)
    run = watcher.run(name)
    assert run is not None
    return run_view(run, watcher.curves(run), "/token/").page()


def test_an_empty_folder_says_how_to_start(tmp_path: Path) -> None:
    view = list_view(tmp_path / "runs", [], RunFolders({}), "/t/")
    assert "glassloop train quickstart" in view.page()
    assert "form" not in view.tools


def test_the_list_says_what_it_leaves_out(tmp_path: Path) -> None:
    write_watched(tmp_path / "a")
    page = list_view(tmp_path, Watcher(tmp_path).runs(), RunFolders({}, links=2, complete=False), "/t/").page()
    assert "2 links lead out of the folder and are not followed." in page
    assert "more folders than this page reads" in page


def test_the_tab_says_how_many_runs_train(tmp_path: Path) -> None:
    lock_as(write_watched(tmp_path / "a"), 1, "far-away")
    view = list_view(tmp_path, Watcher(tmp_path).runs(), RunFolders({}), "/t/")
    assert view.tab == f"(1) {tmp_path.name}"
    assert "1 run in" in view.head


def test_a_run_that_can_be_resumed_says_how(tmp_path: Path) -> None:
    write_watched(tmp_path / "it's", resumed=2)
    page = page_of(tmp_path, "it's")
    assert "glassloop train --resume " in page
    assert "&#39;" in page
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


# --- Times, progress and status in words.


def run(status: str = "running", **more: object) -> RunSummary:
    return RunSummary("a", Path("a"), status, **more)  # type: ignore[arg-type]


def test_times() -> None:
    assert moment("1970-01-01T00:01:00+00:00") == moment("1970-01-01T00:01:00") == 60.0
    assert moment("yesterday") is moment("") is moment("9999-99-99") is None
    assert len(local_time(60.0)) == 16
    assert local_time(1e300) == ""


def test_progress() -> None:
    slow = run(step=2, max_steps=8, epoch=0.5, step_seconds=20.0)
    assert progress_words(slow) == "step 2 of 8, epoch 0.50, 20 s per step, about 2 min left"
    assert list_progress(slow) == "25 %, 2 min left"
    assert progress_words(run(step=1000, max_steps=4000, step_seconds=0.01)).endswith("100 steps/s, about 30 s left")
    assert progress_words(run("killed", step=2, max_steps=8, step_seconds=1.0)) == "step 2 of 8"
    assert (progress_words(run(step=3)), list_progress(run(step=3)), list_progress(run())) == ("step 3", "step 3", "")
    assert percent(run(step=99, max_steps=8)) == 100


def test_what_a_status_means() -> None:
    assert status_words(run(step=1, max_steps=8)) == ""
    assert "starting" in status_words(run())
    assert "evaluated and saved" in status_words(run(step=8, max_steps=8))
    assert status_words(run("killed", step=1200)) == "Its process was killed after step 1,200."
    assert status_words(run("stopped")) == "It was stopped before its first log entry."
    assert "The terminal that trained it" in status_words(run("failed", step=2))
    assert "run.json: not JSON" in status_words(run("damaged", problem="run.json: not JSON"))
    assert "nothing for 3 min" in status_words(run(step=2, silent=180.0))
    assert status_words(run("finished", step=8)) == ""


def test_the_latest_values_are_the_result_of_a_run_that_trains() -> None:
    assert result_of(run(latest={"step": 3, "loss": 0.5, "learning_rate": 1.0})) == (None, "loss 0.5000")
    assert result_of(run(latest={"step": 3, "eval_accuracy": 0.25})) == (None, "accuracy 0.2500")
    assert result_of(run()) == (None, "")
