"""Help pages: the options people use in groups, all of them on request, and a group for every setting."""

from __future__ import annotations

import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
import typer

from glassloop.cli import main as cli
from glassloop.cli import options as help_page
from glassloop.cli.options import COMMON, DATA, GROUPS, OTHER, RARE, TRAINING, group_of, is_common
from glassloop.settings.fields import DataSettings
from glassloop.settings.training import TrainingArguments

COMMANDS = typer.main.get_command(cli.app).commands
SETTINGS = [entry.name for kind in (TrainingArguments, DataSettings) for entry in fields(kind)]


def page_of(name: str, width: int = 80, *, every: bool = False) -> str:
    """Return the help page of a command."""
    context = COMMANDS[name].make_context(name, [], resilient_parsing=True)
    context.terminal_width = width
    context.meta[help_page.EVERY] = every
    return context.get_help()


def options_in(page: str) -> list[str]:
    return re.findall(r"^  (?:-\w, |--\w+, )?(--[\w-]+)", page, re.MULTILINE)


def test_the_tables_name_options_that_exist() -> None:
    known = {param.name for command in COMMANDS.values() for param in command.params} | {*SETTINGS}
    assert {*COMMON, *RARE, *(name for names in GROUPS.values() for name in names)} <= known


def test_train_shows_the_options_people_use() -> None:
    page = page_of("train")
    assert options_in(page) == [
        *("--text", "--text_pair", "--label", "--model", "--max_length"),
        *("--num_train_epochs", "--per_device_train_batch_size", "--learning_rate", "--seed", "--seeds"),
        *("--positive_label", "--eval_strategy", "--load_best_model_at_end", "--device"),
        *("--output_dir", "--config", "--resume", "--json", "--help-all", "--help"),
    ]
    titles = [line[:-1] for line in page.splitlines() if re.fullmatch(r"\w[\w ]*:", line)]
    assert titles == ["Arguments", "Data", "Model", "Training", "Evaluation", "Machine", "Run folder", "Options"]
    assert re.search(r"^\d+ more options: train --help-all$", page, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_shows_every_option_once(name: str) -> None:
    page = page_of(name, every=True)
    found = options_in(page)
    assert sorted(found) == sorted({*found})
    for param in COMMANDS[name].params:
        if param.param_type_name == "option":
            assert param.opts[-1] in found
    assert "more options" not in page


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_longer_than_the_terminal_and_no_name_is_cut(name: str, width: int) -> None:
    page = page_of(name, width, every=True)
    assert max(map(len, page.splitlines())) <= width
    for param in COMMANDS[name].params:
        for flag in param.opts:
            assert re.search(rf"(?<!\S){re.escape(flag)}(?![\w-])", page)


def test_a_new_setting_has_a_group_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help_page, "DATA_SETTINGS", [*help_page.DATA_SETTINGS, "brand_new"])
    monkeypatch.setattr(help_page, "TRAINING_SETTINGS", [*help_page.TRAINING_SETTINGS, "newer_still"])
    assert (group_of("brand_new"), group_of("newer_still"), group_of("no_setting")) == (DATA, TRAINING, OTHER)
    assert (is_common("brand_new"), is_common("newer_still"), is_common("no_setting")) == (False, False, True)


def test_help_all_exits_after_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    context = SimpleNamespace(meta={}, get_help=lambda: "the page")
    help_page.show_every_option(context, False)
    with pytest.raises(typer.Exit):
        help_page.show_every_option(context, True)
    assert (capsys.readouterr().out, context.meta) == ("the page\n", {help_page.EVERY: True})
