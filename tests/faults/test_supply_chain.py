"""SCENARIOS 36 and 37: a model folder that could run code is refused with exit code 4, and nothing of it runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_forked
from safetensors.torch import load_file, save_file
from trials import Servers

from glassloop import load_model, load_tokenizer
from glassloop.base.errors import ModelError


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
        assert "pytorch_model.bin, a format that can run code when it is opened" in caught.value.problem


def test_36_a_pickle_named_by_an_index_is_never_opened(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "weights.bin")
    (folder / "model.safetensors").unlink()
    (folder / "weights.bin").write_bytes(pickle.dumps(Malicious(marker)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert '"weights.bin" is not the name of a safetensors file in this folder' in caught.value.problem
    assert not marker.exists()


def test_a_spoiled_model_has_its_own_exit_code_in_every_command(folder: Path, tmp_path: Path, write, servers: Servers) -> None:
    """Weights that are not finite, a tokenizer that is too large, settings that are no numbers: exit 4 before any work."""
    data = str(write("rows.csv", "text,label\n" + "".join(f"good {row},a\nbad {row},b\n" for row in range(6))))
    nan, large, text = (shutil.copytree(folder, tmp_path / name) for name in ("nan", "large", "text"))
    weights = load_file(nan / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][0, 0] = torch.nan
    save_file(weights, nan / "model.safetensors", {"format": "pt"})
    tokenizer = load_tokenizer(large)
    tokenizer.add_tokens([f"word{number}" for number in range(200)])
    tokenizer.save_pretrained(large)
    settings = json.loads((text / "tokenizer_config.json").read_text())
    (text / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": "512"}))
    out = ["--output_dir", str(tmp_path / "run"), "--device", "cpu", "--max_steps", "1"]
    (tmp_path / "out.csv").mkdir()
    commands = [
        *(["train", data, "--model", str(model), *out] for model in (nan, large, text)),
        *(["predict", str(model), "good"] for model in (nan, large, text)),
        ["predict", str(folder), "--file", data, "--text", "text", "--out", str(tmp_path / "out.csv")],
    ]
    ended = run_forked(servers, *commands, folder=tmp_path)
    ranges = "beyond the 97 rows of the model's embedding"
    told = ["is not finite (1 of its", ranges, "model_max_length of the tokenizer is '512'"]
    for command, found, problem in zip(commands, ended, [*told, *told, "out.csv is a folder"], strict=True):
        assert found.code == (2 if "--out" in command else 4), (command, found.err)
        assert problem in found.err
        assert (len(found.lines), found.out) == (2, "")
    assert not (tmp_path / "run").exists()


def relabel(path: Path, name: str, kind: str) -> None:
    """Change the type of a tensor in the header of a safetensors file. Its bytes stay as they are."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[name]["dtype"] = kind
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize("name", ["encoder.layer.0.output.dense.weight", "pooler.dense.bias", "embeddings.LayerNorm.weight"])
def test_a_weight_of_whole_numbers_is_refused(name: str, folder: Path) -> None:
    """The bytes of numbers in fp32, read as integers, are about a billion each."""
    path = folder / "model.safetensors"
    key = next(key for key in load_file(path) if key.endswith(name))
    relabel(path, key, "I32")
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert caught.value.problem == f'{path}: the weight "{key}" has the type I32, not a floating-point type'
    assert caught.value.exit_code == 4


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
        assert f"{name}: the model needs its own code (auto_map)" in caught.value.problem
    assert not marker.exists()
