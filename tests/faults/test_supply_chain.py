"""SCENARIOS 36 and 37: a model folder that could run code is refused with exit code 4, and nothing of it runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from glassloop import load_model, load_tokenizer
from glassloop.errors import ModelError


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "tokenizer.json"])
def test_36_a_malicious_pickle_is_never_opened(name: str, folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Malicious(marker)))
    load = load_tokenizer if name == "tokenizer.json" else load_model
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert caught.value.exit_code == 4
    assert not marker.exists()
    if name == "pytorch_model.bin":
        assert "pytorch_model.bin, a format that can run code when opened" in caught.value.problem


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_37_code_that_comes_with_a_model_is_refused_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    settings = json.loads((folder / name).read_text())
    settings["auto_map"] = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoTokenizer": ["own.Tokenizer", None]}
    (folder / name).write_text(json.dumps(settings))
    for load in (load_tokenizer, load_model):
        with pytest.raises(ModelError) as caught:
            load(folder)
        assert caught.value.exit_code == 4
        assert f"{name}: the model wants to run code of its own (auto_map)" in caught.value.problem
    assert not marker.exists()
