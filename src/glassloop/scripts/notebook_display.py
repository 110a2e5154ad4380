"""What notebooks import from IPython, for a run without one: values are printed, and everything else does nothing."""

from __future__ import annotations

import sys

version_info = (0, 0, 0)


def display(*values: object, **options: object) -> None:
    """Print values.

    Args:
        *values: The values.
        **options: Accepted for compatibility.
    """
    for value in values:
        sys.stdout.write(f"{value}\n" if isinstance(value, Shown) else f"{value!r}\n")


def clear_output(wait: bool = False) -> None:
    """Do nothing: output that was printed stays.

    Args:
        wait: Accepted for compatibility.
    """


def get_ipython() -> None:
    """Return None, as outside of a notebook."""


class Shown:
    """Content that a notebook would draw; its text is printed.

    Args:
        data: The content.
        **options: Accepted for compatibility.
    """

    def __init__(self, data: object = "", **options: object) -> None:
        self.data = data

    def __str__(self) -> str:
        return str(self.data)


HTML = Markdown = Image = Javascript = Shown
