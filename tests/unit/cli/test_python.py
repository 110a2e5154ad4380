"""`glassloop.train`: the command from Python, with a file or with rows in memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from pandas import DataFrame

import glassloop
from glassloop import Run, train
from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.files import sha256_of
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run

pytestmark = pytest.mark.slow  # trains

ROWS = [{"text": f"{'good' if row % 3 else 'bad'} film {row}", "label": "pos" if row % 3 else "neg"} for row in range(30)]
SETTINGS: dict[str, Any] = {"max_steps": 2, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}


class Frame:
    """A table that offers itself in Arrow format, with texts as views: what a frame of polars does."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        table = pa.Table.from_pylist(rows)
        self.table = table.cast(pa.schema([field.with_type(pa.string_view()) for field in table.schema]))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def written(rows: list[dict[str, str]], folder: Path) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["text", "label"])
    writer.writeheader()
    writer.writerows(rows)
    (folder / "rows.csv").write_text(out.getvalue())
    return str(folder / "rows.csv")


def with_names(rows: list[dict[str, str]]) -> Dataset:
    return Dataset.from_list(rows, Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])}))


@pytest.fixture
def start(tmp_path: Path, lively_dir: Path) -> Callable[..., Run]:
    return lambda data, **settings: train(data, model=lively_dir, **{**SETTINGS, "output_dir": tmp_path / "out", **settings})


def weights(run: Run) -> str:
    return sha256_of(run.model_dir / "model.safetensors")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "make", [DataFrame, Frame, Dataset.from_list, with_names, list], ids=["pandas", "arrow", "dataset", "named", "list"]
)
def test_rows_in_memory_train_as_the_command_trains_the_file(
    make: Callable[..., Any], start: Callable[..., Run], tmp_path: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(ROWS, tmp_path)
    given = GivenSettings(file, str(lively_dir), {**SETTINGS, "output_dir": str(tmp_path / "command")})
    run = start(make(ROWS))
    assert weights(run) == weights(Run(train_run(given)))
    assert run.record.data.labels == ("neg", "pos")
    assert run.status == "finished"


def test_a_run_predicts_and_shows_its_report(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLASSLOOP_NO_REPORT")
    run = start(Path(written(ROWS, tmp_path)), text="text", label="label", report=False)
    assert not (run.folder / "report.html").exists()
    answers = run.predict(["good film 3", "bad film 4"])
    assert [{*answer.scores} for answer in answers] == [{"neg", "pos"}] * 2
    assert [answer.label for answer in run.predict("good film 3")] == ["pos"]
    assert run.predictor is run.predictor, "the model is loaded once"
    assert "good" in run.report().html
    served: list[Any] = []
    monkeypatch.setattr("glassloop.cli.serve.serve", lambda runs, **options: served.append((runs, options)))
    run.serve(port=0)
    assert served == [([str(run.folder)], {"host": "127.0.0.1", "port": 0})]


def test_splits_by_name_and_a_resumed_run(start: Callable[..., Run], tmp_path: Path) -> None:
    """The rows in memory are found again: by `train`, and by the command."""
    run = start({"train": DataFrame(ROWS), "validation": DataFrame(ROWS[:6])}, report=False)
    assert {name: fact.num_rows for name, fact in run.record.data.splits.items()} == {"train": 30, "validation": 6}
    assert train(resume=run.folder).folder == train(resume=True, output_dir=run.folder).folder == run.folder
    assert "rows_in_memory" in run.record.data.source


@pytest.mark.parametrize(
    ("settings", "problem", "remedy"),
    [
        ({"epochs": 3}, 'unknown setting "epochs"', "use num_train_epochs"),
        ({"bs": 3}, 'unknown setting "bs"', "use per_device_train_batch_size"),
        ({"text_column": "a"}, 'unknown setting "text_column"', "use text"),
        (
            {"brand_new": 1},
            'unknown setting "brand_new"',
            "see help(glassloop.TrainingArguments) and help(glassloop.DataSettings)",
        ),
        ({"learning_rate": "x"}, "learning_rate is 'x', not a finite number", None),
        ({"task": "x", "seed": -1}, "seed is -1, not 0 or more", None),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_read(says, settings: Any, problem: str, remedy: str | None) -> None:
    with pytest.raises(SettingsError) as raised:
        train("no-such-file.csv", **settings)
    assert problem in raised.value.problem
    assert remedy is None or raised.value.remedy == remedy


def test_a_settings_file_and_old_names(start: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('[data]\ntext = "text"\n[training]\nseed = 3\nweight_decay = 0.5\n')
    run = start(ROWS, config=tmp_path / "run.toml", weight_decay=0.25, no_cuda=True, report=False)
    assert (run.settings.seed, run.settings.weight_decay, run.settings.device) == (3, 0.25, "cpu")
    assert "no_cuda" in capsys.readouterr().err
    with pytest.raises(ModelError, match="not a run folder"):
        glassloop.Run(tmp_path)
