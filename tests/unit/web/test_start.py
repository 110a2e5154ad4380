"""Starting the page: folders, ports, missing packages; errors are one clear message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glassloop.base.errors import ResourceError, SettingsError
from glassloop.web import start
from glassloop.web.start import bound, opened_socket, root_of, start_page


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert root_of(None) == Path("runs"), "it need not exist yet"
    (tmp_path / "experiments").mkdir()
    assert root_of("experiments") == Path("experiments")
    with pytest.raises(SettingsError, match=r'experiment does not exist; did you mean "experiments"\?'):
        root_of("experiment")
    (tmp_path / "runs").write_text("")
    with pytest.raises(SettingsError, match="runs is not a folder"):
        root_of(None)


def test_a_port_in_use_is_an_error_or_the_next_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with bound(0) as taken:
        place, port = taken.getsockname()
        assert place == "127.0.0.1", "only this machine is listened to"
        with pytest.raises(ResourceError) as caught:
            opened_socket(port)
        monkeypatch.setattr(start, "FIRST_PORT", port)
        with opened_socket(None) as free:
            other = free.getsockname()[1]
    assert caught.value.problem == f"port {port} cannot be opened: it is in use"
    assert "--port 0" in caught.value.remedy
    assert other != port
    assert capsys.readouterr().err in (f"glassloop: port {port} is in use; using port {other}\n", "")


def test_the_address_is_printed_and_opened_and_a_missing_package_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served, opened = [], []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.append(sockets))
    monkeypatch.setattr(start.webbrowser, "open", lambda address: (opened.append(address), False)[1])
    monkeypatch.setattr(start.os, "nice", lambda number: None)
    start_page(str(tmp_path), 0, open_browser=True)
    start_page(str(tmp_path), 0, open_browser=False)
    out, err = capsys.readouterr()
    first, second = out.split()
    assert (opened, len(served)) == ([first], 2)
    assert first.startswith("http://127.0.0.1:")
    assert first.split("/")[3] != second.split("/")[3], "another token with every start"
    assert len(first.split("/")[3]) >= 20
    assert "no browser was found" in err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SettingsError) as caught:
        start_page(str(tmp_path), 0, open_browser=False)
    assert (caught.value.problem, caught.value.remedy) == ("uvicorn is not installed", "pip install 'glassloop[web]'")
