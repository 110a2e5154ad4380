"""Garbage collection pauses for a block, and is as before afterwards."""

from __future__ import annotations

import gc

import pytest

from glassloop.base.records import collection_paused


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_as_before_afterwards(was_on: bool) -> None:
    gc.enable() if was_on else gc.disable()
    try:
        with collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
        with pytest.raises(ZeroDivisionError), collection_paused():
            print(1 / 0)
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
