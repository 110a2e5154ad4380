"""Give the package README.md with absolute addresses: its page on PyPI has no images and files of the repository."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGET = re.compile(r"(?P<before>\]\(|src=\")(?P<path>(?!https?:|#)[^)\"\s]+)")


def with_addresses(text: str, repository: str) -> str:
    """Return Markdown whose relative links lead to the files of a repository, and whose images come from there."""

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if re.search(r"\.(svg|png)$", found["path"]) else "blob"
        return f"{found['before']}{repository}/{kind}/main/{found['path']}"

    return TARGET.sub(absolute, text)


class Readme(MetadataHookInterface):
    """Sets the field `readme` of the metadata."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, object]) -> None:
        """Add the README. The address is written once, in [project.urls]."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        urls: dict[str, str] = metadata["urls"]  # type: ignore[assignment]
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(text, urls["Source"])}
