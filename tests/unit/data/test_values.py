"""Python values as text: what has one keeps it, what is missing is missing, and what has none is refused."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from glassloop.data.readers import cell_text, column_array
from glassloop.data.sources import load_examples

REMEDY = "use text, a number or a list"


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        *[("a", "a"), ("", ""), (3, "3"), (-0.5, "-0.5"), (True, "true"), (None, None), (float("nan"), None)],
        *[(np.int64(3), "3"), (np.float32(0.5), "0.5"), (np.bool_(True), "true"), (np.str_("a"), "a")],
        *[(np.float32("nan"), None), (np.float64("nan"), None), (pd.NA, None), (pd.NaT, None)],
        *[(torch.tensor(3), "3"), (torch.tensor(float("nan")), None)],
        *[(Decimal("1.50"), "1.50"), (date(2026, 1, 2), "2026-01-02"), (time(1, 2), "01:02:00")],
        *[(datetime(2026, 1, 2), "2026-01-02 00:00:00"), (pd.Timestamp(2026, 1, 2), "2026-01-02 00:00:00")],
        *[(("x", 1), ["x", "1"]), (np.array(["x", "y"]), ["x", "y"]), ([None, float("nan")], [None, None]), ([], [])],
    ],
    ids=repr,
)
def test_values_with_a_text(cell: Any, text: Any) -> None:
    assert cell_text(Path("train"), 1, "label", cell) == text
    assert type(cell_text(Path("train"), 1, "label", cell)) is type(text)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        *[
            (b"a", "of the type bytes"),
            ({"a": 1}, "an object"),
            ({"a"}, "of the type set"),
            (Colour.RED, "of the type Colour"),
            (1j, "of the type complex"),
            (len, "of the type builtin_function_or_method"),
        ],
        *[
            (10**5000, "of the type int"),
            ([b"a"], "of the type bytes"),
            ([["a"]], "a list of lists"),
            (np.array([[1]]), "a list of lists"),
        ],
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_text_are_refused(cell: Any, kind: str, refused) -> None:
    with refused(f'train, row 7: "label" is {kind}', REMEDY):
        cell_text(Path("train"), 7, "label", cell)


def test_bytes_are_no_text_in_rows_from_python(refused) -> None:
    with refused('train, row 2: "text" is of the type bytes', REMEDY):
        load_examples([{"text": "a", "label": "x"}, {"text": b"b", "label": "y"}])


def test_a_column_holds_texts_or_lists(refused) -> None:
    assert column_array(Path("d.json"), 1, "label", ["a", None]).type == pa.string()
    assert column_array(Path("d.json"), 1, "label", [None, ["a"]]).type == pa.list_(pa.string())
    with refused('d.json, row 6: "label" mixes lists and single values', "use only one of them"):
        column_array(Path("d.json"), 5, "label", ["a", ["b"]])
