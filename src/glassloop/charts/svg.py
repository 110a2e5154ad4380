"""Write SVG elements: escaped attributes and texts, short numbers, and the approximate width of a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from glassloop.markup import escaped

FONT_SIZE = 11.0
NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[] 1"), frozenset("mwMW@%")


def short(number: float) -> str:
    """Return a coordinate with at most one decimal."""
    text = f"{number:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return an element with children that are SVG already.

    Attributes are escaped. `class_` becomes `class`, other underscores become hyphens, and None omits an attribute.
    """
    written = []
    for key, value in attributes.items():
        if value is not None:
            shown = short(value) if isinstance(value, int | float) else escaped(value)
            written.append(f' {key.rstrip("_").replace("_", "-")}="{shown}"')
    body = "".join(children)
    return f"<{name}{''.join(written)}>{body}</{name}>" if body else f"<{name}{''.join(written)}/>"


def title(text: str) -> str:
    """Return the name of a mark, which is shown when the pointer is over it."""
    return f"<title>{escaped(text)}</title>" if text else ""


def label(text: str, x: float, y: float, *, side: str = "middle", kind: str = "tick", limit: float | None = None) -> str:
    """Return a text at a place. A text wider than `limit` is cut, and its full length is shown on hover."""
    shown = cut(text, limit) if limit else text
    full = title(text) if shown != text else ""
    anchor = None if side == "start" else side
    return element("text", escaped(shown), full, class_=kind, x=x, y=y, text_anchor=anchor)


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a line through points; empty for fewer than two."""
    return element("path", class_=kind, d=directions(points)) if len(points) > 1 else ""


def area(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], kind: str) -> str:
    """Return the filled area between two lines."""
    return element("path", class_=kind, d=f"{directions([*upper, *reversed(lower)])}z") if len(upper) > 1 else ""


def directions(points: Iterable[tuple[float, float]]) -> str:
    """Return the commands of a path through points."""
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)


def width_of(text: str, size: float = FONT_SIZE) -> float:
    """Return about how wide a text is in a sans-serif font."""
    return sum(map(character_width, text)) * size


def character_width(character: str) -> float:
    """Return the width of a character as a share of the font size."""
    if character in NARROW:
        return 0.36
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.9 if character in WIDE else 0.68 if character.isupper() else 0.6


def cut(text: str, limit: float, size: float = FONT_SIZE) -> str:
    """Return a text that is at most `limit` wide, with an ellipsis where it is cut."""
    if width_of(text, size) <= limit:
        return text
    kept, used = [], size
    for character in text:
        used += character_width(character) * size
        if used > limit:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"
