"""study.json: written and read again the same; a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_study import record_for

from glassloop.base.errors import ModelError
from glassloop.runs.study import RoundRecord, SeedRecord, read_rungs, read_study, write_study
from glassloop.settings.study import StudySettings


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = record_for(
        StudySettings({"learning_rate": "1e-3,2e-3", "group_by_length": "true,false"}, seeds=2, budget="3h", fold=2),
        tried=({"learning_rate": 1e-3, "group_by_length": True}, {"learning_rate": 2e-3, "group_by_length": None}),
        rounds=(RoundRecord((0, 1), 0.25),),
        runs={"a": SeedRecord(0, 1, "1/2", "paused", 0.25, {"0.25": {"accuracy": 0.5}}), "b": SeedRecord(1, 2, error=("x",))},
        chosen=1,
        results={"sentence": "It is.", "settings": [{"number": 0}]},
        test_evaluations=("learning_rate 0.001",),
        threads=2,
    )
    write_study(tmp_path, record)
    assert read_study(tmp_path) == record


def test_runs_of_a_setting_are_those_of_the_search_or_final_ones() -> None:
    runs = {"a": SeedRecord(0, 1, "1/10"), "b": SeedRecord(0, 1), "c": SeedRecord(1, 1, "1/10", "failed")}
    record = record_for(StudySettings({"max_steps": "1,2"}), runs=runs)
    assert [*record.runs_of(0)] == ["a"]
    assert [*record.runs_of(0, final=True)] == ["b"]
    assert [*record.failed] == ["c"]


def test_scores_at_a_fraction_are_those_of_the_rung_or_of_an_earlier_end() -> None:
    run = SeedRecord(0, 1, "1/10", "finished", rungs={"0.25": {"f1": 0.1}}, selection={"f1": 0.9})
    assert [run.scores_at(fraction) for fraction in (0.25, 0.5, 1.0)] == [{"f1": 0.1}, {"f1": 0.9}, {"f1": 0.9}]
    assert SeedRecord(0, 1, "1/10", "paused", rungs={"0.25": {"f1": 0.1}}).scores_at(0.5) is None


@pytest.mark.parametrize(("text", "problem"), [("{", "not JSON"), ("{}", "base is missing"), (None, "missing")])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "study.json").write_text(text)
    with pytest.raises(ModelError, match=r"not a study: study\.json") as raised:
        read_study(tmp_path)
    assert problem in raised.value.problem


def test_missing_rungs_are_empty(tmp_path: Path) -> None:
    assert read_rungs(tmp_path) == {}
