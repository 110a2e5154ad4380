"""Numbers in a config that would hang the machine or fill its memory: refused before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, tiny_model

from glassloop.base.errors import ModelError, ResourceError
from glassloop.models import files as model_limits
from glassloop.models.files import least_weights, memory_bytes, refuse_oversized
from glassloop.models.loading import load_config, load_model

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
