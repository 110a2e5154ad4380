"""Settings files: everything wrong in one error, old names, and settings that survive being written and read."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.file import GivenSettings, RunSettings, read_settings, toml, write_settings
from glassloop.settings.training import DataSettings, TrainingArguments


# --- reading -----------------------------------------------------------------------------------------------------
def test_what_a_file_says_in_todays_names_and_nothing_without_one(write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        "run.toml", 'source = "a.csv"\n[data]\nlabels = ["x", "y"]\nsplit_seed = 3\n[training]\nlearning_rate = 1e-3\n'
    )
    assert read_settings(str(path)) == GivenSettings(
        "a.csv", None, {"learning_rate": 1e-3}, {"labels": ["x", "y"], "split_seed": 3}
    )
    assert read_settings(None) == GivenSettings()
    path = write("s.toml", '[study]\nseeds = 5\n[study.vary]\nlearning_rate = [1e-5, 2e-5]\nweight_decay = "linear:0..0.1"\n')
    found = read_settings(str(path))
    assert found.study == {"seeds": 5, "vary": {"learning_rate": [1e-5, 2e-5], "weight_decay": "linear:0..0.1"}}
    assert found.overridden_by(GivenSettings(study={"seeds": 2})).study["seeds"] == 2
    path = write("run.toml", '[training]\nevaluation_strategy = "epoch"\nno_cuda = true\n')
    assert read_settings(str(path)).training == {"eval_strategy": "epoch", "device": "cpu"}
    assert capsys.readouterr().err.splitlines() == [
        "glassloop: evaluation_strategy is now called eval_strategy",
        'glassloop: no_cuda is now called device="cpu"',
    ]
    first = GivenSettings("a.csv", "one", {"seed": 1, "max_steps": 2}, {"text": "a"}, new_head=True)
    second = GivenSettings(None, "two", {"seed": 3}, {"label": "b"})
    assert first.overridden_by(second) == GivenSettings(
        "a.csv", "two", {"seed": 3, "max_steps": 2}, {"text": "a", "label": "b"}, new_head=True
    )


ENTRIES = "use only source, model, new_head, data, training, study"
WRONG = {
    "unknown entries": (
        "[trainig]\nseed = 1\n[other]\n",
        'unknown entry "trainig"; did you mean "training"?; unknown entry "other"',
        ENTRIES,
    ),
    "kinds": (
        'source = 1\nmodel = ["a"]\nnew_head = "yes"\ndata = 5\ntraining = "fast"\n',
        "source is not text; model is not text; new_head is not true or false; data is not a table; training is not a table",
        "set source to text; set model to text; set new_head to true or false; write [data]; write [training]",
    ),
    "unknown settings of both sections": (
        "[data]\ntxt = 1\n[training]\nlearning_rat = 1\ndeepspeed = 1\n[other]\n",
        'unknown entry "other"; unknown setting "txt" in [data]; did you mean "text"?; '
        'unknown setting "learning_rat"; did you mean "learning_rate"?; '
        "deepspeed is not supported",
        f"{ENTRIES}; glassloop inspect --help lists all data settings; glassloop train --help lists all settings; "
        "deepspeed: use --processes or torchrun; for FSDP use the config file of accelerate",
    ),
    "names and values": (
        "[data]\ntxt = 1\nrows = 3\n[training]\nnonsense = 1\nlearning_rate = -1\nnum_train_epochs = 'x'\n",
        'unknown setting "txt" in [data]; did you mean "text"?; unknown setting "nonsense"; '
        "num_train_epochs is 'x', not a finite number; learning_rate is -1, not 0 or more; "
        "rows is 3, not a whole number of 10 or more",
        "glassloop inspect --help lists all data settings; glassloop train --help lists all settings; "
        "set num_train_epochs to a finite number; set learning_rate to 0 or more; set rows to a whole number of 10 or more",
    ),
    "no TOML": (
        "learning_rate: 1",
        "not TOML: Expected '=' after a key in a key/value pair (at line 1, column 14)",
        "create one with glassloop config DATA",
    ),
}


def test_all_that_is_wrong_with_a_file(says, write) -> None:
    for content, problem, remedy in WRONG.values():
        path = write("run.toml", content)
        with says(f"config {path}: {problem}", remedy):
            read_settings(str(path))
    for empty in ["", " "]:
        with says("the name of the data is empty; the name of the model is empty", "give a name, or omit it"):
            GivenSettings(source=empty, model=empty)
        with says("the name of the model is empty", "give a name, or omit it"):
            read_settings(str(write("run.toml", f'source = "a.csv"\nmodel = "{empty}"\n')))
    for value in [b"[" * 5000, b"9" * 5000, b"'\xff'"]:
        path = write("run.toml", b"[training]\nseed = " + value)
        with pytest.raises(SettingsError, match=f"config {re.escape(str(path))}: not TOML: "):
            read_settings(str(path))


@pytest.mark.usefixtures("no_hang")
def test_what_is_no_file_of_settings_is_not_read(says, write, tmp_path: Path) -> None:
    """A device never ends, a pipe waits for ever, and a large file fills the memory."""
    os.mkfifo(tmp_path / "pipe.toml")
    for path, problem in (
        (tmp_path / "gone.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe.toml", "a pipe, not a file"),
        (Path("/dev/zero"), "a device, not a file"),
        (write("large.toml", "#" * 1_000_001), "1,000,001 bytes are too many for settings"),
    ):
        with says(f"config {path}: {problem}", "create one with glassloop config DATA"):
            read_settings(str(path))


def test_values_of_every_kind_are_named_and_checked_together(says, write) -> None:
    path = write(
        "run.toml", "[training]\nlearning_rate = [1, 2]\nclass_weights = [1, 2.5]\nlr_scheduler_kwargs = {a = 2020-01-01}\n"
    )
    given = read_settings(str(path))
    assert given.training["class_weights"] == "1,2.5"
    assert given.training["lr_scheduler_kwargs"] == '{"a": "2020-01-01"}'
    with says("learning_rate is '1,2', not a finite number", "set learning_rate to a finite number"):
        given.checked()
    with says(
        "learning_rate is -1, not 0 or more; seed is -1, not 0 or more; "
        'empty is "drop", not one of refuse, keep; rows is 3, not a whole number of 10 or more',
        "set learning_rate to 0 or more; set seed to 0 or more; set empty to refuse or keep; "
        "set rows to a whole number of 10 or more",
    ):
        GivenSettings(training={"learning_rate": -1, "seed": -1}, data={"empty": "drop", "rows": 3}).checked()
    found = GivenSettings(training={"learning_rate": 1, "seed": 3}, data={"empty": "keep", "split_seed": 4}).checked()
    assert (found.training.seed, found.data.empty) == (3, "keep")


# --- writing -----------------------------------------------------------------------------------------------------
def test_settings_survive_being_written_and_read(tmp_path: Path) -> None:
    texts = ["plain", 'quo"te', "back\\slash", "two\nlines", "\x00\x7f\x1b", "Ü 漢 \U0001f600", "\U000e0001x", ""]
    for value in [*texts, True, 3, 5e-05, 1.0]:
        assert tomllib.loads(f"value = {toml(value)}")["value"] == value
    training = TrainingArguments("out", learning_rate=1e-5, report_to=["wandb"], lr_scheduler_kwargs={"num_cycles": 2})
    data = DataSettings(text="a", labels=("no, never", "yes"), validation_share=0)
    settings = RunSettings("rows, all.csv", 'a "model"', training, data, new_head=True)
    write_settings(tmp_path / "run.toml", settings.given())
    assert read_settings(str(tmp_path / "run.toml")).checked() == settings
    write_settings(tmp_path / "run.toml", GivenSettings(training={"seed": 3}))
    assert (tmp_path / "run.toml").read_text() == "\n[data]\n\n[training]\nseed = 3\n"
    assert read_settings(str(tmp_path / "run.toml")) == GivenSettings(training={"seed": 3})
