"""The command: its words are frozen here, its flags are the settings, and its errors are two lines and an exit code."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import without_stages
from run_folders import RECORD

from glassloop.base.errors import DataError, ModelError, ResourceError, SettingsError
from glassloop.base.output import CommandResult
from glassloop.base.records import package_version
from glassloop.cli import main as cli
from glassloop.cli.options import ALIASES, default_of
from glassloop.runs.record import FAILED, FINISHED, write_run
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.settings.file import GivenSettings, RunSettings
from glassloop.settings.study import StudySettings
from glassloop.settings.training import FILE_SETTINGS, DataSettings, TrainingArguments

COMMANDS = {name: one for name, one in typer.main.get_command(cli.app).commands.items() if not one.hidden}

DATA_FLAGS = """--name --data_dir --validation --test --text --text_pair --label --labels --task --label_separator --delimiter
    --header --columns --encoding --sheet --bad_rows --empty --unknown_labels --validation_share --selection_fold --split_seed
    --limit --rows""".split()
FILE_FLAGS = [f"--{name}" for name in FILE_SETTINGS]
DATA, BOTH = (DataSettings,), (TrainingArguments, DataSettings)
TRAINED = "--model --config --new_head --resume"
# Every command: its arguments, its own flags, and the settings whose fields are flags too.
FROZEN: dict[str, tuple[str, str, tuple[type, ...]]] = {
    "inspect": (
        "data",
        "--model --max_length --batch_size --deep --learning_curve -o --out --suggestions --fail_on --method --folds --sample "
        "--device --json",
        DATA,
    ),
    "clean": ("file", "-o --out --drop --relabel --undo --overwrite --model --device --json", DATA),
    "train": ("data", f"{TRAINED} --restart --processes --seeds --at_once --no_report --timing --json", BOTH),
    "evaluate": ("run data", "--split --metric --positive_label -o --out --overwrite --device --batch_size --json", DATA),
    "calibrate": (
        "run",
        "--target --min_recall --min_precision --cost --split --positive_label --folds --force --remove --json",
        (),
    ),
    "study": ("data", f"--vary {TRAINED} --at_once --on --json", (StudySettings, *BOTH)),
    "predict": (
        "run text text_pair",
        f"--file -o --out --text --text_pair --overwrite --processes --device --precision --json {' '.join(FILE_FLAGS)}",
        (),
    ),
    "serve": (
        "runs",
        "--host --port --max_inputs --max_characters --max_payload --max_requests --queue_seconds --read_seconds "
        "--drain_seconds --batch_tokens --api_key_file --allowed_hosts --device --precision --json",
        (),
    ),
    "push": ("run repository", "--private --revision -m --message --with_report --dry_run --json", ()),
    "export": ("run", "--to -o --out --no_texts --json", ()),
    "report": ("run", "-o --out --format --json", ()),
    "compare": ("runs", "--split --margin -o --out --json", ()),
    "list": ("folder", "--json", ()),
    "config": ("data", "--model -o --out", DATA),
    "port": ("file", "-o --out --in_place --json", ()),
    "run": ("script arguments", "--model_map --keep --allow_errors --json", ()),
    "verify": ("what", "--model --json", DATA),
    "doctor": ("", "--json", ()),
    "ui": ("folder", "--port --open", ()),
}
ROWS = "text,label\n" + "".join(f"good {number},{'ab'[number % 2]}\n" for number in range(8))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Runs the command in this process; returns its exit code, output, and error output without the lines of stages."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["glassloop", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capfd.readouterr()
        code = left.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), captured.out, without_stages(captured.err)

    return call


def plain(text: str) -> str:
    """Return a help text or a usage error on one line."""
    return " ".join(text.split())


# --- the words of the command
def test_the_commands_and_general_flags_are_these() -> None:
    assert {*COMMANDS} == {*FROZEN}
    assert [f"--{entry.name}" for entry in fields(DataSettings)] == DATA_FLAGS
    params = typer.main.get_command(cli.app).params
    assert [flag for param in params for flag in param.opts] == ["--version", "--install-completion", "--show-completion"]
    aliases = {"learning_rate": "--lr", "num_train_epochs": "--epochs", "per_device_train_batch_size": "--batch_size"}
    assert {**aliases, "output_dir": "-o"} == ALIASES


@pytest.mark.parametrize("name", FROZEN)
def test_the_flags_are_these(name: str) -> None:
    arguments, flags, kinds = FROZEN[name]
    own, params = flags.split(), COMMANDS[name].params
    assert [param.name for param in params if param.param_type_name == "argument"] == arguments.split()
    settings = [entry for kind in kinds for entry in fields(kind)]
    names = dict.fromkeys(flag for entry in settings for flag in (ALIASES.get(entry.name), f"--{entry.name}") if flag)
    flags = [flag for param in params if param.param_type_name == "option" for flag in (*param.opts, *param.secondary_opts)]
    positive = [flag for flag in flags if not flag.startswith("--no-") and flag.strip() != "--no_baselines"]
    rest = ["--help-all"] if kinds or name == "predict" else []
    assert positive == [*own, *(flag for flag in names if flag not in own), *rest]
    by_name: dict[str | None, Any] = {param.name: param for param in params}
    for entry in settings:
        if f"--{entry.name}" not in own:
            param = by_name[entry.name]
            assert param.help == entry.metadata["help"] + default_of(entry.name, entry.default)
            assert param.default is None, "a flag that was not given must not hide the setting of a file"


@pytest.mark.parametrize("name", FROZEN)
def test_the_help_fits_into_80_columns_and_cuts_nothing_off(run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    every = "--help-all" if FROZEN[name][2] else "-h"
    summary, short, out = (run(*words) for words in (["--help"], [name, "--help"], [name, every]))
    for code, page, err in (summary, short, out):
        assert (code, err) == (0, "")
        assert "Usage: glassloop" in page
        assert max(map(len, page.splitlines())) <= 80
        assert "…" not in page
    sentence = COMMANDS[name].help or ""
    assert sentence.endswith(".")
    assert "\n" not in sentence.strip()
    assert bool(re.search(rf"^  {name} ", summary[1], re.MULTILINE)) == (name not in cli.FORMER)
    assert name in cli.FORMER or plain(sentence) in plain(summary[1])
    assert "..." not in summary[1].replace("[ARGS]...", "")
    assert "Add --debug anywhere to show the traceback of an error." in plain(summary[1])
    assert all(getattr(param, "help", None) for param in COMMANDS[name].params)
    for entry in (entry for kind in FROZEN[name][2] for entry in fields(kind)):
        assert re.search(rf"--{entry.name}\b", out[1]), entry.name
        assert entry.metadata["help"].replace("-", "").replace(" ", "") in plain(out[1]).replace("-", "").replace(" ", "")


def test_its_version_is_shown_and_without_arguments_its_help(run) -> None:
    for arguments in (["--version"], ["--version", "data", "nosuch.csv"]):
        assert run(*arguments) == (0, f"glassloop {package_version('glassloop')}\n", "")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "Usage: glassloop" in err


def test_a_terminal_without_a_character_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label in Chinese on a terminal in Latin-1 is no reason to stop."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1"))
    monkeypatch.setattr(sys, "argv", ["glassloop", "--version"])
    monkeypatch.setattr(cli, "package_version", lambda name: "1.0 \u2013")
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code in (0, None)
    assert written.getvalue() == b"glassloop 1.0 \\u2013\n"


# --- wrong words
def test_unknown_words_have_exit_code_2(run) -> None:
    for arguments, told in (
        (["insect"], 'there is no command "insect" try: use glassloop inspect'),
        (
            ["inspect", "--nosuch"],
            "glassloop inspect has no option --nosuch try: glassloop inspect --help-all lists the options",
        ),
        (["data", "--split_seed", "x"], "split_seed is 'x', not a whole number"),
        (["inspect", "--max_length"], "option '--max_length' requires an argument try: see glassloop inspect --help"),
        (["data", "a", "b"], "got unexpected extra argument"),
        (["--nosuch"], "glassloop has no option --nosuch try: glassloop --help lists the options"),
        (["evaluate"], "missing argument 'run' try: see glassloop evaluate --help"),
        (["train", "--bs", "8"], "glassloop train has no option --bs try: use --batch_size"),
        (["train", "--num-epochs=3"], "glassloop train has no option --num-epochs try: use --epochs"),
        (["train", "--debug", "--bs", "8"], "glassloop train has no option --bs try: use --batch_size"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert told in plain(err)
        assert "--debug" in arguments or len(err.splitlines()) == 2


# --- errors
ERRORS = ((SettingsError, 2, "settings"), (DataError, 3, "data"), (ModelError, 4, "model"), (ResourceError, 6, "resources"))


def test_an_error_is_two_lines_on_standard_error_and_its_exit_code_and_a_bug_keeps_its_traceback(run, monkeypatch) -> None:
    raised: list[Exception] = [kind("what is wrong \x1b[31m\n", "what to do") for kind, _, _ in ERRORS]

    def fail(*_: Any, **__: Any) -> None:
        raise raised.pop(0)

    monkeypatch.setattr("glassloop.backends.machine.examine", fail)
    for _, code, area in ERRORS:
        assert run("doctor") == (code, "", f"{area}: what is wrong \\x1b[31m\\n\ntry:  what to do\n")
    raised.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_wrong_settings(run) -> None:
    code, out, err = run("data", "--task", "regresion", "--split_seed", "-1", "--labels", "a,a")
    assert (code, out) == (2, "")
    assert err == (
        'settings: task is "regresion", not one of auto, single_label_classification, multi_label_classification, regression; '
        "split_seed is -1, not a whole number of 0 or more\n"
        "try:  set task to regression; set split_seed to a whole number of 0 or more\n"
    )


NO_DATA = "there is no such file or folder"
NAME_ONE = "use a file, a folder, glue/mrpc, quickstart, or a hub data set (owner/name)"


def test_wrong_data_models_numbers_and_caches_are_reported_first(run, write, tiny_model_dir, tmp_path, monkeypatch) -> None:
    file = write("train.csv", ROWS)
    wrong = file.with_name("trian.csv")
    told = f'data: "{wrong}": {NO_DATA}; did you mean "train.csv"?\ntry:  {NAME_ONE}\n'
    assert run("data", str(wrong)) == (3, "", told)
    told = f"model: {tmp_path}: there is no config.json (found train.csv)\ntry:  name the folder of a saved model\n"
    assert run("data", str(file), "--model", str(tmp_path)) == (4, "", told)
    words = ("data", str(file), "--model", str(tiny_model_dir))
    told = "settings: {}\ntry:  use a whole number of {} or more\n"
    assert run(*words, "--batch_size", "0") == (2, "", told.format("the batch size is 0", 1))
    assert run(*words, "--max_length", "7") == (2, "", told.format("max_length is 7", 8))
    for name in ("x" * 300, "~nobody-is-called-this/x.csv"):
        code, out, err = run("data", name)
        assert (code, out) == (3, "")
        assert re.fullmatch(r'data: ".{20,200}": there is no such file or folder\ntry:  use a file, .*\n', err)
    monkeypatch.setenv("GLASSLOOP_CACHE", str(file / "cache"))
    told = f"resources: {file}/cache/data: Not a directory\ntry:  choose a folder that can be written to\n"
    assert run("data", str(file)) == (6, "", told)


def test_debug_shows_the_traceback_wherever_it_stands(run) -> None:
    for arguments in (("--debug", "data", "nosuch.csv"), ("data", "--debug", "nosuch.csv"), ("data", "nosuch.csv", "--debug")):
        code, out, err = run(*arguments)
        assert (code, out) == (3, "")
        assert err.startswith("Traceback (most recent call last):\n")
        assert "find_source" in err
        assert err.endswith(f'data: "nosuch.csv": {NO_DATA}\ntry:  {NAME_ONE}\n')


# --- JSON
def test_json_is_alone_on_standard_output_and_an_error_is_json_too(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(*_: Any) -> CommandResult:
        print("a table")
        return CommandResult({"ok": True, "share": float("nan"), "text": "é\n"}, 1)

    monkeypatch.setattr("glassloop.predict.calibration.remove_calibration", remove)
    code, out, err = run("calibrate", "x", "--remove", "--json")
    assert (code, err) == (1, "a table\n")
    assert json.loads(out) == {"ok": True, "share": None, "text": "é\n"}
    assert out.isascii(), "a terminal without these characters must not break the document"
    assert run("calibrate", "x", "--remove") == (1, "a table\n", "")
    code, out, err = run("data", "nosuch.csv", "--json")
    assert code == 3
    error = json.loads(out)["error"]
    assert error == {"area": "data", "problem": f'"nosuch.csv": {NO_DATA}', "remedy": NAME_ONE, "exit_status": 3}
    assert err == f"data: {error['problem']}\ntry:  {error['remedy']}\n"
    assert json.loads(run("train", "--json", "--bs", "3")[1])["error"]["remedy"] == "use --batch_size"


def test_every_command_with_json_prints_one_document(run, text_run, seeds_folder, lively_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("glassloop.cli.train.leave_on_signal", lambda: None)
    data, model = str(text_run.parent), str(lively_dir)

    def keys_of(*arguments: str) -> list[str]:
        code, out, _ = run(*arguments, "--json")
        assert code == 0
        return [*json.loads(out)]

    flags = ("--model", model, "--max_steps", "1", "--device", "cpu", "-o", str(tmp_path / "out"), "--save_strategy", "no")
    assert keys_of("train", data, *flags)[:3] == ["run", "status", "data"]
    assert keys_of("train", "--resume", str(tmp_path / "out"))[:3] == ["run", "status", "data"]
    assert keys_of("evaluate", str(text_run), "--device", "cpu") == ["run", "data", "splits", "out"]
    assert keys_of("evaluate", str(seeds_folder), "--device", "cpu")[:3] == ["run", "data", "seeds"]
    shutil.copytree(text_run, tmp_path / "copy")
    assert keys_of("push", str(tmp_path / "copy"), "me/it", "--dry_run")[:2] == ["run", "repository"]
    assert keys_of("compare", str(text_run), str(seeds_folder))[:3] == ["split", "rows", "positive_label"]
    assert keys_of("list", str(seeds_folder)) == ["folder", "runs", "links", "complete"]
    for name in ("inspect", "data"):  # the former name of the command
        assert keys_of(name, data, "--model", model)[:4] == ["data", "model", "max_length", "task"]
    found = keys_of("inspect", data, "--model", model, "--deep", "--device", "cpu")
    assert found == [
        "data",
        "model",
        "task",
        "columns",
        "findings",
        "diagnosis",
        "out",
        "suggestions",
        "failed",
        "learning_curve",
    ]
    assert keys_of("predict", str(text_run), "good", "--device", "cpu") == ["run", "predictions"]
    assert keys_of("predict", str(seeds_folder), "good", "--device", "cpu") == ["run", "predictions"]
    out = str(tmp_path / "rows.csv")
    assert keys_of("predict", str(text_run), "--file", f"{data}/test.csv", "-o", out) == ["run", "file", "rows", "out"]


# --- what the flags become
def test_the_flags_reach_the_settings(run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    def catch(path: str, **given: Any) -> None:
        seen.append((path, given))
        raise DataError("enough seen", "go on")

    monkeypatch.setattr("glassloop.data.sources.load_examples", catch)
    values: dict[str, Any] = {
        **{"name": "de", "data_dir": "glue", "validation": "v.csv", "test": "t.csv"},
        **{"text": "a", "text_pair": "b", "label": "c", "labels": "x,y"},
        **{"task": "regression", "label_separator": "|", "delimiter": ";", "header": True, "columns": "d,e"},
        **{"encoding": "cp1252", "sheet": "s", "bad_rows": "skip", "empty": "keep", "unknown_labels": "skip"},
        **{"validation_share": 0.2, "selection_fold": "2/5", "split_seed": 7, "limit": 5, "rows": 99},
    }
    assert [f"--{name}" for name in values] == DATA_FLAGS
    typed = [[f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in values.items()]
    run("data", "file.csv", *(part for parts in typed for part in parts))
    run("data")
    defaults = {entry.name: entry.default for entry in fields(DataSettings)}
    assert seen == [("file.csv", values), ("quickstart", defaults)]


def test_seeds_and_processes_reach_the_command(run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("glassloop.study.seeds.train_with_seeds", lambda *given, **rest: seen.append((*given, rest)))
    monkeypatch.setattr("glassloop.cli.train.leave_on_signal", lambda: None)
    run("train", "a.csv", "--seeds", "3", "--at_once=2", "--seed", "5", "--resume", "--processes", "2", "--no_report")
    rest = {"restart": False, "processes": 2, "with_report": False}
    assert seen == [(GivenSettings("a.csv", training={"seed": 5}), 3, 2, "newest", rest)]


def test_timing_of_several_seeds_is_that_of_the_first(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings("a.csv", None)
    for finished in (False, True):
        status = FINISHED if finished else FAILED
        write_seeds(SeedsRecord(settings, {seed: SeedRecord(seed=seed, status=status) for seed in (7, 8)}, tmp_path))
        (tmp_path / "seed-7").mkdir(exist_ok=True)
        write_run(tmp_path / "seed-7", replace(RECORD, stages={"starting": 1.0, "other steps": 2.5}))
        monkeypatch.setattr("glassloop.study.seeds.train_with_seeds", lambda *_, **__: CommandResult({"run": tmp_path}))
        monkeypatch.setattr("glassloop.cli.train.leave_on_signal", lambda: None)
        _, _, printed = run("train", "a.csv", "--seeds", "2", "--timing")
        assert ([*map(str.split, printed.splitlines())][-1:] == [["in", "all", "3.50"]]) == finished, printed


# --- from the command
@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Runs `glassloop train` with a train_run that only writes down what it is given."""
    seen: list[tuple[Any, ...]] = []

    def catch(given: GivenSettings, *rest: Any, **more: Any) -> Path:
        seen.append((given.source, given.model, given.training, given.data))
        raise SystemExit

    monkeypatch.setattr("glassloop.study.run.train_run", catch)

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
    training = {"learning_rate": 1e-3, "seed": 1, "group_by_length": True}
    assert command("--config", str(path)) == ("file.csv", "theirs", training, {"text": "body", "split_seed": 1})
    flags = ("--learning_rate", "5e-5", "--seed", "2", "--text", "other", "--no-group_by_length", "--model", "mine")
    found, training = command("flag.csv", "--config", str(path), *flags), {"learning_rate": 5e-5, "seed": 2}
    assert found == ("flag.csv", "mine", {**training, "group_by_length": False}, {"text": "other", "split_seed": 1})


def test_a_dash_is_an_underscore_in_every_option(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name of every option of every command, with dashes and with underscores."""

    def names_of(flag: str) -> set[str]:
        return {flag, flag[:2] + flag[2:].replace("_", "-"), flag[:2] + flag[2:].replace("-", "_")}

    for name, command in COMMANDS.items():
        context = command.make_context(name, [], resilient_parsing=True, parent=None, **cli.app.info.context_settings)
        for param in command.params:
            for flag in (flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")):
                value = [] if getattr(param, "is_flag", False) else ["1"]
                for spelling in names_of(flag):
                    found, rest, _ = command.make_parser(context).parse_args([spelling, *value])
                    assert (param.name in found, rest) == (True, []), f"{name} {spelling}"


def test_a_flag_puts_right_what_is_wrong_in_the_file(write, command, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("run.toml", "[training]\nload_best_model_at_end = true\nlearning_rate = -1\n")
    assert command("--config", str(path)) == (2,)
    assert without_stages(capsys.readouterr().err).startswith(
        "settings: learning_rate is -1, not 0 or more; load_best_model_at_end needs evaluations, but eval_strategy is no\n"
    )
    _, _, training, _ = command("--config", str(path), "--eval_strategy", "epoch", "--learning_rate", "1e-3")
    assert training == {"load_best_model_at_end": True, "learning_rate": 1e-3, "eval_strategy": "epoch"}


def test_every_setting_has_a_flag_that_reaches_it_and_some_have_short_names(command) -> None:
    values = {
        entry.name: {"bool": True, "int": 3, "float": 0.5}.get(str(entry.type).replace(" | None", ""), "x")
        for entry in fields(TrainingArguments)
    }
    values |= {"eval_strategy": "epoch", "save_strategy": "steps", "lr_scheduler_type": "cosine", "optim": "adamw_torch"}
    values |= {"precision": "fp32", "device": "cpu", "backend": "plain", "report_to": "none", "lr_scheduler_kwargs": "{}"}
    values |= {"logging_strategy": "steps", "optim_args": "momentum=0.9"}
    values |= {"method": "fine_tune", "pooling": "max", "pair_form": "two_towers", "adapter": "lora"}
    flags = [part for name, value in values.items() for part in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
    _, _, training, settings = command(*flags)
    assert training == values
    assert TrainingArguments(**training).to_dict() == values
    assert settings == {}
    _, _, training, _ = command("--lr", "1e-3", "--epochs=2", "--batch-size", "4", "-o", "out", "--no-eval-on-start")
    assert training.pop("eval_on_start") is False
    wanted = {"learning_rate": 1e-3, "num_train_epochs": 2.0, "per_device_train_batch_size": 4, "output_dir": "out"}
    assert training == wanted


# --- names of the last release
def test_the_page_groups_the_commands_and_hides_former_names(run) -> None:
    out = run("--help")[1]
    assert [line.rstrip(":") for line in out.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)] == ["Options", *cli.COMMANDS]
    shown = re.findall(r"^  ([a-z]\w+) ", out, re.MULTILINE)
    assert shown == [name for names in cli.COMMANDS.values() for name in names]
    assert not {*shown} & {*cli.FORMER}


def test_former_names_of_commands_and_options_still_work(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    assert run("init", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "run.toml"))[0] == 0
    assert (tmp_path / "run.toml").is_file()
    seen: list[Any] = []
    monkeypatch.setattr("glassloop.study.seeds.train_with_seeds", lambda *given, **_: seen.append(given[1:3]))
    monkeypatch.setattr("glassloop.cli.train.leave_on_signal", lambda: None)
    err = run("train", "a.csv", "--seeds", "3", "--seeds-at-once=2")[2]
    assert (seen, err) == ([(3, 2)], "glassloop: --seeds-at-once is now called --at_once\n")
    assert "--min_recall" in run("calibrate", "x", "--target", "f1", "--recall", "0.5")[2]
