"""What the pages say: charts, results, settings that differ, times, progress and status in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from run_folders import STRANGE, lock_as, with_baselines, write_watched

from glassloop.report.page import Number, Section
from glassloop.runs.history import Curves
from glassloop.runs.record import Plan
from glassloop.runs.status import RunFolders, RunSummary
from glassloop.web import views, watch
from glassloop.web.views import View, compare_view, list_progress, local_time, moment, progress_words, result_of, run_figures
from glassloop.web.watch import Watcher


def watched(folder: Path, name: str = "a") -> tuple[RunSummary, Curves]:
    watcher = Watcher(folder)
    run = watcher.run(name)
    return run, watcher.curves(run)


def written(folder: Path, name: str = "a", **more: object) -> tuple[RunSummary, Curves]:
    write_watched(folder / name, **more)  # type: ignore[arg-type]
    return watched(folder, name)


def captions(html: str) -> list[str]:
    return re.findall("<figcaption>(.*?)</figcaption>", html)


def test_charts_have_an_order_names_marks_and_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["grad_norm", "eval_f1", "learning_rate", "extra", "loss", "eval_loss", "eval_runtime", "eval_accuracy"]
    assert views.ordered(names) == ["loss", "eval_loss", "eval_f1", "eval_accuracy", "extra", "learning_rate", "grad_norm"]
    run, _ = written(tmp_path, positive_label="yes", metrics=("f1", "f1_macro"))
    titles = [views.title_of(f"eval_{key}", run) for key in ("f1", "f1_macro", "my_score")]
    assert titles == ["F1 (yes)", "F1 (macro)", "My score"]
    html = run_figures(*written(tmp_path, "resumed", steps=6, resumed=3))
    assert captions(html) == ["Loss", "Evaluations", "Learning rate", "Gradient norm"]
    assert html.count(">resumed</text>") == 2
    assert html.count(">best</text>") == 2, "the lowest evaluation loss"
    assert "accuracy 0.7500" in html
    plan = Plan(8, 4, 4, 1, 0, 10, 4, 4, best_metric="eval_accuracy", greater_is_better=True)
    assert run_figures(*written(tmp_path, "c", steps=6, plan=plan)).count(">best</text>") == 2
    assert ">best<" not in run_figures(*written(tmp_path, "b", steps=2, plan=plan)), "one evaluation is no choice"
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)
    entries = ({"step": step, "loss": (step * 7919) % 1009 / 1009, "learning_rate": 1e-4 / step} for step in range(1, 20_001))
    (tmp_path / "a" / "history.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    run, curves = watched(tmp_path)
    assert curves.step == 20_000
    assert len(run_figures(run, curves)) < 200_000


def test_several_runs_their_results_and_settings_that_differ_or_not(tmp_path: Path) -> None:
    write_watched(tmp_path / "a", steps=8, finished=True)
    write_watched(tmp_path / "b", steps=1, max_length=128)
    runs, every = zip(watched(tmp_path, "a"), watched(tmp_path, "b"), strict=True)
    figures = "".join(views.compared_figures(runs, every))
    assert captions(figures)[:2] == ["Training loss", "Evaluation loss"]
    assert figures.count("</i>b</button>") == 3, "training loss, learning rate, gradient norm"
    write_watched(tmp_path / "c", steps=4, max_length=128)
    runs, every = zip(watched(tmp_path, "a"), watched(tmp_path, "c"), strict=True)
    sections = {section.name: section.body for section in compare_view(runs, every, "/t/").sections}
    assert ">0.7500</td><td" in sections["results"], "the final evaluation of the first"
    assert ">0.5000</td></tr>" in sections["results"], "the latest evaluation of the second"
    assert '<td class="long">max_length</td><td class="long">64</td><td class="long">128</td>' in sections["settings"]
    assert "learning_rate" not in sections["settings"]
    assert "when all runs are finished" in sections["test"]
    run, curves = written(tmp_path, "a & b", finished=True)
    sections = {section.name: section.body for section in compare_view([run, run], [curves, curves], "/t/").sections}
    assert "are the same" in sections["settings"]
    assert 'href="/t/comparison?run=a%2520%2526%2520b&amp;run=a%2520%2526%2520b"' in sections["test"]
    assert "glassloop compare" in sections["test"]
    (tmp_path / "a & b" / "run.json").unlink()
    unknown, _ = watched(tmp_path, "a & b")
    sections = {section.name: section.body for section in compare_view([unknown] * 2, [curves] * 2, "/t/").sections}
    assert "are the same" in sections["settings"]


def test_the_page_its_update_and_how_to_start_in_an_empty_folder(tmp_path: Path) -> None:
    sections = [Section("a", "A", "<p>one</p>"), Section("b", "B", "<p>two</p>")]
    view = View(STRANGE, "<p>head</p>", sections, 2.0, "<form></form>")
    page, update = view.page(), json.loads(view.answer[0])
    for name, body in update["parts"].items():
        assert f'<div data-part="{name}">{body}</div>' in page
    assert [*update["parts"]] == ["head", "a", "b"]
    assert '<form></form><div data-part="a">' in page, "updates leave it alone"
    assert (update["seconds"], update["tab"], update["reload"]) == (2.0, STRANGE, False)
    assert STRANGE not in page
    assert "connect-src 'self'" in page, "the script may ask the server"
    view = views.list_view(tmp_path / "runs", [], RunFolders({}), "/t/")
    assert "glassloop train quickstart" in view.page()
    assert "form" not in view.tools
    lock_as(write_watched(tmp_path / "a"), 1, "far-away")
    view = views.list_view(tmp_path, Watcher(tmp_path).runs(), RunFolders({}, links=2, complete=False), "/t/")
    assert "2 links lead out of the folder and are not followed." in view.page()
    assert "more folders than this page reads" in view.page()
    assert view.tab == f"(1) {tmp_path.name}"
    assert "1 run in" in view.head


def page_of(tmp_path: Path, name: str = "a") -> str:
    return views.run_view(*watched(tmp_path, name), "/token/").page()


def test_a_run_says_how_it_is_resumed_shows_its_curves_if_damaged_or_nothing_yet(tmp_path: Path) -> None:
    write_watched(tmp_path / "it's", resumed=2)
    page = page_of(tmp_path, "it's")
    for text in ("glassloop train --resume ", "&#39;", "after step 2", "train: 27 rows"):
        assert text in page
    run = write_watched(tmp_path / "a")
    (run / "run.json").write_text("{")
    with (run / "history.jsonl").open("a") as opened:
        opened.write("oops\n")
    page = page_of(tmp_path)
    for text in ("The record of this run cannot be read", "A line of history.jsonl is damaged", "<figure"):
        assert text in page
    assert "--resume" not in page
    write_watched(tmp_path / "new", steps=0)
    page = page_of(tmp_path, "new")
    assert "Nothing was logged yet." in page
    assert "There is no evaluation yet." in page


def run(status: str = "running", **more: object) -> RunSummary:
    return RunSummary("a", Path("a"), status, **more)  # type: ignore[arg-type]


def test_times_progress_results_and_status_in_words() -> None:
    assert moment("1970-01-01T00:01:00+00:00") == moment("1970-01-01T00:01:00") == 60.0
    assert moment("yesterday") is moment("") is moment("9999-99-99") is None
    assert len(local_time(60.0)) == 16
    assert local_time(1e300) == local_time(None) == ""
    assert views.quoted("a b/ü?#%\udcff") == "a%20b/%C3%BC%3F%23%25%FF"
    slow = run(step=2, max_steps=8, epoch=0.5, step_seconds=20.0)
    assert progress_words(slow) == "step 2 of 8, epoch 0.50, 20 s per step, about 2 min left"
    assert list_progress(slow) == "25%, 2 min left"
    assert progress_words(run(step=1000, max_steps=4000, step_seconds=0.01)).endswith("100 steps/s, about 30 s left")
    assert progress_words(run("killed", step=2, max_steps=8, step_seconds=1.0)) == "step 2 of 8"
    assert (progress_words(run(step=3)), list_progress(run(step=3)), list_progress(run())) == ("step 3", "step 3", "")
    assert views.percent(run(step=99, max_steps=8)) == 100
    for summary, words in [
        (run(step=1, max_steps=8), "^$"),
        (run("finished", step=8), "^$"),
        (run(), "starting"),
        (run(step=8, max_steps=8), "evaluated and saved"),
        (run("killed", step=1200), r"^Its process was killed after step 1,200\.$"),
        (run("stopped"), r"^It was stopped before its first log entry\.$"),
        (run("failed", step=2), "The terminal that trained it"),
        (run("damaged", problem="run.json: not JSON"), "run.json: not JSON"),
        (run(step=2, silent=180.0), "nothing for 3 min"),
    ]:
        assert re.search(words, views.status_words(summary))
    assert result_of(run(latest={"step": 3, "loss": 0.5, "learning_rate": 1.0})) == Number(None, "loss 0.5000")
    assert result_of(run(latest={"step": 3, "eval_accuracy": 0.25})) == Number(None, "accuracy 0.2500")
    assert result_of(run()) == Number(None, "")


def test_a_run_shows_its_baselines_while_it_trains(tmp_path: Path) -> None:
    write_watched(tmp_path / "a")
    assert 'id="baselines"' not in page_of(tmp_path)
    with_baselines(tmp_path / "a")
    page = page_of(tmp_path)
    assert ">Baselines<" in page
    assert "What simple methods reach" not in page
    for words in ("frozen encoder", "0.7325", "0.6325", "0.8325", "The baselines were fitted to the training rows."):
        assert words in page
    assert "evaluated on the same rows" not in page, "there is no result yet"
