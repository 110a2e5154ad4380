"""The page of a comparison in a real browser: no request, no error, nothing of a user's text is executed, filters work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_folders import drawn_rows, write_drawn_run

from glassloop.cli.compare import compare

if TYPE_CHECKING:
    from conftest import OpenPage

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> text'


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_two_runs_with_hostile_texts(tmp_path: Path, open_page: OpenPage, width: int, dark: bool) -> None:
    texts = [f"{HOSTILE} {row}" for row in range(80)]
    labels = ("<b>no", "\"yes'")
    folders = [
        write_drawn_run(
            tmp_path / f"run-{'long' * 20}{name}", drawn_rows(80, skill, 1, labels=labels), texts=texts, weight_decay=skill / 10
        )
        for name, skill in (("<i>a", 0.6), ("b", 2.0))
    ]
    target = tmp_path / "compare.html"
    found = compare([str(folder) for folder in folders], out=str(target))
    page = open_page(target, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#result figure").count() == 4, "values and differences of two metrics"
    assert HOSTILE in page.locator("ul.rows li").first.inner_text()
    page.select_option("form.filter select", "worse")
    counts = found.content["row_differences"]
    (rows,) = counts.values()  # type: ignore[attr-defined]
    assert page.locator("ul.rows li:visible").count() == rows["worse"]
