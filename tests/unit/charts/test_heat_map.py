"""Test heat maps."""

from __future__ import annotations

from drawn import marks, tree

from glassloop.report.charts.points import HeatMap, number_or_text


def confusion(size: int) -> HeatMap:
    names = [f"class {number}" for number in range(size)]
    values = [[0.9 if row == column else 0.01 for column in range(size)] for row in range(size)]
    texts = [[[f"{value * 1000:.0f}", f"{value:.0%}"] for value in row] for row in values]
    return HeatMap("Confusion", "", names, names, values, texts, "true", "predicted", True)


def test_errors_have_another_color() -> None:
    cells = marks(tree(confusion(2)))
    assert [cell.get("class") for cell in cells] == ["cell", "cell wrong", "cell wrong", "cell"]
    assert cells[1][0].text == "true class 0, predicted class 1\n10\n1%"
    assert float(cells[0].get("fill-opacity", 0)) > float(cells[1].get("fill-opacity", 0))


def test_small_cells_have_no_text() -> None:
    drawn = tree(confusion(40))
    assert len(marks(drawn)) == 1600
    assert not [text for text in drawn.iter("text") if "through" in text.get("class", "")]


def test_the_table_has_the_counts() -> None:
    assert confusion(2).table().rows[0] == ("class 0", 900.0, 10.0)
    assert number_or_text(["a"]) == "a"
    assert number_or_text([]) == ""
