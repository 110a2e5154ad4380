"""Times, progress and status in words."""

from __future__ import annotations

from pathlib import Path

from glassloop.runs.status import RunSummary
from glassloop.web.views import list_progress, local_time, moment, percent, progress_words, result_of, status_words


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
