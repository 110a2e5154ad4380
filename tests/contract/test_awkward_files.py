"""What awkward files get: rows and labels, or an error that names the file, the row and the solution."""

from __future__ import annotations

from pathlib import Path

import pytest
from awkward_files import FILES, PAGE, Awkward, page_with_table

from glassloop.base.errors import DataError
from glassloop.data.readers import read_file
from glassloop.data.sources import load_examples
from glassloop.settings.training import FILE_SETTINGS, data_settings


def load(file: Awkward, folder: Path):
    (folder / file.name).write_bytes(file.content)
    return load_examples(folder / file.name, **{"validation_share": 0, **file.settings})


@pytest.mark.parametrize("file", [file for file in FILES if not file.error], ids=lambda file: file.name)
def test_the_file_is_loaded(file: Awkward, tmp_path: Path) -> None:
    found = load(file, tmp_path)
    assert found.labels is not None
    assert (found.facts["train"].num_rows, found.labels.names) == (file.rows, file.labels)
    assert file.note in "; ".join(found.notes)
    texts = found.splits["train"][found.columns.text]
    assert file.rows < 12 or (len({*texts}) == file.rows and all(text.strip() for text in texts))
    reading = {name: value for name, value in file.settings.items() if name in FILE_SETTINGS}
    rows = [row for part in read_file(tmp_path / file.name, data_settings(reading)) for row in part.to_pylist()]
    assert len(rows) == file.rows  # predict reads the same rows


@pytest.mark.parametrize("file", [file for file in FILES if file.error], ids=lambda file: file.name)
def test_the_file_is_refused(file: Awkward, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        load(file, tmp_path)
    problem = raised.value.problem
    expected = f"{file.name}{file.error}"
    assert problem.startswith(expected[:-1]) if expected.endswith("…") else problem == expected
    assert file.fix in raised.value.remedy


def test_there_are_many_files_and_each_has_its_own_name() -> None:
    assert len({file.name for file in FILES}) == len({file.what for file in FILES}) == len(FILES) > 60


def test_the_table_in_the_documentation_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page), "run python tests/awkward_files.py"
