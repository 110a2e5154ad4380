"""Write the difference of two versions of a script as a unified diff, in time proportional to its length.

The standard library searches for the longest common part, which takes minutes for long scripts. A port changes few lines in
place, so that the next lines that agree are close.
"""

from __future__ import annotations

Change = tuple[int, int, int, int]  # the lines of the old version that were replaced, and those of the new one
CONTEXT, AGREE = 3, 2  # unchanged lines around a change, and how many lines must agree to end one


def difference(before: str, after: str, name: str) -> str:
    """Return the changes of the code as a unified diff."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[str] = []
    for hunk in grouped(changes(old, new)):
        start, end = max(0, hunk[0][0] - CONTEXT), min(len(old), hunk[-1][1] + CONTEXT)
        first, last = hunk[0][2] - (hunk[0][0] - start), hunk[-1][3] + (end - hunk[-1][1])
        lines.append(f"@@ -{counted(start, end)} +{counted(first, last)} @@")
        place = start
        for from_old, to_old, from_new, to_new in hunk:
            lines += [f" {line}" for line in old[place:from_old]]
            lines += [f"-{line}" for line in old[from_old:to_old]]
            lines += [f"+{line}" for line in new[from_new:to_new]]
            place = to_old
        lines += [f" {line}" for line in old[place:end]]
    return "\n".join([f"--- {name}", f"+++ {name} (ported)", *lines]) if lines else ""


def counted(start: int, end: int) -> str:
    """Return the first line and the number of lines as a unified diff writes them."""
    number = end - start
    return f"{start + 1}" if number == 1 else f"{start + (number > 0)},{number}"


def changes(old: list[str], new: list[str]) -> list[Change]:
    """Return which lines were replaced by which."""
    found: list[Change] = []
    place, other = 0, 0
    while place < len(old) or other < len(new):
        if place < len(old) and other < len(new) and old[place] == new[other]:
            place, other = place + 1, other + 1
            continue
        to_old, to_new = next_agreement(old, new, place, other)
        found.append((place, to_old, other, to_new))
        place, other = to_old, to_new
    return found


def next_agreement(old: list[str], new: list[str], place: int, other: int) -> tuple[int, int]:
    """Return where both versions agree again, with the fewest lines between: the ends if they do not."""
    rest = max(len(old) - place, len(new) - other)
    for distance in range(1, 2 * rest + 1):
        for skipped in range(distance + 1):
            left, right = place + distance - skipped, other + skipped
            if left > len(old) or right > len(new):
                continue
            if old[left : left + AGREE] == new[right : right + AGREE]:
                return left, right
    return len(old), len(new)


def grouped(found: list[Change]) -> list[list[Change]]:
    """Return the changes in groups whose unchanged lines would overlap."""
    groups: list[list[Change]] = []
    for change in found:
        if groups and change[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups
