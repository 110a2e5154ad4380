"""Check that CONTRIBUTING.md shows the house that the imports of the modules really form."""

from __future__ import annotations

import house


def test_the_picture_in_the_contributing_guide_is_drawn_from_the_code() -> None:
    text = house.DOCUMENT.read_text(encoding="utf-8")
    assert text == house.drawn_document(text), "run: python tools/house.py --write"


def test_the_picture_shows_every_module_on_its_floor() -> None:
    floors = house.picture().split("\n\n")
    assert [part.split("  ")[2] for part in floors] == [*reversed(house.FLOORS)]
    for module in house.PATHS:
        if not module.endswith(".__init__"):
            part = next(part for part in floors if part.strip().startswith(str(house.floor_of(module))))
            assert module.rpartition(".")[2] in part.split(), module


def test_the_picture_is_narrow_enough_to_read() -> None:
    assert max(map(len, house.picture().splitlines())) <= 128


def test_arrows_name_the_folders_that_a_folder_imports() -> None:
    assert house.room_of("backends.fast.packing") == "backends/fast/"
    assert house.room_of("trainer") == ""
    assert "base.errors" in house.own_imports("trainer")
    assert "-> " in house.picture()
