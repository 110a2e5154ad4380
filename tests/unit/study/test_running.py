"""A study from its first round to its final runs: what is trained, chosen, counted and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import FakeExecutor, record_for, run_fake

from glassloop.base.errors import DivergedError, GlassloopError, ResourceError, SettingsError
from glassloop.report.study import rounds_in_words
from glassloop.runs.study import SeedRecord, read_study
from glassloop.settings.study import StudySettings, setting_name
from glassloop.study.running import StudyRunner, reached, split_scores
from glassloop.study.trials import Done

STEPS = "1,2,3,4,5,6,7,8"


def by_steps(training, fraction: float) -> float:
    return 0.5 + training["max_steps"] / 100 + training["seed"] / 1000


def test_halving_trains_less_and_chooses_what_the_grid_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, sizes = [], []
    for strategy in ("halving", "grid"):
        executor = FakeExecutor(by_steps)
        study = StudySettings({"max_steps": STEPS}, seeds=2, strategy=strategy)
        record, _ = run_fake(tmp_path / strategy, record_for(study), executor, monkeypatch)
        assert record.status == "finished"
        chosen.append(record.tried[record.chosen])
        sizes.append(sum(task.fraction for task in executor.started))
    assert chosen == [{"max_steps": 8}, {"max_steps": 8}]
    assert sizes == [16 * 0.25 + 8 * 0.5 + 4 + 2, 16 + 2], "a paused run counts its whole part here"


def test_the_choice_is_made_on_selection_and_final_runs_have_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(by_steps)
    record, lines = run_fake(tmp_path, record_for(StudySettings({"max_steps": "1,2"}, seeds=2)), executor, monkeypatch)
    assert record == read_study(tmp_path)
    final = record.runs_of(1, final=True)
    assert [run.seed for run in final.values()] == [1, 2]
    assert all(name.startswith("final-") and "selection_fold" not in executor_task.given.data
               for name in final for executor_task in executor.started if executor_task.name == name)  # fmt: skip
    search = record.runs_of(1)
    assert all(run.selection["accuracy"] > run.validation["accuracy"] for run in search.values()), "both are kept apart"
    assert lines[-2].startswith("chosen on the selection split, by mean accuracy: max_steps 2 (0.52")
    assert lines[-1] == "final: 2 runs of the chosen setting on all training rows"


def test_every_fold_is_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(by_steps)
    study = StudySettings({"max_steps": "1,2"}, seeds=1, fold=3)
    record, _ = run_fake(tmp_path, record_for(study), executor, monkeypatch)
    assert [run.fold for run in record.runs_of(0).values()] == ["1/3", "2/3", "3/3"]


def test_a_worker_that_a_scheduler_stops_with_the_study_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []

    def stopped(training, fraction: float) -> int:
        signals.append(15)
        return 143

    study = StudySettings({"max_steps": "1,2"}, seeds=1)
    record, lines = run_fake(tmp_path, record_for(study), FakeExecutor(stopped), monkeypatch, signals)
    assert (record.status, {run.status for run in record.runs.values()}) == ("stopped", {"waiting"})
    assert not [line for line in lines if "failed" in line]


@pytest.mark.parametrize(("times", "status"), [(2, "finished"), (3, "failed")])
def test_a_run_whose_process_was_killed_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, status: str
) -> None:
    killed: list[int] = []

    def lost(training, fraction: float) -> float | int:
        if training["max_steps"] == 2 and training["seed"] == 1 and len(killed) < times:
            killed.append(1)
            return 137
        return by_steps(training, fraction)

    executor = FakeExecutor(lost)
    record, lines = run_fake(tmp_path, record_for(StudySettings({"max_steps": "1,2"}, seeds=2)), executor, monkeypatch)
    assert record.runs["2-1-1of10"].status == status
    assert record.runs["2-2-1of10"].status == "finished"
    assert sum("was killed (exit status 137): it is trained again" in line for line in lines) == 2
    if status == "finished":
        undisturbed, _ = run_fake(tmp_path / "other", record_for(record.study), FakeExecutor(by_steps), monkeypatch)
        assert (record.runs, record.chosen) == (undisturbed.runs, undisturbed.chosen)


def test_a_failed_run_counts_as_the_baseline_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_diverges(training, fraction: float) -> float | int:
        return 5 if training["max_steps"] == 2 and training["seed"] == 1 else 0.6 + training["max_steps"] / 100

    study = StudySettings({"max_steps": "1,2"}, seeds=2)
    record, lines = run_fake(tmp_path, record_for(study), FakeExecutor(one_diverges), monkeypatch)
    assert record.tried[record.chosen] == {"max_steps": 1}, "(0.62 + 0.5) / 2 is less than 0.61"
    (failed,) = record.failed.values()
    assert (failed.seed, failed.exit_code, failed.error) == (1, 5, ("it broke", "mend it"))
    assert "failed: max_steps 2, seed 1 (exit status 5): it broke mend it" in lines


def test_a_study_continues_with_the_runs_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = StudySettings({"max_steps": STEPS}, seeds=2)
    whole, _ = run_fake(tmp_path / "whole", record_for(study), FakeExecutor(by_steps), monkeypatch)
    signals: list[int] = []

    def stop_later(training, fraction: float) -> float:
        if len(cut.started) == 21:
            signals.append(15)
        return by_steps(training, fraction)

    cut = FakeExecutor(stop_later)
    stopped, _ = run_fake(tmp_path / "cut", record_for(study), cut, monkeypatch, signals)
    assert (stopped.status, stopped.chosen, bool(cut.stops)) == ("stopped", None, True)
    again = FakeExecutor(by_steps)
    ended, _ = run_fake(tmp_path / "cut", read_study(tmp_path / "cut"), again, monkeypatch)
    assert (ended.runs, ended.chosen, ended.rounds) == (whole.runs, whole.chosen, whole.rounds)
    assert len(again.started) + len(cut.started) == 16 + 8 + 4 + 2


def test_an_extended_study_trains_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run_fake(tmp_path, record_for(StudySettings({"max_steps": "1,3"}, seeds=1)), FakeExecutor(by_steps), monkeypatch)
    executor = FakeExecutor(by_steps)
    wider = record_for(StudySettings({"max_steps": "1,2,3"}, seeds=1), runs=first.runs)
    record, _ = run_fake(tmp_path, wider, executor, monkeypatch)
    assert [task.given.training["max_steps"] for task in executor.started] == [2]
    assert [run.setting for run in record.runs.values()] == [0, 1, 2, 2]


def test_out_of_memory_is_tried_again_and_a_diverged_run_is_not() -> None:
    run = SeedRecord(0, 1, "1/10", "failed", exit_code=6)
    assert not run.settled
    assert not SeedRecord(0, 1, "1/10", "failed", exit_code=137).settled
    assert SeedRecord(0, 1, "1/10", "failed", exit_code=5).settled


MEMORY = ("not enough memory for a batch of 64 rows (CUDA out of memory)", "lower per_device_train_batch_size")


@pytest.mark.parametrize(
    ("code", "error", "kind", "problem", "remedy"),
    [
        (
            6,
            MEMORY,
            ResourceError,
            "all 4 runs ran out of memory: not enough memory for a batch",
            "per_device_train_batch_size",
        ),
        (137, ("killed",), ResourceError, "all 4 runs ran out of memory", "--at_once 1"),
        (
            6,
            ("No space left on device",),
            ResourceError,
            "all 4 runs failed, so there is no setting to choose",
            "the logs are in",
        ),
        (5, ("the loss is nan", "lower it"), DivergedError, "First error: the loss is nan", "lower it; the logs are in"),
        (1, ("a bug",), GlassloopError, "First error: a bug", "the logs are in"),
    ],
)
def test_a_study_whose_runs_all_fail_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: tuple[str, ...],
    kind: type[GlassloopError],
    problem: str,
    remedy: str,
) -> None:
    class Failing(FakeExecutor):
        def wait(self) -> list[Done]:
            return [replace(done, error=error) for done in super().wait()]

    study = StudySettings({"max_steps": "1,2"}, seeds=2, budget="1h")
    with pytest.raises(kind) as raised:
        run_fake(tmp_path, record_for(study), Failing(lambda training, fraction: code), monkeypatch)
    assert type(raised.value) is kind
    assert problem in raised.value.problem
    assert remedy in raised.value.remedy
    assert "--budget" not in str(raised.value)
    assert read_study(tmp_path).status == "failed"


def test_time_ends_the_search_and_the_best_complete_setting_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_for(StudySettings({"max_steps": "1,2"}, seeds=1, budget="1h"), seconds=3600.0)
    with pytest.raises(SettingsError, match="the budget ended before one setting was trained"):
        run_fake(tmp_path, record, FakeExecutor(by_steps), monkeypatch)


def test_a_study_whose_time_is_over_ends_the_same_when_it_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends in the second of three rounds; what is done is found again, and nothing more is trained."""
    spent: list[float] = []

    class Slow(FakeExecutor):
        def wait(self) -> list[Done]:
            spent.append(1.0)
            return super().wait()

    monkeypatch.setattr(StudyRunner, "elapsed", property(lambda runner: runner.before + sum(spent)))
    study = StudySettings({"max_steps": STEPS}, seeds=1, strategy="halving", budget="10s")
    record, lines = run_fake(tmp_path, record_for(study), Slow(by_steps), monkeypatch)
    assert [part.fraction for part in record.rounds] == [0.25, 0.5]
    assert "the budget of 10s ended: 3 of 4 settings of this round were trained" in lines
    executor = FakeExecutor(by_steps)
    again, _ = run_fake(tmp_path, replace(record, chosen=None), executor, monkeypatch)
    assert (again.chosen, again.rounds, again.runs) == (record.chosen, record.rounds, record.runs)
    assert executor.started == []


def test_scores_go_to_their_splits() -> None:
    done = Done("a", "finished", {}, {"f1": 0.9, "validation_f1": 0.8}, {"f1": 0.1, "validation_f1": 0.2}, 3.0)
    assert split_scores(done, has_selection=True) == {
        "selection": {"f1": 0.9}, "validation": {"f1": 0.8}, "baseline": {"f1": 0.2},
    }  # fmt: skip
    run = reached(SeedRecord(0, 1), Done("a", "finished", {}, {"f1": 0.7}, {"f1": 0.2}, 3.0), 1.0)
    assert (run.validation, run.selection, run.seconds) == ({"f1": 0.7}, {}, 3.0)


def test_settings_and_rounds_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting_name({"learning_rate": 2e-5, "group_by_length": True}) == "learning_rate 2e-05, group_by_length true"
    study = StudySettings({"max_steps": STEPS}, seeds=1)
    record, _ = run_fake(tmp_path, record_for(study), FakeExecutor(by_steps), monkeypatch)
    assert rounds_in_words(record.rounds) == "8 to 25%, 4 to 50%, 2 to 100%"
