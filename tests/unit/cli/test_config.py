"""`glassloop config`: a commented settings file with every setting, that can be trained with as it is."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from glassloop.cli.config import config
from glassloop.runs.record import read_run
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.study.run import train_run

PAIRS = "premise,hypothesis,label\n" + "".join(f"good {number},bad {number},{'ab'[number % 2]}\n" for number in range(20))
COLUMNS = {"text": "premise", "text_pair": "hypothesis", "label": "label"}


def written(write, tmp_path: Path, content: str = PAIRS, name: str = "pairs.csv", **given: Any) -> dict[str, Any]:
    config(str(write(name, content)), "tiny", str(tmp_path / "run.toml"), **given)
    return tomllib.loads((tmp_path / "run.toml").read_text(encoding="utf-8"))


def test_every_setting_is_there_with_its_sentence_and_every_default_in_it_is_one(write, tmp_path: Path, capsys) -> None:
    found = written(write, tmp_path)
    path = tmp_path / "run.toml"
    assert capsys.readouterr().out == f"wrote {path}; use it with: glassloop train --config {path}\n"
    data = {**COLUMNS, "task": "single_label_classification"}
    assert found == {"source": str(tmp_path / "pairs.csv"), "model": "tiny", "data": data, "training": {}}
    lines = path.read_text(encoding="utf-8").splitlines()
    for kind in (DataSettings, TrainingArguments):
        for entry in fields(kind):
            place = lines.index(f"# {entry.metadata['help']}")
            assert lines[place + 1].removeprefix("# ").startswith(f"{entry.name} = "), entry.name
    assert "# train: 18 rows" in lines
    assert any("no validation split" in line for line in lines)
    # All commented settings that are not empty, in force: the same settings.
    names = [entry.name for kind in (DataSettings, TrainingArguments) for entry in fields(kind)]
    active = []
    for line in lines:
        name, sign, value = line.removeprefix("# ").partition(" = ")
        active.append(line.removeprefix("# ") if sign and name in names and value != '""' else line)
    in_force = tomllib.loads("\n".join(active))
    assert TrainingArguments(**in_force["training"]) == TrainingArguments()
    defaults = {entry.name: entry.default for entry in fields(DataSettings) if entry.default is not None}
    assert {**in_force["data"], "task": defaults["task"]} == {**defaults, **COLUMNS}


def test_it_trains(write, tmp_path: Path, tiny_model_dir: Path) -> None:
    config(str(write("pairs.csv", PAIRS)), str(tiny_model_dir), str(tmp_path / "run.toml"), validation_share=0.2)
    found = read_settings(str(tmp_path / "run.toml"))
    settings = {"output_dir": str(tmp_path / "out"), "max_steps": 1, "device": "cpu", "precision": "fp32"}
    folder = train_run(found.overridden_by(GivenSettings(training=settings)))
    assert read_run(folder).data.splits["validation"].num_rows == 4


def test_what_was_asked_for_and_what_the_data_has_are_in_force(write, tmp_path: Path) -> None:
    rows = "a text;fun;old\n" + "".join(f"good {number};{number % 2};{number % 3 % 2}\n" for number in range(20))
    asked = {"delimiter": ";", "label": "fun,old", "text": "a text", "split_seed": 7}
    assert written(write, tmp_path, rows, **asked)["data"] == {**asked, "task": "multi_label_classification"}
    config("quickstart", "quickstart", str(tmp_path / "quick.toml"), rows=20)
    found = tomllib.loads((tmp_path / "quick.toml").read_text(encoding="utf-8"))
    assert (found["source"], found["data"], found["training"]) == ("quickstart", {"rows": 20}, {})


def test_a_file_that_is_there_stays(says, write, tmp_path: Path) -> None:
    path = write("run.toml", "mine")
    with says(f"{path} already exists", "choose another name with --out"):
        config(out=str(path))
    assert path.read_text() == "mine"
