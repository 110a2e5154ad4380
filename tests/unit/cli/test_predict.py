"""`glassloop predict`: one text or pair, or every row of a file."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import environment

from glassloop import Predictor
from glassloop.base.errors import DataError, ModelError, ResourceError, SettingsError
from glassloop.cli.evaluate import evaluate
from glassloop.cli.predict import predict
from glassloop.predictor import SeedsPredictor

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

LABELS = ["pos, really", "neg"]
OTHERS = [(f"{'bad' if number % 3 else 'very good'} story {number}", LABELS[number % 2]) for number in range(12)]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    return path


def answered(run: str, *texts: str | None) -> dict[str, Any]:
    """Return what the command answers for a text or a pair."""
    (answer,) = predict(run, *texts, device="cpu").content["predictions"]
    return answer


def test_a_text(text_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(str(text_run), "a good film")
    expected = Predictor(text_run, device="cpu").predict("a good film")[0]
    assert found["label"] == expected.label
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-5)
    first, second = capsys.readouterr().out.splitlines()
    assert first.rsplit(None, 1) == [found["label"], f"{max(found['scores'].values()):.4f}"]
    assert second.split()[-1] == f"{min(found['scores'].values()):.4f}"


def test_a_pair(pair_run: Path) -> None:
    found = answered(str(pair_run), "good", "bad")
    expected = Predictor(pair_run, device="cpu").predict("good", "bad")[0]
    assert found["label"] == expected.label
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-5)


HEAVY = ("transformers", "datasets", "pandas", "sklearn", "scipy", "accelerate", "torch._dynamo", "sympy", "triton")


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
        answered(str(pair_run), "good")
    with says("the model was trained on single texts", 'glassloop predict RUN "text"'):
        answered(str(text_run), "good", "bad")
    with says("there is no text to predict", 'glassloop predict RUN "text" ["second text"], or --file FILE'):
        answered(str(text_run), None)


def test_a_bare_model_takes_what_it_is_given(text_run: Path) -> None:
    for pair in (None, "bad"):
        assert answered(str(text_run / "model"), "good", pair)["label"] in LABELS


@pytest.fixture
def save_model(tiny_tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Saves a model whose labels have these names, and returns its folder."""
    from families import tiny_model

    def save(names: list[str]) -> str:
        model = tiny_model(id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)})
        model.save_pretrained(tmp_path)
        tiny_tokenizer.save_pretrained(tmp_path)
        capsys.readouterr()
        return str(tmp_path)

    return save


def test_of_many_labels_the_most_likely_are_shown(save_model, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(save_model([f"L{number}" for number in range(40)]), "good")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].split()[0] == found["label"]
    assert (len(lines), lines[-1]) == (16, "and 25 more")


def test_a_label_is_no_markup(save_model, capsys: pytest.CaptureFixture[str]) -> None:
    answered(save_model(["[bold]a[/bold]", "b\x1b[31m"]), "good")
    out = capsys.readouterr().out
    assert "[bold]a[/bold]" in out
    assert "\x1b" not in out
    assert "b\\x1b[31m" in out


def test_a_file(text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "in.csv", OTHERS)
    predict(str(text_run), file=str(source), device="cpu")
    target = tmp_path / "in-predictions.csv"
    assert capsys.readouterr().out == f"12 rows → {target}\n"
    with target.open(newline="") as opened:
        assert [row["text"] for row in csv.DictReader(opened)] == [text for text, _ in OTHERS]
    predict(str(text_run), file=str(source), out=str(tmp_path / "out.jsonl"), text_column="text", device="cpu", delimiter=",")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 12


def test_a_tab_by_its_name(text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\tother\ngood\t1\n")
    predict(str(text_run), file=str(tmp_path / "in.csv"), out=str(tmp_path / "out.tsv"), device="cpu", delimiter="tab")
    assert (tmp_path / "out.tsv").read_text().startswith("text\tother\tprediction\t")


def test_a_link_that_leads_to_itself_is_no_data_file(says, text_run: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop.csv"
    loop.symlink_to("loop.csv")
    with says(f"{loop}: there is no such data file", kind=DataError):
        predict(str(text_run), file=str(loop), out=str(tmp_path / "out.csv"), device="cpu")


@pytest.mark.parametrize("out", ["in.csv", "./folder/../in.csv"])
def test_the_file_itself_is_not_overwritten(says, text_run: Path, tmp_path: Path, monkeypatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    source = write_rows(tmp_path / "in.csv", OTHERS)
    before = source.read_bytes()
    with says("the predictions would overwrite the data file", "choose another file with --out"):
        predict(str(text_run), file="in.csv", out=out, device="cpu")
    assert source.read_bytes() == before


def test_an_out_that_is_a_folder_is_found_before_the_model_is_loaded(says, text_run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("glassloop.predictor.Predictor", lambda *_, **__: pytest.fail("the model was loaded"))
    source = write_rows(tmp_path / "in.csv", OTHERS)
    (tmp_path / "out.csv").mkdir()
    with says(f"{tmp_path / 'out.csv'} is a folder", f"choose a file, for example {tmp_path / 'out.csv' / 'predictions.csv'}"):
        predict(str(text_run), file=str(source), out=str(tmp_path / "out.csv"), device="cpu")


def test_an_out_that_cannot_be_written_is_found_before_the_first_row_is_predicted(
    text_run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(Predictor, "logits", lambda *_: pytest.fail("a row was predicted"))
    source = write_rows(tmp_path / "in.csv", OTHERS)
    with pytest.raises(ResourceError, match="choose a folder that can be written to"):
        predict(str(text_run), file=str(source), out=str(source / "out.csv"), device="cpu")


@pytest.mark.parametrize("source", [".", "..", "/"])
def test_a_folder_is_no_data_file(source: str, text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is no such data file"):
        predict(str(text_run), file=source, out=str(tmp_path / "out.csv"), device="cpu")
    with pytest.raises(DataError, match="there is no such data file"):
        predict(str(text_run), file=source, device="cpu")


def test_an_empty_name_is_not_a_name_left_out(says, text_run: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.csv", OTHERS)
    for given in ((str(source), ""), ("", str(tmp_path / "out.csv"))):
        with says('"": the path is empty', "use another path"):
            predict(str(text_run), file=given[0], out=given[1], device="cpu")


def test_a_path_cannot_talk_to_the_terminal(text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "in.csv", OTHERS)
    predict(str(text_run), file=str(source), out=str(tmp_path / "\x1b[31m.csv"), device="cpu")
    assert capsys.readouterr().out == f"12 rows → {tmp_path}/\\x1b[31m.csv\n"


def test_truncated_texts_are_reported_with_what_to_do(
    text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "good film " * 20
    note = "glassloop: 1 of {} lost the end of the text: cut to 24 tokens, the longest had 42; "
    note += "train with --max_length 42 to keep everything\n"
    answered(str(text_run), long)
    assert capsys.readouterr().err == note.format("1 row (100%)")
    source = write_rows(tmp_path / "in.csv", [(long, "neg"), ("bad", "neg"), ("good", "pos, really")])
    predict(str(text_run), file=str(source), device="cpu")
    assert capsys.readouterr().err == note.format("3 rows (33%)")
    evaluate(str(text_run), str(source), device="cpu")
    assert note.format("3 rows (33%)") in capsys.readouterr().err


NOTE = "glassloop: {} the text of a special token ([SEP]), which the tokenizer reads as that token\n"


def test_special_tokens_in_texts_are_reported(text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a good [SEP] film", "neg"), ("bad", "neg"), ("[SEP]", "pos, really")]
    source = write_rows(tmp_path / "in.csv", rows)
    predict(str(text_run), file=str(source), device="cpu")
    assert capsys.readouterr().err == NOTE.format("2 rows contain")
    answered(str(text_run), "good [SEP]")
    assert capsys.readouterr().err == NOTE.format("1 row contains")
    answered(str(text_run), "good")
    assert capsys.readouterr().err == ""
    evaluate(str(text_run), str(source), device="cpu")
    assert NOTE.format("2 rows contain") in capsys.readouterr().err


# --- for scripts, and with several seeds -------------------------------------------------------------------------


def test_the_result_for_scripts(text_run: Path, tmp_path: Path) -> None:
    content = json.loads(str(predict(str(text_run), "a good film", device="cpu")))
    (answer,) = content["predictions"]
    assert [*answer] == ["text", "text_pair", "label", "scores"]
    assert answer["label"] == max(answer["scores"], key=lambda label: answer["scores"][label])
    source = str(text_run.parent / "test.csv")
    content = json.loads(str(predict(str(text_run), file=source, out=str(tmp_path / "out.csv"), device="cpu")))
    assert content == {"run": str(text_run), "file": source, "rows": 9, "out": str(tmp_path / "out.csv")}


def test_a_folder_of_seeds_predicts_with_all_of_them(seeds_folder: Path, text_run: Path, tmp_path: Path) -> None:
    found = answered(str(seeds_folder), "a good film")
    expected = SeedsPredictor(seeds_folder, device="cpu").predict("a good film")[0]
    assert (found["label"], found["scores"]) == (expected.label, expected.scores)
    source, target = text_run.parent / "test.csv", tmp_path / "out.csv"
    content = predict(str(seeds_folder), file=str(source), out=str(target), device="cpu").content
    assert (content["rows"], content["out"]) == (9, target)
    with target.open(newline="") as opened:
        rows = [*csv.DictReader(opened)]
    answers = SeedsPredictor(seeds_folder, device="cpu").predict([row["text"] for row in rows])
    assert [row["prediction"] for row in rows] == [answer.label for answer in answers]


def test_skipped_rows_are_counted_and_listed_beside_the_predictions(text_run, tmp_path, capsys):
    source = tmp_path / "in.csv.gz"
    source.write_bytes(gzip.compress(b"text,n\ngood,1\nbad\n"))
    predict(str(text_run), file=str(source), device="cpu", bad_rows="skip")
    listing = tmp_path / "in-predictions-skipped-rows.csv"
    said = capsys.readouterr()
    assert f"skipped 1 row that cannot be read; {listing} lists them" in said.err
    assert said.out == f"1 row → {tmp_path / 'in-predictions.csv'}\n"
    assert listing.read_text() == 'file,row,problem\nin.csv.gz,3,"the row has 1 fields, but the header has 2 (text, n)"\n'


def test_a_file_that_exists_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    source, target = write_rows(tmp_path / "in.csv", [("a", "b")]), tmp_path / "in-predictions.csv"
    target.write_text("years of work")
    for out in (None, str(target)):
        with pytest.raises(SettingsError, match=r"in-predictions\.csv exists") as raised:
            predict("no-run", file=str(source), out=out)
        assert "--overwrite" in raised.value.remedy
    with pytest.raises(SettingsError, match=r"in-predictions\.csv exists"):
        evaluate("no-run", out=str(target))
    with pytest.raises(ModelError, match="no-run"):
        predict("no-run", file=str(source), overwrite=True)


def test_an_interrupted_file_says_that_it_continues(
    text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write_rows(tmp_path / "in.csv", OTHERS), tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            predict(str(text_run), file=str(source), out=str(out), device="cpu")
    assert "stopped; the same command continues" in capsys.readouterr().err
    predict(str(text_run), file=str(source), out=str(out), device="cpu")
    assert len(out.read_text().splitlines()) == 13


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
