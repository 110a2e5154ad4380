"""Wrong options: the one that was meant, and never one of another meaning."""

from __future__ import annotations

import pytest
import typer

from glassloop.cli.main import option_names
from glassloop.cli.options import INSTEAD, MEANT, MEANT_AS_ARGUMENT, meant_option, usage_error, wrong_option

OPTIONS = option_names()


def remedy_of(verb: str, written: str) -> str:
    return wrong_option(written.partition("=")[0], verb, OPTIONS, [verb, written]).remedy


@pytest.mark.parametrize(
    ("verb", "written", "remedy"),
    [
        # what people mean
        ("train", "--bs", "use --batch_size"),
        ("train", "--num-epochs", "use --epochs"),
        ("train", "--n_epochs=3", "use --epochs"),
        ("train", "--gpu", "use --device cuda"),
        ("predict", "--cpu", "use --device cpu"),
        ("train", "--output", "use --output_dir"),
        ("evaluate", "--output", "use --out"),
        ("train", "--out", "use --output_dir"),
        ("train", "--fp16", "use --precision fp16"),
        ("train", "--bf16", "use --precision bf16"),
        ("train", "--lr_scheduler", "use --lr_scheduler_type"),
        ("train", "--warmup-ratio", "use --warmup_steps"),
        ("train", "--max_seq_length", "use --max_length"),
        ("train", "--label_smoothing", "use --label_smoothing_factor"),
        ("evaluate", "--metrics", "use --metric"),
        ("predict", "--input", "use --file"),
        ("train", "--wd", "use --weight_decay"),
        # misspelled
        ("train", "--learnign-rate", "use --learning_rate"),
        ("train", "--learningrate", "use --learning_rate"),
        ("train", "--weight_dacay", "use --weight_decay"),
        ("train", "--lr_schedular", "use --lr_scheduler_type"),
        ("train", "--eval_step", "use --eval_steps"),
        ("train", "--no-eval_on_strat", "use --no-eval_on_start"),
        ("evaluate", "--positive_lable", "use --positive_label"),
        # abbreviated
        ("train", "--gradient_acc", "use --gradient_accumulation_steps"),
        ("train", "--early_stopping_p", "use --early_stopping_patience"),
        # an argument, an option of another command, or nothing that an option can do
        ("train", "--train_file", "name the data without an option: glassloop train DATA"),
        ("evaluate", "--model", "name the run without an option: glassloop evaluate RUN"),
        ("evaluate", "--learning_rate", "it is an option of glassloop train, glassloop study"),
        ("train", "--dropout", "set the dropout in the config.json of the model: it is a property of the model"),
        ("doctor", "--help-all", "use --help"),
        ("", "-v", "use --version"),
    ],
)
def test_what_was_meant(verb: str, written: str, remedy: str) -> None:
    assert remedy_of(verb, written) == remedy


@pytest.mark.parametrize(
    ("verb", "written"),
    [
        ("train", "--train_seed"),  # not --data_seed
        ("train", "--adam_beta3"),  # not --adam_beta1
        ("train", "--eval"),  # one of five
        ("train", "--no-pad_to_multiple_of"),  # not its opposite
        ("train", "--label_scale"),  # not --label or --labels
        ("train", "--max_memory"),  # not --max_length
        ("train", "--min_length"),  # not --max_length
        ("train", "--temperature"),
        ("train", "--top_k"),
        ("train", "-x"),
    ],
)
def test_a_guess_is_worse_than_none(verb: str, written: str) -> None:
    assert remedy_of(verb, written) == f"glassloop {verb} --help-all lists the options"


def test_the_option_is_shown_as_it_was_written() -> None:
    error = wrong_option("--num_epochs", "train", OPTIONS, ["train", "x.csv", "--num-epochs=3"])
    assert error.problem == "glassloop train has no option --num-epochs"
    assert error.exit_code == 2


def test_every_suggestion_can_be_typed() -> None:
    known = {option for options in OPTIONS.values() for option in options}
    later = {"validation", "test", "limit"}  # suggested as soon as a command has them
    for option in MEANT:
        assert option.split()[0].lstrip("-") in known | later, option
    for _, _, usage in MEANT_AS_ARGUMENT:
        assert {*usage} <= {*OPTIONS}


def test_no_word_stands_for_an_option_that_the_command_has() -> None:
    for verb, options in OPTIONS.items():
        for name in options:
            found = meant_option(name, options)
            assert found is not None
            assert found.lstrip("-").replace("-", "_") == name, f"{verb} {name}"


def test_no_word_has_two_meanings_in_a_command() -> None:
    for verb, options in OPTIONS.items():
        meanings: dict[str, list[str]] = {}
        for option, words in MEANT.items():
            if option.split()[0].lstrip("-") in options:
                for word in {*words} - {*options}:
                    meanings.setdefault(word, []).append(option)
        doubtful = {word: found for word, found in meanings.items() if len(found) > 1}
        assert not doubtful, verb
        assert not {*meanings} & {*INSTEAD}, verb


def test_other_errors_are_not_about_the_command_line() -> None:
    assert usage_error(ValueError("x"), OPTIONS, ["train"]) is None
    error = usage_error(typer.BadParameter("no number"), OPTIONS, ["train", "--seeds", "x"])
    assert error is not None
    assert (error.problem, error.remedy) == ("invalid value: no number", "see glassloop train --help")
