"""`glassloop inspect`: every part of the overview is there, its figures are right, and no text is taken for orders."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from copy import copy, deepcopy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from glassloop.cli.inspect import example_table, histogram, inspect, padding_table, show_data
from glassloop.data import encoding as tokenizing
from glassloop.data.batches import epoch_order, padding_waste
from glassloop.data.encoding import Encoding, LengthLimit, Truncation, encode
from glassloop.data.sources import load_examples

PAIRS = [("the film is good", "this is a good story", "same"), ("it was bad", "the story is not bad", "different")]


def csv_of(header: list[str], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue()


def pairs_csv(rows: list[tuple[str, str, str]]) -> str:
    """Pairs as a CSV file, each first text made different by its number."""
    return csv_of(["sentence1", "sentence2", "label"], [(f"{a} {n}", b, c) for n, (a, b, c) in enumerate(rows)])


MANY_PAIRS = pairs_csv([(f"{'very ' * (number % 7)}{a}", b, c) for number in range(20) for a, b, c in PAIRS])


def records(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


Show = Callable[..., str]


@pytest.fixture
def show(tiny_tokenizer, write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """Prints the overview of a CSV file (or of other data) and returns what was printed."""

    def run(data: Any, *, columns: int = 100, tokenizer: Any = tiny_tokenizer, **settings: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        max_length, batch_size = settings.pop("max_length", 64), settings.pop("batch_size", 4)
        names = settings.pop("names", ("data.csv", "tiny"))
        examples = load_examples(write("data.csv", data) if isinstance(data, str) else data, split_seed=3, **settings)
        show_data(examples, tokenizer, LengthLimit(max_length, 64), batch_size, 3, names)
        return capsys.readouterr().out

    return run


@pytest.fixture
def encoded(write, tiny_tokenizer) -> dict[str, Encoding]:
    return encode(load_examples(write("data.csv", MANY_PAIRS), split_seed=3), tiny_tokenizer, 64)


def section(output: str, title: str) -> list[str]:
    """The lines under a title, up to the next blank one."""
    lines = [line.rstrip() for line in output.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 1
    return lines[start : lines.index("", start)]


# --- the command
def test_the_settings_reach_the_data_and_the_model_has_a_longest_input(says, write, tiny_model_dir: Path, capsys) -> None:
    rows = "body,label\n" + "".join(f"good film {number},{'ab'[number % 2]}\n" for number in range(20))
    path, model = str(write("rows.csv", rows)), str(tiny_model_dir)
    inspect(path, model, batch_size=4, text="body", validation_share=0)
    out = capsys.readouterr().out
    assert "Padding of train in batches of 4" in out
    assert "at most 64 tokens" in out
    assert "validation" not in out
    inspect(path, model, 8, 4, text="body")
    assert "at most 8 tokens" in capsys.readouterr().out
    with says("max_length is 0", "use a whole number of 8 or more"):
        inspect(path, model, 0, 4, text="body")


def test_deep_prints_findings_and_fails_on_those_that_are_named(write, tiny_model_dir: Path, tmp_path: Path, capsys) -> None:
    texts = [
        f"{'the a is was film story'.split()[number % 6]} {'good' if number % 2 else 'bad'} {number}" for number in range(40)
    ]
    texts[30] = texts[6]
    path = str(write("rows.csv", csv_of(["text", "label"], [(text, "ab"[place % 2]) for place, text in enumerate(texts)])))
    model, page = str(tiny_model_dir), tmp_path / "page.html"
    found = inspect(path, model, deep=True, fail_on=["GL202,error"], out=str(page), device="cpu")
    assert (found.exit_status, found.content["failed"]) == (8, ["GL202"])
    printed = capsys.readouterr()
    assert re.search(r"GL202 +Duplicates +info +train +2", printed.out)
    assert "--fail_on: found GL202" in printed.err
    assert page.read_text().startswith("<!DOCTYPE html>")
    content = json.loads(str(found))
    one = next(finding for finding in content["findings"] if finding["code"] == "GL202")
    assert (one["severity"], one["count"], one["rows"], one["drop"]) == ("info", 2, [7, 31], [31])
    assert [example["row"] for example in one["examples"]] == [7, 31]
    assert inspect(path, model, deep=True, fail_on=["error"], device="cpu").exit_status == 0


def test_fine_tuned_folds_look_for_label_errors(write, tiny_model_dir: Path, capsys) -> None:
    rows = [(f"{'good' if number % 2 else 'bad'} film {number}", "ab"[number % 2]) for number in range(24)]
    path = str(write("rows.csv", csv_of(["text", "label"], rows)))
    found = inspect(path, str(tiny_model_dir), deep=True, method="fine_tune", folds=2, device="cpu")
    assert found.content["diagnosis"]["method"] == "fine_tune"
    assert "training fold 2 of 2 on 12 rows" in capsys.readouterr().err


def test_what_belongs_to_deep_is_refused_without_it(says, write) -> None:
    path = str(write("rows.csv", MANY_PAIRS))
    with says("--out, --fail_on needs --deep", "add --deep"):
        inspect(path, out="page.html", fail_on=["error"])
    with says("--method needs --deep", "add --deep"):
        inspect(path, method="fine_tune")
    with says('--method is "knn"', "use frozen or fine_tune"):
        inspect(path, deep=True, method="knn")
    with says("--folds needs --method fine_tune", "omit --folds: regressions have five"):
        inspect(path, deep=True, folds=3)
    with says("x.txt: suggestions are written as .csv", "choose a name that ends in .csv"):
        inspect(path, deep=True, suggestions="x.txt")


# --- every part
def test_the_parts_are_these_in_this_order(show: Show) -> None:
    output = show(MANY_PAIRS)
    heads = "data   data.csv|task   single label classification|text   sentence1 + sentence2|label  label"
    assert [line.rstrip() for line in output.splitlines()[:5]] == [*heads.split("|"), "model  tiny, at most 64 tokens"]
    titles = ["Splits", "Columns", "Labels", "Tokens per row of train", "Padding of train in batches of 4"]
    titles += ["First row of train, padded in a batch of 4", "Notes"]
    lines = [line.strip() for line in output.splitlines()]
    assert [line for line in lines if line in titles] == titles
    columns = [line.split(None, 1) for line in section(output, "Columns")]
    assert columns == [["sentence1", "string"], ["sentence2", "string"], ["label", "ClassLabel(different, same)"]]
    assert "\x1b" not in output, "colours only in a terminal"


def test_the_splits_and_the_histogram_count_every_row(show: Show, encoded: dict[str, Encoding]) -> None:
    header, *rows = section(show(MANY_PAIRS), "Splits")
    assert header.split("  ")[0] == "split"
    for row, (name, encoding) in zip(rows, encoded.items(), strict=True):
        lengths = encoding.lengths
        wanted = [name, str(len(lengths)), f"{lengths.mean():.1f}", str(lengths.max()), "0", "0"]
        assert row.split() == wanted + ["0"] * (name != "train")
    lines, lengths = section(show(MANY_PAIRS), "Tokens per row of train"), encoded["train"].lengths
    counted = {span: number for span, (_, number) in bars_in(lines).items()}
    assert len(counted) == len(lines)
    assert counted == {span: sum(int(length) in span for length in lengths) for span in counted}
    assert sum(counted.values()) == len(lengths)


def test_truncation_is_reported_by_side_and_a_text_that_is_read_in_part_too(show: Show, monkeypatch) -> None:
    long = "good " * 30
    rows = [(long, "bad", "a"), ("bad", long, "b"), (long, long, "a"), ("good", "bad", "b")] * 3
    output = show({"train": records(pairs_csv(rows)), "validation": records(pairs_csv(rows[:4]))}, max_length=16)
    shown = [re.split(r" {2,}", line)[4] for line in section(output, "Splits")[-2:]]
    assert shown == ["9 (6 first, 6 second)", "3 (2 first, 2 second)"]
    monkeypatch.setattr(tokenizing, "MOST_CHARACTERS", 1000)
    monkeypatch.setattr(tokenizing, "MOST_CHARACTERS_PER_TOKEN", 1)
    rows = [("good " * size, "ab"[size % 2]) for size in (1, 2, 3, 300)]
    shown = show(csv_of(["text", "label"], rows), max_length=16, validation_share=0)
    assert "1; 1 text shortened before tokenizing" in shown


def test_the_labels_with_their_shares_and_the_notes(show: Show) -> None:
    rows = [("good", "film", "yes")] * 6 + [("bad", "story", "no")] * 2
    header, *lines = section(show(pairs_csv(rows), validation_share=0.5), "Labels")
    assert header.split() == ["label", "train", "validation"]
    assert [line.split() for line in lines] == [["0", "no", "1", "25%", "1", "25%"], ["1", "yes", "3", "75%", "3", "75%"]]
    rows = [("good film", "a", "yes"), ("good film", "a", "yes"), ("bad film", "b", "no"), ("bad story", "b", "no")]
    lines = section(show(csv_of(["sentence1", "sentence2", "label"], rows * 2)), "Notes")
    assert lines[0].startswith("• no validation split: ")
    assert any("rows repeat the text of another row" in line for line in lines)
    rows = [("good [SEP] film", "yes"), ("bad film", "no")] * 2
    output = show(csv_of(["text", "label"], rows), validation_share=0, columns=200)
    assert "• train: 2 rows contain the text of a special token ([SEP]), which the tokenizer reads as that token" in output


def bars_in(lines: list[str]) -> dict[range, tuple[str, int]]:
    """The bars of a histogram with their numbers of rows, by their range of lengths."""
    found = [re.fullmatch(r" *(\d+)(?:–(\d+))? +(█*[▏▎▍▌▋▊▉█]?) +([\d,]+)", line) for line in lines]
    return {range(int(one[1]), int(one[2] or one[1]) + 1): (one[3], int(one[4])) for one in found if one}


def test_a_histogram_has_at_most_ten_bars_as_long_as_their_shares(capsys: pytest.CaptureFixture[str]) -> None:
    for lengths in ([7], [7, 7, 7], [3, 512], [*range(3, 513)], [3, 12], [3, 13]):
        assert 1 <= histogram(np.array(lengths)).row_count <= 10
    Console(width=80).print(histogram(np.array([3] * 320 + [4] * 160 + [5] * 4 + [6])))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [bar for bar, _ in bars_in(lines).values()] == ["█" * 40, "█" * 20, "▌", "▏"]


def test_the_padding_figures_are_those_of_padding_waste(show: Show, encoded: dict[str, Encoding]) -> None:
    lengths = encoded["train"].lengths
    orders = {
        "all rows padded to the longest row": [np.arange(len(lengths))],
        "each batch padded to its longest row": epoch_order(len(lengths), 5, seed=3),
        "each batch padded to its longest row, grouped by length": epoch_order(len(lengths), 5, seed=3, lengths=lengths),
    }
    lines = section(show(MANY_PAIRS, batch_size=5), "Padding of train in batches of 5")
    shown = dict(re.split(r" {2,}", line) for line in lines)
    assert shown == {name: f"{padding_waste(lengths, order):.1%}" for name, order in orders.items()}
    assert len({*shown.values()}) == 3, "the figures of this test should differ"


# --- one row, token by token
def blocks(output: str) -> list[list[list[str]]]:
    """The cells of tokens, ids, types and mask in each block. Cells that do not end at the same places fail."""
    found: list[list[str]] = []
    for line in output[output.index("First row of") :].splitlines():
        if line.startswith("token "):
            found.append([])
        if found and re.match(r"(token|id|type|mask) ", line):
            found[-1].append(line)
    for block in found:
        assert [line.split()[0] for line in block] == ["token", "id", "type", "mask"]
        assert len({tuple(match.end() for match in re.finditer(r"\S+", line[6:])) for line in block}) == 1, "\n".join(block)
    return [[line[6:].split() for line in block] for block in found]


def test_tokens_ids_types_and_mask_are_under_each_other(show: Show, tiny_tokenizer) -> None:
    (first, second, _), *_ = PAIRS
    rows = records(csv_of(["sentence1", "sentence2", "label"], PAIRS))
    encoded = tiny_tokenizer(first, second)
    assert encoded["token_type_ids"] == [0] * 6 + [1] * 6
    for columns in (100, 40):  # in one block, and in several
        found = blocks(show({"train": rows, "validation": rows}, batch_size=1, columns=columns))
        assert (len(found) > 1) == (columns == 40)
        tokens, ids, types, mask = ([*chain.from_iterable(lines)] for lines in zip(*found, strict=True))
        assert tokens == tiny_tokenizer.convert_ids_to_tokens(encoded["input_ids"])
        assert [*map(int, ids)] == encoded["input_ids"]
        assert [*map(int, types)] == encoded["token_type_ids"]
        assert [*map(int, mask)] == [1] * 12


def test_a_short_first_row_is_padded_to_the_longest_of_its_batch(show: Show) -> None:
    """Of the padding four tokens are shown; the others are counted."""
    rows = [{"text": "good", "label": "a"}, {"text": "a " * 20, "label": "b"}]
    output = show({"train": rows, "validation": rows}, batch_size=8)
    assert "First row of train, padded in a batch of 2" in output
    ((tokens, ids, types, mask),) = blocks(output)
    assert tokens == ["[CLS]", "good", "[SEP]", "[PAD]", "[PAD]", "[PAD]", "[PAD]"]
    assert ids[3:] == types[3:] == mask[3:] == ["0"] * 4
    assert mask[:3] == ["1"] * 3
    assert "… and 15 more [PAD]" in output


def test_wide_characters_are_aligned_by_their_width(capsys: pytest.CaptureFixture[str]) -> None:
    from datasets import Dataset

    wide = SimpleNamespace(pad_token="[PAD]", pad_token_id=0, pad_token_type_id=0, padding_side="right")
    wide.convert_ids_to_tokens = lambda ids: ["北", "京大学", "is", "👍"][: len(ids)]
    rows = Dataset.from_dict({"input_ids": [[7, 8, 2003, 9]]}).with_format("numpy")
    Console(width=60).print(example_table(Encoding(rows, np.array([4]), Truncation()), wide, 1, 60))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()[:3]]
    ends = [[cell_len(line[: match.end()]) for match in re.finditer(r"\S+", line)] for line in lines]
    assert ends[0][1:] == ends[1][1:] == ends[2][1:]


# --- nasty texts
NASTY = [
    ("[red]good[/red] <script>alert(1)</script>", "\x1b[31mbad\x1b[0m \x9b31m", "[bold]yes[/bold]"),
    ("two\nlines\r\nor three", "[link=file:///etc/passwd]film[/link] \u202eevil", "<b>no</b>"),
]


def test_nasty_texts_and_labels_are_shown_and_not_interpreted(show: Show) -> None:
    for columns in (40, 100):
        output = show(pairs_csv(NASTY * 5), columns=columns)
        found = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", output)
        assert found is None, "a control character reached the terminal"
    labels = section(output, "Labels")
    assert re.match(r"0  <b>no</b> ", labels[1])
    assert re.match(r"1  \[bold\]yes\[/bold\] ", labels[2])
    assert "ClassLabel(<b>no</b>, [bold]yes[/bold])" in output


def test_markup_in_the_names_of_columns_files_and_models_is_shown_escaped(show: Show, capsys) -> None:
    rows = [("good film", "yes"), ("bad film", "no")] * 4
    output = show(csv_of(["[red]text[/red]", "label"], [(f"{text} {n}", label) for n, (text, label) in enumerate(rows)]))
    assert "text   [red]text[/red]\n" in re.sub(r" +\n", "\n", output)
    assert section(output, "Columns")[0].split() == ["[red]text[/red]", "string"]
    lines = [line.rstrip() for line in show(MANY_PAIRS, names=("[red]\x1b[31m\n.csv", "\udcff[/]")).splitlines()]
    assert lines[0] == r"data   [red]\x1b[31m\n.csv"
    assert lines[4] == r"model  \udcff[/], at most 64 tokens"
    Console(width=80).print(padding_table(np.array([3, 4]), 2, 0, "[red]\x1b[31mpart"))
    assert capsys.readouterr().out.startswith(r"Padding of [red]\x1b[31mpart")


def test_tokens_are_shown_escaped(show: Show, tiny_tokenizer) -> None:
    """A vocabulary may hold anything."""
    nasty = copy(tiny_tokenizer)
    nasty.convert_ids_to_tokens = lambda ids: ["\x1b[31m", "[red]", *("a\nb" for _ in ids[2:])]
    output = show(MANY_PAIRS, tokenizer=nasty)
    assert re.search(r"^token +\\x1b\[31m +\[red\] +a\\nb ", output, re.MULTILINE)
    nasty = deepcopy(tiny_tokenizer)
    nasty.pad_token = "\x1b]0;owned\x07"
    rows = "text,label\n" + "".join(f"{'very ' * (9 * number)}good,{'ab'[number % 2]}\n" for number in range(4))
    padded = show(rows, tokenizer=nasty, validation_share=0)
    assert r"more \x1b]0;owned\x07" in padded
    assert "\x1b" not in output + padded


def test_every_width_works(show: Show) -> None:
    for columns in (20, 40, 80, 300):
        output = show(MANY_PAIRS, columns=columns)
        assert max(cell_len(line) for line in output.splitlines()) <= columns
        assert all(title in output for title in ("Splits", "Labels", "Notes"))


# --- other tasks
def test_scores_and_several_labels(show: Show) -> None:
    output = show(csv_of(["text", "score"], [(f"good film {number}", number / 7) for number in range(40)]))
    assert "task   regression" in output
    assert "Labels" not in output
    assert [line.split() for line in section(output, "Columns")] == [["text", "string"], ["score", "float32"]]
    assert "validation" in output
    rows = [(f"good film {number}", ["fun|sad", "fun", "", "sad"][number % 4]) for number in range(40)]
    output = show(csv_of(["text", "label"], rows), label_separator="|")
    assert "task   multi label classification" in output
    assert "List(fun, sad)" in output
    header, *lines = section(output, "Labels")
    assert header.split() == ["label", "train", "validation"]
    assert [line.split()[:2] for line in lines] == [["0", "fun"], ["1", "sad"]]
    assert [int(line.split()[2]) + int(line.split()[4]) for line in lines] == [20, 20]


def test_many_labels_are_shortened(show: Show) -> None:
    """3,000 classes are not 3,000 lines: the most frequent are shown. A dozen are shortened among the columns only."""
    output = show(csv_of(["text", "label"], [(f"good film {number}", f"class{number % 12:02}") for number in range(48)]))
    assert "class07, …)" in output
    assert [line.split()[1] for line in section(output, "Labels")[1:]] == [f"class{number:02}" for number in range(12)]
    rows = [(f"text {number} {again}", f"L{number:04}") for number in range(300) for again in range(2 + (number == 200))]
    output = show(csv_of(["text", "label"], rows))
    assert section(output, "Columns")[1].startswith("label  ClassLabel(L0000, ")
    shown = section(output, "Labels")
    assert len({line.split()[1] for line in shown[1:-1] if line.split()[1] == f"L{int(line.split()[0]):04}"}) == 15
    assert (len(shown), shown[-1]) == (17, "and 285 more")
    assert len(output.splitlines()) < 80
