"""Several seeds of one run: how children are started, told, awaited and summed up. The children here are a few lines long."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sample_record import RECORD

from glassloop import cli, seeds
from glassloop.errors import DataError, LockedError, ModelError
from glassloop.lock import locked
from glassloop.seeds import last_words, result_of, train_seeds, without

CHILD = """
import json, os, pathlib, signal, sys, time
from glassloop.records import sealed
words = sys.argv[1:]
resumed = "--resume" in words
run = pathlib.Path(words[words.index("--resume" if resumed else "--output_dir") + 1])
seed = int(run.name[5:])
does = json.loads(os.environ["CHILD"]).get(str(seed), "finish")
with (run.parent / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
(run.parent / "directory").write_text(os.getcwd())
print("words on standard output")
if does == "fail":
    print("data: row 3 is empty\\ntry:  mend it\\nsome library says goodbye", file=sys.stderr)
    sys.exit(3)
if does == "die":
    print("a library crashed", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
run.mkdir(exist_ok=True)
def write(status):
    evaluation = {"eval_loss": seed / 100, "eval_f1": 0.5, "eval_runtime": 1.0, "eval_samples_per_second": 2.0}
    ending = {"status": status, "evaluation": evaluation, "baseline": {"f1": 0.4}, "seconds": 2.0}
    (run / "run.json").write_text(json.dumps(sealed({**json.loads(os.environ["RECORD"]), **ending})))
if does == "wait" and not resumed:
    def leave(number, frame):
        write("running")
        sys.exit(128 + number)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    (run.parent / f"ready-{seed}").touch()
    time.sleep(30)
write("running" if does == "leave" else "finished")
"""
GIVEN: dict[str, Any] = {"source": "rows.csv", "model": "tiny", "training": {}, "data": {}, "new_head": False}


class Runner:
    """Calls `train_seeds` as the command does, with children that only pretend."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self.patch, self.capsys = folder / "out", monkeypatch, capsys
        (folder / "child.py").write_text(CHILD)
        monkeypatch.setattr(seeds, "PROGRAM", [sys.executable, "-S", str(folder / "child.py")])
        monkeypatch.setenv("PYTHONPATH", str(Path(seeds.__file__).parents[1]))  # -S skips what an editable install sets up
        monkeypatch.setattr(seeds, "look_at_all", lambda settings, args: (1.0, 10))
        monkeypatch.setattr(seeds, "choose_device", lambda wanted: "cpu")
        monkeypatch.setattr(seeds, "POLL_SECONDS", 0.01)
        monkeypatch.setenv("COLUMNS", "40")  # narrower than the table: no figure may be cut

    def __call__(
        self, count: int | None, *words: str, resume: bool = False, does: dict[int, str] | None = None, **given: Any
    ) -> tuple[int, list[str]]:
        """The exit code, and the lines on standard error."""
        training = given.pop("training", {}) | ({} if resume else {"output_dir": str(self.out)})
        rest = {"at_once": None, "processes": 1, "config": None, "resume": str(self.out) if resume else None} | given
        self.patch.setenv("CHILD", json.dumps(does or {}))
        self.patch.setenv("RECORD", json.dumps(asdict(RECORD)))
        self.patch.setattr(sys, "argv", ["glassloop", "train", *words])
        code = 0
        try:
            train_seeds({**GIVEN, "training": training}, count=count, **rest)
        except SystemExit as left:
            code = int(left.code or 0)
        captured = self.capsys.readouterr()
        assert captured.out == ""
        return code, [line.rstrip() for line in captured.err.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.out / "seeds.json").read_text(encoding="utf-8"))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.out / "calls").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(tmp_path, monkeypatch, capsys)


# --- all goes well -----------------------------------------------------------------------------------------------


def test_each_seed_is_this_command_with_its_seed_and_folder(run: Runner) -> None:
    words = ["rows.csv", "--seeds", "3", "--model=tiny", "--seed=7", "--output_dir", "out", "--max_steps", "4"]
    code, _ = run(3, *words, training={"seed": 7})
    assert code == 0
    assert run.calls == [
        ["train", "rows.csv", "--model=tiny", "--max_steps", "4", "--seed", str(seed), "--output_dir", f"{run.out}/seed-{seed}"]
        for seed in (7, 8, 9)
    ]


def test_what_is_said_and_the_table(run: Runner) -> None:
    code, lines = run(2, "rows.csv")
    assert code == 0
    assert lines == [
        f"2 seeds, 1 at a time → {run.out}",
        f"seed 42 starts; its words are in {run.out}/seed-42.log",
        f"seed 42 ends: loss 0.4200  f1 0.5000  2 s → {run.out}/seed-42",
        f"seed 43 starts; its words are in {run.out}/seed-43.log",
        f"seed 43 ends: loss 0.4300  f1 0.5000  2 s → {run.out}/seed-43",
        "                      loss      f1",
        "seed 42             0.4200  0.5000",
        "seed 43             0.4300  0.5000",
        "mean of 2           0.4250  0.5000",
        "standard deviation  0.0071  0.0000",
        "majority baseline        -  0.4000",
    ]
    assert (run.out / "seed-43.log").read_text() == "words on standard output\n"


def test_what_is_written_down(run: Runner) -> None:
    run(3, "rows.csv", training={"learning_rate": 1e-3})
    found = run.record
    assert found["status"] == "finished"
    assert {seed: entry["metrics"] for seed, entry in found["seeds"].items()} == {
        str(seed): {"loss": seed / 100, "f1": 0.5} for seed in (42, 43, 44)
    }
    assert found["mean"] == {"loss": pytest.approx(0.43), "f1": 0.5}
    assert found["standard_deviation"] == {"loss": pytest.approx(0.01), "f1": 0.0}
    assert found["baseline"] == {"f1": 0.4}
    assert (found["settings"]["training"]["learning_rate"], found["settings"]["source"]) == (1e-3, "rows.csv")
    assert "torch" in found["versions"]
    assert not [path.name for path in run.out.iterdir() if path.name.startswith(".")]


def test_no_deviation_is_made_up_for_one(run: Runner) -> None:
    code, lines = run(1, "rows.csv")
    assert code == 0
    assert run.record["standard_deviation"] is None
    assert [line.split()[0] for line in lines[-4:]] == ["loss", "seed", "mean", "majority"]


def test_side_by_side(run: Runner) -> None:
    """Both are under way before either ends: each waits for a signal that comes when both are there."""
    code, lines = signalled(run, signal.SIGTERM, 2, at_once=2)
    assert code == 143
    assert lines[0] == f"2 seeds, 2 at a time → {run.out}"


def test_a_file_of_settings_is_copied_so_that_it_cannot_change_in_between(run: Runner, write) -> None:
    path = write("run.toml", "[training]\nmax_steps = 3\n")
    run(2, "--config", str(path), config=str(path))
    assert (run.out / "seeds.toml").read_text() == path.read_text()
    assert run.calls[1][:3] == ["train", "--config", f"{run.out}/seeds.toml"]


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_one_fails_the_others_go_on(run: Runner) -> None:
    code, lines = run(3, "rows.csv", does={43: "fail"})
    assert code == 3
    assert "seed 43 failed" in lines
    assert any(line.startswith("seed 44 ends") for line in lines)
    assert "mean of 2           0.4300  0.5000" in lines
    assert lines[-4:] == [
        f"seed 43 failed with exit code 3 ({run.out}/seed-43.log):",
        "  data: row 3 is empty",
        "  try:  mend it",
        f"go on with glassloop train --seeds 3 --resume {run.out}",
    ]
    assert run.record["status"] == "failed"
    assert [entry["status"] for entry in run.record["seeds"].values()] == ["finished", "failed", "finished"]


@pytest.mark.parametrize(("does", "code"), [("die", 137), ("leave", 1)])
def test_killed_or_left_without_a_word(run: Runner, does: str, code: int) -> None:
    found, lines = run(1, "rows.csv", does={42: does})
    assert found == code
    if does == "die":
        assert lines[-2] == "  a library crashed"
    assert not any(line.startswith("mean") for line in lines)
    assert (run.record["mean"], run.record["standard_deviation"]) == ({}, None)


def test_the_last_words_of_this_child_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = b"data: old\ntry:  this\n"
    log.write_bytes(before + b"one\n\n\xfftwo\n")
    assert last_words(log, len(before)) == ["one", "�two"]
    assert last_words(log, 0) == ["data: old", "try:  this"]


def signalled(run: Runner, number: int, count: int, **given: Any) -> tuple[int, list[str]]:
    """Seeds that wait; the signal comes when all that can run at once do."""
    wanted = [run.out / f"ready-{42 + place}" for place in range(given.get("at_once", 1))]

    def send() -> None:
        limit = time.monotonic() + 20
        while not all(path.exists() for path in wanted) and time.monotonic() < limit:
            if over.wait(0.01):
                return  # the children failed: the signal would end the tests instead
        os.kill(os.getpid(), number)

    before, over = signal.getsignal(number), threading.Event()
    sender = threading.Thread(target=send)
    sender.start()
    try:
        ended = run(count, "rows.csv", does={42 + place: "wait" for place in range(count)}, **given)
    finally:
        over.set()
        sender.join()
    assert signal.getsignal(number) is before
    return ended


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_children_and_they_can_go_on(run: Runner, number: signal.Signals, code: int) -> None:
    found, lines = signalled(run, number, 2)
    assert found == code
    assert lines[-2:] == [
        "seed 42 stopped",
        f"stopped by {number.name}; go on with glassloop train --seeds 2 --resume {run.out}",
    ]
    assert not any(line.startswith("seed 43") for line in lines), "none is started after the signal"
    assert run.record["status"] == "stopped"
    code, lines = run(2, resume=True)
    assert code == 0
    assert [call[1] for call in run.calls] == ["rows.csv", "--resume", "rows.csv"]
    assert run.calls[1] == ["train", "--resume", f"{run.out}/seed-42"]
    assert run.record["status"] == "finished"


def test_nobody_is_left_behind_when_we_fail_ourselves(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def fail(folder: Path, words: list[str], seed: int) -> Any:
        if started:
            raise ZeroDivisionError
        started.append(begin(folder, words, seed))
        return started[0]

    begin = seeds.start
    monkeypatch.setattr(seeds, "start", fail)
    with pytest.raises(ZeroDivisionError):
        run(2, "rows.csv", does={42: "wait"}, at_once=2)
    assert started[0].process.returncode is not None


# --- going on ----------------------------------------------------------------------------------------------------


def test_finished_seeds_are_skipped_with_a_line_and_more_can_be_added(run: Runner) -> None:
    run(2, "rows.csv", "--learning_rate", "1", does={43: "fail"})
    code, lines = run(3, resume=True)
    assert code == 0
    assert lines[0] == f"seed 42 is finished: {run.out}/seed-42"
    assert [call[-3] for call in run.calls] == ["42", "43", "43", "44"]
    assert all(call[:4] == ["train", "rows.csv", "--learning_rate", "1"] for call in run.calls)
    assert "mean of 3           0.4300  0.5000" in lines
    code, lines = run(3, resume=True)
    assert code == 0
    assert [line.split()[3] for line in lines[:3]] == ["finished:"] * 3
    assert "mean of 3           0.4300  0.5000" in lines
    assert len(run.calls) == 4


def test_seeds_are_resumed_from_another_working_directory(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(2, "rows.csv", does={43: "fail"})[0] == 3
    assert run.record["settings"]["source"] == str(tmp_path / "rows.csv")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(2, resume=True)[0] == 0
    assert (run.out / "directory").read_text() == str(tmp_path)


def test_a_directory_that_is_gone_is_named(run: Runner, says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(2, "rows.csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").rmdir()
    with says(f"{run.out}: the seeds were started in {tmp_path / 'here'}, which is gone", "restore that folder"):
        run(2, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [],
        lambda found: None,
        lambda found: {},
        lambda found: {**found, "seeds": []},
        lambda found: {**found, "seeds": {}},
        lambda found: {**found, "seeds": {"x": {}}},
        lambda found: {**found, "words": "train"},
        lambda found: {**found, "words": [1]},
        lambda found: {**found, "settings": None},
        lambda found: {**found, "settings": {**found["settings"], "training": []}},
        lambda found: {**found, "settings": {**found["settings"], "training": {"seed": "x"}}},
        lambda found: {**found, "settings": {**found["settings"], "data": {"rows": "many"}}},
        lambda found: {**found, "settings": {**found["settings"], "source": 1}},
        lambda found: {**found, "settings": {**found["settings"], "new_head": "yes"}},
        lambda found: {**found, "directory": 5},
    ],
)
def test_a_damaged_record_of_seeds_is_one_error(run: Runner, change: Any) -> None:
    run(2, "rows.csv")
    (run.out / "seeds.json").write_text(json.dumps(change(run.record)))
    with pytest.raises(ModelError, match=r"there are no seeds to resume: seeds\.json: ") as caught:
        run(2, resume=True)
    assert caught.value.remedy == "start new ones"


def test_what_cannot_be_gone_on_with(run: Runner, says, write) -> None:
    with says(f"{run.out}: there are no seeds to resume: seeds.json: missing", kind=ModelError):
        run(2, resume=True)
    run(2, "rows.csv")
    with says(f"{run.out} was started with 2 seeds from 42 on", "use --seeds 2, or more to add some"):
        run(1, resume=True)
    with says(f"{run.out} was started with 2 seeds from 42 on"):
        run(2, "--seed", "3", resume=True, training={"seed": 3})
    with says("the seeds were started with other words: glassloop train rows.csv"):
        run(2, "other.csv", resume=True)
    assert run(2, "rows.csv", "--seeds", "2", resume=True)[0] == 0, "the same words may be repeated"
    alone = run.out / "seed-42"
    with says(f"{alone} is of one run, not of seeds", f"go on with it alone: glassloop train --resume {alone}"):
        train_seeds({**GIVEN}, count=2, at_once=None, processes=1, config=None, resume=str(alone))
    write("out/seeds.json", "[]")
    with pytest.raises(ModelError):
        run(2, resume=True)


def test_a_folder_of_seeds_is_not_written_over(run: Runner, says) -> None:
    run(1, "rows.csv")
    with says(f"output_dir {run.out} holds seeds already", f"go on with them: --seeds 1 --resume {run.out}; or choose another"):
        run(1, "rows.csv")
    with locked(run.out, print), pytest.raises(LockedError):
        run(1, resume=True)


# --- what is refused before anything starts ----------------------------------------------------------------------


def test_what_cannot_be_combined(run: Runner, says, monkeypatch: pytest.MonkeyPatch) -> None:
    with says("seeds and several processes cannot be combined", "omit --processes: each seed has its own"):
        run(2, processes=2)
    with says("seeds_at_once is given without seeds", "say how many: --seeds 5"):
        run(None, at_once=2)
    with says(f"seed is {2**63}, not below 2**63"):
        run(2, training={"seed": 2**63 - 1})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with says("seeds and several processes cannot be combined"):
        run(2)
    assert not run.out.exists()


def test_data_model_and_settings_are_looked_at_first(write, tiny_model_dir, monkeypatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(seeds, "start", started.append)
    monkeypatch.setattr(sys, "argv", ["glassloop", "train"])
    broken = write("broken.csv", "text,label\ngood,pos\n,neg\nbad,neg\n")
    training = {"output_dir": str(tmp_path / "out"), "device": "cpu"}
    given = {"source": str(broken), "model": str(tiny_model_dir), "training": training, "data": {}, "new_head": False}
    flags: dict[str, Any] = {"count": 2, "at_once": None, "processes": 1, "config": None, "resume": None}
    with pytest.raises(DataError):
        train_seeds(given, **flags)
    with pytest.raises(ModelError):
        train_seeds({**given, "source": "quickstart", "data": {"rows": 20}, "model": str(tmp_path)}, **flags)
    assert started == []
    assert not (tmp_path / "out").exists()


def test_the_cache_is_filled_and_the_need_is_estimated(tiny_model_dir, monkeypatch) -> None:
    from glassloop.arguments import TrainingArguments

    settings = {**GIVEN, "source": "quickstart", "model": str(tiny_model_dir), "data": {"rows": 29}}
    need, num_steps = seeds.look_at_all(settings, TrainingArguments(device="cpu", max_steps=7, seed=3))
    assert num_steps == 7
    assert 2 * 2**30 < need < 4 * 2**30
    monkeypatch.setattr("glassloop.data.encoding.write_encoding", pytest.fail)  # all is found in the cache
    assert seeds.look_at_all(settings, TrainingArguments(device="cpu", max_steps=7, seed=3)) == (need, 7)


def test_from_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(seeds, "train_seeds", lambda given, **rest: seen.append((given, rest)))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "argv", ["glassloop", "train", "a.csv", "--seeds", "3", "--seeds_at_once=2", "--seed", "5"])
    with pytest.raises(SystemExit):
        cli.main()
    for number, handler in before.items():
        signal.signal(number, handler)
    given = {"source": "a.csv", "model": None, "training": {"seed": 5}, "data": {}, "new_head": False}
    assert seen == [(given, {"count": 3, "at_once": 2, "processes": 1, "config": None, "resume": None, "restart": False})]


# --- small parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["train", "--seeds", "3", "a.csv"], ["train", "a.csv"]),
        (["train", "--seeds=3", "--seed_s=1", "--seed", "1"], ["train", "--seed_s=1"]),
        (["train", "--resume", "--model", "x"], ["train", "--model", "x"]),
        (["train", "--resume", "out", "--seeds_at_once", "2"], ["train"]),
        (["train", "--debug", "--resume"], ["train", "--debug"]),
    ],
)
def test_flags_and_their_values_are_taken_out(words: list[str], kept: list[str]) -> None:
    assert without(words, seeds.OURS) == kept


def test_only_a_finished_run_has_a_result(tmp_path: Path, text_run: Path) -> None:
    assert result_of(tmp_path) is None
    (tmp_path / "run.json").write_text('{"status": "running"}')
    assert result_of(tmp_path) is None
    found = result_of(text_run)
    assert found is not None
    assert {*found["metrics"]} >= {"loss", "accuracy", "f1_macro"}
    assert not {"runtime", "samples_per_second"} & {*found["metrics"]}
    assert found["baseline"].keys() <= found["metrics"].keys()
    assert all(found["rows"].values())
