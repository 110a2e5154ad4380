"""The versions that are written into a run's record and its checkpoints."""

from __future__ import annotations

from glassloop.base.records import package_version, versions


def test_versions() -> None:
    found = versions()
    assert {"python", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy"} <= {*found}
    assert package_version("torch") == found["torch"]
    assert package_version("no-such-package-anywhere") is None
