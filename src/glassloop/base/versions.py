"""The versions of Python and of the packages that a run's numbers depend on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("glassloop", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers depend on, by name. They are looked up once."""
    return dict(found_versions())


@cache
def found_versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {name: package_version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in found.items() if text}}
