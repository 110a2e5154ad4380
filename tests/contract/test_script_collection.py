"""The scripts of benchmarks/scripts/: with Glassloop they find what they find with transformers, or say why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parents[2] / "benchmarks" / "scripts.py"
VARIANTS = ("import changed", "glassloop run")
FAILURES = ("differs silently", "crashes", "reference fails")
QUICK = ("commonlit_stdev", "fgm_training_step", "loop_load_metric", "group_by_length")  # other tests train the usual kinds


def reports_of(folder: Path, *names: str) -> list[dict[str, Any]]:
    result = folder / "scripts.json"
    command = [sys.executable, str(RUNNER), *names, "--json", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert result.exists(), done.stdout + done.stderr
    reports: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))["scripts"]
    return reports


def failures_of(reports: list[dict[str, Any]]) -> list[str]:
    """What each failure is."""
    runs = [(report["script"], variant, report[variant]) for report in reports for variant in VARIANTS if variant in report]
    return [
        f"{name}, {variant}: {run['outcome']}: {run['detail']}" for name, variant, run in runs if run["outcome"] in FAILURES
    ]


def test_a_sample_of_the_scripts_finds_the_same(tmp_path: Path) -> None:
    reports = reports_of(tmp_path, *QUICK)
    assert not failures_of(reports)
    found = {report["script"]: report["glassloop run"]["outcome"] for report in reports}
    explained = {name for name, outcome in found.items() if outcome == "differs, reason printed"}
    assert explained == {"commonlit_stdev", "group_by_length"}  # a loss that is no mean; the order of predictions
    assert {*found.values()} == {"equal", "differs, reason printed"}


@pytest.mark.exhaustive
def test_at_least_sixty_scripts_find_the_same_or_say_why_not(tmp_path: Path) -> None:
    reports = reports_of(tmp_path)
    assert len(reports) == 64
    assert not failures_of(reports)
    explained = [report for report in reports if report["glassloop run"]["outcome"] in ("equal", "differs, reason printed")]
    assert len(explained) >= 60


def test_a_difference_without_a_reason_and_a_crash_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUNNER.parent))
    import scripts

    theirs = scripts.Run(
        variables={"train_loss": 1.0}, trainers=[{"steps": 2.0, "log": [{"step": 1.0, "loss": 3.0}], "backend": "x"}]
    )
    found = [{"steps": 2.0, "log": [{"step": 1.0, "loss": 3.0, "more": 1.0}], "backend": "packed"}]
    ours = scripts.Run(variables={"train_loss": 1.0, "more": 2.0}, trainers=found)
    assert scripts.compare("resume_checkpoint", theirs, ours, "").outcome == scripts.EQUAL
    ours.variables["train_loss"] = 1.1
    verdict = scripts.compare("resume_checkpoint", theirs, ours, "")
    assert (verdict.outcome, verdict.detail) == (scripts.SILENT, [".train_loss: 1 with transformers, 1.1"])
    ours.output = f"glassloop: {scripts.REASONS['resume_checkpoint'][0]}"
    assert scripts.compare("resume_checkpoint", theirs, ours, "").outcome == scripts.REASON
    ours.trainers[0]["steps"] = 3.0  # which the reason does not explain
    assert scripts.compare("resume_checkpoint", theirs, ours, "").outcome == scripts.SILENT
    assert scripts.compare("resume_checkpoint", theirs, scripts.Run(error="KeyError: 1"), "").outcome == scripts.CRASH
    assert scripts.compare("resume_checkpoint", theirs, scripts.Run(error="x", is_refusal=True), "").outcome == scripts.REFUSED
    ours.trainers[0]["log"] = []
    assert "no entry at step 1.0 with loss, step" in scripts.compare("x", theirs, ours, "").detail[-1]
