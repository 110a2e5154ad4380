"""Write the model card of a run, README.md, and never overwrite one that was edited."""

from __future__ import annotations

from pathlib import Path

from glassloop.errors import say
from glassloop.files import write_text
from glassloop.run_folder.layout import CARD_NAME, MODEL_NAME, remove_leftovers
from glassloop.sharing.card import Card, card_text, is_untouched
from glassloop.sharing.run_card import run_card


def write_card(folder: Path, card: Card) -> bool:
    """Write a card into a folder, unless an edited or foreign one is there. Return whether it was written.

    Args:
        folder: The folder of the model.
        card: The card.
    """
    path = folder / CARD_NAME
    remove_leftovers(folder)
    try:
        known = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError):
        known = ""
    if known is not None and not is_untouched(known):
        say(f"{path} was kept: it was edited, or written by another program")
        return False
    text = card_text(card)
    if text != known:
        write_text(path, text)
    return True


def update_card(run: Path) -> None:
    """Write the card of a finished run into the folder of its model.

    Never raises: a card must not fail a run. An exception becomes one line on standard error.
    """
    try:
        write_card(run / MODEL_NAME, run_card(run))
    except Exception as error:
        say(f"the model card could not be written: {type(error).__name__}: {error}")
