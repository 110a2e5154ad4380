"""`glassloop predict`: one text or pair, or every row of a file."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from families import tiny_model

from glassloop import Predictor
from glassloop.base.errors import DataError, ModelError, ResourceError, SettingsError
from glassloop.cli.evaluate import evaluate
from glassloop.cli.predict import predict
from glassloop.predictor import SeedsPredictor

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

LABELS = ["pos, really", "neg"]
OTHERS = [(f"{'bad' if number % 3 else 'very good'} story {number}", LABELS[number % 2]) for number in range(12)]
HEAVY = ("transformers", "datasets", "pandas", "sklearn", "scipy", "accelerate", "torch._dynamo", "sympy", "triton")


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.csv", OTHERS)


def answered(run: Path, *texts: str | None) -> dict[str, Any]:
    """Return what the command answers for a text or a pair."""
    (answer,) = predict(str(run), *texts, device="cpu").content["predictions"]
    return answer


def predict_file(run: Path, file: Path | str, out: Path | str | None = None, **options: Any) -> dict[str, Any]:
    target = None if out is None else str(out)
    return json.loads(str(predict(str(run), file=str(file), out=target, device="cpu", **options)))


# --- a text
def test_a_text_and_a_pair(text_run: Path, pair_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, expected = answered(pair_run, "good", "bad"), Predictor(pair_run, device="cpu").predict("good", "bad")[0]
    assert found["label"] == expected.label
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-5)
    capsys.readouterr()
    found = answered(text_run, "a good film")
    expected = Predictor(text_run, device="cpu").predict("a good film")[0]
    assert [*found] == ["text", "text_pair", "label", "scores"]
    assert found["label"] == expected.label == max(found["scores"], key=lambda label: found["scores"][label])
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-5)
    first, second = capsys.readouterr().out.splitlines()
    assert first.rsplit(None, 1) == [found["label"], f"{max(found['scores'].values()):.4f}"]
    assert second.split()[-1] == f"{min(found['scores'].values()):.4f}"


def test_the_answer_for_a_text_imports_little(text_run: Path) -> None:
    """What `python -X importtime` lists: a test of time would depend on the machine."""
    command = [sys.executable, "-X", "importtime", "-m", "glassloop", "predict", str(text_run), "a good film"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=environment())
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch" in imported
    assert not {name for name in imported if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))}
    assert len(done.stdout.splitlines()) == len(LABELS)


def test_the_wrong_number_of_texts(says, text_run: Path, pair_run: Path) -> None:
    with says("the model was trained on pairs of texts", 'glassloop predict RUN "text" "second text"'):
        answered(pair_run, "good")
    with says("the model was trained on single texts", 'glassloop predict RUN "text"'):
        answered(text_run, "good", "bad")
    with says("there is no text to predict", 'glassloop predict RUN "text" ["second text"], or --file FILE'):
        answered(text_run, None)
    for pair in (None, "bad"):
        assert answered(text_run / "model", "good", pair)["label"] in LABELS, "a bare model takes what it is given"


@pytest.fixture
def save_model(tiny_tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Saves a model whose labels have these names, and returns its folder."""

    def save(names: list[str]) -> Path:
        model = tiny_model(id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)})
        model.save_pretrained(tmp_path)
        tiny_tokenizer.save_pretrained(tmp_path)
        capsys.readouterr()
        return tmp_path

    return save


def test_of_many_labels_the_most_likely_are_shown_and_a_label_is_no_markup(save_model, capsys) -> None:
    found = answered(save_model([f"L{number}" for number in range(40)]), "good")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].split()[0] == found["label"]
    assert (len(lines), lines[-1]) == (16, "and 25 more")
    answered(save_model(["[bold]a[/bold]", "b\x1b[31m"]), "good")
    out = capsys.readouterr().out
    assert "[bold]a[/bold]" in out
    assert "\x1b" not in out
    assert "b\\x1b[31m" in out


# --- a file
def test_a_file(text_run: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "in-predictions.csv"
    content = predict_file(text_run, source)
    assert content == {"run": str(text_run), "file": str(source), "rows": 12, "out": str(target)}
    assert capsys.readouterr().out == f"12 rows → {target}\n"
    with target.open(newline="") as opened:
        assert [row["text"] for row in csv.DictReader(opened)] == [text for text, _ in OTHERS]
    predict_file(text_run, source, tmp_path / "\x1b[31m.jsonl", text_column="text", delimiter=",")
    assert len((tmp_path / "\x1b[31m.jsonl").read_text().splitlines()) == 12
    assert capsys.readouterr().out == f"12 rows → {tmp_path}/\\x1b[31m.jsonl\n", "a path cannot talk to the terminal"
    (tmp_path / "tabs.csv").write_text("text\tother\ngood\t1\n")
    predict_file(text_run, tmp_path / "tabs.csv", tmp_path / "out.tsv", delimiter="tab")
    assert (tmp_path / "out.tsv").read_text().startswith("text\tother\tprediction\t")


def test_what_is_no_data_file_is_refused_and_the_file_itself_is_not_overwritten(says, text_run, source, monkeypatch) -> None:
    monkeypatch.chdir(source.parent)
    Path("loop.csv").symlink_to("loop.csv")
    for file, out in product((".", "..", "/", "loop.csv"), (source.with_name("out.csv"), None)):
        with pytest.raises(DataError, match="there is no such data file"):
            predict_file(text_run, file, out)
    Path("folder").mkdir()
    before = source.read_bytes()
    for out in ("in.csv", "./folder/../in.csv"):
        with says("the predictions would overwrite the data file", "choose another file with --out"):
            predict_file(text_run, "in.csv", out)
    assert source.read_bytes() == before


def test_an_out_that_cannot_be_is_found_before_the_model_is_loaded(says, text_run: Path, source: Path, monkeypatch) -> None:
    out = source.with_name("out.csv")
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("glassloop.predictor.Predictor", lambda *_, **__: pytest.fail("the model was loaded"))
        with says(f"{out} is a folder", f"choose a file, for example {out / 'predictions.csv'}"):
            predict_file(text_run, source, out)
        for file, target in ((source, ""), ("", out / "out.csv")):  # an empty name is not a name left out
            with says('"": the path is empty', "use another path"):
                predict_file(text_run, file, target)
    monkeypatch.setattr(Predictor, "logits", lambda *_: pytest.fail("a row was predicted"))
    with pytest.raises(ResourceError, match="choose a folder that can be written to"):
        predict_file(text_run, source, source / "out.csv")


def test_a_file_that_exists_is_refused_before_the_model_is_loaded(source: Path) -> None:
    target = source.with_name("in-predictions.csv")
    target.write_text("years of work")
    for out in (None, str(target)):
        with pytest.raises(SettingsError, match=r"in-predictions\.csv exists") as raised:
            predict("no-run", file=str(source), out=out)
        assert "--overwrite" in raised.value.remedy
    with pytest.raises(SettingsError, match=r"in-predictions\.csv exists"):
        evaluate("no-run", out=str(target))
    with pytest.raises(ModelError, match="no-run"):
        predict("no-run", file=str(source), overwrite=True)


def test_skipped_rows_are_counted_and_listed_beside_the_predictions(text_run: Path, tmp_path: Path, capsys) -> None:
    source = tmp_path / "in.csv.gz"
    source.write_bytes(gzip.compress(b"text,n\ngood,1\nbad\n"))
    predict_file(text_run, source, bad_rows="skip")
    listing = tmp_path / "in-predictions-skipped-rows.csv"
    said = capsys.readouterr()
    assert f"skipped 1 row that cannot be read; {listing} lists them" in said.err
    assert said.out == f"1 row → {tmp_path / 'in-predictions.csv'}\n"
    assert listing.read_text() == 'file,row,problem\nin.csv.gz,3,"the row has 1 fields, but the header has 2 (text, n)"\n'


def test_an_interrupted_file_says_that_it_continues(text_run: Path, source: Path, monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    out = source.with_name("out.csv")
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            predict_file(text_run, source, out)
    assert "stopped; the same command continues" in capsys.readouterr().err
    predict_file(text_run, source, out)
    assert len(out.read_text().splitlines()) == 13


# --- notes, and several seeds
LONG = "good film " * 20
CUT = "glassloop: 1 of {} lost the end of the text: cut to 24 tokens, the longest had 42; "
CUT += "train with --max_length 42 to keep everything\n"
SPECIAL = "glassloop: {} the text of a special token ([SEP]), which the tokenizer reads as that token\n"


@pytest.mark.parametrize(
    ("texts", "note", "one", "several"),
    [
        ([LONG, "bad", "good"], CUT, "1 row (100%)", "3 rows (33%)"),
        (["a good [SEP] film", "bad", "[SEP]"], SPECIAL, "1 row contains", "2 rows contain"),
    ],
    ids=["truncated", "special tokens"],
)
def test_what_a_person_should_know(texts, note: str, one: str, several: str, text_run: Path, tmp_path: Path, capsys) -> None:
    answered(text_run, texts[0])
    assert capsys.readouterr().err == note.format(one)
    answered(text_run, "good")
    assert capsys.readouterr().err == ""
    source = write_rows(tmp_path / "in.csv", [*zip(texts, ("neg", "neg", "pos, really"), strict=True)])
    predict_file(text_run, source)
    assert capsys.readouterr().err == note.format(several)
    evaluate(str(text_run), str(source), device="cpu")
    assert note.format(several) in capsys.readouterr().err


def test_a_folder_of_seeds_predicts_with_all_of_them(seeds_folder: Path, text_run: Path, tmp_path: Path) -> None:
    predictor = SeedsPredictor(seeds_folder, device="cpu")
    found, expected = answered(seeds_folder, "a good film"), predictor.predict("a good film")[0]
    assert (found["label"], found["scores"]) == (expected.label, expected.scores)
    assert predict_file(seeds_folder, text_run.parent / "test.csv", tmp_path / "out.csv")["rows"] == 9
    with (tmp_path / "out.csv").open(newline="") as opened:
        rows = [*csv.DictReader(opened)]
    answers = predictor.predict([row["text"] for row in rows])
    assert [row["prediction"] for row in rows] == [answer.label for answer in answers]
