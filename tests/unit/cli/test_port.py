"""`glassloop port`: the diff, the files it writes, and an error for each file it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.base.errors import DataError, SettingsError
from glassloop.cli.port import port

SCRIPT = "\tfrom transformers import Trainer\n\tTrainer().model.generate()\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("if True:\n" + SCRIPT, encoding="utf-8")
    return path


def test_the_diff_is_shown_and_nothing_is_written(script: Path, capsys) -> None:
    before = script.read_bytes()
    found = port(str(script)).content
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith(("- ", "+ "))] == [
        ["-", *"from transformers import Trainer".split()],
        ["+", *"from glassloop import Trainer".split()],
    ]
    assert "could not be translated:\n  line 3: generate: " in shown
    assert script.read_bytes() == before
    assert [*script.parent.iterdir()] == [script]
    assert found["changed"]
    assert found["out"] is None
    assert found["not_translated"][0]["line"] == 3


def test_the_result_is_written_where_it_is_wanted(script: Path, capsys) -> None:
    wanted = script.read_text(encoding="utf-8").replace("from transformers", "from glassloop")
    port(str(script), str(script.parent / "new.py"))
    assert (script.parent / "new.py").read_text(encoding="utf-8") == wanted
    with pytest.raises(SettingsError, match="exists"):
        port(str(script), str(script.parent / "new.py"))
    port(str(script), in_place=True)
    assert script.read_text(encoding="utf-8") == wanted
    capsys.readouterr()
    assert not port(str(script), in_place=True).content["changed"]
    assert "nothing was changed" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="exclude each other"):
        port(str(script), "x.py", in_place=True)


LATIN = "# -*- coding: latin-1 -*-\r\nx = 'é'; from transformers import Trainer  # é\r\n".encode("latin-1")


def test_byte_order_mark_line_ends_and_encoding_stay_and_other_scripts_need_no_change(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.py"
    for content in (b"\xef\xbb\xbffrom transformers import Trainer\r\nx = 1", LATIN):
        path.write_bytes(content)
        port(str(path), in_place=True)
        assert path.read_bytes() == content.replace(b"from transformers", b"from glassloop")
    path.write_text("x = 1\n", encoding="utf-8")
    port(str(path))
    assert capsys.readouterr().out.endswith("a.py needs no change\n")


def test_a_link_stays_and_the_file_that_it_leads_to_is_written_with_its_permissions(script: Path) -> None:
    script.chmod(0o750)
    link = script.parent / "link.py"
    link.symlink_to(script.name)
    port(str(link), in_place=True)
    assert link.is_symlink()
    assert "from glassloop" in script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o777 == 0o750
    port(str(link), str(script.parent / "new.py"))
    assert (script.parent / "new.py").stat().st_mode & 0o777 == 0o750


BAD: dict[str, tuple[bytes | None, str]] = {
    "missing.py": (None, "there is no file"),
    ".": (None, "is a folder"),
    "a.txt": (b"x = 1", "neither a .py nor an .ipynb file"),
    "latin.py": ("x = 'é'".encode("latin-1"), r"is not UTF-8 \(byte 5\)"),
    "empty.py": (b" \n", "is empty"),
    "nothing.ipynb": (b"", "is empty"),
    "two.py": (b"x = 1\nprint 'x'\n", "line 2: the script is for Python 2"),
    "wrong.py": (b"x = 1\ndef f(:\n", "line 2: invalid syntax"),
    "zero.py": (b"x = '\0'\n", "null bytes"),
    "wrong.ipynb": (b"{}", "is not a notebook"),
}


def test_each_bad_file_has_its_error(tmp_path: Path) -> None:
    for name, (content, problem) in BAD.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=problem):
            port(str(tmp_path / name))
