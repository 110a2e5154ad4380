"""The file of a card: written again while it is Glassloop's, kept once a person has edited it."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.report.card import Card, update_card, write_card


def test_an_edited_card_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    (tmp_path / ".README.md.0123abcd").write_text("half a card")  # of a process that was killed
    assert write_card(tmp_path, Card("first", None))
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]
    assert write_card(tmp_path, Card("second", None))
    assert "# second" in path.read_text(encoding="utf-8")
    assert capsys.readouterr().err == ""
    path.write_text(path.read_text(encoding="utf-8").replace("---\n\n", "license: mit\n---\n\n", 1), encoding="utf-8")
    edited = path.read_bytes()
    assert not write_card(tmp_path, Card("third", None))
    assert path.read_bytes() == edited
    assert capsys.readouterr().err == f"glassloop: {path} was kept: it was edited, or written by another program\n"
    path.write_bytes(b"\xff\xfe")
    assert not write_card(tmp_path, Card("third", None))
    assert path.read_bytes() == b"\xff\xfe"


def test_a_card_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update_card(tmp_path)
    assert capsys.readouterr().err.startswith("glassloop: the model card could not be written: ModelError: model: ")
