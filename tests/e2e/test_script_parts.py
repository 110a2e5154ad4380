"""Scripts with parts and callbacks of their own: the same losses, scores and weights however a training is run.

One process without accumulation is the reference: for accumulated batches, for two processes, and for trainings that were
stopped or crashed and then resumed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trials import Servers

SCRIPT = Path(__file__).with_name("train_script_parts.py")


def found_by(
    servers: Servers, folder: Path, processes: int = 1, size: int = 8, accumulate: int = 1, interrupted: str = "no"
) -> dict[str, Any]:
    """Run the script, and return what each of its trainings found."""
    words = (folder, size, accumulate, interrupted)
    started = [servers.start(*words, script=SCRIPT)] if processes == 1 else servers.start_group(2, *words, script=SCRIPT)
    for trial in started:
        ended = trial.wait(240)
        assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def reference(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by(servers, tmp_path_factory.mktemp("reference"))


def test_the_cases_do_what_they_ask_for(reference: dict[str, Any]) -> None:
    steps = {name: [entry["step"] for entry in found["history"] if "loss" in entry] for name, found in reference.items()}
    evaluated = {
        name: [entry["step"] for entry in found["history"] if "eval_loss" in entry] for name, found in reference.items()
    }
    assert steps["loss"] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert steps["asking"] == [1, 2, 3, 4, 5, 6, 7], "the second of three epochs has one step"
    assert evaluated["asking"] == [2, 3, 4, 7]
    assert steps["stopping"] == steps["early stopping"] == [1, 2, 3, 4, 5, 6]
    assert all("eval_twice" in entry for entry in reference["log and evaluation"]["history"] if "eval_loss" in entry)


def compare(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Rows are divided by their true number, also in the last step of an epoch, which has five."""
    for name, wanted in reference.items():
        assert len(found[name]["history"]) == len(wanted["history"]), name
        for mine, theirs in zip(found[name]["history"], wanted["history"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4), name  # gradient norms are the largest of these numbers
        assert found[name]["weights"] == pytest.approx(wanted["weights"], rel=1e-4), name


def test_accumulated_batches(servers: Servers, reference: dict[str, Any], tmp_path: Path) -> None:
    compare(found_by(servers, tmp_path, size=4, accumulate=2), reference)


def test_two_processes(servers: Servers, reference: dict[str, Any], tmp_path: Path) -> None:
    compare(found_by(servers, tmp_path, 2, size=4), reference)


@pytest.mark.parametrize("how", ["stop", pytest.param("crash", marks=pytest.mark.exhaustive)])
def test_a_resumed_training_is_bit_identical(servers: Servers, reference: dict[str, Any], tmp_path: Path, how: str) -> None:
    assert found_by(servers, tmp_path, interrupted=how) == reference


@pytest.mark.exhaustive
def test_a_resumed_training_in_two_processes_is_bit_identical(servers: Servers, tmp_path: Path) -> None:
    whole, resumed = (found_by(servers, tmp_path / how, 2, size=4, interrupted=how) for how in ("no", "stop"))
    assert resumed == whole
