"""The charts of runs: which curves, in which order, with which marks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from watched_runs import write_watched

from glassloop.runs.history import Curves
from glassloop.runs.record import Plan
from glassloop.web import watch
from glassloop.web.views import compared_figures, latest_metrics, ordered, run_figures, title_of
from glassloop.web.watch import RunSummary, Watcher


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
