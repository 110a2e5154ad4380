"""A pytest plugin that lets transformers' own tests get Glassloop's Trainer and TrainingArguments, and records what happens.

The names are replaced before a test module is imported. Nothing is replaced when the environment variable
GLASSLOOP_BRIDGE is "off": that run says which tests fail with transformers itself on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from transformers_bridge.names import bridge_helpers, bridge_names, made

IS_ON = os.environ.get("GLASSLOOP_BRIDGE") != "off"
RECORD = Path(os.environ["GLASSLOOP_BRIDGE_RECORD"])


def pytest_configure(config: pytest.Config) -> None:
    bridge_names(is_on=IS_ON)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IS_ON:
        bridge_helpers()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    found = yield
    report = found.get_result()  # type: ignore[attr-defined]
    if call.when == "call" or report.outcome != "passed":
        error = call.excinfo.value if call.excinfo else None
        row = {
            "test": item.nodeid.removeprefix("tests/trainer/"),
            "outcome": report.outcome,
            "error": None if error is None else f"{type(error).__module__}.{type(error).__name__}",
            "text": "" if error is None else str(error),
            "where": "" if error is None else str(report.longrepr)[-3000:],
            "made": sorted(made),
        }
        with RECORD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()
