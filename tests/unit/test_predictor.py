"""The Predictor: the numbers of the training in use, and files whose rows come back in order, unharmed and harmless."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from families import tiny_model
from packs import needs_kernels
from run_folders import RECORD
from safetensors.torch import load_file, save_file

from glassloop import Predictor, Trainer, TrainingArguments, encode, load_examples, load_tokenizer
from glassloop.backends import packed
from glassloop.base.errors import DataError, ModelError, SettingsError
from glassloop.data.encoding import tokenizer_key
from glassloop.data.readers import read_file
from glassloop.runs.record import RUN_NAME, read_run, write_run

TEXTS = ["a good film", "bad", "the story is very very very very very very very very good", "not good not bad"]


@pytest.fixture(scope="module")
def predictor(text_run: Path) -> Predictor:
    return Predictor(text_run, device="cpu", batch_size=3)


@pytest.fixture
def model_dir(tiny_tokenizer, tmp_path: Path):
    """A bare model folder of a task."""

    def save(task: str, num_labels: int, names: list[str] | None = None) -> Path:
        model = tiny_model(num_labels=num_labels, problem_type=task, initializer_range=0.3)
        if names:
            model.config.id2label = dict(enumerate(names))
            model.config.label2id = {name: number for number, name in enumerate(names)}
        model.save_pretrained(tmp_path / task)
        tiny_tokenizer.save_pretrained(tmp_path / task)
        return tmp_path / task

    return save


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as opened:
        return [*csv.DictReader(opened)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predictor_trainer_evaluation_and_file_say_the_same(predictor: Predictor, text_run: Path, tmp_path: Path) -> None:
    examples = load_examples(str(text_run.parent), labels=predictor.names)
    texts = examples.splits["validation"]["text"][:]
    ours = np.array([found.logits for found in predictor.predict(texts)])
    args = TrainingArguments(tmp_path, device="cpu", precision="fp32", per_device_eval_batch_size=5)
    trainer = Trainer(predictor.model, args, processing_class=predictor.tokenizer)
    rows = encode(examples, predictor.tokenizer, predictor.max_length)["validation"].rows
    np.testing.assert_allclose(ours, trainer.predict(rows).predictions, atol=1e-5)
    written = read_lines(text_run / "validation-predictions.jsonl")
    assert [entry["text"] for entry in written] == texts
    np.testing.assert_allclose(ours, [entry["logits"] for entry in written], atol=1e-5)
    predictor.predict_file(text_run.parent / "validation.csv", tmp_path / "out.jsonl")
    cooler = ours / predictor.answering.temperature
    shares = np.exp(cooler) / np.exp(cooler).sum(axis=1, keepdims=True)
    from_file = [[entry[f"score_{name}"] for name in predictor.names] for entry in read_lines(tmp_path / "out.jsonl")]
    np.testing.assert_allclose(from_file, shares, atol=1e-5)
    for size in (1, 64):
        alone = Predictor(text_run, device="cpu", batch_size=size).predict(texts)
        np.testing.assert_allclose([one.logits for one in alone], ours, atol=1e-5)


def test_one_label_and_where_its_text_is_cut(predictor: Predictor, text_run: Path) -> None:
    assert predictor.names == ["pos, really", "neg"]
    for found in predictor.predict(["good film", "bad film"]):
        assert sum(found.scores.values()) == pytest.approx(1)
        assert found.label == max(found.scores, key=lambda name: found.scores[name])
        assert [*found.scores] == predictor.names
        assert predictor.names[int(np.argmax(found.logits))] == found.label
    good, bad = (found.scores["pos, really"] for found in predictor.predict(["good film 8", "bad film 9"]))
    assert good > bad
    assert predictor.max_length == 24
    long = "good " * 22
    assert predictor.predict(long)[0] == predictor.predict(long + "bad " * 50)[0]
    other = Predictor(text_run, device="cpu", temperature=3.0, thresholds={"neg": 0.0})
    plain, changed = predictor.predict("good film 8")[0], other.predict("good film 8")[0]
    assert (plain.label, changed.label) == ("pos, really", "neg")
    assert changed.logits == plain.logits
    assert max(changed.scores.values()) < max(plain.scores.values())
    bare = Predictor(text_run / "model", device="cpu")
    assert bare.run is None
    assert bare.predict("good film") == predictor.predict("good film")


def test_several_labels(model_dir, tmp_path: Path) -> None:
    predictor = Predictor(model_dir("multi_label_classification", 6, ["a", "b, c", "d", "e", "f", "g"]), device="cpu")
    answers = predictor.predict(TEXTS)
    for found in answers:
        assert found.label == [name for name, score in found.scores.items() if score >= 0.5]
        np.testing.assert_allclose([*found.scores.values()], 1 / (1 + np.exp(-np.array(found.logits))))
    assert 0 < sum(len(found.label) for found in answers) < 24
    (tmp_path / "in.csv").write_text("text\n" + "\n".join(TEXTS))
    for name in ("out.csv", "out.jsonl"):
        predictor.predict_file(tmp_path / "in.csv", tmp_path / name, "text", None)
    assert [row["prediction"] for row in read_csv(tmp_path / "out.csv")] == ["|".join(one.label) for one in answers]
    assert [row["prediction"] for row in read_lines(tmp_path / "out.jsonl")] == [one.label for one in answers]


def test_pairs_in_every_form(pair_run: Path) -> None:
    predictor = Predictor(pair_run, device="cpu")
    wanted = predictor.predict(["good", "good"], ["bad", "the film is good"])
    assert wanted[0].logits != wanted[1].logits
    pairs = [("good", "bad"), ("good", "the film is good")]
    first, second = predictor.run.data.columns.texts
    assert predictor.predict(pairs) == predictor.predict([{first: one, second: other} for one, other in pairs]) == wanted
    for given in (("good", "bad"), ({"text": "good", "text_pair": "bad"},)):
        assert predictor.predict(*given)[0].logits == pytest.approx(wanted[0].logits, abs=1e-5)
    assert predictor.predict("bad", "good")[0].logits != pytest.approx(wanted[0].logits, abs=1e-5)


def test_a_generator_is_read_a_little_ahead_and_what_is_no_text_refused(predictor: Predictor, monkeypatch) -> None:
    monkeypatch.setattr("glassloop.predictor.STREAMED_ROWS", 8)
    read = []

    def texts():
        for number in range(10**9):
            read.append(number)
            yield TEXTS[number % 4]

    answers = predictor.predict(texts())
    found = [next(answers).logits for _ in range(20)]
    assert len(read) == 24
    wanted = [one.logits for one in predictor.predict([TEXTS[number % 4] for number in range(20)])]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for texts, pairs, problem in [
        (["good", None], None, 'text 2 is "None", not text'),
        (["good", "bad"], ["good", 7], 'text 2 is "7", not text'),
        (["good", "a bad \ud800 film"], None, "text 2 contains '\\ud800', which is half of a surrogate pair"),
        (["a", "b", "c"], ["d", "e"], "there are 3 texts, but 2 second texts"),
    ]:
        with pytest.raises((DataError, SettingsError)) as raised:
            predictor.predict(texts, pairs)
        assert raised.value.problem == problem
        assert predictor.predict([]) == []


def test_threads_share_a_predictor_and_read_their_own_notes(text_run: Path) -> None:
    """Neither the tokenizer's truncation nor the model's state is mixed up, nor a request told that another text was cut."""
    predictor = Predictor(text_run, device="cpu")
    texts = [f"{'very ' * (number % 40)}good {TEXTS[number % 4]}" for number in range(60)]
    wanted = [one.logits for one in predictor.predict(texts)]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda text: predictor.predict(text)[0].logits, texts)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    predictor, together = Predictor(text_run, device="cpu"), Barrier(2)

    def notes(text: str) -> list[str]:
        together.wait()
        predictor.predict(text)
        together.wait()  # both have predicted before one reads
        return predictor.notes

    with ThreadPoolExecutor(2) as pool:
        cut, whole = pool.map(notes, ["good film " * 2_000, "good film"])
    assert len(cut) == 1
    assert whole == []
    assert predictor.notes == [], "this thread has predicted nothing"


def test_the_model_stays_ready_until_somebody_changes_it(text_run: Path) -> None:
    predictor = Predictor(text_run, device="cpu")
    first, savings = predictor.logits(TEXTS), predictor.backend.savings
    assert savings is not None
    assert np.array_equal(predictor.logits(TEXTS), first)
    assert predictor.backend.savings is savings
    with torch.no_grad():
        predictor.model.base_model.encoder.layer[0].output.dense.weight.mul_(1.5)
    changed = predictor.logits(TEXTS)
    assert predictor.backend.savings is not savings
    assert not np.allclose(changed, first)
    seen: list[int] = []
    part = predictor.model.base_model.encoder.layer[0].attention.output
    handle = part.register_forward_hook(lambda *given: seen.append(1))
    np.testing.assert_allclose(predictor.logits(TEXTS), changed, rtol=1e-5, atol=1e-5)
    assert seen, "the hook of a user is called"
    handle.remove()
    predictor.model.head = torch.nn.Linear(predictor.model.config.hidden_size, 2)
    assert not np.allclose(predictor.logits(TEXTS), changed)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_kernels)])
def test_a_few_rows_in_one_pass_are_those_of_a_pass_over_all(text_run: Path, precision: str, monkeypatch) -> None:
    predictor = Predictor(text_run, device="cpu", precision=precision)
    rows = predictor.encoded([["a good film", "bad", "very good story and a long one", "a", "not bad"]]).rows
    wanted = predictor._forward([row.inputs for row in rows]).logits
    with monkeypatch.context() as patched:
        patched.setattr(Predictor, "_forward", lambda *given: pytest.fail("a pass over a split"))
        np.testing.assert_array_equal(predictor.forward(rows), wanted)
    with monkeypatch.context() as patched:
        patched.setitem(packed.EVALUATION_TOKENS, "cpu", 8)
        assert predictor._in_one_pass([row.inputs for row in rows]) is None, "more tokens than a batch holds"
        np.testing.assert_allclose(predictor.forward(rows), wanted, rtol=1e-5, atol=1e-5)


def test_rows_in_one_pass_are_checked_like_others(text_run: Path, says) -> None:
    predictor = Predictor(text_run, device="cpu")
    (row,) = predictor.encoded([["a good film"]]).rows
    predictor.forward([row])
    number = predictor.model.config.vocab_size
    problem = f"a row has the token id {number:,}, but the vocabulary of the model has only {number:,} tokens"
    with says(problem, "use the model's own tokenizer"):
        predictor.forward([replace(row, inputs={**row.inputs, "input_ids": [number] * row.num_tokens})])


def test_damaged_folders_and_answers_that_are_not_finite_are_refused(says, tmp_path: Path, model_dir) -> None:
    write_run(tmp_path, RECORD)
    remedy = f"train it to the end: glassloop train --resume {tmp_path}"
    with says(f"{tmp_path}: the run is running and has no model yet", remedy, ModelError):
        Predictor(tmp_path)
    (tmp_path / RUN_NAME).write_text("[]")
    with pytest.raises(ModelError, match="the record of the run cannot be read: the file is a list of 0, not an object"):
        Predictor(tmp_path)
    # Weights can be finite and overflow all the same.
    predictor = Predictor(model_dir("single_label_classification", 2), device="cpu")
    with torch.no_grad():
        predictor.model.classifier.weight[1] = 3e38
    remedy = "download the model again: its weights are damaged"
    with says("row 1: the prediction of the model is not finite", remedy, ModelError):
        predictor.predict(["good", "bad"])
    path = model_dir("single_label_classification", 2) / "model.safetensors"
    weights = load_file(path)
    weights["classifier.bias"][1] = np.nan
    save_file(weights, path, {"format": "pt"})
    problem = f"{path}: the weight classifier.bias is not finite (1 of its 2 numbers)"
    with says(problem, "download the model again: its weights are damaged, or its training diverged", ModelError):
        Predictor(path.parent, device="cpu")
    # Their scores would be one entry, and the other would be lost.
    folder = model_dir("single_label_classification", 3, ["good", "bad", "good"])
    problem = 'the model has two outputs with the label "good"'
    with says(problem, "give each its own name in id2label and label2id of its config.json", ModelError):
        Predictor(folder, device="cpu")


ROWS = [
    {"id": "1", "text": "a good film", "note": "=cmd()|' /C calc'!A0"},
    {"id": "2", "text": "=1+1 is good", "note": "+1"},
    {"id": "3", "text": 'bad, "really"\nbad', "note": "-2"},
    {"id": "4", "text": "@here Ü 漢", "note": "@x"},
    {"id": "5", "text": "very bad", "note": "plain = fine"},
]


def source_of(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as opened:
        if suffix == ".csv":
            csv.writer(opened).writerows([ROWS[0], *(row.values() for row in ROWS)])
        elif suffix == ".tsv":
            opened.writelines("\t".join(row).replace("\n", " ") + "\n" for row in [ROWS[0], *(row.values() for row in ROWS)])
        else:
            opened.write(json.dumps(ROWS) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("target", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("source", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_every_kind_of_file_to_every_kind(predictor: Predictor, tmp_path: Path, source: str, target: str) -> None:
    """Through our own reader and back: nothing is lost, and in tables no cell is a formula."""
    path, out = source_of(tmp_path, source), tmp_path / f"out{target}"
    if target == ".tsv" and source != ".tsv":
        told = r'row [34]: "text" contains a tab or a line end, which a \.tsv file cannot contain'
        with pytest.raises(DataError, match=told):
            predictor.predict_file(path, out)
        assert not out.exists()
        return
    assert predictor.predict_file(path, out) == 5
    found = [row for table in read_file(out) for row in table.to_pylist()]
    assert [row["id"] for row in found] == ["1", "2", "3", "4", "5"]
    assert [*found[0]] == ["id", "text", "note", "prediction", "score_pos, really", "score_neg"]
    texts = [row["text"].replace("\n", " ") if source == ".tsv" else row["text"] for row in ROWS]
    for row, text, answer in zip(found, texts, predictor.predict(texts), strict=True):
        assert row["prediction"] == answer.label
        assert row["text"] == text
        for name, score in answer.scores.items():
            assert float(row[f"score_{name}"]) == pytest.approx(score, abs=1e-6)
    assert [row["note"] for row in found] == [row["note"] for row in ROWS]
    assert ("'=1+1 is good" in out.read_text(encoding="utf-8")) == (target != ".jsonl")


def test_no_column_is_overwritten_and_no_name_is_a_formula(says, predictor: Predictor, tmp_path: Path, model_dir) -> None:
    for name in ["prediction", "score_neg", "score_pos, really"]:
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "good", name: "mine"}) + "\n")
        remedy = "rename it: predictions are written to a column of that name"
        with says(f'in.jsonl: there is already a column "{name}"', remedy, DataError):
            predictor.predict_file(tmp_path / "in.jsonl", tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()
    predictor = Predictor(model_dir("single_label_classification", 2, ["=a", "b"]), device="cpu")
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good", "=x": 1}\n{"text": "bad", "=x": 2}\n')
    with says("in.jsonl: the text column is not known; found text, =x", "name it with --text"):
        predictor.predict_file(source, tmp_path / "out.csv")
    predictor.predict_file(source, tmp_path / "out.csv", "text", None)
    header, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "text,'=x,prediction,score_=a,score_b"
    assert {row.split(",")[2] for row in rows} <= {"'=a", "b"}


def test_the_whole_file_is_checked_before_the_first_row_is_predicted(predictor: Predictor, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("glassloop.data.readers.CHUNK_ROWS", 4)
    (tmp_path / "in.csv").write_text("text,id\n" + "".join(f"good {number},{number}\n" for number in range(10)))
    assert predictor.predict_file(tmp_path / "in.csv", tmp_path / "out.csv") == 10
    assert [int(row["id"]) for row in read_csv(tmp_path / "out.csv")] == [*range(10)], "in order across pieces"
    monkeypatch.setattr(predictor, "_forward", lambda *_: pytest.fail("a row was predicted"))
    (tmp_path / "in.jsonl").write_text('{"text": "good"}\n' * 9 + '{"text": "a\\tb"}\n' * 3 + '{"text": ""}\n')
    with pytest.raises(DataError, match=re.escape("in.jsonl, row 13: the text is empty")):
        predictor.predict_file(tmp_path / "in.jsonl", tmp_path / "out.csv")
    with pytest.raises(DataError, match=re.escape('in.jsonl, row 10: "text" contains a tab or a line end')):
        predictor.predict_file(tmp_path / "in.jsonl", tmp_path / "out.tsv")


def test_pairs_of_a_file_and_files_as_they_come(pair_run: Path, tmp_path: Path, predictor: Predictor) -> None:
    paired = Predictor(pair_run, device="cpu")
    source = tmp_path / "in.csv"
    source.write_text("sentence1,sentence2,a,b\ngood,bad,bad,good\n")
    paired.predict_file(source, tmp_path / "own.jsonl")
    paired.predict_file(source, tmp_path / "named.jsonl", "a", "b")
    with pytest.raises(DataError, match="the model compares two texts"):
        paired.predict_file(source, tmp_path / "single.jsonl", "a", None)
    own, named = (read_lines(tmp_path / f"{name}.jsonl")[0] for name in ("own", "named"))
    answers = [paired.predict(*texts)[0] for texts in (("good", "bad"), ("bad", "good"))]
    for found, answer in zip((own, named), answers, strict=True):
        assert {name: found[f"score_{name}"] for name in answer.scores} == pytest.approx(answer.scores, abs=1e-6)
    # Without a header, compressed, with a broken byte and with two columns to join.
    source = tmp_path / "in.csv.gz"
    source.write_bytes(gzip.compress(b"good;very good\nbad;\nbro\xffken;x\nbad;not good\n"))
    reading = {"columns": "a,b", "bad_rows": "skip", "delimiter": ";"}
    assert predictor.predict_file(source, tmp_path / "out.jsonl", "a,b", **reading) == 3
    rows, answers = read_lines(tmp_path / "out.jsonl"), predictor.predict(["good\nvery good", "bad", "bad\nnot good"])
    assert [[row["a"], row["b"]] for row in rows] == [["good", "very good"], ["bad", ""], ["bad", "not good"]]
    for row, answer in zip(rows, answers, strict=True):
        assert {name: row[f"score_{name}"] for name in answer.scores} == pytest.approx(answer.scores, abs=1e-6)
    assert predictor.skipped.rows == {source: {3: "the row contains a byte that is not text"}}
    with pytest.raises(SettingsError, match='unknown setting "delimeter"'):
        predictor.predict_file(source, tmp_path / "out.jsonl", delimeter=",")


FORMATS = "use one of .csv, .tsv, .txt, .json, .jsonl, .ndjson, .parquet, .xlsx, .xls, .ods, or one of these with "
FORMATS += ".gz, .bz2, .xz, .zst, .zip"
NO_COLUMN, NAMED = "in.csv: there is no column", "name the columns with --text and --text_pair"
WRITTEN = "out.xlsx: predictions are written as .csv, .tsv, .jsonl or .parquet"


def test_a_file_that_is_refused(predictor: Predictor, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("id,text,other\n1,good,x\n2,bad,y\n3,fine,\n")
    Path("none.csv").write_text("text\n")
    Path("in.jsonl").write_text('{"text": "good"}\n{"text": null}\n')
    pyarrow.parquet.write_table(pa.table({"text": [1, 2]}), "in.parquet")
    os.mkfifo("pipe.csv")
    before = sorted(tmp_path.iterdir())
    for given, problem, remedy in [
        (["gone.csv"], "gone.csv: there is no such data file", FORMATS),
        (["in.pdf"], "in.pdf: there is no such data file", FORMATS),
        (["pipe.csv"], "pipe.csv is a pipe, not a file", None),
        (["none.csv"], "none.csv: the file has no rows", "use a file with at least one row"),
        (["in.csv", "out.xlsx"], WRITTEN, "choose a name with one of these endings"),
        (["in.csv", "out.csv", "txet"], f'{NO_COLUMN} "txet"; found id, text, other; did you mean "text"?', NAMED),
        (["in.csv", "out.csv", "text", "second"], f'{NO_COLUMN} "second"; found id, text, other', NAMED),
        (["in.csv", "out.csv", "other"], "in.csv, row 4: the text is empty", "fill or remove the row"),
        (["in.jsonl"], "in.jsonl, row 2: the text is empty", "fill or remove the row"),
        (["in.parquet"], 'in.parquet, row 1: "text" is "1", not text', "name the text column with --text"),
    ]:
        source, target, *columns = given if len(given) > 1 else [*given, "out.csv"]
        with pytest.raises((DataError, SettingsError)) as caught:
            predictor.predict_file(Path(source), Path(target), *columns)
        assert caught.value.problem == problem
        assert remedy is None or caught.value.remedy == remedy
        assert sorted(tmp_path.iterdir()) == before, "something was left behind"


def test_a_file_holds_every_kind_of_cell_and_is_replaced_only_whole(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\ngood\n")
    (tmp_path / "out.csv").write_text("old")
    (tmp_path / "bad.csv").write_text('text\ngood\n""\n')
    with pytest.raises(DataError):
        predictor.predict_file(tmp_path / "bad.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "old"
    predictor.predict_file(tmp_path / "in.csv", tmp_path / "out.csv")
    assert len(read_csv(tmp_path / "out.csv")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "in.csv", "out.csv"]
    day = datetime.datetime(2026, 2, 3, 4, 5)
    table = pa.table({"text": ["good", "bad"], "day": [day, None], "share": [float("nan"), float("inf")], "list": [[day], []]})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    predictor.predict_file(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    first, second = read_lines(tmp_path / "out.jsonl")
    assert (first["day"], first["share"], first["list"]) == ("2026-02-03 04:05:00.000000", None, ["2026-02-03 04:05:00"])
    assert (second["day"], second["share"], second["list"]) == (None, "inf", [])
    predictor.predict_file(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert [row["share"] for row in read_csv(tmp_path / "out.csv")] == ["", "inf"]


def is_light(predictor: Predictor) -> bool:
    return type(predictor.model).__module__ == "glassloop.models.light"


@pytest.mark.parametrize("pairs", [False, True])
def test_without_transformers_the_predictions_are_the_same(pairs: bool, text_run: Path, pair_run: Path) -> None:
    """Lengths differ and some texts are truncated, so rows are padded and sorted."""
    run, seconds = (pair_run, [text[::-1] for text in TEXTS[::-1]]) if pairs else (text_run, None)
    texts = [*TEXTS[:3], "word [SEP] good, " * 40]
    light, known = Predictor(run, device="cpu", batch_size=3, light=True), Predictor(run, device="cpu", batch_size=3)
    assert is_light(light)
    assert not is_light(known)
    np.testing.assert_allclose(light.logits(texts, seconds), known.logits(texts, seconds), atol=1e-5)
    assert light.typed == known.typed
    assert light.typed.num_rows == 1
    assert all(getattr(light, name) == getattr(known, name) for name in ("names", "task", "max_length", "outputs"))


def changed_run(text_run: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a run whose record says something else."""
    shutil.copytree(text_run, folder)
    write_run(folder, replace(read_run(folder), **changes))
    return folder


def test_other_records_need_transformers_and_the_errors_without_it_are_the_same(text_run: Path, tmp_path: Path, says) -> None:
    identity = read_run(text_run).identity
    assert is_light(Predictor(changed_run(text_run, tmp_path / "same"), light=True))
    other = changed_run(text_run, tmp_path / "other", identity=identity | {"tokenizer": "0" * 16})
    assert not is_light(Predictor(other, light=True))
    assert not is_light(Predictor(changed_run(text_run, tmp_path / "none", identity={}), light=True))
    assert not is_light(Predictor(changed_run(text_run, tmp_path / "long", max_length=63), light=True))
    assert not is_light(Predictor(text_run / "model", light=True))  # no record at all
    run = changed_run(text_run, tmp_path / "run")
    path = run / "model" / "model.safetensors"
    weights = load_file(path)
    weights["bert.embeddings.LayerNorm.bias"][2] = float("nan")
    save_file(weights, path, {"format": "pt"})
    with says(f"{path}: changed since the run wrote it (its checksum differs)", kind=ModelError):
        Predictor(run, light=True)
    write_run(run, read_run(run))  # with the checksums of the files as they are now
    with says(f"{path}: the weight bert.embeddings.LayerNorm.bias is not finite (1 of its 32 numbers)", kind=ModelError):
        Predictor(run, light=True)
    run = changed_run(text_run, tmp_path / "large")
    tokenizer = load_tokenizer(run / "model")
    tokenizer.add_tokens(["new", "newer"])
    tokenizer.save_pretrained(run / "model")
    write_run(run, replace(read_run(run), identity=identity | {"tokenizer": tokenizer_key(tokenizer)[:16]}))
    with pytest.raises(ModelError, match="the tokenizer has 1 token beyond the 97 rows"):
        Predictor(run, light=True)
    run = changed_run(text_run, tmp_path / "code")
    path = run / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoModel": "code.Model"}}))
    write_run(run, read_run(run))
    with pytest.raises(ModelError, match="the model needs its own code"):
        Predictor(run, light=True)
