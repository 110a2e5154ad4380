"""JSON as typed records: what fits is returned typed, and whatever does not fit is named by its place."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import SettingsError
from glassloop.base.records import NotARecordError, collection_paused, decoded, package_version, read_json, versions


@dataclass(frozen=True)
class Part:
    name: str
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.share < 0:
            raise SettingsError("share is below 0", "raise it")
        if self.share > 1:
            raise ValueError("the share is above 1")


@dataclass(frozen=True)
class Whole:
    count: int
    on: bool
    first: Part
    rest: dict[str, Part] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    mixed: str | int | None = None
    free: object = None


GOOD: dict[str, Any] = {"count": 3, "on": True, "first": {"name": "a", "share": 1}}


def test_a_whole_record_is_read_and_what_does_not_fit_is_named_by_its_place() -> None:
    value = {**GOOD, "rest": {"x": {"name": "b"}}, "names": ["c", "d"], "mixed": 7, "free": [1, {}], "unknown": 1}
    assert decoded(Whole, value) == Whole(3, True, Part("a", 1.0), {"x": Part("b")}, ("c", "d"), 7, [1, {}])
    assert decoded(Whole, GOOD) == Whole(3, True, Part("a", 1.0)), "missing fields get their defaults"
    assert type(decoded(Whole, GOOD).first.share) is float
    for change, problem in [
        ({"count": 3.0}, "count is 3.0, not a whole number"),
        ({"count": True}, "count is true, not a whole number"),
        ({"count": None}, "count is null, not a whole number"),
        ({"on": 1}, "on is 1, not true or false"),
        ({"first": []}, "first is a list of 0, not an object"),
        ({"first": {}}, "first.name is missing"),
        ({"first": {"name": 5}}, "first.name is 5, not text"),
        ({"first": {"name": "\ud800"}}, 'first.name is "\\ud800", not text'),
        ({"first": {"name": "a", "share": "1"}}, 'first.share is "1", not a finite number'),
        ({"first": {"name": "a", "share": 10**400}}, "first.share is a very large number, not a finite number"),
        ({"first": {"name": "a", "share": -1}}, "first.share is below 0"),
        ({"first": {"name": "a", "share": 2}}, "first: the share is above 1"),
        ({"rest": {"x": {"name": None}}}, "rest.x.name is null, not text"),
        ({"names": ["a", 1]}, "names[1] is 1, not text"),
        ({"names": "ab"}, 'names is "ab", not a list'),
        ({"mixed": 1.5}, "mixed is 1.5, not a whole number"),
    ]:
        with pytest.raises(NotARecordError) as caught:
            decoded(Whole, GOOD | change)
        assert str(caught.value) == problem


def test_a_file_that_is_not_json_and_what_is_no_file_or_too_large_and_not_opened(tmp_path: Path) -> None:
    for content, told in {
        b"": "not JSON: Expecting value",
        b'{"a": ': "not JSON: ",
        b'{"a": NaN}': "NaN is not a JSON number",
        b"\xff": "not UTF-8: invalid start byte at byte 0",
        b"[" * 100_000: "nested too deeply",
        b"1" * 5000: "not JSON: Exceeds the limit",
    }.items():
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(NotARecordError, match=f"^{told}"):
            read_json(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")  # opening it would never return
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 10**9)
    large = "1,000,000,000 bytes, too large to be a record"
    for name, problem in (("pipe", "not a file"), (".", "not a file"), ("gone", "missing"), ("large", large)):
        with pytest.raises(NotARecordError, match=problem):
            read_json(tmp_path / name)


def test_versions_are_told_and_collection_is_as_before_afterwards() -> None:
    assert {"python", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy"} <= {*versions()}
    assert package_version("torch") == versions()["torch"]
    assert package_version("no-such-package-anywhere") is None
    for was_on in [True, False]:
        gc.enable() if was_on else gc.disable()
        try:
            with pytest.raises(AssertionError), collection_paused():
                assert gc.isenabled()
            assert gc.isenabled() == was_on
        finally:
            gc.enable()
