"""The rows of a file to predict. Its errors are tested with the predictor, in test_predictor.py."""

from __future__ import annotations

from glassloop.data.faults import BadRows
from glassloop.data.files import checked_rows
from glassloop.settings.fields import DataSettings


def test_texts_are_joined_and_the_columns_stay(write):
    path = write("d.csv", "title,body\na,b\nc,\n")
    (rows,) = checked_rows(path, DataSettings(), ["title,body"], ["prediction"], BadRows())
    assert rows.texts == [["a\nb", "c"]]
    assert (rows.first, rows.table.column_names) == (2, ["title", "body"])


def test_a_missing_part_of_a_joined_text_is_named(write, refused):
    path = write("d.csv", "title,label\na,b\n")
    with refused('d.csv: there is no column "body"; found title, label', "name the columns with --text and --text_pair"):
        [*checked_rows(path, DataSettings(), ["title,body"], [], BadRows())]


def test_rows_after_skipped_ones_keep_their_numbers(write, refused):
    path = write("d.csv", "text,n\na,1\nb\nc,2\n,3\n")
    with refused("d.csv, row 5: the text is empty", "fill or remove the row"):
        [*checked_rows(path, DataSettings(), ["text"], [], BadRows(skip=True))]


def test_a_file_without_a_header(write):
    path = write("d.tsv.gz", "good\t5\nbad\t1\n")
    (rows,) = checked_rows(path, DataSettings(columns="text,stars"), ["text"], [], BadRows())
    assert (rows.first, rows.texts) == (1, [["good", "bad"]])
