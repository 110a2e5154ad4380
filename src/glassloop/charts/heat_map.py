"""A table of colored cells, such as a confusion matrix: the darker, the more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassloop.charts.figure import WIDTH, Drawing, Table
from glassloop.charts.scales import number_text
from glassloop.charts.svg import element, label, title, width_of

MOST_LABEL = 0.3  # share of the width that row names may use
TOP = 8.0


@dataclass(frozen=True)
class HeatMap:
    """Colored cells.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        rows: The names of the rows, from top to bottom.
        columns: The names of the columns.
        values: The share that colors each cell, between 0 and 1, row by row.
        texts: What is written in each cell, if there is space, and on hover: one line each.
        row_title: What the rows are.
        column_title: What the columns are.
        diagonal: Whether cells off the diagonal are errors and have another color.
    """

    title: str
    description: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[Sequence[str]]]
    row_title: str = ""
    column_title: str = ""
    diagonal: bool = False

    def draw(self) -> Drawing:
        """Draw the cells with the names of rows and columns."""
        most = WIDTH * MOST_LABEL
        left = 26 + min(max(map(width_of, self.rows), default=0.0), most)
        size = min(96.0, (WIDTH - left - 6) / max(len(self.columns), 1))
        high = max(min(size, 64.0), 12.0)
        bottom = TOP + high * len(self.rows)
        body = [self.cell(row, column, left + size * column, TOP + high * row, size, high) for row, column in self.places()]
        body += [
            label(name, left - 6, TOP + high * (row + 0.5) + 4, side="end", kind="tick strong", limit=most)
            for row, name in enumerate(self.rows)
        ]
        upright = any(width_of(name) > size - 6 for name in self.columns)
        longest = min(max(map(width_of, self.columns), default=0.0), most)
        for column, name in enumerate(self.columns):
            x = left + size * (column + 0.5)
            if upright:
                turned = label(name, 0, 0, side="end", kind="tick strong", limit=most)
                body.append(element("g", turned, transform=f"translate({x + 4:.1f} {bottom + 6:.1f}) rotate(-90)"))
            else:
                body.append(label(name, x, bottom + 16, kind="tick strong"))
        below = bottom + (longest + 12 if upright else 22)
        middle = left + size * len(self.columns) / 2
        if self.column_title:
            body.append(label(self.column_title, middle, below + 12, kind="name"))
        if self.row_title:
            turned = label(self.row_title, 0, 0, kind="name")
            body.append(element("g", turned, transform=f"translate(10 {(TOP + bottom) / 2:.1f}) rotate(-90)"))
        return Drawing(WIDTH, below + (18 if self.column_title else 4), element("g", *body, class_="cells"))

    def places(self) -> list[tuple[int, int]]:
        """Return the number of row and column of every cell."""
        return [(row, column) for row in range(len(self.rows)) for column in range(len(self.columns))]

    def cell(self, row: int, column: int, x: float, y: float, width: float, height: float) -> str:
        """Return a cell, with its texts if it is large enough."""
        share, texts = self.values[row][column], self.texts[row][column]
        wrong = self.diagonal and row != column
        name = f"{self.row_title} {self.rows[row]}, {self.column_title} {self.columns[column]}".strip(" ,")
        box = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
        strength = f"{0.04 + 0.96 * share:.2f}" if share > 0 else "0"
        mark = element(
            "rect", title("\n".join([name, *texts])), class_="cell wrong" if wrong else "cell", fill_opacity=strength, **box
        )
        drawn = [element("rect", class_="ground", **box), mark]
        fitting = [text for text in texts if width_of(text) <= width - 4][: 1 if height < 36 else 2]
        if share > 0 and height >= 14:
            ink = " on" if share > 0.55 else " strong"
            for number, text in enumerate(fitting):
                middle = y + height / 2 + 4 + (number - (len(fitting) - 1) / 2) * 15
                kind = ("big" if number == 0 and height >= 36 else "tick") + ink
                drawn.append(label(text, x + width / 2, middle, kind=f"{kind} through"))
        return "".join(drawn)

    def table(self) -> Table:
        """Return the texts of the cells; of several lines, the first."""
        rows = tuple(
            (name, *(number_or_text(self.texts[row][column]) for column in range(len(self.columns))))
            for row, name in enumerate(self.rows)
        )
        corner = f"{self.row_title} \\ {self.column_title}" if self.row_title else ""
        return Table((corner, *self.columns), rows)


def number_or_text(texts: Sequence[str]) -> str | float:
    """Return the first text of a cell, as a number if it is one."""
    first = texts[0] if texts else ""
    try:
        value = float(first.replace(",", ""))
    except ValueError:
        return first
    return value if number_text(value) == first else first
