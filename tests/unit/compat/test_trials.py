"""The search of a script in study.json: what a new process finds there, and when it is another search."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.base.errors import DivergedError, SettingsError
from glassloop.compat.trials import SearchRecord
from glassloop.runs.study import read_study
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings
from glassloop.study.study import study

LOG = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 1e-06, "high": 0.0001, "log": true}}'


def opened(folder: Path, rows: str = "8 rows") -> SearchRecord:
    return SearchRecord(folder, {"train": rows}, 42, greater_is_better=False, base=GivenSettings())


def filled(folder: Path) -> SearchRecord:
    search = opened(folder)
    for number, name in enumerate(("good", "pruned", "failed", "running")):
        assert search.begin(number, name, 42, {"learning_rate": 1e-5 * (number + 1)}, {"learning_rate": LOG}) is None
        search.note(name, rungs={"4": {"objective": 0.5}})
    search.finished("good", [0.5, 2.0], {"accuracy": 0.9}, 1.0)
    search.note("pruned", status="paused", seconds=1.0)
    search.failed("failed", DivergedError("the loss is nan", "lower the rate"), 1.0)
    return search


def test_a_new_process_finds_all_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    filled(tmp_path)
    again = opened(tmp_path)
    good, pruned, failed = again.known()
    assert (good.values, good.pruned, good.params) == ((0.5, 2.0), False, {"learning_rate": 1e-5})
    assert (pruned.values, pruned.pruned, pruned.reports) == (None, True, {4: 0.5})
    assert (failed.values, failed.pruned) == (None, False)
    assert again.waiting == {"learning_rate": 4e-5}
    assert again.begin(3, "running", 42, {"learning_rate": 4e-5}, {}) == {4: 0.5}, "what it had reported"
    assert read_study(tmp_path).failed["failed"].error == ("the loss is nan", "lower the rate")


def test_other_rows_are_another_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    assert not opened(tmp_path, "9 rows").record.runs
    (tmp_path / "study.json").write_text("damaged")
    assert not opened(tmp_path).record.runs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.json.kept-1", "study.json.kept-2"]
    assert capsys.readouterr().err.count("moved aside") == 2


def test_the_end_counts_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path).end(0)
    assert f"4 trials, 1 pruned, 1 failed; the best: learning_rate 1e-05 → {tmp_path}/study.json" in capsys.readouterr().err
    assert (read_study(tmp_path).status, read_study(tmp_path).chosen) == ("finished", 0)


def test_the_study_command_does_not_continue_it(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(SettingsError, match="is the search of a script") as raised:
        study(GivenSettings(), str(tmp_path))
    assert raised.value.remedy == "run the script again: it continues its search"
    with pytest.raises(SettingsError, match='strategy is "script", not one of auto, grid'):
        study(GivenSettings("rows.csv", study={"strategy": "script", "vary": {"learning_rate": "1e-3"}}))
    assert StudySettings(strategy="script").vary == {}
