"""A study: what is refused before its first run, and what is trained, chosen, counted and found again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import FakeExecutor, record_for, run_fake
from trials import write_data

from glassloop import Study
from glassloop.base.errors import DivergedError, GlassloopError, LockedError, ResourceError, ResumeError, SettingsError
from glassloop.base.files import locked
from glassloop.runs.study import SeedRecord, StudyRecord, read_study, write_study
from glassloop.settings.defaults import Facts
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings, setting_name
from glassloop.study.run import SharedParts
from glassloop.study.study import RunSettler, StudyRunner, checked, refuse_changed_inputs, study
from glassloop.study.tasks import Task
from glassloop.study.worker import facts_of_model, new_record, search_examples

VARY = StudySettings({"learning_rate": "1e-3,2e-3"}, seeds=2)
STEPS = "1,2,3,4,5,6,7,8"


# --- before the first run
def test_a_setting_is_either_set_or_varied_and_python_refuses_unknown_ones_before_any_work(says) -> None:
    given = GivenSettings("rows.csv", training={"learning_rate": 1e-3}, data={"selection_fold": "1/2"})
    with says("learning_rate is both set and varied; selection_fold is set by the study"):
        checked(given, VARY)
    with says("model is both set and varied"):
        checked(GivenSettings("rows.csv", "a"), StudySettings({"model": "a,b"}))
    with pytest.raises(SettingsError, match='unknown setting "learning_rat"; did you mean "learning_rate"') as raised:
        Study("rows.csv", vary={"max_steps": [1, 2]}, learning_rat=1)
    assert raised.value.exit_code == 2
    found = Study("rows.csv", vary={"max_steps": [1, 2], "weight_decay": "linear:0..0.1"}, text="a", num_train_epochs=2)
    assert setting_name({"learning_rate": 2e-5, "group_by_length": True}) == "learning_rate 2e-05, group_by_length true"
    assert (found.given.data, found.given.training) == ({"text": "a"}, {"num_train_epochs": 2})
    assert found.study.vary == {"max_steps": "1,2", "weight_decay": "linear:0..0.1"}


def test_the_metric_and_the_shared_settings_are_recorded(tmp_path: Path, tiny_model_dir: Path) -> None:
    given = GivenSettings(str(write_data(tmp_path, 60, 20)), str(tiny_model_dir), {"seed": 5, "output_dir": "x"})
    record = new_record(given, VARY, search_examples(given, VARY))
    assert (record.metric, record.greater_is_better, record.seeds) == ("accuracy", True, (5, 6))
    assert record.base.training == {"save_strategy": "no", "save_total_limit": 1, "seed": 5, "disable_tqdm": True}
    assert {*record.data} == {"train", "selection", "validation"}
    by_loss = replace(given, training={"metric_for_best_model": "loss"})
    assert new_record(by_loss, VARY, search_examples(by_loss, VARY)).greater_is_better is False
    wrong = replace(given, training={"metric_for_best_model": "bleu"})
    with pytest.raises(SettingsError, match='metric_for_best_model is "bleu"'):
        new_record(wrong, VARY, search_examples(wrong, VARY))
    alone = replace(given, source=str(tmp_path / "train.csv"), data={"validation_share": 0})
    with pytest.raises(SettingsError, match="a study reports on a validation split, but the data has none"):
        search_examples(alone, VARY)


def test_a_resumed_study_keeps_its_settings_and_a_folder_in_use_is_refused_before_any_work(tmp_path: Path, says) -> None:
    write_study(tmp_path, record_for(VARY))
    with says(f"--resume continues {tmp_path} with its own settings, but there are others: learning_rate, data"):
        study(GivenSettings("rows.csv", training={"learning_rate": 1e-3}), str(tmp_path))
    given = GivenSettings("gone.csv", "gone", {"output_dir": str(tmp_path)}, study={"vary": {"max_steps": "1,2"}})
    with locked(tmp_path, print):  # neither the data nor the model exists: nothing is loaded
        for resume in (None, str(tmp_path)):
            with pytest.raises(LockedError, match="is in use by process") as raised:
                study(given if resume is None else GivenSettings(), resume)
            assert raised.value.exit_code == 7


def test_a_study_whose_data_or_model_changed_is_not_continued(tmp_path: Path, tiny_model_dir: Path) -> None:
    source = write_data(tmp_path / "data", 60, 20)
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    folder = tmp_path / "study"
    folder.mkdir()
    given = GivenSettings(str(source), str(model), {"output_dir": str(folder)})
    started = new_record(given, VARY, search_examples(given, VARY))
    write_study(folder, replace(started, runs={"seed-42-a": SeedRecord(0, 42, "1/10", "finished")}))
    refuse_changed_inputs(folder, read_study(folder), started)

    (source / "train.csv").write_text((source / "train.csv").read_text() + "one more film,good\n")
    with pytest.raises(ResumeError) as raised:
        study(GivenSettings(), str(folder))
    assert raised.value.exit_code == 4
    assert f"the rows of train, selection in {source} changed since the study was started" in raised.value.problem
    assert "another --output_dir" in raised.value.remedy
    limited = replace(given, data={"limit": 30})
    refuse_changed_inputs(folder, read_study(folder), new_record(limited, VARY, search_examples(limited, VARY)))

    write_data(source, 60, 20)
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    with pytest.raises(ResumeError, match=f"the files of the model {model} changed"):
        study(GivenSettings(), str(folder))
    assert [*folder.iterdir()] == [folder / "study.json"]


# --- the settings of a run, and names that depend on everything that its numbers depend on
@pytest.fixture
def record(tmp_path: Path, tiny_model_dir: Path) -> StudyRecord:
    rows = "".join(f"{'good' if number % 2 else 'bad'} film {number},{number % 2}\n" for number in range(60))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    model = str(tiny_model_dir)
    found = record_for(VARY, tried=({"learning_rate": 1e-3},), data={"train": "x"}, models={model: "weights"})
    return replace(found, base=replace(found.base, source=str(tmp_path / "rows.csv"), model=model))


def facts_of(record: StudyRecord) -> dict[str, Facts]:
    """What the rule chooses settings from, as a worker finds it out."""
    searching = replace(record.base, data={**record.base.data, "selection_fold": "1/10"})
    return {str(record.base.model): facts_of_model(searching, record.base.model, SharedParts())}


def test_a_run_has_its_values_its_seed_what_the_rule_chooses_and_a_name_of_its_own(record: StudyRecord, tmp_path: Path) -> None:
    facts = facts_of(record)
    settler = RunSettler(record, facts)
    given = settler.given({"learning_rate": 1e-3}, 7, "1/10")
    wanted = {"learning_rate": 1e-3, "seed": 7, "per_device_train_batch_size": 16, "pooling": "mean"}
    assert {name: given.training[name] for name in wanted} == wanted
    assert given.data == {"selection_fold": "1/10"}
    final = settler.given({"learning_rate": 1e-3}, 7, None)
    assert (final.training, final.data) == (given.training, {}), "chosen from the rows of the search, for final runs too"
    best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    for stopping in (best, {"early_stopping_patience": 2, "eval_strategy": "epoch"}):
        stopped = RunSettler(replace(record, base=replace(record.base, training=stopping)), facts)
        found = stopped.given({"learning_rate": 1e-3}, 7, None)
        assert found.data == {"selection_fold": "1/10"}, "early stopping never sees validation rows"
    # Its name depends on settings, seed, fold, data and model.
    runs = [(1e-3, 7, "1/10"), (2e-3, 7, "1/10"), (1e-3, 8, "1/10"), (1e-3, 7, "2/10")]
    given, *others = (settler.given({"learning_rate": rate}, seed, fold) for rate, seed, fold in runs)
    names = [settler.name_of(one) for one in (given, *others)]
    changes = ({"data": {"train": "y"}}, {"models": {given.model: "other weights"}})
    names += [RunSettler(replace(record, **change), facts).name_of(given) for change in changes]
    assert len({*names}) == len(names)
    elsewhere = replace(given, training={**given.training, "output_dir": str(tmp_path), "disable_tqdm": True})
    assert settler.name_of(elsewhere) == names[0]
    assert names[0].startswith("seed-7-")


def test_known_runs_keep_what_they_have_reached(record: StudyRecord, tmp_path: Path) -> None:
    def planned(final: bool = False, **stored: SeedRecord):
        runner = StudyRunner(tmp_path, replace(record, runs=stored), facts_of(record), FakeExecutor(by_steps), [], print)
        runner.record = replace(runner.record, tried=record.tried)
        return runner.planned([0], final=final)

    (first, second) = planned()
    known = planned(**{first: SeedRecord(5, 1, "1/10", "finished", selection={"accuracy": 0.5})})
    assert (known[first][0].setting, known[first][0].status, known[second][0].status) == (0, "finished", "waiting")
    assert all(name.startswith("final-seed-") for name in planned(final=True))


# --- from the first round to the final runs
def by_steps(training, fraction: float) -> float:
    return 0.5 + training["max_steps"] / 100 + training["seed"] / 1000


Run = Callable[..., tuple[StudyRecord, list[str], FakeExecutor]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a study with a fake executor in a folder. Returns its record, the lines it said and the executor."""

    def start(study: StudySettings | StudyRecord, score=by_steps, folder: str = "study", signals=None):
        executor = score if isinstance(score, FakeExecutor) else FakeExecutor(score)
        record = study if isinstance(study, StudyRecord) else record_for(study)
        return *run_fake(tmp_path / folder, record, executor, monkeypatch, signals), executor

    return start


def test_halving_trains_less_and_chooses_what_the_grid_chooses_and_every_fold_is_a_run_of_its_own(run: Run) -> None:
    sizes = []
    for strategy in ("halving", "grid"):
        record, _, executor = run(StudySettings({"max_steps": STEPS}, seeds=2, strategy=strategy), folder=strategy)
        assert (record.status, record.tried[record.chosen]) == ("finished", {"max_steps": 8})
        sizes.append(sum(task.fraction for task in executor.started))
    assert sizes == [16 * 0.25 + 8 * 0.5 + 4 + 2, 16 + 2], "a paused run counts its whole part here"
    record, _, _ = run(StudySettings({"max_steps": "1,2"}, seeds=1, fold=3))
    assert [entry.fold for entry in record.runs_of(0).values()] == ["1/3", "2/3", "3/3"]


def test_the_choice_is_made_on_selection_and_final_runs_have_all_rows(run: Run, tmp_path: Path) -> None:
    record, lines, executor = run(StudySettings({"max_steps": "1,2"}, seeds=2))
    assert record == read_study(tmp_path / "study")
    final = record.runs_of(1, final=True)
    assert [entry.seed for entry in final.values()] == [1, 2]
    tasks = {task.name: task for task in executor.started}
    assert all(name.startswith("final-") and "selection_fold" not in tasks[name].given.data for name in final)
    assert all(tasks[name].folder == tmp_path / "study" / "runs" / name for name in final)
    search = record.runs_of(1)
    assert all(entry.selection["accuracy"] > entry.validation["accuracy"] for entry in search.values()), "both are kept apart"
    assert lines[-2].startswith("chosen on the selection split, by mean accuracy: max_steps 2 (0.52")
    assert lines[-1] == "final: 2 runs of the chosen setting on all training rows"


@pytest.mark.parametrize("is_caught", [True, False])
def test_a_worker_that_a_scheduler_stops_with_the_study_has_not_failed(run: Run, is_caught: bool) -> None:
    signals: list[int] = []

    class Stopped(FakeExecutor):
        def answer(self, task: Task, score: float) -> SeedRecord:
            signals.append(15)
            return SeedRecord(status="stopped" if is_caught else "failed", exit_code=143)

    record, lines, _ = run(StudySettings({"max_steps": "1,2"}, seeds=1), Stopped(by_steps), signals=signals)
    assert (record.status, {entry.status for entry in record.runs.values()}) == ("stopped", {"waiting"})
    assert not [line for line in lines if "failed" in line]


@pytest.mark.parametrize(("times", "status"), [(2, "finished"), (3, "failed")])
def test_a_run_whose_process_was_killed_is_trained_again(run: Run, times: int, status: str) -> None:
    killed: list[int] = []

    def lost(training, fraction: float) -> float | int:
        if training["max_steps"] == 2 and training["seed"] == 1 and len(killed) < times:
            killed.append(1)
            return 137
        return by_steps(training, fraction)

    record, lines, _ = run(StudySettings({"max_steps": "1,2"}, seeds=2), lost)
    assert (record.runs["2-1-1of10"].status, record.runs["2-2-1of10"].status) == (status, "finished")
    assert sum("was killed (exit status 137): it is trained again" in line for line in lines) == 2
    if status == "finished":
        undisturbed, _, _ = run(record.study, folder="other")
        assert (record.runs, record.chosen) == (undisturbed.runs, undisturbed.chosen)


def test_a_failed_run_counts_as_the_baseline_and_is_kept(run: Run) -> None:
    def one_diverges(training, fraction: float) -> float | int:
        return 5 if training["max_steps"] == 2 and training["seed"] == 1 else 0.6 + training["max_steps"] / 100

    record, lines, _ = run(StudySettings({"max_steps": "1,2"}, seeds=2), one_diverges)
    assert record.tried[record.chosen] == {"max_steps": 1}, "(0.62 + 0.5) / 2 is less than 0.61"
    (failed,) = record.failed.values()
    assert (failed.seed, failed.exit_code, failed.error) == (1, 5, ("it broke", "mend it"))
    assert "failed: max_steps 2, seed 1 (exit status 5): it broke mend it" in lines


def test_a_study_continues_with_the_runs_it_has(run: Run, tmp_path: Path) -> None:
    wanted = StudySettings({"max_steps": STEPS}, seeds=2)
    whole, _, _ = run(wanted, folder="whole")
    assert [(len(part.settings), part.fraction) for part in whole.rounds] == [(8, 0.25), (4, 0.5), (2, 1.0)]
    signals: list[int] = []

    class Cut(FakeExecutor):
        def wait(self) -> list[tuple[str, SeedRecord]]:
            if len(self.started) == 21:
                signals.append(15)
            return super().wait()

    stopped, _, cut = run(wanted, Cut(by_steps), "cut", signals)
    assert (stopped.status, stopped.chosen, bool(cut.stops)) == ("stopped", None, True)
    ended, _, again = run(read_study(tmp_path / "cut"), folder="cut")
    assert (ended.runs, ended.chosen, ended.rounds) == (whole.runs, whole.chosen, whole.rounds)
    assert len(again.started) + len(cut.started) == 16 + 8 + 4 + 2


def test_an_extended_study_trains_only_what_is_new_and_runs_without_memory_again(run: Run) -> None:
    first, _, _ = run(StudySettings({"max_steps": "1,3"}, seeds=1))
    record, _, executor = run(record_for(StudySettings({"max_steps": "1,2,3"}, seeds=1), runs=first.runs))
    assert [task.given.training["max_steps"] for task in executor.started] == [2]
    assert [entry.setting for entry in record.runs.values()] == [0, 1, 2, 2]
    settled = {code: SeedRecord(0, 1, "1/10", "failed", exit_code=code).settled for code in (6, 137, 5)}
    assert settled == {6: False, 137: False, 5: True}


MEMORY = ("not enough memory for a batch of 64 rows (CUDA out of memory)", "lower per_device_train_batch_size")
NO_CHOICE = "all 4 runs failed, so there is no setting to choose"


def test_a_study_whose_runs_all_fail_says_why(run: Run, tmp_path: Path) -> None:
    class Failing(FakeExecutor):
        def answer(self, task: Task, score: float) -> SeedRecord:
            return self.failed

    for code, error, kind, problem, remedy in (
        (6, MEMORY, ResourceError, "all 4 runs ran out of memory: not enough memory for", "per_device_train_batch_size"),
        (137, ("killed",), ResourceError, "all 4 runs ran out of memory", "--at_once 1"),
        (6, ("No space left on device",), ResourceError, NO_CHOICE, "the logs are in"),
        (5, ("the loss is nan", "lower it"), DivergedError, "First error: the loss is nan", "lower it; the logs are in"),
        (1, ("a bug",), GlassloopError, "First error: a bug", "the logs are in"),
    ):
        failing = Failing(by_steps)
        failing.failed = SeedRecord(status="failed", exit_code=code, error=error)
        with pytest.raises(kind) as raised:
            run(StudySettings({"max_steps": "1,2"}, seeds=2, budget="1h"), failing, folder=problem)
        assert type(raised.value) is kind
        assert problem in raised.value.problem
        assert remedy in raised.value.remedy
        assert "--budget" not in str(raised.value)
        assert read_study(tmp_path / problem).status == "failed"


def test_a_study_whose_time_is_over_ends_the_same_when_it_is_continued(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends in the second of three rounds; what is done is found again, and nothing more is trained."""
    over = record_for(StudySettings({"max_steps": "1,2"}, seeds=1, budget="1h"), seconds=3600.0)
    with pytest.raises(SettingsError, match="the budget ended before one setting was trained"):
        run(over, folder="over")
    spent: list[float] = []

    class Slow(FakeExecutor):
        def wait(self) -> list[tuple[str, SeedRecord]]:
            spent.append(1.0)
            return super().wait()

    monkeypatch.setattr(StudyRunner, "elapsed", property(lambda runner: runner.before + sum(spent)))
    wanted = StudySettings({"max_steps": STEPS}, seeds=1, strategy="halving", budget="10s")
    record, lines, _ = run(wanted, Slow(by_steps))
    assert [part.fraction for part in record.rounds] == [0.25, 0.5]
    assert "the budget of 10s ended: 3 of 4 settings of this round were trained" in lines
    again, _, executor = run(replace(record, chosen=None))
    assert (again.chosen, again.rounds, again.runs) == (record.chosen, record.rounds, record.runs)
    assert executor.started == []
