"""The regression on words, and the process beside this one that fits it: equal to the last bit, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import environment

from glassloop.models import words
from glassloop.models.words import Texts, WordFeatures, WordsRegression, fit_words, most_features, most_texts, packed, unpacked
from glassloop.scores.calibration import prior_outputs
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def outputs_of(train: Texts, targets: Array, others: Texts, task: str, num_outputs: int) -> Array:
    return fit_words(train, targets, task, num_outputs)(others)


# --- the regression
TEXTS = [f"{'good' if row % 3 else 'bad'} film number {row}" for row in range(60)]
LABELS = np.array([int(row % 3 > 0) for row in range(60)])


def test_words_find_what_a_text_says() -> None:
    others = [["a good one", "a bad one", "nothing known here", ""]]
    outputs = outputs_of([TEXTS], LABELS, others, CLASSES, 2)
    assert [*outputs.argmax(axis=1)[:2]] == [1, 0]
    assert np.allclose(outputs[2], outputs[3]), "unknown words say as much as none"
    scores = outputs_of([TEXTS], LABELS * 2.0 + 1, others, SCORE, 1)
    assert scores.shape == (4, 1)
    assert scores[0, 0] > 2.3 > 1.9 > scores[1, 0]
    several = np.stack([LABELS, np.ones(60, dtype=np.int64), np.zeros(60, dtype=np.int64)], axis=1)
    labels = outputs_of([TEXTS], several, others, SEVERAL, 3)
    assert [*(labels[:2, 0] > 0)] == [True, False]
    assert np.allclose(labels[:, 1:], prior_outputs(several, SEVERAL, 3)[1:]), "what all rows have, or none"


def test_pairs_are_compared_by_the_words_they_share() -> None:
    source = np.random.default_rng(0)
    words = [f"word{number}" for number in range(40)]
    firsts = [" ".join(source.choice(words, 4, replace=False)) for _ in range(200)]
    targets = np.arange(200) % 2
    seconds = [text if same else " ".join(source.choice(words, 4, replace=False))
               for text, same in zip(firsts, targets, strict=True)]  # fmt: skip
    train, others = ([column[:150] for column in (firsts, seconds)], [column[150:] for column in (firsts, seconds)])
    outputs = outputs_of(train, targets[:150], others, CLASSES, 2)
    assert (outputs.argmax(axis=1) == targets[150:]).mean() > 0.9


@pytest.mark.parametrize(("task", "width"), [(CLASSES, 2), (SEVERAL, 2), (SCORE, 1)])
@pytest.mark.parametrize("texts", [[""] * 12, ["!?", "...", "—"] * 4, ["   "] * 12], ids=["empty", "no letters", "blank"])
@pytest.mark.parametrize("pairs", [False, True])
def test_texts_without_words_give_the_frequencies(task: str, width: int, texts: list[str], pairs: bool) -> None:
    labels = np.array([0] * 9 + [1] * 3)
    targets = {CLASSES: labels, SEVERAL: np.stack([labels, 1 - labels], axis=1), SCORE: labels * 1.5}[task]
    columns = [texts, texts] if pairs else [texts]
    others = [["good film", ""], ["bad film", ""]][: len(columns)]
    outputs = outputs_of(columns, targets, others, task, width)
    assert outputs.shape == (2, width)
    assert np.allclose(outputs, prior_outputs(targets, task, width), atol=0.35)
    assert outputs.argmax(axis=1).tolist() == [0, 0] if task == CLASSES else np.isfinite(outputs).all()


def test_some_empty_texts_are_rows_like_others() -> None:
    texts = [text if row % 4 else "" for row, text in enumerate(TEXTS)]
    outputs = outputs_of([texts], LABELS, [["good film", "bad film", ""]], CLASSES, 2)
    assert [*outputs.argmax(axis=1)[:2]] == [1, 0]
    assert np.isfinite(outputs).all()


def test_words_of_languages_that_write_none_apart() -> None:
    texts = [f"这部电影很{'好' if row % 2 else '坏'}看第{row}次" for row in range(60)]
    outputs = outputs_of([texts], np.arange(60) % 2, [["我觉得很好看", "我觉得很坏看"]], CLASSES, 2)
    assert [*outputs.argmax(axis=1)] == [1, 0]


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS[:2], TEXTS])
def test_a_class_or_label_that_no_row_has_and_one_that_all_have(texts: list[str]) -> None:
    everyone = np.full(len(texts), 2)
    outputs = outputs_of([texts], everyone, [["good film", "bad"]], CLASSES, 4)
    assert [*outputs.argmax(axis=1)] == [2, 2]
    assert np.isfinite(outputs).all()
    if len(texts) == 60:
        outputs = outputs_of([texts], LABELS * 3, [["good film", "bad film"]], CLASSES, 4)
        assert [*outputs.argmax(axis=1)] == [3, 0]
        assert (outputs[:, 1:3] < -10).all(), "classes without a training row"


def test_a_thousand_classes_of_two_rows_each() -> None:
    texts = [f"subject{row % 1_000} is written about" for row in range(2_000)]
    others = [[f"on subject{number}" for number in range(0, 1_000, 50)]]
    outputs = outputs_of([texts], np.arange(2_000) % 1_000, others, CLASSES, 1_000)
    assert (outputs.argmax(axis=1) == np.arange(0, 1_000, 50)).mean() > 0.9
    assert [most_texts(number) for number in (1, 20, 40, 200, 10_000)] == [20_000, 20_000, 10_000, 2_000, 2_000]


def test_many_classes_have_fewer_words_so_that_the_weights_fit_into_memory() -> None:
    single, pairs = (
        [most_features(np.arange(number), CLASSES, columns) for number in (2, 77, 200, 1_000)] for columns in (1, 2)
    )
    assert single == [30_000, 30_000, 15_000, 3_000]
    assert pairs == [30_000, 9_740, 3_750, 1_000]
    assert most_features(np.eye(1_000), SEVERAL, 2) == most_features(np.arange(1_000.0), SCORE, 2) == 30_000
    texts = [f"word{row} other{row}" for row in range(400)]
    assert len(WordFeatures([texts], 100).vectorizer.vocabulary_) == 100


# --- a process beside this one
OTHERS = [["a good one", "a bad one", "\udc80 \x00 \u2028 nothing known", ""]]
SEVERAL_LABELS = np.stack([LABELS, 1 - LABELS], axis=1)
QUESTIONS = {
    "classes": ([TEXTS], LABELS, CLASSES, 2, OTHERS),
    "labels": ([TEXTS], SEVERAL_LABELS, SEVERAL, 2, OTHERS),
    "scores": ([TEXTS], LABELS / 3 + 0.1, SCORE, 1, OTHERS),
    "pairs": ([TEXTS, TEXTS[::-1]], LABELS, CLASSES, 3, OTHERS * 2),
}


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine and the other tests: a process is started."""
    monkeypatch.setattr(words, "pays", lambda number=0: True)


def eventually(is_true: Callable[[], bool]) -> bool:
    limit = time.monotonic() + 60
    while not is_true() and time.monotonic() < limit:
        time.sleep(0.02)
    return is_true()


@pytest.mark.slow
@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize(("train", "targets", "task", "width", "others"), QUESTIONS.values(), ids=QUESTIONS)
def test_the_other_process_gives_the_same_to_the_last_bit(
    train: Texts, targets: Array, task: str, width: int, others: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = WordsRegression(train, targets, task, width)
    here.ask(others)
    wanted, _ = here.outputs()
    monkeypatch.setattr(words, "timed_outputs", None)  # not here
    with WordsRegression(train, targets, task, width) as beside:
        beside.ask(others)
        outputs, seconds = beside.outputs()
    assert outputs.dtype == wanted.dtype
    assert np.array_equal(outputs, wanted)
    assert 0 < seconds < 60


def test_arrays_are_passed_on_to_the_last_bit() -> None:
    for array in (np.array([[0.1, -0.0], [np.inf, np.nan]]), np.arange(3), np.zeros((0, 2)), np.float32([1 / 3])):
        again = unpacked(json.loads(json.dumps(packed(array))))
        assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert again.flags.writeable


@pytest.mark.slow
def test_the_other_process_imports_no_torch_and_none_of_the_files_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('this is the file of a user')")
    lines = json.dumps([[TEXTS], packed(LABELS), CLASSES, 2]), json.dumps(OTHERS)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            words.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=tmp_path, encoding="utf-8",
            env=environment(PYTHONPROFILEIMPORTTIME="1"),
        )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join([*lines, ""]))
        process.stdin.flush()
        answer = process.stdout.readline()
        assert process.wait(60) == 0, "it does not wait for the end of its input"
    told = (tmp_path / "log").read_text()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.splitlines() if "import time:" in line}
    assert "sklearn" in imported
    assert not {"torch", "transformers", "datasets"} & imported
    assert np.array_equal(unpacked(json.loads(answer)[0]), outputs_of([TEXTS], LABELS, OTHERS, CLASSES, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("pays")
def test_leaving_the_block_ends_the_process_whatever_happened() -> None:
    many = [text * 50 for text in TEXTS] * 100  # more than a pipe holds
    regression = WordsRegression([many], np.tile(LABELS, 100), CLASSES, 2)

    def interrupted() -> None:
        with regression:
            started.append(regression.process)
            raise KeyboardInterrupt

    started: list[subprocess.Popen[bytes] | None] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (process,) = started
    assert process is not None
    assert process.returncode == -signal.SIGKILL
    assert regression.process is None


@pytest.mark.slow
def test_the_process_ends_when_the_one_that_started_it_is_killed(tmp_path: Path) -> None:
    code = """
import time
from glassloop.models.words import WordsRegression
import numpy as np
with WordsRegression([["good film", "bad film"]], np.array([1, 0]), "single_label_classification", 2) as words:
    print(words.process.pid, flush=True)
    time.sleep(60)
"""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as parent:
            child = Path(f"/proc/{int(parent.stdout.readline())}/cmdline")
            assert b"glassloop.models.words" in child.read_bytes()
            parent.send_signal(number)
            parent.wait()
        assert eventually(lambda child=child: not child.exists() or not child.read_bytes()), "it is left behind"


@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize("command", [["/no/such/program"], [sys.executable, "-S", "-c", "import sys; sys.exit(7)"]])
def test_without_the_other_process_the_regression_is_fitted_here(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(words, "COMMAND", command)
    with WordsRegression([TEXTS], LABELS, CLASSES, 2) as regression:
        regression.ask(OTHERS)
        outputs, _ = regression.outputs()
    assert np.array_equal(outputs, outputs_of([TEXTS], LABELS, OTHERS, CLASSES, 2))
    assert ("ended with exit status 7" in capsys.readouterr().err) == (command[0] == sys.executable)


@pytest.mark.slow
@pytest.mark.usefixtures("pays")
def test_an_error_of_the_other_process_is_that_of_this_one() -> None:
    with WordsRegression([TEXTS], np.full(60, np.nan), SCORE, 1) as regression:
        regression.ask(OTHERS)
        with pytest.raises(ValueError, match="NaN"):
            regression.outputs()


def test_a_process_is_started_where_it_saves_time(monkeypatch: pytest.MonkeyPatch) -> None:
    many = words.FEW_TEXTS
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", sys)
    assert (words.pays(), words.pays(60), words.pays(many)) == (False, False, True)
    monkeypatch.delitem(sys.modules, "sklearn.linear_model")
    assert words.pays()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert (words.pays(), words.pays(many)) == (False, False)


@pytest.mark.slow
@pytest.mark.usefixtures("pays")
def test_a_process_that_was_started_early_is_used_once() -> None:
    words.start_early()
    words.start_early()
    (spare,) = words.SPARE
    for process in (spare, None):
        with WordsRegression([TEXTS], LABELS, CLASSES, 2) as regression:
            assert regression.process is not None
            assert (regression.process is spare) == (process is spare)
            regression.ask(OTHERS)
            assert np.array_equal(regression.outputs()[0], outputs_of([TEXTS], LABELS, OTHERS, CLASSES, 2))
    assert spare.returncode is not None
    assert not words.SPARE


@pytest.mark.slow
def test_a_process_that_was_not_used_ends_with_the_one_that_started_it() -> None:
    code = """
import os, sys
from glassloop.models import words
words.pays = lambda: True
words.start_early()
print(words.SPARE[0].pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    child = Path(f"/proc/{int(done.stdout)}/cmdline")
    assert eventually(lambda: not child.exists() or not child.read_bytes()), "it is left behind"
