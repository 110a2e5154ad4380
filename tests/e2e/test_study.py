"""`glassloop study` as a person meets it: every run as its run alone, an honest choice, killed anywhere and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import SHOWN
from killed_studies import TREE, WORKER, StudyBench, study_differences
from trials import KILL, Ended, Hook, Servers, weights_of, write_data

WORDS = ["--max_steps", "8", "--per_device_train_batch_size", "8", "--device", "cpu", "--precision", "fp32", "--seeds", "2"]
VARY = ["--vary", "learning_rate=1e-3,1e30", "--vary", "max_grad_norm=0"]
WRITES = "glassloop.study.study:write_study"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_data(folder / "data", 90, 30)
    (folder / "data" / "test.csv").write_bytes((folder / "data" / "validation.csv").read_bytes())
    return folder


def run(servers: Servers, place: Path, cache: dict[str, str], *words: object, hooks: tuple[Hook, ...] = ()) -> Ended:
    return servers.run("study", *words, hooks=hooks, folder=place, timeout=280, **SHOWN, **cache)


@pytest.fixture(scope="module")
def ended(place: Path, lively_dir: Path, servers: Servers, cache: dict[str, str]) -> Ended:
    """Two learning rates by halving, one of which diverges."""
    words = ["data", "--model", lively_dir, *WORDS, *VARY, "--strategy", "halving", "-o", "whole", "--json"]
    return run(servers, place, cache, *words)


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "study.json").read_text(encoding="utf-8"))


def test_a_study_chooses_compares_tests_once_and_counts_what_failed(ended: Ended, place: Path) -> None:
    assert ended.code == 0, ended.err
    found, record = json.loads(ended.out), record_of(place / "whole")
    assert (found["status"], found["strategy"]) == ("finished", "halving")
    assert found["chosen"] == "learning_rate 0.001, max_grad_norm 0"
    assert found["chosen_by"] == {"split": "selection", "folds": ["1/10"], "metric": "accuracy"}
    assert found["test_evaluations"] == [found["chosen"]]
    assert [entry["exit_status"] for entry in found["failed"].values()] == [5, 5]
    assert [row["failed"] for row in found["settings"]] == [found["settings"][0]["failed"], 2]
    assert found["final"]["test"]["points"] == found["final"]["validation"]["points"], "the same rows in this test"
    assert [part["fraction"] for part in record["rounds"]] == [0.25, 0.5, 1.0]
    folders = {path.name for path in (place / "whole" / "runs").iterdir() if path.is_dir()}
    assert folders == {*record["runs"]}
    assert any("failed: learning_rate 1e+30" in line for line in ended.lines)
    cards = [path.parent.parent.name for path in (place / "whole" / "runs").glob("*/model/README.md")]
    assert len(cards) == len(found["final"]["validation"]["points"]), "the final runs have a model card"
    assert "used once, at the end" in (place / "whole" / "study.html").read_text(encoding="utf-8")


def test_every_run_is_bit_identical_to_its_run_alone(
    ended: Ended, place: Path, servers: Servers, cache: dict[str, str]
) -> None:
    """Search runs were paused twice and continued; final runs were not. All were trained by one worker process."""
    runs = record_of(place / "whole")["runs"]
    finished = [name for name, entry in runs.items() if entry["status"] == "finished"]
    assert len(finished) == 4
    for name in (finished[0], finished[-1]):
        settings = (place / "whole" / "runs" / f"{name}.toml").read_text(encoding="utf-8")
        (place / "alone.toml").write_text(settings.replace(f"whole/runs/{name}", f"alone-{name}"), encoding="utf-8")
        alone = servers.run("train", "--config", "alone.toml", folder=place, **SHOWN, **cache)
        assert alone.code == 0, alone.err
        assert weights_of(place / f"alone-{name}") == weights_of(place / "whole" / "runs" / name)


def test_a_study_that_is_finished_starts_nothing(ended: Ended, place: Path, servers: Servers, cache: dict[str, str]) -> None:
    before = record_of(place / "whole")
    again = run(servers, place, cache, "--resume", "whole")
    assert again.code == 0, again.err
    after = record_of(place / "whole")
    assert (after["runs"], after["results"]) == (before["runs"], before["results"])
    assert again.lines[-1] == "→ whole/study.html"


@pytest.mark.parametrize("write", [pytest.param(3), *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (6, 9))])
def test_killed_anywhere_it_ends_the_same(
    ended: Ended, place: Path, lively_dir: Path, servers: Servers, cache: dict[str, str], write: int
) -> None:
    words = ["data", "--model", lively_dir, *WORDS, *VARY, "--strategy", "halving", "-o", f"killed-{write}"]
    killed = run(servers, place, cache, *words, hooks=(Hook(WRITES, write, KILL),))
    assert killed.code == -9
    again = run(servers, place, cache, *words)
    assert again.code == 0, again.err
    assert study_differences(place / "whole", place / f"killed-{write}") == []


@pytest.mark.exhaustive
def test_a_study_whose_worker_or_all_of_it_is_killed_ends_the_same(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path, seed=3)
    seconds = bench.to_the_end("undisturbed")
    # In its first half: a study that has ended cannot be killed any more, and the machine may be less busy now.
    assert any(bench.kill("killed", kind, seconds / 2) for kind in (WORKER, WORKER, TREE))
    bench.to_the_end("killed")
    assert study_differences(tmp_path / "undisturbed", tmp_path / "killed") == []


def test_wrong_words_are_errors_before_any_work(place: Path, servers: Servers, cache: dict[str, str]) -> None:
    words = ["--vary", "learning_rat=1", "--vary", "seed=1,2", "--strategy", "gird", "-o", "wrong"]
    wrong = run(servers, place, cache, "data", *words)
    assert wrong.code == 2
    assert 'strategy is "gird", not one of auto, grid, random, halving, optuna' in wrong.err
    assert 'unknown setting "learning_rat" to vary; did you mean "learning_rate"?; seed cannot be varied' in wrong.err
    assert not (place / "wrong").exists()
