"""The address of a Ray cluster: its form, and whether something answers there, before any work."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from glassloop.base.errors import ResourceError, SettingsError
from glassloop.study import ray as ray_address
from glassloop.study.ray import refuse_unreachable


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "find_spec", lambda name: importlib.util.find_spec("json"))


def test_something_must_answer_there() -> None:
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


@pytest.mark.parametrize("address", ["slurm", "ray://host", "http://host:1", "host:", ":10001", "host:port"])
def test_other_forms_are_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="is not the address of a Ray cluster") as raised:
        refuse_unreachable(address)
    assert raised.value.remedy == "use ray, or ray://host:10001"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="--on ray needs the package ray") as raised:
        refuse_unreachable("ray://127.0.0.1:10001")
    assert raised.value.remedy == "pip install 'glassloop[ray]'"
