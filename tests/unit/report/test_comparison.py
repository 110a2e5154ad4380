"""The comparison of runs: sides and rows that differ, the values of the statistics, the terminal, and the page."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console
from run_folders import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.output import CommandResult
from glassloop.report import comparison
from glassloop.report.comparison import MOST_TEXT, Side, common_split, comparison_page, curves, cut, different_settings, p_text
from glassloop.runs.study import SeedRecord, read_seeds, write_seeds
from glassloop.scores.statistics import compare, discordant
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

TEXTS = [f"text {row}" for row in range(20)]


def compared(*folders: Path, most_rows: int = 100, margin: float | None = None) -> comparison.ComparedRuns:
    with patch.object(comparison, "MOST_LISTED", most_rows):
        return comparison.compare_runs([str(folder) for folder in folders], margin=margin)


def sides_of(*folders: Path) -> list[Side]:
    return [comparison.read_side(str(folder)) for folder in folders]


def two_runs(folder: Path, task: str = CLASSES, skills: tuple[float, float] = (0.8, 2.5), number: int = 80) -> list[Path]:
    return [
        write_drawn_run(folder / name, drawn_rows(number, skill, seed, task))
        for seed, (name, skill) in enumerate(zip("ab", skills, strict=True))
    ]


def folders_of_seeds(folder: Path, *skills: float, number: int = 60) -> list[Path]:
    return [
        write_drawn_seeds(folder / name, {seed: drawn_rows(number, skill, seed + 10 * place) for seed in (1, 2, 3)})
        for place, (name, skill) in enumerate(zip("abc", skills, strict=False))
    ]


# --- the values
def test_runs_of_every_task_are_compared(tmp_path: Path) -> None:
    for task, keys in [(CLASSES, ["accuracy", "f1"]), (SEVERAL, ["f1_micro", "exact_match"]), (SCORE, ["pearson", "mse"])]:
        found = compared(*two_runs(tmp_path / task, task))
        assert [*found.conclusions] == keys
        rows = [drawn_rows(80, skill, seed, task) for seed, skill in enumerate((0.8, 2.5))]
        positive = "equivalent" if task == CLASSES else None
        wanted = compare({1: rows[0]}, {1: rows[1]}, keys[0], positive)
        assert found.conclusions[keys[0]].comparisons[0].difference == wanted
        assert found.content()["rows"] == 80
        assert str(CommandResult(found.content())), "it can be written as JSON"
        html = comparison_page(found)
        assert ("off by" in html) == (task == SCORE)
        assert "All recorded settings are the same." in html


def test_the_rows_that_only_one_gets_right_are_listed_and_ordered_by_the_share_of_seeds(tmp_path: Path) -> None:
    first, second = drawn_rows(100, 0.8, 1), drawn_rows(100, 1.5, 2)
    folders = [write_drawn_run(tmp_path / name, rows) for name, rows in (("a", first), ("b", second))]
    (found,) = compared(*folders, most_rows=4).rows
    lost, won = discordant(first, second)
    assert (found.num_better, found.num_worse, found.num_equal) == (won, lost, 100 - won - lost)
    assert len(found.better) == min(won, 4)
    row = found.better[0]
    assert (row.first, row.second) == (0.0, 1.0)
    assert row.entry == {"text": f"text {row.row}", "label": row.second_answer}
    assert row.first_answer != row.second_answer
    found = compared(*folders_of_seeds(tmp_path / "seeds", 0.6, 2.0))
    assert found.has_several_seeds
    shares = [np.mean([rows.right for rows in side.seeds.values()], axis=0) for side in found.sides]
    gains = [row.second - row.first for row in found.rows[0].better]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx((shares[1] - shares[0]).max())


def test_all_are_compared_with_the_first_and_corrected(tmp_path: Path) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(80, 1.0, number)) for number, name in enumerate("abc")]
    found = compared(*folders, margin=0.2)
    comparisons = found.conclusions["accuracy"].comparisons
    assert found.conclusions["accuracy"].reference == found.names[0]
    assert all(one.difference.corrected >= one.difference.p_value for one in comparisons)
    assert all(one.verdict.margin == 0.2 for one in comparisons)
    assert len(found.rows) == 2


def test_one_run_the_same_twice_or_a_margin_that_is_no_share_is_refused(tmp_path: Path, says: Callable) -> None:
    folder = write_drawn_run(tmp_path / "a", drawn_rows(20))
    with pytest.raises(SettingsError, match="a comparison needs two runs"):
        compared(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(SettingsError, match="is compared with itself"):
        compared(folder, tmp_path / "link")
    for margin in (math.nan, math.inf, -0.1):
        with says(f"margin is {margin}, not a number of 0 or more", "use a share such as 0.01"):
            compared(folder, folder, margin=margin)


def test_only_different_settings_are_listed(tmp_path: Path) -> None:
    folders = [
        write_drawn_run(tmp_path / name, drawn_rows(10), seed=seed, learning_rate=rate, weight_decay=0.1)
        for name, seed, rate in (("a", 1, 2e-5), ("b", 2, 5e-5))
    ]
    assert different_settings(sides_of(*folders)) == {"learning_rate": ["2e-05", "5e-05"], "seed": ["1", "2"]}
    folders = [
        write_drawn_seeds(tmp_path / name, {seed: drawn_rows(10) for seed in seeds}, max_steps=len(seeds))
        for name, seeds in {"c": (1, 2), "d": (1, 2, 3)}.items()
    ]
    assert different_settings(sides_of(*folders)) == {"max_steps": ["2", "3"], "seeds": ["1, 2", "1, 2, 3"]}


def test_values_are_written_as_people_do_and_texts_are_short() -> None:
    values: list[object] = [None, True, False, 12000, 2e-5, (1, "a"), {"a": 0.5}, {}]
    assert [*map(comparison.in_words, values)] == ["-", "yes", "no", "12,000", "2e-05", "1, a", "a: 0.5", "-"]
    answers = [(["a", "b"], "a, b"), ([], "no label"), (0.123456, "0.1235"), ("a", "a")]
    assert [comparison.answer_text(value) for value, _ in answers] == [text for _, text in answers]
    assert len(cut("x" * 10_000)) == MOST_TEXT + 1
    assert comparison.short_name("runs/" + "x" * 40) == "…" + "x" * 19
    assert (p_text(0.0002), p_text(0.04), p_text(1.0)) == ("<0.001", "0.040", "1.000")


# --- the sides: runs and folders of seeds are read, and different rows are refused with what differs
def test_a_side_is_a_run_with_its_seed_or_all_finished_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (side,) = sides_of(write_drawn_run(tmp_path / "run", drawn_rows(20), seed=7))
    assert [*side.folders] == [side.record.settings.seed] == [7]
    folder = write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(20, seed=seed) for seed in (1, 2)})
    stored = read_seeds(folder)
    write_seeds(replace(stored, seeds={**stored.seeds, 3: SeedRecord()}))
    assert [*sides_of(folder)[0].folders] == [1, 2]
    assert "omitted, because they are not finished: seed-3" in capsys.readouterr().err
    write_seeds(replace(stored, seeds={3: SeedRecord()}))
    with pytest.raises(ModelError, match="no seed is finished yet"):
        sides_of(folder)
    with pytest.raises(ModelError, match="is not a run folder"):
        sides_of(tmp_path)


def test_the_split_must_be_predicted_by_all(tmp_path: Path) -> None:
    folders = two_runs(tmp_path, number=20)
    assert common_split(sides_of(*folders), None) == "validation"
    problem = r'has no predictions for the split "test"\ntry:  use --split with one of validation'
    with pytest.raises(SettingsError, match=problem):
        common_split(sides_of(*folders), "test")
    for folder in folders:
        (folder / "validation-predictions.jsonl").rename(folder / "test-predictions.jsonl")
    assert common_split(sides_of(*folders), None) == "test"


def reversed_rows(path: Path) -> Path:
    rows = drawn_rows(20)
    return write_drawn_run(path, replace(rows, references=rows.references[::-1], logits=rows.logits[::-1]), texts=TEXTS[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: write_drawn_run(path, drawn_rows(18)), r"20 rows and 18 \(fingerprints .{8} and .{8}\); "),
        (
            lambda path: write_drawn_run(path, drawn_rows(20), texts=[*TEXTS[:19], "new\x1b[31m"]),
            r'rows 19 differ, row 19 is "text 19" \(\w+\) and "new\\x1b\[31m" \(\w+\); '
            "1 rows are only in the first, 1 in the second",
        ),
        (lambda path: write_drawn_run(path, drawn_rows(20, data_seed=3)), "rows .* differ"),
        (reversed_rows, "the same rows in another order"),
        (
            lambda path: write_drawn_run(path, drawn_rows(20, task=SCORE)),
            "is single_label_classification, but .* is regression",
        ),
        (lambda path: write_drawn_run(path, drawn_rows(20, labels=("no", "yes"))), "has the labels different, equivalent, but"),
        (
            lambda path: write_drawn_seeds(path, {1: drawn_rows(20), 2: drawn_rows(20, data_seed=1)}),
            "seed-2 were evaluated on different rows",
        ),
    ],
)
def test_different_rows_are_refused_with_what_differs(tmp_path: Path, change: Callable[[Path], Path], message: str) -> None:
    sides = sides_of(write_drawn_run(tmp_path / "first", drawn_rows(20)), change(tmp_path / "second"))
    with pytest.raises(SettingsError, match=message):
        comparison.read_rows(sides, "validation")


# --- in the terminal: at most 80 columns, no control characters, every verdict
def shown(*folders: Path) -> str:
    output = io.StringIO()
    comparison.show_comparison(Console(file=output, width=80), compared(*folders))
    text = output.getvalue()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_two_runs_with_hostile_texts_and_long_names(tmp_path: Path) -> None:
    texts = [f"[red]text\x1b[31m {row} " * 20 for row in range(60)]
    first = write_drawn_run(tmp_path / ("long" * 20), drawn_rows(60, 0.8, 1), texts=texts, learning_rate=1e-5)
    second = write_drawn_run(tmp_path / ("name" * 20), drawn_rows(60, 3.0, 2), texts=texts, learning_rate=2e-5)
    text = shown(first, second)
    assert "[red]text\\x1b" in text, "texts are shown as they are"
    words = " ".join(text.split())
    for part in ("learning_rate 1e-05", "accuracy", "f1 (equivalent)", "exact McNemar test", "paired jackknife", ": better"):
        assert part in words
    assert ": 1 runs compared with" in words, "names that would not fit are counted"
    assert "<0.001" in words
    assert comparison.SINGLE_SEEDS.split(":")[0] in text


def test_several_seeds_state_their_correction(tmp_path: Path) -> None:
    text = shown(*folders_of_seeds(tmp_path, 1.0, 1.0, 3.0))
    words = " ".join(text.split())
    assert "test: seeds and rows; intervals of differences and p-values corrected for 2 comparisons, 95% for all" in words
    assert any(line.split()[-3:] == ["difference", "corrected", "p"] for line in text.splitlines())
    assert "of seeds right" in text
    assert "One seed each" not in text


def test_few_rows_scores_and_equal_runs(tmp_path: Path) -> None:
    few = shown(*two_runs(tmp_path / "few", number=8))
    assert few.count("too few rows") == 2, "F1 of both runs; accuracy has an interval for any number of rows"
    scores = shown(*two_runs(tmp_path / "scores", SCORE))
    assert "closer on" in scores
    assert "mse" in scores
    rows = drawn_rows(60, 1.0, 1)
    equal = shown(*(write_drawn_run(tmp_path / str(name), rows, seed=name) for name in range(3)))
    assert " ".join(equal.split()).count(": undecided") == 4, "two comparisons in two metrics"


# --- the page: all parts, and every text escaped
def test_the_page_has_all_parts_all_points_and_escapes_texts(tmp_path: Path) -> None:
    texts = [f"<script>alert({row})</script>" for row in range(60)]
    labels = ("<i>no</i>", "yes</script>")
    folders = [
        write_drawn_run(tmp_path / name, drawn_rows(60, skill, 1, labels=labels), texts=texts, learning_rate=skill / 1e5)
        for name, skill in (("<b>a<b>", 0.8), ("b", 3.0))
    ]
    html = comparison_page(compared(*folders))
    assert "&lt;script&gt;alert(" in html
    for hostile in ("<script>alert(", "<i>no", "yes</script>", "<b>a"):
        assert hostile not in html
    for part in ("exact McNemar test", "learning_rate", "Training loss", "Rows that differ", "One seed each", "p (Holm)"):
        assert part in html
    found = compared(*folders_of_seeds(tmp_path / "seeds", 0.5, 3.0, number=80), most_rows=2)
    html, rows = comparison_page(found), found.rows[0]
    hidden = rows.num_better + rows.num_worse - len(rows.better) - len(rows.worse)
    assert f"{hidden} more are omitted" in html
    assert html.count('class="point"') == 12, "three seeds, two sides, two metrics"


def test_every_recorded_figure_has_a_chart_of_the_steps_that_all_seeds_have(tmp_path: Path) -> None:
    first = write_drawn_run(tmp_path / "a", drawn_rows(20, 1.0, 1))
    second = write_drawn_seeds(tmp_path / "b", {seed: drawn_rows(20, 1.0, seed) for seed in (1, 2)})
    found = compared(first, second)
    charts = curves(found)
    assert [chart.title for chart in charts] == ["Training loss", "Evaluation loss", "accuracy", "f1 (equivalent)"]
    single, several = charts[0].series
    assert (single.name, several.name) == tuple(found.names)
    assert not single.band
    step, low, high = several.band[0]
    assert several.points[0] == (step, (low + high) / 2), "the mean of two seeds"
    assert (low, high) == (1 / 1.2, 1 / 1.1)
    for folder in (first, second / "seed-1", second / "seed-2"):
        (folder / "history.jsonl").unlink()
    assert curves(found) == []
    first = [{"step": step, "loss": loss} for step, loss in ((1, 9.0), (1, 1.0), (2, 2.0), ("x", 1.0), (None, 1.0))]
    assert comparison.series_of("a", [first, [{"step": 1, "loss": 3.0}]], "loss").points == [(1, 2.0)]  # type: ignore[list-item]
