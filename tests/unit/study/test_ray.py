"""A Ray cluster: its address, and what travels to its nodes and back: runs, data and models as bytes, names restored."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import record_for
from run_folders import RECORD

from glassloop.base.errors import ResourceError, SettingsError
from glassloop.runs.record import read_run, write_run
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings
from glassloop.study import ray as study_ray
from glassloop.study.ray import Shipment, packed, placed, refuse_unreachable, restore_names, shipment_of, unpack
from glassloop.study.tasks import Task


def test_a_run_folder_travels_both_ways(tmp_path: Path) -> None:
    (tmp_path / "a" / "checkpoints" / "step-00000002").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "step-00000002" / "x").write_bytes(b"1")
    (tmp_path / "a" / ".lock").touch()
    files = packed(tmp_path / "a")
    assert files == {"checkpoints/step-00000002/x": b"1"}
    (tmp_path / "b" / "old").mkdir(parents=True)
    (tmp_path / "b" / "old" / "y").touch()
    unpack(files, tmp_path / "b")
    assert packed(tmp_path / "b") == files
    assert packed(tmp_path / "none") == {}


def test_local_data_and_models_are_shipped_and_placed_where_they_are_missing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("text,label\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    record = record_for(StudySettings({"max_steps": "1,2"}), data={"validation": "abc"})
    base = replace(record.base, source=str(tmp_path / "data"), model=str(tmp_path / "model"))
    shipment = shipment_of(replace(record, base=base))
    assert {Path(name).name for name in shipment.files} == {"train.csv", "config.json"}
    assert shipment.validation == "abc"
    given = GivenSettings(base.source, base.model)
    assert placed(given, shipment, tmp_path / "scratch") is given, "the node has the same files"
    (tmp_path / "data" / "train.csv").write_text("changed")
    moved = placed(given, shipment, tmp_path / "scratch")
    assert Path(str(moved.source), "train.csv").read_text() == "text,label\n"
    assert Path(str(moved.model), "config.json").read_text() == "{}"
    shipment = Shipment({"/far/MRPC/train.tsv": b"x"}, None, "/far/MRPC")
    moved = placed(GivenSettings("glue/mrpc", "quickstart"), shipment, tmp_path)  # GLUE: its folder
    assert (moved.source, moved.data) == ("glue/mrpc", {"data_dir": str(tmp_path / "far" / "MRPC")})
    assert (tmp_path / "far" / "MRPC" / "train.tsv").read_bytes() == b"x"


def test_too_much_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n")
    monkeypatch.setattr(study_ray, "MOST_BYTES", 3)
    record = record_for(StudySettings({"max_steps": "1,2"}))
    with pytest.raises(SettingsError, match="too much to send to every node") as raised:
        shipment_of(replace(record, base=replace(record.base, source=str(tmp_path / "rows.csv"))))
    assert raised.value.remedy == "put them on a disk that all nodes share, under the same path"


def test_the_record_gets_the_names_of_the_study(tmp_path: Path) -> None:
    data = replace(RECORD.data, source="/scratch/rows.csv", settings=replace(RECORD.data.settings, data_dir="/scratch"))
    write_run(tmp_path, replace(RECORD, data=data))
    task = Task("a", GivenSettings("/my/rows.csv", "quickstart", {"output_dir": str(tmp_path)}, {"labels": ["a", "b, c"]}))
    restore_names(task)
    found = read_run(tmp_path)
    assert (found.data.source, found.data.settings.data_dir, found.settings.output_dir) == ("/my/rows.csv", None, str(tmp_path))


# --- the address: its form, and whether something answers there, before any work
def test_the_package_must_be_there_the_address_have_its_form_and_something_answer_there(monkeypatch) -> None:
    monkeypatch.setattr(study_ray, "find_spec", lambda name: importlib.util.find_spec("json"))
    refuse_unreachable("ray")
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        port = opened.getsockname()[1]
        refuse_unreachable(f"ray://127.0.0.1:{port}")
        refuse_unreachable(f"127.0.0.1:{port}")
    with pytest.raises(ResourceError, match=rf"the Ray cluster ray://127.0.0.1:{port} cannot be reached: .*refused"):
        refuse_unreachable(f"ray://127.0.0.1:{port}")
    with pytest.raises(ResourceError, match="cannot be reached"):
        refuse_unreachable("127.0.0.1:99999")
    for address in ("slurm", "ray://host", "http://host:1", "host:", ":10001", "host:port"):
        with pytest.raises(SettingsError, match="is not the address of a Ray cluster") as raised:
            refuse_unreachable(address)
        assert raised.value.remedy == "use ray, or ray://host:10001"
    monkeypatch.setattr(study_ray, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="--on ray needs the package ray") as raised:
        refuse_unreachable("ray://127.0.0.1:10001")
    assert raised.value.remedy == "pip install 'glassloop[ray]'"
