"""Self-contained HTML pages: the skeleton with its style, script and policy, and escaped pieces of HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TypeAlias

from glassloop.report.charts.figure import CHART_CSS, LINEAR, value_text
from glassloop.runs.markup import escaped


@dataclass(frozen=True)
class Html:
    """HTML that is not escaped again, for the few cells that contain more than text."""

    text: str


@dataclass(frozen=True)
class Number:
    """A number of a table: `shown` is its text, `value` its order."""

    value: float | None
    shown: str


Cell: TypeAlias = str | float | int | Html | Number | None


def content(value: Cell) -> str:
    """Return a cell or fact as HTML."""
    if isinstance(value, Html):
        return value.text
    if isinstance(value, Number):
        return escaped(value.shown)
    return escaped(value) if isinstance(value, str) else value_text(value)


def number(value: float | None, kind: str = LINEAR) -> Number:
    """Return a number with its text, such as a share as percent."""
    return Number(value, value_text(value, kind))


def score(value: float | None, digits: int = 4) -> Number:
    """Return a metric with a fixed number of digits."""
    return Number(value, "–" if value is None else f"{value:.{digits}f}")


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text with a CSS class; empty for an empty text."""
    return f"<p{class_of(kind)}>{escaped(text)}</p>" if text else ""


def heading(text: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{escaped(text)}</h3>"


def tag(text: str, kind: str = "") -> str:
    """Return a short text with a border; the kinds "good" and "bad" have a color."""
    return f'<span class="{f"tag {kind}".strip()}" title="{escaped(text)}">{escaped(text)}</span>'


def class_of(kind: str) -> str:
    """Return a class attribute, or nothing."""
    return f' class="{escaped(kind)}"' if kind else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False, name: str = "") -> str:
    """Return a table; numbers are aligned to the right. Empty without rows.

    Args:
        columns: The names of the columns.
        rows: The cells.
        sortable: Whether a click on a column name sorts the rows.
        name: The anchor of its body, for `filters`.
    """
    if not rows:
        return ""
    numeric = [any(is_number(row[place]) for row in rows) for place in range(len(columns))]
    head = "".join(
        f'<th scope="col"{class_of("n" if right else "")}>'
        + (f'<button type="button">{escaped(column)}</button>' if sortable and column else escaped(column))
        + "</th>"
        for column, right in zip(columns, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    anchor = f' id="{escaped(name)}"' if name else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody{anchor}>{body}</tbody></table></div>"
    )


def is_number(value: Cell) -> bool:
    """Return whether a cell is aligned to the right."""
    return value is None or isinstance(value, int | float | Number)


def cell(value: Cell) -> str:
    """Return a cell of a table. Numbers carry their value, by which the page sorts."""
    if not is_number(value):
        return f'<td class="long">{content(value)}</td>'
    plain = value.value if isinstance(value, Number) else value
    return f'<td class="n" data-value="{"" if plain is None else plain}">{content(value)}</td>'


def fact_list(facts: Mapping[str, Cell]) -> str:
    """Return names and values below each other; facts without a value are omitted."""
    shown = {name: content(value) for name, value in facts.items() if value is not None and value != ""}
    return f'<dl class="facts">{"".join(f"<dt>{escaped(n)}</dt><dd>{v}</dd>" for n, v in shown.items())}</dl>' if shown else ""


def card(name: str, value: str, small: str = "") -> str:
    """Return a large value with its name above and a line below."""
    below = f'<div class="small">{escaped(small)}</div>' if small else ""
    return f'<div class="card"><div class="name">{escaped(name)}</div><div class="value">{escaped(value)}</div>{below}</div>'


def cards(parts: Sequence[str]) -> str:
    """Return cards beside each other."""
    return f'<div class="cards">{"".join(parts)}</div>' if parts else ""


def grid(*parts: str) -> str:
    """Return figures in two columns, in one on a narrow screen. Empty parts are omitted."""
    shown = "".join(part if part.startswith("<figure") else f"<div>{part}</div>" for part in parts if part)
    return f'<div class="grid2">{shown}</div>' if shown else ""


def details(summary: str, body: str) -> str:
    """Return content that is shown on request."""
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>" if body else ""


def code_block(text: str) -> str:
    """Return a command with a button that copies it."""
    return f'<div><pre><code>{escaped(text)}</code></pre><button type="button" class="copy">Copy</button></div>'


def filters(name: str, choices: Mapping[str, tuple[str, Sequence[str]]], *, search: str = "Search") -> str:
    """Return a form that filters the children of the element with the id `name`.

    Args:
        name: The id of the list or table body to filter.
        choices: For each data attribute of the children, its label and its values. "" shows all.
        search: The label of the text field.
    """
    fields = [f'<label>{escaped(search)} <input type="search" autocomplete="off"></label>']
    for key, (shown, values) in choices.items():
        options = "".join(f'<option value="{escaped(value)}">{escaped(value)}</option>' for value in values)
        fields.append(
            f'<label>{escaped(shown)} <select name="{escaped(key)}"><option value="">all</option>{options}</select></label>'
        )
    return f'<form class="filter" data-for="{escaped(name)}">{"".join(fields)}<output aria-live="polite"></output></form>'


PAGE_CSS = files("glassloop.report").joinpath("page.css").read_text(encoding="utf-8")


PAGE_JS = files("glassloop.report").joinpath("page.js").read_text(encoding="utf-8")


THEME_BUTTON = '<button type="button" class="plain theme">Light / dark</button>'


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Its anchor, such as "errors".
        title: Its heading.
        body: Its content, HTML.
        short: Its name in the list of sections; by default the heading.
    """

    name: str
    title: str
    body: str
    short: str = ""


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
    shown = [section for section in sections if section.body]
    styles, scripts = CHART_CSS + PAGE_CSS + style, PAGE_JS + script
    links = "".join(f'<a href="#{escaped(part.name)}">{escaped(part.short or part.title)}</a>' for part in shown)
    body = "".join(section_html(part) for part in shown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(styles, scripts, connect)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{styles}</style>
</head>
<body class="tex2jax_ignore mathjax_ignore">
<a class="skip" href="#content">Skip to the content</a>
<header class="top"><h1>{escaped(title)}</h1>{subtitle}</header>
<nav class="contents" aria-label="Sections"><div>{links}{THEME_BUTTON}</div></nav>
<main id="content">{body}</main>
<footer>{footer}</footer>
<script>{scripts}</script>
</body>
</html>
"""


def section_html(part: Section) -> str:
    """Return a section with its heading."""
    name = escaped(part.name)
    head = f'<h2 id="{name}-title">{escaped(part.title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{part.body}</section>'


def policy(styles: str, scripts: str, connect: bool) -> str:
    """Return the Content-Security-Policy of a page: nothing but the style and the script with these checksums."""
    parts = [
        "default-src 'none'",
        f"style-src '{checksum(styles)}'",
        f"script-src '{checksum(scripts)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*parts, *(["connect-src 'self'"] if connect else [])])


def checksum(text: str) -> str:
    """Return the checksum of a text as a Content-Security-Policy writes it."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
