"""Commands are called as functions here: what they print is their own, without the lines of stages."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassloop.training.progress.choose_display", lambda **_: None)
