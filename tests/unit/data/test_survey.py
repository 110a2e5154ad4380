"""The first pass over a split: what it keeps of each row, and which texts it refuses."""

from __future__ import annotations

import pyarrow as pa
from given_split import GivenSplit, Watched

from glassloop.data.examples import Part, survey_split
from glassloop.runs.record import Columns
from glassloop.settings.fields import DataSettings

COLUMNS = Columns("text", None, ("label",))


def surveyed(rows: list[dict[str, str | None]], **settings: str) -> Part:
    table = pa.Table.from_pylist(rows)
    split = GivenSplit("d.csv", [table.slice(0, 2), table.slice(2)])
    return survey_split("train", split, table, COLUMNS, DataSettings(**settings))


ROWS = [{"text": "a", "label": "x"}, {"text": "", "label": "y"}, {"text": "a", "label": "x"}, {"text": " ", "label": None}]


def test_rows_are_counted_and_found_again() -> None:
    part = surveyed(ROWS, empty="keep")
    assert (part.num_empty, len(part.keys), len({*part.keys.tolist()})) == (2, 4, 3)
    assert part.survey.found.counts() == {"x": 2, "y": 1}
    assert [part.where(value) for value in ("x", "y", None, "z")] == ["d.csv, row 2", "d.csv, row 3", "d.csv, row 5", "d.csv"]


def test_empty_texts_are_refused_with_their_rows(refused) -> None:
    remedy = "fill or remove the rows, or keep them with --empty keep"
    with refused('d.csv, row 3: "text" is empty', remedy):
        surveyed(ROWS)


def test_many_label_columns_are_found_without_reading_all_names_for_each() -> None:
    labels = tuple(f"l{number}" for number in range(40))
    table = pa.table({"text": ["a", "b"], **{name: ["0", "1"] for name in labels}})
    head = Watched(table)
    survey_split("train", GivenSplit("d.csv", [table]), head, Columns("text", None, labels), DataSettings())
    assert head.asked < 10
