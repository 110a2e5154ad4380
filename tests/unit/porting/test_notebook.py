"""Notebooks: cells are rewritten, magics and outputs are not, and the file keeps its style."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glassloop.base.errors import DataError
from glassloop.compat.port import ported_notebook

CELLS = [
    "!pip install -q transformers datasets",
    "%%time\n%matplotlib inline\nimport transformers\nfrom transformers import Trainer, set_seed",
    "%%bash\nfrom transformers import Trainer",
    "def f():\n    return transformers.TrainingArguments(\n        'é',\n        deepspeed='x',\n    )",
    "x = !ls",
    "rest = (7\n% 4)",
    "Trainer?",
]


def notebook(cells: list[str] = CELLS, **style: Any) -> str:
    made = [{"cell_type": "markdown", "metadata": {}, "source": ["# é from transformers import Trainer"]}]
    for code in cells:
        outputs = [{"output_type": "stream", "name": "stdout", "text": ["from transformers import Trainer\n"]}]
        made.append({"cell_type": "code", "metadata": {"z": 1, "a": 2}, "outputs": outputs, "source": code.splitlines(True)})
    return json.dumps({"cells": made, "nbformat": 4, "metadata": {}, "nbformat_minor": 5}, **style) + "\n"


@pytest.mark.parametrize(
    "style",
    [{"indent": 1, "ensure_ascii": False}, {"indent": 2}, {}, {"separators": (",", ":"), "ensure_ascii": False}],
)
def test_only_the_code_of_cells_changes(style: dict[str, Any]) -> None:
    text = notebook(**style)
    found = ported_notebook(text, "n")
    wanted = list(CELLS)
    wanted[1] = "%%time\n%matplotlib inline\nimport glassloop\nfrom transformers import set_seed\nfrom glassloop import Trainer"
    wanted[3] = "def f():\n    return glassloop.TrainingArguments(\n        'é',\n        deepspeed='x',\n    )"
    assert found.text == notebook(wanted, **style)
    assert found.changed
    assert ported_notebook(found.text, "n").text == found.text


def test_what_a_person_should_know_names_cell_and_line() -> None:
    found = [str(one) for one in ported_notebook(notebook(), "n").findings]
    assert found[0].startswith("cell 2, line 1: !pip install -q transformers datasets: install glassloop, too")
    assert found[1].startswith("cell 5, line 4: deepspeed='x': ")
    assert found[2] == "cell 6, line 1: the cell is not Python: it stays as it is"
    assert len(found) == 3


def test_a_notebook_that_needs_no_change_stays_byte_for_byte() -> None:
    text = notebook(["x = 1"]).replace('{"cells"', '{ "cells"')
    found = ported_notebook(text, "n")
    assert (found.text, found.changed, found.findings) == (text, False, [])


def test_a_source_that_is_one_text_stays_one() -> None:
    text = json.dumps({"cells": [{"cell_type": "code", "source": "from transformers import Trainer"}]})
    assert json.loads(ported_notebook(text, "n").text)["cells"][0]["source"] == "from glassloop import Trainer"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": 1}', '{"cells": [{"source": ""}]}', "x = 1"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="n is not a notebook"):
        ported_notebook(text, "n")
