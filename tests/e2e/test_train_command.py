"""`glassloop train` as a person meets it: what it says, what it refuses with which exit code, and several processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from commands import SHOWN, run_command, run_forked
from families import tiny_model
from trials import REVIEWS, Ended, Servers, json_lines, told

from glassloop.runs.record import Difference

COMMON = ["--device", "cpu", "--precision", "fp32", "--save_strategy", "no"]
HEAD = ["--pooling", "head"]  # a fitted head enlarges rounding errors; tests/faults/test_processes.py has one
CONFIG = """
source = "rows.csv"
model = "still"

[data]
validation_share = 0.2

[training]
max_steps = 3
learning_rate = 1e-3
evaluation_strategy = "epoch"
group_by_length = true
device = "cpu"
precision = "fp32"
"""


@pytest.fixture(scope="module")
def place(tiny_tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a model without dropout, a file of settings, and files of somebody else."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "rows.csv").write_text(REVIEWS)
    (folder / "broken.csv").write_text("text,label\ngood,pos\n,neg\nbad,neg\n")
    (folder / "run.toml").write_text(CONFIG)
    (folder / "theirs").mkdir()
    (folder / "theirs" / "thesis.tex").write_text("years of work")
    model = tiny_model(dropout=0.0, max_position_embeddings=64, initializer_range=0.3)
    model.base_model.save_pretrained(folder / "still")
    tiny_tokenizer.save_pretrained(folder / "still")
    return folder


def history_of(place: Path, run: str) -> list[dict[str, Any]]:
    return json_lines(place / run / "history.jsonl")


def description(place: Path, run: str) -> dict[str, Any]:
    return json.loads((place / run / "run.json").read_text(encoding="utf-8"))


# --- one run -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def first(place: Path, cache: dict[str, str]) -> Ended:
    """A run without a folder of its own choice."""
    flags = "--max_steps 9 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --warmup_steps 0.2".split()
    words = ["train", "rows.csv", "--model", "still", "--eval_strategy", "epoch", *flags, *COMMON]
    return run_command(*words, folder=place, **cache)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core the process fits the regression on words itself")
def test_the_process_that_trains_imports_neither_scikit_learn_nor_scipys_statistics(
    first: Ended, place: Path, cache: dict[str, str]
) -> None:
    words = ["train", "rows.csv", "--model", "still", "--max_steps", "1", *COMMON, "--output_dir", "imports"]
    ended = run_command(*words, folder=place, launcher=("-X", "importtime"), **cache)
    imported = {line.rpartition("|")[2].strip() for line in ended.lines if line.startswith("import time:")}
    assert (ended.code, first.code) == (0, 0)
    assert "torch" in imported
    assert not {"sklearn", "scipy.stats"} & imported
    simple = [description(place, run)["baselines"][1] for run in ("imports", "runs/run-001")]
    assert [one["name"] for one in simple] == ["words"] * 2
    assert simple[0]["scores"] == simple[1]["scores"]


def test_a_banner_says_what_will_happen(first: Ended, place: Path) -> None:
    assert first.code == 0, first.err
    described = description(place, "runs/run-001")
    saves, measured = ", ".join(described["savings"]), described["difference"]
    logits, gradients = Difference(**measured).in_words
    assert first.lines[:12] == [
        "data           rows.csv: 45 train, 5 validation",
        "task           single label classification: neg, pos",
        "model          still (bert, 0.0 M parameters)",
        "method         fine_tune, mean pooling",
        "steps          9 (6 per epoch), 4 rows × 2 batches per step, no padding",
        "learning rate  0.0001, linear schedule, 2 warm-up steps",
        "chosen         method, pooling, learning rate: from 45 training rows, 2 outputs, 0.0 M encoder weights",
        "device         cpu, fp32, backend packed",
        f"optimizations  {saves}",
        f"check          {logits}",
        f"               {gradients}, 4 rows",
        "folder         runs/run-001",
    ]
    assert first.lines[12] == "• no validation split: held out 5 of 50 training rows (stratified, split_seed 42)"


def test_lines_where_there_is_no_terminal(first: Ended, place: Path) -> None:
    """No carriage return, no colour, nothing on standard output: a log stays readable."""
    assert (first.out, "\r" in first.err, "\x1b" in first.err) == ("", False, False)
    figures = history_of(place, "runs/run-001")
    assert [entry["step"] for entry in figures] == [6, 6, 9]
    last = figures[2]
    steps = [line for line in first.lines if re.match(r"step \d+/9 ", line)]
    pattern = rf"step 9/9  epoch 1\.50  loss {last['loss']:.4f}  lr {last['learning_rate']:.2e}  \d+ rows/s  0 s left"
    assert re.fullmatch(pattern, steps[-1]), steps[-1]
    assert last["learning_rate"] > 0  # the rate of the last step, not of the one after it
    assert any(line.startswith(f"step 6  epoch 1.00  loss {figures[1]['eval_loss']:.4f}  accuracy ") for line in first.lines)


def test_the_result_stands_beside_what_simple_methods_reach(first: Ended, place: Path) -> None:
    found = description(place, "runs/run-001")
    start = first.lines.index("validation         this run  frequencies   words  frozen")
    evaluation, simple = found["evaluation"], found["baselines"]
    assert [one["name"] for one in simple] == ["class frequencies", "words", "frozen encoder"]
    assert {name: simple[0]["scores"][name]["value"] for name in ("accuracy", "f1_macro")} == found["baseline"]

    def beside(name: str) -> list[str]:
        return [f"{value:.4f}" for value in (evaluation[f"eval_{name}"], *(one["scores"][name]["value"] for one in simple))]

    assert [line.split() for line in first.lines[start + 1 : start + 4]] == [
        ["loss", f"{evaluation['eval_loss']:.4f}", "-", "-", "-"],
        ["accuracy", *beside("accuracy")],
        ["f1", "(macro)", *beside("f1_macro")],
    ]
    likely = [f"{one['scores']['log_loss']['value']:.4f}" for one in simple]
    assert first.lines[start + 5].split() == [
        "log",
        "loss",
        f"{found['probabilities']['after']['log_loss']['value']:.4f}",
        *likely,
    ]
    assert re.fullmatch(r"✓ \d+ s, 9 steps → runs/run-001", first.lines[-1])
    assert first.lines[start + 4].split()[:3] == ["balanced", "accuracy", f"{found['balanced_accuracy']:.4f}"]
    assert first.lines[start + 9].split() == ["class", "precision", "recall", "f1", "rows"]
    assert [line.split()[0] for line in first.lines[start + 10 : start + 12]] == ["neg", "pos"]
    assert " ".join(" ".join(first.lines[start + 13 :]).split()).startswith(f"• {found['verdict']}")


# --- what it refuses, and settings from a file -------------------------------------------------------------------
TRAIN = ["train", "rows.csv", "--model", "still", *COMMON]
COMMANDS: dict[str, list[str]] = {
    "wrong settings": [*TRAIN, "--learning_rate", "-1", "--eval_strategy", "epochs", "--seed", "-2", "--empty", "drop"],
    "no numbers": [*TRAIN, "--learning_rate", "fast", "--seed", "1.5", "--rows", "few", "--logging_steps", "0"],
    "no numbers on going on": ["train", "--resume", "runs/run-001", "--learning_rate", "fast", "--max_steps", "few"],
    "unknown flag": [*TRAIN, "--learning_rat", "1"],
    "wrong file of settings": ["train", "--config", "wrong.toml"],
    "no data": ["train", "xyz.csv", "--model", "still", *COMMON],
    "bad data": ["train", "broken.csv", "--model", "still", *COMMON],
    "no model": ["train", "rows.csv", "--model", "./gone", *COMMON],
    "diverged": [*TRAIN, "--learning_rate", "1e25", "--warmup_steps", "0", "--output_dir", "diverged"],
    "files of somebody else": [*TRAIN, "--output_dir", "theirs"],
    "a run is there": [*TRAIN, "--output_dir", "runs/run-001"],
    "file": ["train", "--config", "run.toml", "--output_dir", "from-file"],
    "file and flags": [
        *("train", "--config", "run.toml", "--output_dir", "from-both", "--max_steps", "2", "--no-group_by_length"),
        *("--validation_share", "0.1", "--save_strategy", "no"),
    ],
    "next number": [*TRAIN, "--max_steps", "1"],
    "one process": [*TRAIN, "--output_dir", "one", "--per_device_train_batch_size", "8", "--logging_steps", "1",
                    "--num_train_epochs", "2", "--learning_rate", "1e-3", *HEAD],
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(first: Ended, place: Path, servers: Servers, cache: dict[str, str]) -> dict[str, Ended]:
    """All these commands, after the first run."""
    (place / "wrong.toml").write_text("[data]\ntxt = 1\n[training]\nlearning_rat = 1\n[other]\n")
    before = {path: path.read_bytes() for path in (place / "runs" / "run-001").rglob("*") if path.is_file()}
    found = run_forked(servers, *COMMANDS.values(), folder=place, **cache)
    assert {path: path.read_bytes() for path in (place / "runs" / "run-001").rglob("*") if path.is_file()} == before
    return dict(zip(COMMANDS, found, strict=True))


# The exit code, and what the two lines must say, separated by |.
REFUSED: dict[str, tuple[int, str]] = {
    "wrong settings": (
        2,
        'settings: eval_strategy is "epochs", not one of no, steps, epoch; learning_rate is -1.0|seed is -2|empty is "drop"'
        "|set eval_strategy to epoch|set seed to 0 or more|set empty to refuse or keep",
    ),
    "no numbers": (
        2,
        "settings: learning_rate is 'fast', not a finite number; seed is '1.5', not a whole number|rows is 'few'"
        "|logging_steps is 0.0|set rows to a whole number of 10 or more",
    ),
    "no numbers on going on": (2, "settings: max_steps is 'few'|learning_rate is 'fast'|set max_steps to a whole number"),
    "wrong file of settings": (
        2,
        'settings: config wrong.toml: unknown entry "other"|"txt" in [data]; did you mean "text"?'
        '|"learning_rat"; did you mean "learning_rate"?|glassloop train --help lists all settings',
    ),
    "no data": (3, 'data: "xyz.csv": there is no such file or folder|use a file, a folder, glue/mrpc, quickstart'),
    "bad data": (3, 'data: broken.csv, row 3: "text" is empty|--empty keep'),
    "no model": (4, 'model: "./gone": there is no such folder|quickstart'),
    "files of somebody else": (2, "theirs contains files that do not belong to a run|choose an empty or new folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_in_two_lines_with_its_exit_code(name: str, ended: dict[str, Ended]) -> None:
    code, parts = REFUSED[name]
    found = ended[name]
    assert (found.code, found.out, len(found.lines), found.lines[-1][:4]) == (code, "", 2, "try:")
    assert all(part in found.err for part in parts.split("|")), found.err


def test_an_unknown_option(ended: dict[str, Ended]) -> None:
    told(ended["unknown flag"], 2, "--learning_rat")


def test_a_run_that_diverges_leaves_with_5_and_says_where(ended: dict[str, Ended], place: Path) -> None:
    found = ended["diverged"]
    assert found.code == 5
    problem, remedy = found.lines[-2:]
    known = r"last finite loss [\d.]+, learning rate 1e\+25, rows (\d+, ){7}\d+ and 8 more of the training data"
    assert re.fullmatch(rf"diverged: step 2: the loss is nan \({known}\)", problem), problem
    assert remedy == "try:  lower learning_rate, add warmup_steps, use precision fp32, or look at these rows"
    assert "Traceback" not in found.err
    assert description(place, "diverged")["status"] == "running"
    assert not (place / "diverged" / "model").exists()


def test_a_second_run_into_the_same_folder_is_refused_and_other_files_are_not_changed(ended: dict, place: Path) -> None:
    assert {path.name: path.read_text() for path in (place / "theirs").iterdir()} == {"thesis.tex": "years of work"}
    assert ended["a run is there"].code == 2
    assert ended["a run is there"].err.startswith("settings: output_dir runs/run-001 already contains a run\ntry:  ")
    assert ended["next number"].code == 0, ended["next number"].err
    assert description(place, "runs/run-002")["status"] == "finished"


def test_settings_from_a_file_and_flags_before_it(ended: dict[str, Ended], place: Path) -> None:
    assert ended["file"].code == 0, ended["file"].err
    assert ended["file"].lines[0] == "glassloop: evaluation_strategy is now called eval_strategy"
    assert ended["file"].lines[1] == "data           rows.csv: 40 train, 10 validation"
    settings = description(place, "from-file")["settings"]
    wanted = {"max_steps": 3, "learning_rate": 1e-3, "eval_strategy": "epoch", "group_by_length": True}
    assert {name: settings[name] for name in wanted} == wanted
    assert ended["file and flags"].code == 0, ended["file and flags"].err
    found = description(place, "from-both")
    assert (found["settings"]["max_steps"], found["settings"]["group_by_length"]) == (2, False)
    assert found["settings"]["learning_rate"] == 1e-3
    assert found["data"]["splits"]["validation"]["num_rows"] == 5


# --- several processes -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["--processes", pytest.param("torchrun", marks=pytest.mark.exhaustive)])
def several(
    request: pytest.FixtureRequest, place: Path, servers: Servers, cache: dict[str, str], ended: dict[str, Ended]
) -> tuple[str, Ended]:
    """The run of one process with batches of eight, in two processes with batches of four."""
    run = f"two-{request.param.strip('-')}"
    flags = ["--output_dir", run, "--per_device_train_batch_size", "4", "--logging_steps", "1", "--num_train_epochs", "2"]
    command = [*TRAIN, *flags, "--learning_rate", "1e-3", *HEAD]
    if request.param == "--processes":
        return run, servers.run(*command, "--processes", "2", folder=place, **SHOWN, **cache)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    return run, run_command(*command, folder=place, launcher=launcher, **cache)


def test_two_processes_give_the_losses_of_one_with_twice_the_batch(several: tuple[str, Ended], place: Path) -> None:
    run, said = several
    assert said.code == 0, said.err
    one, two = history_of(place, "one"), history_of(place, run)
    assert len(one) == len(two) == 12  # 45 rows: five batches of eight and one of five, twice
    for mine, theirs in zip(one, two, strict=True):
        assert (mine["step"], mine["epoch"]) == (theirs["step"], theirs["epoch"])
        for name in ("loss", "grad_norm"):
            assert theirs[name] == pytest.approx(mine[name], abs=1e-5, rel=1e-5)
    assert max(entry["loss"] for entry in one) - min(entry["loss"] for entry in one) > 0.1
    alone, both = description(place, "one"), description(place, run)
    assert (both["status"], both["processes"], both["backend"]) == ("finished", 2, "accelerate")
    assert both["evaluation"]["eval_loss"] == pytest.approx(alone["evaluation"]["eval_loss"], abs=1e-5)
    for name in ("eval_accuracy", "eval_f1_macro"):
        assert both["evaluation"][name] == alone["evaluation"][name]


def test_two_processes_print_each_line_once_and_leave_the_folder_of_one(several: tuple[str, Ended], place: Path) -> None:
    run, said = several
    for start in ("data     ", "device   ", "folder   ", "• no validation split", "validation     ", "✓ "):
        assert sum(line.startswith(start) for line in said.lines) == 1, start
    assert any("4 rows × 2 processes per step" in line for line in said.lines)
    assert sum("12/12" in line for line in said.lines) == 1
    assert said.lines[-1].endswith(f"12 steps → {run}")
    names = [sorted(path.name for path in (place / name).iterdir()) for name in ("one", run)]
    assert names[0] == names[1]
    predictions = [json_lines(place / name / "validation-predictions.jsonl") for name in ("one", run)]
    assert [row["prediction"] for row in predictions[0]] == [row["prediction"] for row in predictions[1]]
