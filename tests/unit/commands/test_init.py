"""How a run is started: a TOML file that says all that is wrong with it, flags before it, and several processes."""

from __future__ import annotations

import signal
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from glassloop import cli
from glassloop.arguments import TrainingArguments
from glassloop.commands.init import toml, write_config
from glassloop.errors import SettingsError
from glassloop.settings import DataSettings
from glassloop.settings_file import check_settings, read_config

PAIRS = "premise,hypothesis,label\n" + "".join(f"good {number},bad {number},{'ab'[number % 2]}\n" for number in range(20))


# --- reading -----------------------------------------------------------------------------------------------------


def test_no_file_says_nothing() -> None:
    assert read_config(None) == {"source": None, "model": None, "data": {}, "training": {}}


def test_what_a_file_says(write) -> None:
    path = write(
        "run.toml", 'source = "a.csv"\n[data]\nlabels = ["x", "y"]\nsplit_seed = 3\n[training]\nlearning_rate = 1e-3\n'
    )
    assert read_config(str(path)) == {
        "source": "a.csv",
        "model": None,
        "data": {"labels": ["x", "y"], "split_seed": 3},
        "training": {"learning_rate": 1e-3},
    }


def test_old_names_become_todays(write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("run.toml", '[training]\nevaluation_strategy = "epoch"\nno_cuda = true\n')
    assert read_config(str(path))["training"] == {"eval_strategy": "epoch", "device": "cpu"}
    assert capsys.readouterr().err.splitlines() == [
        "glassloop: evaluation_strategy is now called eval_strategy",
        'glassloop: no_cuda is now called device="cpu"',
    ]


ENTRIES = "the entries are source, model, data, training"
WRONG = {
    "unknown entries": (
        "[trainig]\nseed = 1\n[other]\n",
        'unknown entry "trainig"; did you mean "training"?; unknown entry "other"',
        ENTRIES,
    ),
    "kinds": (
        'source = 1\nmodel = ["a"]\ndata = 5\ntraining = "fast"\n',
        "data is not a section: write [data]; training is not a section: write [training]; source is not a name; "
        "model is not a name",
        ENTRIES,
    ),
    "unknown settings of both sections": (
        "[data]\ntxt = 1\n[training]\nlearning_rat = 1\ndeepspeed = 1\n[other]\n",
        'unknown entry "other"; unknown setting "txt" in [data]; did you mean "text"?; '
        'unknown setting "learning_rat"; did you mean "learning_rate"?; '
        "deepspeed is not supported: use --processes or torchrun; "
        "FSDP comes from accelerate's config file (docs/how-to/processes.md)",
        ENTRIES,
    ),
    "names and values": (
        "[data]\ntxt = 1\nrows = 3\n[training]\nnonsense = 1\nlearning_rate = -1\nnum_train_epochs = 'x'\n",
        'unknown setting "txt" in [data]; did you mean "text"?; unknown setting "nonsense"; '
        "num_train_epochs is 'x', not a finite number; learning_rate is -1, not 0 or more; "
        "rows is 3, not a whole number of 10 or more",
        ENTRIES,
    ),
    "no TOML": (
        "learning_rate: 1",
        "not TOML: Expected '=' after a key in a key/value pair (at line 1, column 14)",
        "glassloop init DATA writes one to start from",
    ),
}


@pytest.mark.parametrize(("content", "problem", "remedy"), WRONG.values(), ids=WRONG)
def test_all_that_is_wrong_with_a_file(says, write, content: str, problem: str, remedy: str) -> None:
    path = write("run.toml", content)
    with says(f"config {path}: {problem}", remedy):
        read_config(str(path))


def test_a_file_that_cannot_be_read(says, write, tmp_path: Path) -> None:
    with says(f"config {tmp_path / 'gone.toml'}: No such file or directory", "glassloop init DATA writes one"):
        read_config(str(tmp_path / "gone.toml"))
    with says(f"config {tmp_path}: Is a directory", "glassloop init DATA writes one"):
        read_config(str(tmp_path))
    with pytest.raises(SettingsError, match="not TOML: 'utf-8' codec can't decode"):
        read_config(str(write("run.toml", b"source = '\xff'")))


def test_the_settings_of_both_kinds_are_checked_together(says) -> None:
    with says(
        "learning_rate is -1, not 0 or more; seed is -1, not 0 or more; "
        'empty is "drop", not one of refuse, keep; rows is 3, not a whole number of 10 or more',
        "glassloop train --help lists every setting",
    ):
        check_settings({"learning_rate": -1, "seed": -1}, {"empty": "drop", "rows": 3})
    check_settings({"learning_rate": 1, "seed": 3}, {"empty": "keep", "split_seed": 4})


# --- from the command --------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Runs `glassloop train` with a train_run that only writes down what it is given."""
    seen: list[tuple[Any, ...]] = []

    def catch(data: Any, model: Any, training: dict[str, Any], settings: dict[str, Any], **rest: Any) -> None:
        seen.append((data, model, training, settings))

    monkeypatch.setattr("glassloop.commands.train.train_run", catch)

    def run(*arguments: str) -> tuple[Any, ...]:
        monkeypatch.setattr(sys, "argv", ["glassloop", "train", *arguments])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as left:
                cli.main()
        finally:
            signal.signal(signal.SIGTERM, before)
        return seen.pop() if seen else (left.value.code,)

    return run


def test_flags_go_before_the_file(write, command) -> None:
    path = write(
        "run.toml",
        'source = "file.csv"\nmodel = "theirs"\n[data]\ntext = "body"\nsplit_seed = 1\n'
        "[training]\nlearning_rate = 1e-3\nseed = 1\ngroup_by_length = true\n",
    )
    assert command("--config", str(path)) == (
        "file.csv",
        "theirs",
        {"learning_rate": 1e-3, "seed": 1, "group_by_length": True},
        {"text": "body", "split_seed": 1},
    )
    flags = ("--learning_rate", "5e-5", "--seed", "2", "--text", "other", "--no-group_by_length", "--model", "mine")
    assert command("flag.csv", "--config", str(path), *flags) == (
        "flag.csv",
        "mine",
        {"learning_rate": 5e-5, "seed": 2, "group_by_length": False},
        {"text": "other", "split_seed": 1},
    )


def test_a_flag_puts_right_what_is_wrong_in_the_file(write, command, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("run.toml", "[training]\nload_best_model_at_end = true\nlearning_rate = -1\n")
    assert command("--config", str(path)) == (2,)
    assert capsys.readouterr().err.startswith(
        "settings: learning_rate is -1, not 0 or more; load_best_model_at_end needs eval_strategy steps or epoch\n"
    )
    _, _, training, _ = command("--config", str(path), "--eval_strategy", "epoch", "--learning_rate", "1e-3")
    assert training == {"load_best_model_at_end": True, "learning_rate": 1e-3, "eval_strategy": "epoch"}


def test_every_setting_has_a_flag_that_reaches_it(command) -> None:
    values = {
        entry.name: {"bool": True, "int": 3, "float": 0.5}.get(str(entry.type).replace(" | None", ""), "x")
        for entry in fields(TrainingArguments)
    }
    values |= {"eval_strategy": "epoch", "save_strategy": "steps", "lr_scheduler_type": "cosine", "optim": "adamw_torch"}
    values |= {"precision": "fp32", "device": "cpu", "backend": "plain", "report_to": "none", "lr_scheduler_kwargs": "{}"}
    flags = [part for name, value in values.items() for part in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
    _, _, training, settings = command(*flags)
    assert training == values
    assert TrainingArguments(**training).to_dict() == values
    assert settings == {}


# --- writing -----------------------------------------------------------------------------------------------------


def written(write, tmp_path: Path, content: str = PAIRS, name: str = "pairs.csv", **given: Any) -> dict[str, Any]:
    write_config(str(write(name, content)), "tiny", str(tmp_path / "run.toml"), given)
    return tomllib.loads((tmp_path / "run.toml").read_text(encoding="utf-8"))


def test_every_setting_is_there_with_its_sentence(write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = written(write, tmp_path)
    assert capsys.readouterr().out == f"wrote {tmp_path / 'run.toml'}: glassloop train --config {tmp_path / 'run.toml'}\n"
    assert found == {
        "source": str(tmp_path / "pairs.csv"),
        "model": "tiny",
        "data": {"text": "premise", "text_pair": "hypothesis", "label": "label", "task": "single_label_classification"},
        "training": {},
    }
    lines = (tmp_path / "run.toml").read_text(encoding="utf-8").splitlines()
    for kind in (DataSettings, TrainingArguments):
        for entry in fields(kind):
            place = lines.index(f"# {entry.metadata['help']}")
            assert lines[place + 1].removeprefix("# ").startswith(f"{entry.name} = "), entry.name
    assert "# train: 18 rows" in lines
    assert any("no validation split" in line for line in lines)


def test_every_default_in_it_is_one(write, tmp_path: Path) -> None:
    """All commented settings that are not empty, in force: the same settings."""
    written(write, tmp_path)
    text = (tmp_path / "run.toml").read_text(encoding="utf-8")
    names = [entry.name for kind in (DataSettings, TrainingArguments) for entry in fields(kind)]
    lines = []
    for line in text.splitlines():
        name, sign, value = line.removeprefix("# ").partition(" = ")
        lines.append(line.removeprefix("# ") if sign and name in names and value != '""' else line)
    in_force = tomllib.loads("\n".join(lines))
    assert TrainingArguments(**in_force["training"]) == TrainingArguments()
    assert {name: value for name, value in in_force["data"].items() if name not in ("text", "text_pair", "label", "task")} == {
        entry.name: entry.default for entry in fields(DataSettings) if entry.default is not None and entry.name != "task"
    }


def test_it_trains(write, tmp_path: Path, tiny_model_dir: Path) -> None:
    from glassloop.commands.train import train_run
    from glassloop.run_folder.run_json import read_run

    write_config(str(write("pairs.csv", PAIRS)), str(tiny_model_dir), str(tmp_path / "run.toml"), {"validation_share": 0.2})
    found = read_config(str(tmp_path / "run.toml"))
    settings = {"output_dir": str(tmp_path / "out"), "max_steps": 1, "device": "cpu", "precision": "fp32"}
    folder = train_run(found["source"], found["model"], found["training"] | settings, found["data"])
    assert read_run(folder).data.splits["validation"].num_rows == 4


def test_what_was_given_and_what_was_found_are_in_force(write, tmp_path: Path) -> None:
    rows = "a text;fun;old\n" + "".join(f"good {number};{number % 2};{number % 3 % 2}\n" for number in range(20))
    found = written(write, tmp_path, rows, delimiter=";", label="fun,old", text="a text", split_seed=7)
    assert found["data"] == {
        **{"text": "a text", "label": "fun,old", "task": "multi_label_classification", "delimiter": ";", "split_seed": 7},
    }


def test_quickstart_needs_nothing_said(tmp_path: Path) -> None:
    write_config("quickstart", "quickstart", str(tmp_path / "run.toml"), {"rows": 20})
    found = tomllib.loads((tmp_path / "run.toml").read_text(encoding="utf-8"))
    assert (found["source"], found["data"], found["training"]) == ("quickstart", {"rows": 20}, {})


def test_a_file_that_is_there_stays(says, write, tmp_path: Path) -> None:
    path = write("run.toml", "mine")
    with says(f"{path} is there already", "choose another name with --out"):
        write_config("quickstart", "quickstart", str(path), {})
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "value",
    ["plain", 'quo"te', "back\\slash", "two\nlines", "\x00\x7f\x1b", "Ü 漢 \U0001f600", "\U000e0001x", "", True, 3, 5e-05, 1.0],
)
def test_values_come_back_from_toml(value: Any) -> None:
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value


# --- several processes -------------------------------------------------------------------------------------------


def test_wrong_settings_are_told_before_anything_is_started(command, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def launch(number: int) -> None:
        started.append(number)
        sys.exit(7)

    monkeypatch.setattr(cli, "launch", launch)
    assert command("--processes", "2", "--learning_rate", "-1") == (2,)
    assert capsys.readouterr().err.startswith("settings: learning_rate is -1.0, not 0 or more\n")
    assert started == []
    assert command("--processes", "2") == (7,)
    assert started == [2]


def test_data_and_model_are_looked_at_before_processes_start(write, tiny_model_dir) -> None:
    """What is wrong with them is told once, by the command itself, with its own exit code."""
    from glassloop.commands.train import look_first
    from glassloop.errors import DataError, ModelError

    path = write("rows.csv", "text,lable\na,x\n")
    with pytest.raises(DataError) as data:
        look_first(str(path), str(tiny_model_dir), {})
    assert data.value.exit_code == 3
    with pytest.raises(ModelError) as model:
        look_first("quickstart", str(path.parent), {"rows": 20})
    assert model.value.exit_code == 4
    look_first("quickstart", str(tiny_model_dir), {"rows": 20})
