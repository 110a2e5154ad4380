"""Excel: values as the text a person sees, the right sheet, and rows with the numbers that Excel shows."""

from __future__ import annotations

import builtins
import gzip
from datetime import date, datetime, time

import pytest
from workbooks import xlsx, zipped

from glassloop.base.errors import SettingsError
from glassloop.data.faults import SKIP, BadRows
from glassloop.data.readers import cell_as_text, read_excel
from glassloop.settings.fields import DataSettings

ROWS = [["text", "label"], ["a b", 1], ["c d", 0]]


def rows_of(path, **settings):
    tables = read_excel(path, DataSettings(**settings), BadRows(offer=True))
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (1.0, "1"),
        (-3.0, "-3"),
        (0.5, "0.5"),
        (7, "7"),
        ("007", "007"),
        ("", ""),
        (True, "true"),
        (date(2024, 1, 2), "2024-01-02"),
        (datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
        (time(1, 2), "01:02:00"),
    ],
)
def test_cells_are_the_text_that_a_person_sees(cell, text):
    assert cell_as_text(cell) == text


@pytest.mark.parametrize("pack", [None, gzip.compress, lambda content: zipped({"d.xlsx": content})])
def test_a_workbook_may_be_compressed(pack, write):
    path = write("d.xlsx", xlsx(ROWS)) if pack is None else write("d.xlsx.zip", pack(xlsx(ROWS)))
    assert rows_of(path) == [{"text": "a b", "label": "1"}, {"text": "c d", "label": "0"}]


def test_the_sheet_is_chosen_by_name(write, refused):
    path = write("d.xlsx", xlsx(ROWS, [["text", "label"], ["x", 2]]))
    assert rows_of(path, sheet="Sheet2") == [{"text": "x", "label": "2"}]
    with refused('d.xlsx: there is no sheet "Sheet3"; found Sheet1, Sheet2; did you mean "Sheet2"?', "set --sheet"):
        rows_of(path, sheet="Sheet3")


def test_a_blank_row_is_named_with_the_number_that_excel_shows(write, refused):
    path = write("d.xlsx", xlsx([*ROWS, [], ["e", 1], []]))
    with refused(
        "d.xlsx, row 4: the row is blank (text, label)",
        "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter; " + SKIP,
    ):
        rows_of(path)


def test_without_its_package_the_command_to_install_it_is_named(write, refused, monkeypatch):
    imported = builtins.__import__

    def without(name, *rest):
        if name == "python_calamine":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    problem = "d.xlsx: reading Excel files needs the package python-calamine"
    with refused(problem, "pip install 'glassloop[excel]'", SettingsError):
        rows_of(write("d.xlsx", xlsx(ROWS)))
