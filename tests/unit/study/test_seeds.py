"""Several seeds, from Python and from `glassloop train --seeds`. The children here only pretend to train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_seeds import FakeSeeds
from run_folders import with_baselines, write_fake_run

import glassloop
from glassloop.backends.choose import choose_backend
from glassloop.base.errors import DataError, LockedError, ModelError, SettingsError
from glassloop.base.files import locked
from glassloop.base.output import CommandResult
from glassloop.report.build import report_of
from glassloop.runs.record import FAILED
from glassloop.runs.study import MeasuresRecord, SeedRecord, SeedsRecord, read_seeds
from glassloop.settings.defaults import MOST_STARTED_RATE
from glassloop.settings.file import GivenSettings, RunSettings, read_settings
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.study import seeds
from glassloop.study.run import SharedParts, assemble, check_run
from glassloop.study.seeds import resume_seeds, show_seeds, train_seeds, train_with_seeds
from glassloop.study.tasks import LocalWorkers, Task, Worker
from glassloop.study.worker import settled
from glassloop.training.evaluate import seeds_content

SETTINGS = RunSettings("rows.csv", "tiny")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FakeSeeds:
    return FakeSeeds(tmp_path, monkeypatch, capsys)


# --- from the command
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(fake: FakeSeeds) -> Run:
    """Calls `train_with_seeds` as the command does. Returns the exit status, and the lines on standard error."""

    def call(count: int | None, *, resume: bool | str = False, does: Any = None, **given: Any) -> tuple[int, list[str]]:
        training = given.pop("training", {}) | ({} if resume else {"output_dir": str(fake.out)})
        source = given.pop("source", None if resume else "rows.csv")
        rest = {"at_once": None, "restart": False, "processes": 1} | given
        if does is not None:
            fake.does(does)
        folder = str(fake.out) if resume is True else resume or None
        try:
            code = train_with_seeds(GivenSettings(source, training=training), count, resume=folder, **rest).exit_status
        except KeyboardInterrupt:
            code = 130
        except SystemExit as left:
            code = int(left.code or 0)
        return code, fake.lines()

    return call


def test_the_seeds_start_at_the_seed_and_a_table_follows(run: Run, fake: FakeSeeds) -> None:
    code, lines = run(2, training={"seed": 7})
    assert (code, fake.record["seeds"]) == (0, [7, 8])
    verdict = "Better than the baseline: mean f1 0.5000 against 0.4000 (95% confidence interval 0.5000 to 0.5000)"
    assert lines[5:] == [
        "                      loss      f1",
        "seed 7              0.0700  0.5000",
        "seed 8              0.0800  0.5000",
        "mean of 2           0.0750  0.5000",
        "standard deviation  0.0071  0.0000",
        "majority baseline        -  0.4000",
        f"• {verdict}",
    ]
    page = report_of(fake.out).save(fake.out / "report.html").read_text(encoding="utf-8")
    assert verdict in page, "terminal and report give one verdict"


def test_all_seeds_share_the_settings_that_the_rule_chooses(write, lively_dir: Path) -> None:
    rows = "text,label\n" + "".join(f"film {row},{'ab'[row % 2]}\n" for row in range(40))
    given = GivenSettings(str(write("rows.csv", rows)), str(lively_dir), {"num_train_epochs": 2})
    settings, reason = settled(given, SharedParts())
    found = settings.training
    assert (found.num_train_epochs, found.per_device_train_batch_size, found.warmup_steps) == (2, 16, 0.0)
    assert found.learning_rate == MOST_STARTED_RATE, "the encoder is tiny"
    assert reason.startswith("method, pooling, batch size, learning rate, warm-up: from 36 training rows")
    glue = GivenSettings("glue/mrpc", "no such model", {})
    assert settled(glue, SharedParts()) == (glue.checked(), ""), "nothing is loaded"


def test_no_deviation_is_made_up_for_one(run: Run, fake: FakeSeeds) -> None:
    code, lines = run(1)
    assert (code, fake.record["results"]["standard_deviation"]) == (0, None)
    assert [line.split()[0] for line in lines[-4:]] == ["loss", "seed", "mean", "majority"]


def test_one_fails_and_the_others_continue(run: Run, fake: FakeSeeds) -> None:
    code, lines = run(3, does={43: "fail"})
    assert code == 3
    assert "seed 43: failed" in lines
    assert any(line.startswith("seed 44: finished") for line in lines)
    assert "mean of 2           0.4300  0.5000" in lines
    assert lines[-4:] == [
        f"seed 43 failed with exit status 3 (log: {fake.out}/seed-43.log):",
        "  data: row 3 is empty",
        "  try:  fill it",
        f"resume with: glassloop train --seeds 3 --resume {fake.out}",
    ]
    stored = read_seeds(fake.out)
    assert (stored.status, [entry.status for entry in stored.seeds.values()]) == (FAILED, ["finished", FAILED, "finished"])
    assert (stored.seeds[43].exit_code, stored.seeds[43].error) == (3, ("row 3 is empty", "fill it"))
    code, lines = run(4, resume=True, does={})
    assert (code, lines[0]) == (0, f"seed 42: already finished, in {fake.out}/seed-42")
    assert "mean of 4           0.4350  0.5000" in lines


@pytest.mark.parametrize(("does", "code", "error"), [("die", 137, "a library crashed"), ("leave", 1, "RuntimeError: it ended")])
def test_killed_or_ended_without_a_result(run: Run, fake: FakeSeeds, does: str, code: int, error: str) -> None:
    found, lines = run(1, does={42: does})
    assert (found, lines[-2]) == (code, f"  {error}")
    assert not any(line.startswith("mean") for line in lines)
    stored = read_seeds(fake.out)
    assert (stored.seeds[42].status, stored.seeds[42].exit_code, stored.mean) == (FAILED, code, {})
    assert stored.standard_deviation is None


def test_what_cannot_be_resumed(run: Run, fake: FakeSeeds, says, write) -> None:
    with says(f"{fake.out}: no seeds to resume: seeds.json: missing", kind=ModelError):
        run(2, resume=True)
    run(2)
    for count, training in ((1, {}), (2, {"seed": 3})):
        problem = f"{fake.out} was started with 2 seeds, starting at 42"
        with says(problem, "use --seeds 2, or a larger number to add seeds"):
            run(count, resume=True, training=training)
    alone = fake.out / "seed-42"
    with says(f"{alone} contains a single run, not one run per seed", f"resume it alone: glassloop train --resume {alone}"):
        run(2, resume=str(alone))
    write("out/seeds.json", "[]")
    with pytest.raises(ModelError):
        run(2, resume=True)


def test_the_same_command_starts_the_seeds_and_continues_them_and_other_settings_are_refused(run: Run, fake, says) -> None:
    same: dict[str, Any] = {"resume": True, "source": "rows.csv", "training": {"max_steps": 4}}
    code, lines = run(2, **same, does={43: "fail"})
    assert (code, (fake.out / "seeds.json").exists()) == (3, True), lines
    code, lines = run(2, **same, does={})
    assert (code, any("seed 42: already finished" in line for line in lines)) == (0, True)
    with says(
        f"{fake.out} was started with different settings: source: rows.csv then, other.csv now; max_steps: 4 then, 5 now",
        f"use only --seeds and --resume {fake.out}",
    ):
        run(2, resume=True, source="other.csv", training={"max_steps": 5})


def test_what_cannot_be_combined_and_seeds_that_are_not_allowed(run: Run, fake: FakeSeeds, says, monkeypatch) -> None:
    with says(f"seed is {2**63}, not below 2**63"):
        train_seeds(SETTINGS, range(2**63 - 1, 2**63 + 1), output_dir=fake.out)
    with says("seed is 'x', not a whole number"):
        train_seeds(SETTINGS, ["x"], output_dir=fake.out)  # type: ignore[list-item]
    with pytest.raises(SettingsError):
        train_seeds(SETTINGS, [], output_dir=fake.out)
    processes = "--seeds and several processes cannot be combined", "omit --processes: each seed trains in one process"
    with says(*processes):
        run(2, processes=2)
    with says("--at_once needs --seeds", "set the number of seeds, for example --seeds 5"):
        run(None, at_once=2)
    with says("--seeds and --restart cannot be combined", "restart the run of one seed: --resume RUN/seed-1 --restart"):
        run(2, restart=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with says(*processes):
        run(2)
    assert not fake.out.exists()


# --- the table: titles that name the class, a baseline that may not exist, and whether it is beaten
def record_of(*accuracies: float, measures: MeasuresRecord | None = None, **rows: str) -> SeedsRecord:
    entry = SeedRecord(status="finished", baseline={"accuracy": 0.6})
    measures = measures or MeasuresRecord(("accuracy", "f1"), "spam")
    entries = {}
    for seed, accuracy in enumerate(accuracies):
        read = {"validation": rows.get(f"seed{seed}", "same")}
        validation = {"loss": 0.5, "accuracy": accuracy, "f1": 0.25}
        entries[seed] = replace(entry, validation=validation, measures=measures, rows=read)
    return SeedsRecord(RunSettings(), {**entries, 99: SeedRecord()}, Path("out"))


def test_the_table_names_the_class_what_has_no_baseline_and_who_does_not_beat_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_seeds(record_of(0.5, 0.75))
    assert [line.rstrip() for line in capsys.readouterr().err.splitlines()] == [
        "                      loss  accuracy  f1 (spam)",
        "seed 0              0.5000    0.5000     0.2500",
        "seed 1              0.5000    0.7500     0.2500",
        "mean of 2           0.5000    0.6250     0.2500",
        "standard deviation  0.0000    0.1768     0.0000",
        "majority baseline        -    0.6000          -",
        "• no better than the majority baseline: accuracy (1 of 2 seeds)",
    ]
    for record, last in (
        (record_of(0.7, 0.75), "majority baseline "),  # every seed beats it
        (record_of(0.7, 0.75, seed1="other"), "• the data changed between seeds, so their scores are for different rows"),
        (record_of(0.7, 0.75, measures=MeasuresRecord(("pearson", "mse"))), "mean baseline "),
    ):
        show_seeds(record)
        assert capsys.readouterr().err.splitlines()[-1].startswith(last)
    show_seeds(SeedsRecord(RunSettings(), {1: SeedRecord(status=FAILED)}, Path("out")))
    assert capsys.readouterr().err == "", "none finished"


# --- from Python
def test_each_seed_is_started_from_a_file_of_its_settings(fake: FakeSeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["notebook", "--learning_rate", "9"])  # which plays no part
    settings = RunSettings("rows.csv", "tiny", TrainingArguments(max_steps=4), DataSettings(text="a"), new_head=True)
    train_seeds(settings, [7, 9], output_dir=fake.out)
    assert fake.calls == [["seed-7", "new"], ["seed-9", "new"]]
    training = TrainingArguments(f"{fake.out}/seed-9", max_steps=4, seed=9)
    assert read_settings(f"{fake.out}/seed-9.toml").checked() == replace(settings, training=training)


def test_the_result_the_lines_and_the_record(fake: FakeSeeds) -> None:
    found = train_seeds(RunSettings("rows.csv", training=TrainingArguments(learning_rate=1e-3)), [42, 43], output_dir=fake.out)
    assert found.status == "finished"
    assert [entry.metrics for entry in found.seeds.values()] == [{"loss": 0.42, "f1": 0.5}, {"loss": 0.43, "f1": 0.5}]
    assert found.mean == {"loss": pytest.approx(0.425), "f1": 0.5}
    assert found.standard_deviation == {"loss": pytest.approx(0.00707, abs=1e-5), "f1": 0.0}
    assert found.baseline == {"f1": 0.4}
    assert fake.lines()[-1] == f"seed 43: finished in 2 s, loss 0.4300  f1 0.5000 → {fake.out}/seed-43"
    assert (fake.out / "seed-43.log").read_text() == "output of the child\n"
    assert read_seeds(fake.out) == found
    stored = fake.record
    assert (stored["base"]["training"]["learning_rate"], stored["base"]["source"]) == (1e-3, "rows.csv")
    assert not {"seed", "output_dir"} & {*stored["base"]["training"]}
    assert (stored["study"]["strategy"], [*stored["runs"]]) == ("seeds", ["seed-42", "seed-43"])
    assert "torch" in stored["versions"]
    assert not [path.name for path in fake.out.iterdir() if path.name.startswith(".")]


def test_the_folder_may_be_in_the_settings_or_be_the_next_one_and_is_not_overwritten(
    fake, tmp_path: Path, monkeypatch, says
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_seeds(RunSettings(training=TrainingArguments("mine")), [1]).folder == Path("mine")
    assert train_seeds(SETTINGS, [1]).folder == Path("runs/run-001")
    assert (tmp_path / "runs" / "run-001" / "seed-1" / "run.json").is_file()
    with says("output_dir mine already contains seeds", "resume them: --seeds 1 --resume mine; or choose another folder"):
        train_seeds(SETTINGS, [1], output_dir="mine")
    with locked(Path("mine"), print), pytest.raises(LockedError):
        resume_seeds("mine")


def test_side_by_side(fake: FakeSeeds) -> None:
    """Both run before either ends: each waits for a signal that comes when both are there."""
    with pytest.raises(SystemExit):
        fake.signalled(signal.SIGTERM, 2, lambda: train_seeds(SETTINGS, [42, 43], output_dir=fake.out, at_once=2), at_once=2)
    assert fake.lines()[0] == f"2 seeds, 2 at a time → {fake.out}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_children_and_they_can_be_resumed(run, fake, number: signal.Signals, code: int) -> None:
    status, lines = fake.signalled(number, 2, lambda: run(2))
    assert status == code
    advice = f"stopped by {number.name}; resume with: glassloop train --seeds 2 --resume {fake.out}"
    assert lines[-2:] == ["seed 42: stopped", advice]
    assert not any(line.startswith("seed 43") for line in lines), "none is started after the signal"
    assert read_seeds(fake.out).status == "stopped"
    assert resume_seeds(fake.out).status == "finished"
    assert fake.calls == [["seed-42", "new"], ["seed-42", "resumed"], ["seed-43", "new"]]


def test_no_child_is_left_behind_when_this_process_fails(fake: FakeSeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Worker] = []
    begin = LocalWorkers.start

    def fail(self: LocalWorkers, task: Task) -> None:
        if started:
            raise ZeroDivisionError
        begin(self, task)
        started.append(self.workers[0])

    fake.does({42: "wait"})
    monkeypatch.setattr(LocalWorkers, "start", fail)
    with pytest.raises(ZeroDivisionError):
        train_seeds(SETTINGS, [42, 43], output_dir=fake.out, at_once=2)
    assert started[0].process.returncode is not None


def test_finished_seeds_are_skipped_with_a_line_and_more_can_be_added(fake: FakeSeeds) -> None:
    fake.does({43: "fail"})
    train_seeds(RunSettings("rows.csv", training=TrainingArguments(learning_rate=1)), [42, 43], output_dir=fake.out)
    fake.does({})
    fake.lines()
    found = resume_seeds(fake.out, seeds=[44])
    assert fake.lines()[0] == f"seed 42: already finished, in {fake.out}/seed-42"
    assert [name for name, _ in fake.calls] == ["seed-42", "seed-43", "seed-43", "seed-44"]
    assert all(tomllib.loads(path.read_text())["training"]["learning_rate"] == 1 for path in fake.out.glob("*.toml"))
    assert found.mean["loss"] == pytest.approx(0.43)
    assert resume_seeds(fake.out) == found
    assert fake.lines() == [f"seed {seed}: already finished, in {fake.out}/seed-{seed}" for seed in (42, 43, 44)]
    assert len(fake.calls) == 4


def test_seeds_are_resumed_from_another_working_directory(fake: FakeSeeds, tmp_path: Path, monkeypatch) -> None:
    """Even where the first one does not exist any more: all names in the record are absolute."""
    here = tmp_path / "here"
    (here / "glue").mkdir(parents=True)
    (here / "rows.csv").write_text("")
    monkeypatch.chdir(here)
    fake.does({43: "fail"})
    settings = replace(SETTINGS, data=DataSettings(data_dir="glue"))
    assert train_seeds(settings, [42, 43], output_dir=os.path.relpath(fake.out)).status == "failed"
    stored = read_seeds(fake.out).settings
    assert (stored.source, stored.data.data_dir) == (str(here / "rows.csv"), str(here / "glue"))
    monkeypatch.chdir(tmp_path)
    (here / "rows.csv").unlink()
    (here / "glue").rmdir()
    here.rmdir()
    fake.does({})
    assert resume_seeds(fake.out).status == "finished"
    assert fake.calls[-1] == ["seed-43", "new"]


SEEDS = """
import sys
from glassloop.study import tasks
tasks.COMMAND = [sys.executable, "-S", sys.argv.pop(1)]
sys.argv[0] = "glassloop"
from glassloop.cli.main import main
try:
    main()
finally:
    print("loaded", *sys.modules)
"""


def test_the_process_that_starts_seeds_never_imports_torch(fake: FakeSeeds, tmp_path: Path, monkeypatch) -> None:
    """From the command line to the table, the verdict and the report."""
    monkeypatch.delenv("GLASSLOOP_NO_REPORT", raising=False)
    words = ["train", "rows.csv", "--seeds", "2", "--output_dir", str(fake.out)]
    ended = subprocess.run(
        [sys.executable, "-c", SEEDS, str(tmp_path / "child.py"), *words], capture_output=True, text=True, check=True
    )
    assert "mean of 2" in ended.stderr
    assert (fake.out / "report.html").is_file()
    loaded = {*ended.stdout.rpartition("loaded ")[2].split()}
    assert "glassloop.study.seeds" in loaded
    assert not loaded & {"torch", "transformers", "datasets"}


# --- what is refused before anything starts
def test_data_model_and_settings_are_checked_first(write, tiny_model_dir, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LocalWorkers, "start", pytest.fail)
    monkeypatch.chdir(tmp_path)
    broken = str(write("broken.csv", "text,label\ngood,pos\n,neg\nbad,neg\n"))
    args = TrainingArguments(device="cpu")
    for out in (tmp_path / "out", None):
        with pytest.raises(DataError):
            train_seeds(RunSettings(broken, str(tiny_model_dir), args), [1, 2], output_dir=out)
        with pytest.raises(ModelError):
            train_seeds(RunSettings("quickstart", str(tmp_path), args, DataSettings(rows=20)), [1, 2], output_dir=out)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "runs").exists()


def test_the_cache_is_filled_and_the_need_is_estimated(tiny_model_dir, monkeypatch) -> None:
    args = TrainingArguments(device="cpu", max_steps=7)
    settings = RunSettings("quickstart", str(tiny_model_dir), args, DataSettings(rows=29))
    need, num_steps = check_run(settings, 3)
    assert num_steps == 7
    assert 2 * 2**30 < need < 4 * 2**30
    monkeypatch.setattr("glassloop.data.encoding.write_encoding", pytest.fail)  # all is found in the cache
    monkeypatch.setattr("glassloop.predict.baselines.FrozenEncoder.computed", pytest.fail)
    assert check_run(settings, 3) == (need, 7)
    run = assemble(settings.given(), args, choose_backend(args))  # as a child does
    assert run.baselines
    # Which of several GPUs is used is not known yet, and what a CPU would fit is of no use to it.
    for name in ("fitted_head", "fitted_baselines"):
        monkeypatch.setattr(f"glassloop.study.run.{name}", pytest.fail)
    monkeypatch.setattr("glassloop.study.run.choose_device", lambda device: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert check_run(settings, 3) == (need, 7)


def test_the_public_names() -> None:
    names = ("train_seeds", "resume_seeds", "RunSettings", "SeedsRecord")
    assert [getattr(glassloop, name) for name in names] == [train_seeds, resume_seeds, RunSettings, SeedsRecord]


def test_the_table_and_the_document_of_seeds_have_the_baselines_with_their_intervals(tmp_path: Path, capsys) -> None:
    write_fake_run(tmp_path / "seed-0")
    baselines = with_baselines(tmp_path / "seed-0").baselines
    record = replace(record_of(0.7, 0.75), folder=tmp_path)
    show_seeds(record)
    lines = capsys.readouterr().err.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("baselines"))
    assert lines[head].split("  ", 1)[1].split() == ["accuracy", "95%", "confidence", "interval", "log", "loss", "seconds"]
    assert lines[head + 2].split() == ["frozen", "encoder", "0.7325", "0.6325", "to", "0.8325", "0.5615", "0.4"]
    assert seeds.shared_baselines(record) == baselines
    document = json.loads(str(CommandResult(seeds_content(record, baselines))))
    wanted = {"value": 0.7325, "low": pytest.approx(0.6325), "high": pytest.approx(0.8325)}
    assert document["baselines"][1]["scores"]["accuracy"] == wanted
    (tmp_path / "seed-0" / "run.json").write_text("{")
    assert seeds.shared_baselines(record) == ()
