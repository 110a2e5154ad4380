"""`glassloop evaluate` on a folder of seeds: each seed as if alone, mean and deviation, and all seeds as one model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from glassloop.cli.evaluate import evaluate
from glassloop.predict.evaluation import SeedsPredictor, Wanted, evaluate_run


def test_each_seed_the_mean_and_all_seeds_as_one(
    seeds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = Wanted(device="cpu")
    content = json.loads(str(evaluate(str(seeds_folder), device="cpu", out=str(tmp_path / "rows.jsonl"))))
    captured = capsys.readouterr()
    scores = []
    for seed in ("1", "2"):
        run = seeds_folder / f"seed-{seed}"
        scores.append(evaluate_run(str(run), wanted).results[0].metrics)
        assert content["seeds"][seed]["run"] == str(run)
        assert content["seeds"][seed]["splits"]["validation"]["metrics"] == pytest.approx(scores[-1])
    for name in scores[0]:
        assert content["mean"][name] == pytest.approx(mean(one[name] for one in scores))
        assert content["standard_deviation"][name] == pytest.approx(stdev(one[name] for one in scores))
    assert "seed-3" in captured.err
    lines = captured.out.splitlines()
    assert lines[0].split()[:3] == ["validation", "(11", "rows)"]
    starts = ("seed 1", "seed 2", "mean of 2", "standard deviation", "all seeds as one model", "majority baseline")
    assert all(line.startswith(start) for line, start in zip(lines[1:], starts, strict=False))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    answers = SeedsPredictor(seeds_folder, device="cpu").predict([row["text"] for row in rows])
    assert [row["prediction"] for row in rows] == [answer.label for answer in answers]
    right = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    assert content["together"]["accuracy"] == pytest.approx(right)
