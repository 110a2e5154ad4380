"""`glassloop serve`: what is refused before a model is loaded. tests/e2e/test_serve.py runs it."""

from __future__ import annotations

import gc
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import ModelError
from glassloop.cli.serve import KEY_VARIABLE, api_key, prepared, serve


def test_the_key_comes_from_a_file_or_a_variable(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert api_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, "from-variable")
    assert api_key(None) == "from-variable"
    (tmp_path / "key").write_text("from-file\n")
    assert api_key(str(tmp_path / "key")) == "from-file"
    (tmp_path / "key").write_text("\n")
    with says(f"{tmp_path / 'key'}: the file is empty", "write the API key into it"):
        api_key(str(tmp_path / "key"))
    with says(f"{tmp_path / 'gone'}: the API key cannot be read", "name a text file with the key"):
        api_key(str(tmp_path / "gone"))


def test_a_package_that_is_missing_is_named(says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name in ("glassloop.serve.server", "glassloop.serve.app")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Exception, match="serve needs the package uvicorn") as caught:
        serve(["x"], port=0, device="cpu")
    assert caught.value.remedy == 'pip install "glassloop[web]"'


def test_what_is_loaded_is_not_collected_again(text_run: Path) -> None:
    """A walk over all objects of torch and transformers would stop every request for a quarter of a second."""
    try:
        hosted, budget = prepared([str(text_run)], "cpu", "auto", 64)
        assert (hosted[0].name, budget) == ("run", 64)
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_what_is_refused(says, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numbers and names that cannot be, another address without a key, and a run that does not exist."""
    cases: list[tuple[str, Any, str]] = [("batch_tokens", number, "a positive number") for number in (0, -5)]
    cases += [("drain_seconds", number, "a number of 0 or more") for number in (math.inf, math.nan, -1.0)]
    for name, value, wanted in cases:
        with says(f"{name} is {value}, not {wanted}"):
            serve(["x"], port=0, device="cpu", **{name: value})
    with says('allowed_hosts contains "http://x", which is not the name of a host'):
        serve(["x"], port=0, device="cpu", allowed_hosts="http://x")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    problem = "without an API key, every machine that reaches 0.0.0.0 could use the models"
    with says(problem, "set GLASSLOOP_API_KEY or --api_key_file, or listen on 127.0.0.1"):
        serve(["x"], "0.0.0.0", 0, device="cpu")
    monkeypatch.setenv(KEY_VARIABLE, "key")
    with pytest.raises(ModelError):
        serve([str(tmp_path / "gone")], "0.0.0.0", 0, device="cpu")
    problem = f"{tmp_path / 'gone'}: there is no such folder"
    with says(problem, "name the folder of a finished run, or of a model", ModelError):
        serve([str(tmp_path / "gone")], port=0, device="cpu")
