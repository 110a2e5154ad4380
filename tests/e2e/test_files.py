"""A file as it comes through all commands: without a header, compressed, with a broken row and two columns to join."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from commands import run_forked
from trials import Ended, Servers, json_lines, told

WORDS = "the a is was good bad film story very not and of to in on it this that first second".split()
NAMES = ["--columns", "label,title,body"]


def rows_text(start: int, stop: int) -> str:
    sentences = [" ".join(WORDS[(number * step) % len(WORDS)] for step in (3, 7, 11)) for number in range(start, stop)]
    return "".join(f"{number % 2}.0,{text} {number},{text}\n" for number, text in enumerate(sentences, start))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "train.csv.gz").write_bytes(gzip.compress(rows_text(0, 40).encode() + b"broken\n"))
    (folder / "held-out.csv").write_bytes(rows_text(40, 60).encode("utf-16"))
    return folder


@pytest.fixture(scope="module")
def ended(place: Path, lively_dir: Path, servers: Servers, session_cache: Path) -> list[Ended]:
    reading = [*NAMES, "--text", "title,body", "--bad_rows", "skip", "--validation", "held-out.csv", "--limit", "30"]
    training = ["--model", str(lively_dir), "--output_dir", "run", "--max_steps", "2", "--device", "cpu", "--precision", "fp32"]
    commands = [
        ["train", "train.csv.gz", *reading, *training],
        ["evaluate", "run", "--device", "cpu"],
        ["evaluate", "run", "held-out.csv", *NAMES, "--device", "cpu"],
        ["predict", "run", "--file", "held-out.csv", *NAMES, "--out", "answers.jsonl", "--device", "cpu"],
        ["predict", "run", "--file", "held-out.csv", "--device", "cpu"],
        ["train", "--resume", "run", "--limit", "20"],
        ["eject", "run"],
    ]
    return run_forked(servers, *commands, folder=place, GLASSLOOP_CACHE=str(session_cache))


def test_the_run_records_how_its_files_are_read(ended: list[Ended], place: Path) -> None:
    assert ended[0].code == 0, ended[0].err
    data = json.loads((place / "run" / "run.json").read_text(encoding="utf-8"))["data"]
    settings = {name: data["settings"][name] for name in ("columns", "bad_rows", "limit", "validation")}
    validation = str(place / "held-out.csv")
    assert settings == {"columns": "label,title,body", "bad_rows": "skip", "limit": 30, "validation": validation}
    assert (data["columns"]["text"], data["labels"]) == ("title,body", ["0", "1"])
    assert {name: split["num_rows"] for name, split in data["splits"].items()} == {"train": 30, "validation": 20}
    assert any(note.startswith("skipped 1 row that cannot be read; ") for note in data["notes"])


def test_evaluate_gives_the_same_result_on_the_run_and_on_its_file(ended: list[Ended]) -> None:
    scores = [[line.split()[-2:] for line in found.out.splitlines()[1:]] for found in ended[1:3]]
    assert [found.code for found in ended[1:3]] == [0, 0], ended[1].err + ended[2].err
    assert scores[0] == scores[1] != []


def test_predict_and_eject_join_the_columns_of_the_run(ended: list[Ended], place: Path) -> None:
    assert ended[3].code == 0, ended[3].err
    answers, expected = json_lines(place / "answers.jsonl"), json_lines(place / "run" / "validation-predictions.jsonl")
    assert [row["prediction"] for row in answers] == [row["prediction"] for row in expected]
    assert [f"{row['title']}\n{row['body']}" for row in answers] == [row["title,body"] for row in expected]
    assert ended[6].code == 0, ended[6].err
    assert json_lines(place / "run" / "ejected" / "train.jsonl")[0]["title,body"].count("\n") == 1


def test_a_missing_header_and_another_limit_are_refused(ended: list[Ended]) -> None:
    told(ended[4], 3, "held-out.csv: row 1 looks like data", "--columns label,text,text_pair")
    told(ended[5], 2, "limit: 30 then, 20 now")
