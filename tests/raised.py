"""The error that a call raises, for tests that read its sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glassloop.base.errors import GlassloopError, ModelError


def error_of(call: Callable[..., Any], *arguments: Any, kind: type = ModelError, **options: Any) -> GlassloopError:
    """Return the error of a call: exactly of this kind, with a problem and a remedy on one line each."""
    with pytest.raises(GlassloopError) as raised:
        call(*arguments, **options)
    assert type(raised.value) is kind
    assert len(str(raised.value).splitlines()) == 2
    return raised.value
