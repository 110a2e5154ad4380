"""Help pages: the options people use in groups, all of them on request, and a group for every setting."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from glassloop.cli import main as cli
from glassloop.cli import options
from glassloop.cli.main import option_names
from glassloop.cli.options import completed_runs, default_of, group_of, is_common, number_or_text, usage_error, wrong_option
from glassloop.settings.training import DataSettings, TrainingArguments

COMMANDS = typer.main.get_command(cli.app).commands
SETTINGS = [entry.name for kind in (TrainingArguments, DataSettings) for entry in fields(kind)]


def page_of(name: str, width: int = 80, *, every: bool = False) -> str:
    context = COMMANDS[name].make_context(name, [], resilient_parsing=True)
    context.terminal_width = width
    context.meta[options.EVERY] = every
    return context.get_help()


def options_in(page: str) -> list[str]:
    return re.findall(r"^  (?:-\w, |--\w+, )?(--[\w-]+)", page, re.MULTILINE)


def test_the_tables_name_options_that_exist() -> None:
    known = {param.name for command in COMMANDS.values() for param in command.params} | {*SETTINGS}
    assert {*options.COMMON, *options.RARE, *(name for names in options.GROUPS.values() for name in names)} <= known


def test_train_shows_the_options_people_use() -> None:
    page = page_of("train")
    assert options_in(page) == [
        *("--text", "--text_pair", "--label", "--model", "--max_length"),
        *("--method", "--num_train_epochs", "--per_device_train_batch_size", "--learning_rate", "--seed", "--seeds"),
        *("--positive_label", "--baselines", "--eval_strategy", "--load_best_model_at_end", "--device"),
        *("--output_dir", "--config", "--resume", "--json", "--help-all", "--help"),
    ]
    titles = [line[:-1] for line in page.splitlines() if re.fullmatch(r"\w[\w ]*:", line)]
    assert titles == ["Arguments", "Data", "Model", "Training", "Evaluation", "Machine", "Run folder", "Options"]
    assert re.search(r"^\d+ more options: train --help-all$", page, re.MULTILINE)


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_shows_every_option_once_and_cuts_no_name(name: str, width: int) -> None:
    page = page_of(name, width, every=True)
    assert max(map(len, page.splitlines())) <= width
    assert "more options" not in page
    shown = options_in(page)
    assert sorted(shown) == sorted({*shown})
    for param in COMMANDS[name].params:
        assert param.param_type_name != "option" or param.opts[-1] in shown
        for flag in param.opts:
            assert re.search(rf"(?<!\S){re.escape(flag)}(?![\w-])", page)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_hides_options_only_if_help_all_can_show_them(name: str) -> None:
    page = page_of(name)
    if "--help-all" not in options_in(page):
        assert "more option" not in page
        assert {param.opts[-1] for param in COMMANDS[name].params if param.param_type_name == "option"} <= {*options_in(page)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_default_is_said_once(name: str) -> None:
    context = COMMANDS[name].make_context(name, [], resilient_parsing=True)
    records = [record for param in COMMANDS[name].params if (record := param.get_help_record(context))]
    assert not [names for names, text in records if "Default:" in text and "[default:" in text]


def test_a_new_setting_has_a_group_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DATA_SETTINGS", [*options.DATA_SETTINGS, "brand_new"])
    monkeypatch.setattr(options, "TRAINING_SETTINGS", [*options.TRAINING_SETTINGS, "newer_still"])
    assert (group_of("brand_new"), group_of("newer_still"), group_of("no_setting")) == (
        options.DATA,
        options.TRAINING,
        options.OTHER,
    )
    assert (is_common("brand_new"), is_common("newer_still"), is_common("no_setting")) == (False, False, True)


def test_help_all_exits_after_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    context = SimpleNamespace(meta={}, get_help=lambda: "the page")
    options.show_every_option(context, False)
    with pytest.raises(typer.Exit):
        options.show_every_option(context, True)
    assert (capsys.readouterr().out, context.meta) == ("the page\n", {options.EVERY: True})


# --- Options made from settings: only what was given, text where a number is wrong, and `--resume` with and without a value.
def test_given_for_takes_only_what_was_given_and_text_that_is_not_a_number_stays_text() -> None:
    flags = {"seed": 7, "split_seed": 3, "task": None, "learning_rate": 0.1, "nonsense": 1}
    assert options.given_for(DataSettings, flags) == {"split_seed": 3}
    assert options.given_for(TrainingArguments, flags) == {"seed": 7, "learning_rate": 0.1}
    assert default_of("learning_rate", 5e-5) == "  [default: chosen from the data and the model; 5e-05 for GLUE]"
    assert (default_of("seed", 42), default_of("max_length", None)) == ("  [default: 42]", "")
    assert [number_or_text(int)(text) for text in ("3", "3.5", "x")] == [3, "3.5", "x"]
    assert [number_or_text(float)(text) for text in ("3", "1e-5", "x")] == [3.0, 1e-5, "x"]


def test_every_field_is_an_option_unless_its_name_is_taken_or_others_are_asked_for() -> None:
    @options.with_settings(DataSettings)
    def command(name: str, text: str, **options: object) -> None: ...

    @options.with_settings(DataSettings, only=("encoding", "header"))
    def other(**options: object) -> None: ...

    assert [*inspect.signature(command).parameters][:6] == ["name", "text", "data_dir", "validation", "test", "text_pair"]
    assert [*inspect.signature(other).parameters] == ["header", "encoding", "every_option"]
    assert all(option.default is None for option in options.options_of(DataSettings))


def test_resume_without_a_value_means_the_newest() -> None:
    for rest in ("", " --output_dir x", " -o x"):
        assert options.with_resume_value(f"train --resume{rest}".split()) == f"train --resume=newest{rest}".split()
    for arguments in ("train --resume out", "train --resume=out", ""):
        assert options.with_resume_value(arguments.split()) == arguments.split()


# --- completion
def test_run_folders_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed_runs("") == []
    for name in ("runs/run-001/run.json", "runs/seeds/seeds.json", "runs/notes/x.txt", "here/run.json", "deep/er/run.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert completed_runs("") == ["here", "runs/run-001", "runs/seeds"]
    assert completed_runs("runs/s") == ["runs/seeds"]
    assert completed_runs("deep/") == completed_runs("deep/e") == ["deep/er"]
    assert completed_runs("elsewhere/x") == []
    assert options.choices_of("eval_strategy")() == ["no", "steps", "epoch"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_completions(shell: str) -> None:
    """In a process of its own, as a shell asks for them; torch is not needed for that."""
    words = {"COMP_WORDS": "glassloop train --eval_str", "COMP_CWORD": "2"}
    words |= {"_TYPER_COMPLETE_ARGS": "glassloop train --eval_str", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from glassloop.cli.main import main; main()"
    environment = {**os.environ, **words, "_GLASSLOOP_COMPLETE": f"complete_{shell}"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "--eval_strategy" in found.stdout


# --- Wrong options: the one that was meant, and never one of another meaning.
OPTIONS = option_names()


def remedy_of(verb: str, written: str) -> str:
    return wrong_option(written.partition("=")[0], verb, OPTIONS, [verb, written]).remedy


MEANT_BY_TRAIN = {  # what people mean, then misspelled, then abbreviated
    "--bs": "--batch_size", "--num-epochs": "--epochs", "--n_epochs=3": "--epochs", "--gpu": "--device cuda",
    "--output": "--output_dir", "--out": "--output_dir", "--fp16": "--precision fp16", "--bf16": "--precision bf16",
    "--lr_scheduler": "--lr_scheduler_type", "--warmup-ratio": "--warmup_steps", "--max_seq_length": "--max_length",
    "--label_smoothing": "--label_smoothing_factor", "--wd": "--weight_decay",
    "--learnign-rate": "--learning_rate", "--learningrate": "--learning_rate", "--weight_dacay": "--weight_decay",
    "--lr_schedular": "--lr_scheduler_type", "--eval_step": "--eval_steps", "--no-eval_on_strat": "--no-eval_on_start",
    "--gradient_acc": "--gradient_accumulation_steps", "--early_stopping_p": "--early_stopping_patience",
}  # fmt: skip
MEANT_BY_OTHERS = [
    ("predict", "--cpu", "use --device cpu"),
    ("evaluate", "--output", "use --out"),
    ("evaluate", "--metrics", "use --metric"),
    ("predict", "--input", "use --file"),
    ("evaluate", "--positive_lable", "use --positive_label"),
    # an argument, an option of another command, or nothing that an option can do
    ("train", "--train_file", "name the data without an option: glassloop train DATA"),
    ("evaluate", "--model", "name the run without an option: glassloop evaluate RUN"),
    ("evaluate", "--learning_rate", "it is an option of glassloop train, glassloop study"),
    ("train", "--dropout", "set the dropout in the config.json of the model: it is a property of the model"),
    ("doctor", "--help-all", "use --help"),
    ("", "-v", "use --version"),
]
# Not --data_seed, not --adam_beta1, one of five, not its opposite, not --label or --labels, twice not --max_length.
UNCLEAR = ["--train_seed", "--adam_beta3", "--eval", "--no-pad_to_multiple_of", "--label_scale", "--max_memory", "--min_length"]


def test_what_was_meant_and_that_a_guess_is_worse_than_none() -> None:
    meant = [("train", written, f"use {option}") for written, option in MEANT_BY_TRAIN.items()]
    for verb, written, remedy in (*meant, *MEANT_BY_OTHERS):
        assert remedy_of(verb, written) == remedy, written
    for written in (*UNCLEAR, "--temperature", "--top_k", "-x"):
        assert remedy_of("train", written) == "glassloop train --help-all lists the options", written


def test_the_option_is_shown_as_it_was_written_and_other_errors_are_not_about_the_command_line() -> None:
    error = wrong_option("--num_epochs", "train", OPTIONS, ["train", "x.csv", "--num-epochs=3"])
    assert error.problem == "glassloop train has no option --num-epochs"
    assert error.exit_code == 2
    assert usage_error(ValueError("x"), OPTIONS, ["train"]) is None
    error = usage_error(typer.BadParameter("no number"), OPTIONS, ["train", "--seeds", "x"])
    assert error is not None
    assert (error.problem, error.remedy) == ("invalid value: no number", "see glassloop train --help")


def test_every_suggestion_can_be_typed() -> None:
    known = {option for options in OPTIONS.values() for option in options}
    later = {"validation", "test", "limit"}  # suggested as soon as a command has them
    for option in options.MEANT:
        assert option.split()[0].lstrip("-") in known | later, option
    for _, _, usage in options.MEANT_AS_ARGUMENT:
        assert {*usage} <= {*OPTIONS}


@pytest.mark.parametrize("verb", OPTIONS)
def test_words_have_one_meaning_and_never_that_of_another_option(verb: str) -> None:
    own = OPTIONS[verb]
    for name in own:
        assert (options.meant_option(name, own) or "").lstrip("-").replace("-", "_") == name
    meanings: dict[str, list[str]] = {}
    for option, words in options.MEANT.items():
        if option.split()[0].lstrip("-") in own:
            for word in {*words.split()} - {*own}:
                meanings.setdefault(word, []).append(option)
    assert not {word: several for word, several in meanings.items() if len(several) > 1}
    assert not {*meanings} & {*options.INSTEAD}
