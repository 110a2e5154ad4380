"""`glassloop clean`: a new file with the changes that were asked for, a log of each one, and the way back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from glassloop.base.errors import DataError, GlassloopError, SettingsError
from glassloop.cli.clean import clean
from glassloop.cli.inspect import inspect
from glassloop.diagnosis.cleaning import LOG_SUFFIX, droppable, read_suggestions

ROWS = [
    ["a good film", "positive", "=1+1"],
    ["a bad film", "negative", 'with-"quotes",and-a-comma'],
    ["A good  film", "negative", "two\nlines"],
    ["the story", "positive", ""],
    ["a bad film", "negative", "again"],
    ["...", "positive", "no-words"],
    *([f"one story {sign}", ("positive", "negative")[number % 2], "web"] for number, sign in enumerate("bcdefghijk")),
]


def write(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["text", "label", "source"], *rows])
    return path


def read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as opened:
        return [*csv.reader(opened)][1:]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.csv", ROWS)


def test_dropped_rows_are_those_of_the_findings_and_all_other_cells_stay(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.csv"
    content = clean(str(file), str(out), drop=["GL204,GL202", "GL401"]).content
    kept = [row for number, row in enumerate(ROWS, 1) if number not in (1, 3, 5, 6)]
    assert read(out) == kept
    assert (content["rows"], content["dropped"], content["relabelled"]) == (len(kept), 4, 0)
    assert read(file) == ROWS
    header, *lines = [json.loads(line) for line in (tmp_path / f"clean.csv{LOG_SUFFIX}").read_text().splitlines()]
    assert header["source"] == "rows.csv"
    assert [(line["row"], line["code"]) for line in lines] == [(1, "GL204"), (3, "GL204"), (5, "GL202"), (6, "GL401")]


def suggest(path: Path, *rows: tuple[int, str, str], split: str = "train") -> str:
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["split", "row", "label", "suggested"], *([split, *row] for row in rows)])
    return str(path)


def test_labels_are_changed_and_every_change_can_be_reversed(file: Path, tmp_path: Path) -> None:
    asked = suggest(tmp_path / "s.csv", (4, "positive", "negative"), (7, "positive", ""), (9, "positive", "negative"))
    out, back = tmp_path / "clean.csv", tmp_path / "back.csv"
    content = clean(str(file), str(out), drop=["GL204", "GL401"], relabel=asked).content
    assert (content["dropped"], content["relabelled"]) == (3, 2)
    wanted = [[text, "negative" if number in (4, 9) else label, source] for number, (text, label, source) in enumerate(ROWS, 1)]
    assert read(out) == [row for number, row in enumerate(wanted, 1) if number not in (1, 3, 6)]
    clean(str(out), str(back), undo=f"{out}{LOG_SUFFIX}")
    assert read(back) == ROWS


def test_what_inspect_suggests_can_be_applied(file: Path, tmp_path: Path, tiny_model_dir: Path) -> None:
    rows = [[f"{'good' if number % 2 else 'bad'} film {'abcdefgh'[number % 8]}", "pn"[number % 2], ""] for number in range(200)]
    rows = [[f"{row[0]} {'the of to in on'.split()[place // 40]} {'a is was it'.split()[place // 10 % 4]}", *row[1:]]
            for place, row in enumerate(rows)]  # fmt: skip
    right = rows[50][1]
    rows[50][1] = "n" if right == "p" else "p"
    path = write(tmp_path / "noisy.csv", rows)
    found = inspect(str(path), str(tiny_model_dir), deep=True, suggestions=str(tmp_path / "s.csv"), device="cpu", text="text")
    assert 51 in next(one["rows"] for one in found.content["findings"] if one["code"] == "GL301")
    clean(str(path), str(tmp_path / "clean.csv"), relabel=str(tmp_path / "s.csv"), text="text")
    assert read(tmp_path / "clean.csv")[50][1] == right


def test_jsonl_keeps_lists_and_the_spelling_of_numbers(tmp_path: Path) -> None:
    rows = [
        {"text": f"one {sign}", "label": place % 2, "tags": ["x", sign], "size": 1.5} for place, sign in enumerate("abcdefgh")
    ]
    rows[5] = {**rows[5], "text": rows[1]["text"]}
    path, out = tmp_path / "rows.jsonl", tmp_path / "clean.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    clean(str(path), str(out), drop=["GL202"], relabel=suggest(tmp_path / "s.csv", (3, "0", "1")))
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    wanted = [{**row, "label": "1" if number == 2 else str(row["label"]), "size": "1.5"} for number, row in enumerate(rows)]
    assert kept == wanted[:5] + wanted[6:]


def test_several_labels_are_changed_in_the_way_the_file_writes_them(tmp_path: Path) -> None:
    rows = [[f"one {sign}", ("joy;anger", "fear; joy", "fear")[place % 3], "x"] for place, sign in enumerate("abcdefghi")]
    path, out = write(tmp_path / "rows.csv", rows), tmp_path / "clean.csv"
    asked = suggest(tmp_path / "s.csv", (1, "anger|joy", "joy"), (2, "fear|joy", "anger|fear"))
    assert clean(str(path), str(out), relabel=asked, label_separator=";").content["relabelled"] == 2
    assert [row[1] for row in read(out)][:3] == ["joy", "anger;fear", "fear"]
    for wrong, told in (((3, "joy", "fear"), "was made for"), ((3, "fear", "rage"), 'there is no label "rage"')):
        asked = suggest(tmp_path / "s.csv", wrong)
        with pytest.raises(DataError, match=told):
            clean(str(path), str(tmp_path / "x.csv"), relabel=asked, label_separator=";")


def test_scores_are_changed_and_written_as_they_are_given(tmp_path: Path) -> None:
    rows = [[f"one {sign}", f"{place}.50", "x"] for place, sign in enumerate("abcdefghijklmnopqrstuvwxyz")]
    path, out = write(tmp_path / "rows.csv", rows), tmp_path / "clean.csv"
    clean(str(path), str(out), relabel=suggest(tmp_path / "s.csv", (4, "3.5", "7.25")), task="regression")
    assert [row[1] for row in read(out)][2:5] == ["2.50", "7.25", "4.50"]
    asked = suggest(tmp_path / "s.csv", (4, "3.5", "high"))
    with pytest.raises(DataError, match='"high" is not a score'):
        clean(str(path), str(tmp_path / "x.csv"), relabel=asked, task="regression")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "there is nothing to change"),
        ({"drop": ["GL301"]}, "there are no rows to drop"),
        ({"drop": ["GL204"], "undo": "x.jsonl"}, "--undo reverses changes"),
        ({"undo": "rows.csv"}, "cannot be read as a log of changes"),
    ],
)
def test_what_cannot_be_done_is_refused(file: Path, tmp_path: Path, options: dict, told: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GlassloopError, match=told):
        clean(str(file), str(tmp_path / "clean.csv"), **options)
    assert not (tmp_path / "clean.csv").exists()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((4, "negative", "positive"), 'rows.csv, row 4: the label is "positive", but the suggestion was made for "negative"'),
        ((4, "positive", "neutral"), 'rows.csv, row 4: there is no label "neutral"'),
        ((99, "positive", "negative"), "rows.csv has no row 99"),
    ],
)
def test_suggestions_for_other_rows_are_refused(file: Path, tmp_path: Path, row: tuple[int, str, str], told: str) -> None:
    with pytest.raises(DataError, match=told):
        clean(str(file), str(tmp_path / "clean.csv"), relabel=suggest(tmp_path / "s.csv", row))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "s.csv"]


def test_a_file_is_never_changed_in_place_and_never_replaced_unasked(file: Path, tmp_path: Path) -> None:
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=r"rows.csv exists"):
            clean(str(file), str(file), drop=["GL204"], overwrite=overwrite)
    out = write(tmp_path / "other.csv", ROWS[:2])
    with pytest.raises(SettingsError, match=r"other.csv exists"):
        clean(str(file), str(out), drop=["GL204"])
    clean(str(file), str(out), drop=["GL204"], overwrite=True)
    assert len(read(out)) == len(ROWS) - 2
    with pytest.raises(SettingsError, match=r"rows are written as .csv or .jsonl"):
        clean(str(file), str(tmp_path / "clean.xlsx"), drop=["GL204"])


def test_suggestions_of_other_splits_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = suggest(tmp_path / "s.csv", (4, "a", "b"), (5, "a", ""))
    assert read_suggestions(Path(path)) == {4: ("a", "b")}
    assert read_suggestions(Path(suggest(tmp_path / "s.csv", (4, "a", "b"), split="test"))) == {}
    assert droppable(["gl204, GL101"]) == ["GL204", "GL101"]
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="there is no column row, label, suggested"):
        read_suggestions(tmp_path / "s.csv")
