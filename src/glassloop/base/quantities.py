"""Durations and sizes in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`."""
    whole = max(0, round(seconds))
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    place = next((place for place, (size, _) in enumerate(units) if whole >= size), 3)
    (size, name), smaller = units[place], units[place + 1 : place + 2]
    first, rest = divmod(whole, size)
    second = f" {rest // smaller[0][0]} {smaller[0][1]}" if smaller and rest >= smaller[0][0] and first < 10 else ""
    return f"{first} {name}{second}"


def amount(size: float) -> str:
    """Return a number of bytes as `912 kB`, `34 MB` or `1.2 GB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
