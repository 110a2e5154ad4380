"""Files of predictions: in parts, continued after an interruption, shared by processes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glassloop.base.errors import DataError, ResourceError, SettingsError
from glassloop.base.output import advance, show_on
from glassloop.data.encoding import Counts, Truncation, TypedTokens
from glassloop.predict import files as file_predictions
from glassloop.predict.files import SHARE, FileJob, Parts, content_key, predict_rows, share_environments
from glassloop.settings.training import CLASSES, DataSettings

COUNTS = Counts(2, Truncation(1, 1, 0, 5, 0, 30), TypedTokens(1, ("[SEP]",)))
ROWS = [{"text": "a, b", "prediction": "=x"}, {"text": "c\nd", "prediction": "y"}]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_parts_become_one_file(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    parts = Parts(target, ["x"], [*ROWS[0]], pa.schema([("text", pa.string()), ("prediction", pa.string())]))
    parts.open(alone=True)
    for number in (1, 0):
        parts.write(number, [{**row, "text": f"{number}{row['text']}"} for row in ROWS], COUNTS)
    assert parts.has(1)
    assert not parts.has(2)
    assert parts.counts(0) + parts.counts(1) == COUNTS + COUNTS
    parts.join(2)
    assert [*tmp_path.iterdir()] == [target]
    if suffix == ".parquet":
        assert [row["text"] for row in pq.read_table(target).to_pylist()] == ["0a, b", "0c\nd", "1a, b", "1c\nd"]
    elif suffix == ".csv":
        assert target.read_text() == 'text,prediction\n"0a, b",\'=x\n"0c\nd",y\n"1a, b",\'=x\n"1c\nd",y\n'
    else:
        assert len(target.read_text().splitlines()) == 4


def test_parts_are_kept_beside_the_file_they_belong_to_whose_key_changes_with_its_content(tmp_path: Path, says) -> None:
    old, new = Parts(tmp_path / "out.csv", ["old"], []), Parts(tmp_path / "out.csv", ["new"], [])
    other = Parts(tmp_path / "another.csv", ["old"], [])
    for parts in (old, other):
        parts.open(alone=True)
    new.open(alone=False)
    assert old.folder.is_dir()
    new.open(alone=True)
    assert not old.folder.is_dir()
    assert new.folder.is_dir()
    assert other.folder.is_dir()
    (tmp_path / "file").write_text("")
    with says(f"{tmp_path / 'file'}: Not a directory", "choose a folder that can be written to", ResourceError):
        Parts(tmp_path / "file" / "out.csv", [], []).open(alone=True)
    (tmp_path / "a").write_text("1")
    before = content_key(tmp_path / "a")
    (tmp_path / "a").write_text("2")
    assert content_key(tmp_path / "a") != before


class Predicting:
    """Answers with the length of a text; stops after some calls."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.calls, self.stop_after = 0, stop_after

    def __call__(self, texts: Any) -> Any:
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        return [{"prediction": str(len(text)), "score_a": 0.5} for text in texts[0]], Counts(len(texts[0]))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_predictions, "PART_ROWS", 10)


def job_of(folder: Path, target: str = "out.csv", rows: int = 95, **more: Any) -> FileJob:
    source = folder / "in.csv"
    source.write_text("text,n\n" + "".join(f"{'x' * (row % 7 + 1)},{row}\n" for row in range(rows)))
    given = {"settings": DataSettings(), "task": CLASSES, "names": ("a",), "identity": ("m",), **more}
    return FileJob(source, folder / target, ("text",), **given)


@pytest.mark.parametrize("target", ["out.csv", "out.tsv", "out.jsonl", "out.parquet"])
def test_an_interrupted_command_ends_in_the_same_file(tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    predict_rows(job_of(tmp_path, f"whole{target[3:]}"), Predicting())
    capsys.readouterr()
    job, first, second = job_of(tmp_path, target), Predicting(4), Predicting()
    with pytest.raises(KeyboardInterrupt):
        predict_rows(job, first)
    assert not (tmp_path / target).exists()
    counts, _ = predict_rows(job, second)
    assert second.calls == 6
    assert counts.rows == 95
    assert capsys.readouterr().err == "glassloop: resuming after 40 rows of an earlier command\n"
    assert (tmp_path / target).read_bytes() == (tmp_path / f"whole{target[3:]}").read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_progress_ends_at_the_number_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokenizing and the forward pass of each seed count the rows of a part, too."""

    class Counting(Predicting):
        def __call__(self, texts: Any) -> Any:
            for _ in range(3):
                advance(len(texts[0]))
            return super().__call__(texts)

    shown, counted, total = Mock(), 0, None
    show_on(shown)
    try:
        with pytest.raises(KeyboardInterrupt):
            predict_rows(job_of(tmp_path), Counting(4))
        predict_rows(job_of(tmp_path), Counting())
    finally:
        show_on(None)
    for name, given, _ in shown.method_calls:
        counted = 0 if name == "begin" else counted + sum(given)
        total = given[0].total if name == "begin" else total
        assert total is None or counted <= total
    assert (counted, total) == (95, 95)


def test_a_file_is_replaced_only_if_wanted(tmp_path: Path) -> None:
    job = job_of(tmp_path, overwrite=False)
    job.target.write_text("years of work")
    with pytest.raises(SettingsError) as raised:
        predict_rows(job, Predicting())
    assert (raised.value.problem, raised.value.exit_code) == (f"{job.target} exists", 2)
    assert "--overwrite" in raised.value.remedy
    with pytest.raises(KeyboardInterrupt):  # parts of another model do not make the file ours
        predict_rows(replace(job, overwrite=True, identity=("n",)), Predicting(2))
    with pytest.raises(SettingsError):
        predict_rows(job, Predicting())
    assert job.target.read_text() == "years of work"
    predict_rows(replace(job, overwrite=True), Predicting())
    assert job.target.read_text().startswith("text,n,prediction")


@pytest.mark.parametrize("changed", [{"rows": 96}, {"identity": ("n",)}, {"settings": DataSettings(encoding="utf-8")}])
def test_parts_of_another_file_model_or_setting_are_not_used(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        predict_rows(job_of(tmp_path), Predicting(4))
    second = Predicting()
    predict_rows(job_of(tmp_path, **changed), second)
    assert second.calls == 10


def test_processes_share_the_parts_and_one_joins_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for rank in range(3):
        monkeypatch.setenv(SHARE, f"{rank}/3")
        predict = Predicting()
        predict_rows(job_of(tmp_path), predict)
        calls.append(predict.calls)
        assert not (tmp_path / "out.csv").exists()
    monkeypatch.delenv(SHARE)
    joined = Predicting()
    assert predict_rows(job_of(tmp_path), joined)[0].rows == 95
    assert (calls, joined.calls) == ([4, 3, 3], 0)
    lines = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == [str(row) for row in range(95)]
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    on_cpu = share_environments(4, 0)
    assert [found[SHARE] for found in on_cpu] == ["0/4", "1/4", "2/4", "3/4"]
    assert {found["OMP_NUM_THREADS"] for found in on_cpu} == {"2"}
    assert [found["CUDA_VISIBLE_DEVICES"] for found in share_environments(4, 2)] == ["0", "1", "0", "1"]


def test_parquet_keeps_the_types_of_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "bb"], "n": [1, None], "l": [[1], [2, 3]]}), tmp_path / "in.parquet")
    predict_rows(replace(job_of(tmp_path, "out.parquet"), source=tmp_path / "in.parquet"), Predicting())
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["text", "n", "l", "prediction", "score_a"]
    assert found["n"].to_pylist() == [1, None]
    assert found.schema.field("n").type == pa.int64()


def test_faults_of_a_file_are_named_before_a_row_is_predicted(tmp_path: Path, says, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, settings=DataSettings(bad_rows="skip"))
    job.source.write_text("text,n\na,1\nb\nc,2\n,3\n")
    with says("in.csv, row 5: the text is empty", "fill or remove the row", DataError):  # rows after a skipped one
        predict_rows(job, Predicting(0))
    with says('in.csv: there is no column "body"; found text, n', "name the columns with --text and --text_pair", DataError):
        predict_rows(replace(job, texts=("text,body",)), Predicting(0))
    monkeypatch.setattr("glassloop.data.readers.CHUNK_ROWS", 1, raising=False)
    tables = [pa.table({"text": ["a"], "n": pa.array([1])}), pa.table({"text": ["b"], "n": pa.array([[1]])})]
    monkeypatch.setattr("glassloop.predict.files.read_file", lambda *_: iter(tables))
    with pytest.raises(DataError) as caught:
        predict_rows(job_of(tmp_path, "out.parquet"), Predicting())
    assert "in.csv: a column changes its type" in caught.value.problem


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassloop.data.readers.CHUNK_ROWS", 500)
    monkeypatch.setattr(file_predictions, "PART_ROWS", 500)
    predict_rows(job_of(tmp_path, "warm.csv", rows=1_000), Predicting())
    peaks = []
    for rows in (1_000, 6_000):
        job = job_of(tmp_path, rows=rows)
        tracemalloc.start()
        predict_rows(job, Predicting())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000, peaks
