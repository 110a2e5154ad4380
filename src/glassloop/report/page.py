"""Self-contained HTML pages: the skeleton with its style, script and policy, and the parts of sections.

Functions return HTML. Parameters of the type `str` are plain text and escaped, except for what is named body, parts, subtitle
or footer: these are HTML.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from markupsafe import Markup

from glassloop.markup.templates import html, package_text, piece, rendered
from glassloop.report.charts import CHART_CSS, LINEAR, value_text

PARTS = "report/parts.html.j2"
PAGE_CSS = package_text("report", "page.css")
PAGE_JS = package_text("report", "page.js")


@dataclass(frozen=True)
class Number:
    """A number of a table: `shown` is its text, `value` its order."""

    value: float | None
    shown: str


Cell: TypeAlias = str | float | int | Markup | Number | None


def content(value: Cell) -> str:
    """Return the text of a cell or fact."""
    if isinstance(value, Number):
        return value.shown
    return value if isinstance(value, str) else value_text(value)


def number(value: float | None, kind: str = LINEAR) -> Number:
    """Return a number with its text, such as a share as percent."""
    return Number(value, value_text(value, kind))


def score(value: float | None, digits: int = 4) -> Number:
    """Return a metric with a fixed number of digits."""
    return Number(value, "–" if value is None else f"{value:.{digits}f}")


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph with a CSS class; empty for an empty text."""
    if not text:
        return ""
    return html('<p class="{}">{}</p>', kind, text) if kind else html("<p>{}</p>", text)


def heading(text: str) -> str:
    """Return a heading within a section."""
    return html("<h3>{}</h3>", text)


def tag(text: str, kind: str = "") -> str:
    """Return a short text with a border; the kinds "good" and "bad" have a color."""
    return html('<span class="{}" title="{}">{}</span>', f"tag {kind}".strip(), text, text)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False, name: str = "") -> str:
    """Return a table; numbers are aligned to the right and carry the value by which the page sorts. Empty without rows.

    Args:
        columns: The names of the columns.
        rows: The cells.
        sortable: Whether a click on a column name sorts the rows.
        name: The anchor of its body, for `filters`.
    """
    cells = [[value if isinstance(value, str | Number) else number(value) for value in row] for row in rows]
    numeric = [any(isinstance(row[place], Number) for row in cells) for place in range(len(columns))]
    return piece(PARTS, "table", [*zip(columns, numeric, strict=True)], cells, sortable, name) if rows else ""


def fact_list(facts: Mapping[str, Cell]) -> str:
    """Return names and values below each other; facts without a value are omitted."""
    named = {name: content(value) for name, value in facts.items() if value is not None and value != ""}
    return piece(PARTS, "facts", named) if named else ""


def card(name: str, value: str, small: str = "") -> str:
    """Return a large value with its name above and a line below."""
    below = html('<div class="small">{}</div>', small) if small else ""
    inside = html('<div class="name">{}</div><div class="value">{}</div>', name, value)
    return f'<div class="card">{inside}{below}</div>'


def cards(parts: Sequence[str]) -> str:
    """Return cards beside each other."""
    return f'<div class="cards">{"".join(parts)}</div>' if parts else ""


def grid(*parts: str) -> str:
    """Return figures in two columns, in one on a narrow screen. Empty parts are omitted."""
    columns = "".join(part if part.startswith("<figure") else f"<div>{part}</div>" for part in parts if part)
    return f'<div class="grid2">{columns}</div>' if columns else ""


def details(summary: str, body: str) -> str:
    """Return content that is shown on request."""
    return html("<details><summary>{}</summary>{}</details>", summary, Markup(body)) if body else ""


def code_block(text: str) -> str:
    """Return a command with a button that copies it."""
    return html('<div><pre><code>{}</code></pre><button type="button" class="copy">Copy</button></div>', text)


def filters(name: str, choices: Mapping[str, tuple[str, Sequence[str]]], *, search: str = "Search") -> str:
    """Return a form that filters the children of the element with the id `name`.

    Args:
        name: The id of the list or table body to filter.
        choices: For each data attribute of the children, its label and its values. "" shows all.
        search: The label of the text field.
    """
    return piece(PARTS, "filters", name, choices, search)


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    name: str  # its anchor, such as "errors"
    title: str  # its heading
    body: str  # its content, HTML
    short: str = ""  # its name in the list of sections; by default the heading


def page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    footer: str = "",
    connect: bool = False,
    style: str = "",
    script: str = "",
) -> str:
    """Return a complete HTML document. Only its own style and script can run.

    Args:
        title: The heading of the page, plain text.
        sections: The parts of the page; those without content are omitted.
        subtitle: HTML below the heading.
        footer: HTML at the end.
        connect: Whether the script may send requests to the server that the page came from.
        style: More CSS.
        script: More JavaScript, which runs after page.js.
    """
    style = CHART_CSS + PAGE_CSS + style
    script = PAGE_JS + script
    return rendered(
        "report/page.html.j2",
        title=title,
        sections=[section for section in sections if section.body],
        subtitle=Markup(subtitle),
        footer=Markup(footer),
        policy=Markup(policy(style, script, connect)),
        style=Markup(style),
        script=Markup(script),
    )


def policy(style: str, script: str, connect: bool) -> str:
    """Return the Content-Security-Policy of a page: nothing but the style and the script with these checksums."""
    sums = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = f"default-src 'none'; style-src 'sha256-{sums[0]}'; script-src 'sha256-{sums[1]}'; img-src data:"
    return f"{allowed}; base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if connect else "")
