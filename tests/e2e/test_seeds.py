"""`glassloop train --seeds` as a person meets it: each seed ends as its run alone, a table; one fails; the rest goes on."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from commands import SHOWN, run_forked
from trials import REVIEWS, Ended, Servers, weights_of

WORDS = ["train", "rows.csv", "--max_steps", "6", "--learning_rate", "1e-3", "--device", "cpu", "--save_strategy", "no"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "rows.csv").write_text(REVIEWS)
    return folder


@pytest.fixture(scope="module")
def words(lively_dir: Path) -> list[str]:
    return [*WORDS, "--model", str(lively_dir)]


@pytest.fixture(scope="module")
def both(place: Path, words: list[str], servers: Servers, cache: dict[str, str]) -> Ended:
    """Two seeds, from 7 on."""
    return servers.run(*words, "--seeds", "2", "--seed", "7", folder=place, **SHOWN, **cache)


def written(place: Path) -> dict[str, Any]:
    return json.loads((place / "runs" / "run-001" / "seeds.json").read_text(encoding="utf-8"))


def test_each_seed_ends_in_the_weights_of_its_run_alone(
    both: Ended, place: Path, words: list[str], servers: Servers, cache: dict[str, str]
) -> None:
    assert both.code == 0, both.err
    alone = [[*words, "--seed", str(seed), "--output_dir", f"alone-{seed}"] for seed in (7, 8)]
    assert [ended.code for ended in run_forked(servers, *alone, folder=place, **cache)] == [0, 0]
    for seed in (7, 8):
        assert weights_of(place / "runs" / "run-001" / f"seed-{seed}") == weights_of(place / f"alone-{seed}")
    assert weights_of(place / "alone-7") != weights_of(place / "alone-8")


def test_a_line_for_each_start_and_end_then_a_table(both: Ended, place: Path) -> None:
    folder, found = "runs/run-001", written(place)
    assert (both.out, "\r" in both.err) == ("", False)
    lines = [line for line in both.lines if "% done; seed" not in line]  # said only on a slow machine
    assert lines.pop(0).startswith("chosen method, pooling, batch size, warm-up: from 45 training rows")
    assert lines[0] == f"2 seeds, 1 at a time → {folder}"
    assert lines[1] == f"seed 7: started, log in {folder}/seed-7.log"
    assert lines[2].startswith("seed 7: finished in ")
    assert f" s, loss {found['runs']['seed-7']['validation']['loss']:.4f}  accuracy " in lines[2]
    assert lines[2].endswith(f" → {folder}/seed-7")
    table = [line.split() for line in lines[5:11]]
    assert table[0] == ["loss", "accuracy", "f1", "(macro)"]
    assert [row[:-3] for row in table[1:5]] == [["seed", "7"], ["seed", "8"], ["mean", "of", "2"], ["standard", "deviation"]]
    assert table[5][:2] == ["majority", "baseline"]
    assert table[3][-3:] == [f"{found['results']['mean'][name]:.4f}" for name in ("loss", "accuracy", "f1_macro")]
    assert not any("different rows" in line or "data changed" in line for line in lines), "all seeds share their rows"


def test_the_same_is_written_down_and_stands_in_the_card_of_each_seed(both: Ended, place: Path) -> None:
    found = written(place)
    assert (found["status"], found["seeds"]) == ("finished", [7, 8])
    for name in ("loss", "accuracy", "f1_macro"):
        values = []
        for seed in ("7", "8"):
            run = json.loads((place / "runs" / "run-001" / f"seed-{seed}" / "run.json").read_text(encoding="utf-8"))
            assert found["runs"][f"seed-{seed}"]["validation"][name] == run["evaluation"][f"eval_{name}"]
            values.append(run["evaluation"][f"eval_{name}"])
        assert found["results"]["mean"][name] == pytest.approx(sum(values) / 2)
        assert found["results"]["standard_deviation"][name] == pytest.approx(statistics.stdev(values))
    assert found["base"]["training"]["max_steps"] == 6
    assert "torch" in found["versions"]
    for seed in (7, 8):
        card = (place / "runs" / "run-001" / f"seed-{seed}" / "model" / "README.md").read_text(encoding="utf-8")
        assert f"The random seed was {seed}." in card
        assert "The same training with 2 random seeds:" in card


@pytest.mark.exhaustive
def test_a_seed_fails_and_is_resumed_later(both: Ended, place: Path, servers: Servers, cache: dict[str, str]) -> None:
    """A third seed is added; its folder belongs to somebody else, so it is refused with the code of its run alone."""
    folder = place / "runs" / "run-001"
    kept = [weights_of(folder / "seed-7"), weights_of(folder / "seed-8")]
    (folder / "seed-9").mkdir()
    (folder / "seed-9" / "thesis.tex").write_text("years of work")
    resume = ["train", "--seeds", "3", "--resume", "runs/run-001"]
    failed = servers.run(*resume, folder=place, **SHOWN, **cache)
    assert failed.code == 2, failed.err
    assert failed.lines[:2] == [f"seed {seed}: already finished, in runs/run-001/seed-{seed}" for seed in (7, 8)]
    assert failed.lines[-4:] == [
        "seed 9 failed with exit status 2 (log: runs/run-001/seed-9.log):",
        f"  settings: output_dir {folder / 'seed-9'} contains files that do not belong to a run",
        "  try:  choose an empty or new folder",
        "resume with: glassloop train --seeds 3 --resume runs/run-001",
    ]
    assert written(place)["status"] == "failed"
    (folder / "seed-9" / "thesis.tex").unlink()
    again = servers.run(*resume, folder=place, **SHOWN, **cache)
    assert again.code == 0, again.err
    assert any(line.startswith("mean of 3 ") for line in again.lines)
    assert written(place)["status"] == "finished"
    assert [weights_of(folder / "seed-7"), weights_of(folder / "seed-8")] == kept


def test_seeds_and_processes_are_refused_together(place: Path, words: list[str], servers: Servers) -> None:
    ended = servers.run(*words, "--seeds", "2", "--processes", "2", folder=place, **SHOWN)
    assert ended.code == 2
    assert ended.err.startswith("settings: --seeds and several processes cannot be combined\n")
