"""Models that are loaded without transformers after the first time: exactly the same, or not at all."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, tiny_tokenizer
from run_folders import pooled_model
from safetensors.torch import load_file, save_file

from glassloop.base.errors import ModelError
from glassloop.data.columns import LabelSet
from glassloop.data.encoding import tokenizer_key
from glassloop.models import described
from glassloop.models.described import KnownModel, describe, known_model
from glassloop.models.families import BERT_LAYOUT, FAMILIES
from glassloop.models.interface import longest_input
from glassloop.models.loading import load_config, load_model, load_tokenizer
from glassloop.models.pooled import PooledClassifier, Pooling
from glassloop.training.checkpoints import weights_fingerprint

MEAN = Pooling("mean", normalize=True)
LABELS = LabelSet(("bad", "fine", "good"))
DESCRIBED = [name for name, family in FAMILIES.items() if family.layout is BERT_LAYOUT and family.projection is None]
TASK = "single_label_classification"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def encoder_in(folder: Path, family: str = "bert", **options: Any) -> Path:
    """An encoder as people download one: without a head, in half precision, with its tokenizer."""
    usual = {"max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0}
    tiny_model(family, **(usual | options)).base_model.half().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def loaded(folder: Path, *, seed: int = 3, pooling: Pooling = MEAN, labels: LabelSet | None = LABELS, **more: Any) -> Any:
    """The model as transformers loads it, which describes it."""
    model = load_model(folder, labels=labels, seed=seed, pooling=pooling, **more)
    describe(folder, load_config(folder), load_tokenizer(folder), model.base_model)
    return model


def known(folder: Path, *, seed: int = 3, pooling: Pooling = MEAN, labels: LabelSet | None = LABELS, task: str = TASK) -> Any:
    found = known_model(folder)
    assert isinstance(found, KnownModel)
    return found.load(labels, task, pooling, new_head=False, seed=seed)


def assert_same(model: Any, other: PooledClassifier) -> None:
    names, others = ([name for name, _ in one.named_parameters()] for one in (model, other))
    assert names == others, "the order of the weights is that of their gradients"
    assert weights_fingerprint(model) == weights_fingerprint(other)
    assert all(value.dtype == torch.float32 and value.requires_grad for value in other.parameters())
    for use_diff in (False, True):
        assert model.config.to_json_string(use_diff) == other.config.to_json_string(use_diff)
    leaves, others = (
        [(name, repr(part)) for name, part in one.named_modules() if not ([*part.children()] or part.state_dict())]
        for one in (model, other)
    )
    assert leaves == others, "a run that was started with one model is resumed with the other"
    assert [part.training for part in model.modules()] == [part.training for part in other.modules()]


@pytest.mark.parametrize("family", DESCRIBED)
def test_a_model_that_is_known_is_the_one_that_transformers_loads(family: str, tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model", family)
    model, other = loaded(folder), known(folder)
    assert_same(model, other)
    ids = torch.randint(5, 60, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 9:], mask[2, 15:] = 0, 0
    rows = {"input_ids": torch.where(mask == 1, ids, 0), "attention_mask": mask, "labels": torch.tensor([0, 2, 1])}
    for training in (False, True):
        found = []
        for one in (model, other):
            torch.manual_seed(5)
            output = one.train(training)(**rows)
            one.zero_grad()
            output.loss.backward()
            found.append([output.logits, output.loss, *(weight.grad for weight in one.parameters() if weight.grad is not None)])
        assert len(found[0]) == len(found[1]) > 10
        for expected, value in zip(*found, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


def test_the_tokenizer_and_its_files_are_those_of_transformers(tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    loaded(folder)
    found, expected = known_model(folder), load_tokenizer(folder)
    assert found is not None
    tokenizer, texts = found.tokenizer, ["a good film", "not [SEP] bad, not very good 12", ""]
    assert tokenizer_key(tokenizer) == tokenizer_key(expected)
    assert longest_input(tokenizer, found.config) == longest_input(expected, load_config(folder))
    for options in (
        {},
        {"truncation": True, "max_length": 6},
        {"truncation": True, "max_length": 6, "return_offsets_mapping": True},
    ):
        for columns in ((texts,), (texts, texts[::-1])):
            rows = expected(*columns, return_attention_mask=False, **options)
            assert dict(tokenizer(*columns, **options)) == dict(rows)
    fresh = load_tokenizer(folder)
    for name, one in {"expected": fresh, "found": tokenizer}.items():
        (tmp_path / name).mkdir()
        one.save_pretrained(tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "expected").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "found").iterdir()} == files
    assert len(files) > 1


NAMES = [("LABEL_0", "LABEL_1"), ("no", "yes"), tuple(f"c{number}" for number in range(12))]
TASKS = [(task, names) for task in ("single_label_classification", "multi_label_classification") for names in NAMES]


@pytest.mark.parametrize(("task", "names"), [*TASKS, ("regression", None)])
def test_the_config_is_written_as_transformers_writes_it(task: str, names: tuple[str, ...] | None, tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    labels = LabelSet(names) if names else None
    assert_same(loaded(folder, labels=labels, task=task), known(folder, labels=labels, task=task))


def test_a_trained_head_is_kept_and_a_new_one_depends_on_the_seed(tmp_path: Path) -> None:
    folder = tmp_path / "trained"
    trained = pooled_model(tiny_model(id2label=LABELS.id2label, label2id=LABELS.label2id, problem_type=TASK), MEAN)
    trained.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    assert_same(loaded(folder), known(folder))
    assert torch.equal(known(folder).head.weight, trained.head.weight)
    towers = Pooling("mean", towers=True)
    assert_same(loaded(folder, pooling=towers), known(folder, pooling=towers))
    other = encoder_in(tmp_path / "other")
    assert_same(loaded(other, seed=1), known(other, seed=1))
    assert not torch.equal(known(other, seed=1).head.weight, known(other, seed=2).head.weight)
    with pytest.raises(ModelError, match="the model was trained for the labels bad, fine, good"):
        known(folder, labels=LabelSet(("no", "yes", "maybe")))


def changed_config(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"layer_norm_eps": 0.5}))


@pytest.mark.parametrize("change", [changed_config, lambda folder: (folder / "vocab.txt").write_text("a new file")])
def test_other_files_are_described_again(change: Any, tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    assert known_model(folder) is None
    loaded(folder)
    (folder / "pytorch_model.bin").write_bytes(b"weights in another format")
    assert known_model(folder) is not None
    change(folder)
    assert known_model(folder) is None
    assert_same(loaded(folder), known(folder))


@pytest.mark.parametrize("reader", described.READERS)
def test_another_version_of_a_library_describes_again(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = encoder_in(tmp_path / "model")
    loaded(folder)
    usual = described.package_version
    monkeypatch.setattr(described, "package_version", lambda name: "9.9" if name == reader else usual(name))
    assert known_model(folder) is None


def not_finite(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.layer.0.output.dense.bias"][3] = float("nan")


def of_another_size(weights: dict[str, torch.Tensor]) -> None:
    weights["embeddings.LayerNorm.weight"] = torch.ones(7)


def missing(weights: dict[str, torch.Tensor]) -> None:
    del weights["encoder.layer.1.attention.self.query.weight"]


def of_a_further_layer(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.layer.2.output.dense.bias"] = torch.ones(32)


def whole_numbers(weights: dict[str, torch.Tensor]) -> None:
    weights["embeddings.LayerNorm.weight"] = torch.ones(32, dtype=torch.int32)


@pytest.mark.parametrize("damage", [not_finite, of_another_size, missing, of_a_further_layer, whole_numbers])
def test_weights_that_do_not_fit_are_left_to_transformers(damage: Any, tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    loaded(folder)
    weights = load_file(folder / "model.safetensors")
    damage(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert known(folder) is None
    with pytest.raises(ModelError):
        load_model(folder, labels=LABELS, pooling=MEAN)


def test_a_model_that_computes_something_else_is_not_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = encoder_in(tmp_path / "model")
    monkeypatch.setitem(described.GELU_APPROXIMATIONS, "gelu", "tanh")
    loaded(folder)
    assert known_model(folder) is None


@pytest.mark.parametrize("family", ["distilbert", "albert", "modernbert"])
def test_other_families_are_not_described(family: str, tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model", family)
    loaded(folder)
    assert known_model(folder) is None


def test_a_damaged_description_is_made_again(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = encoder_in(tmp_path / "model")
    loaded(folder)
    (path,) = cache.glob("*/description.json")
    path.write_text(path.read_text().replace("gelu", "relu"))
    assert known_model(folder) is None
    loaded(folder)
    assert "is damaged" in capsys.readouterr().err
    assert_same(load_model(folder, labels=LABELS, seed=3, pooling=MEAN), known(folder))


def test_a_copy_of_a_model_does_not_change_it(tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    loaded(folder)
    model = known(folder).eval()
    other = copy.deepcopy(model)
    ids = torch.arange(6, 18).view(2, -1)
    before = model(ids).logits
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    assert torch.equal(model(ids).logits, before)
    assert not other(ids).logits.any()


RUNS = """
import sys
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run
model, data, folder, *extra = sys.argv[1:]
settings = dict(output_dir=folder, max_steps=3, device="cpu", report_to="none", baselines=False, disable_tqdm=True)
train_run(GivenSettings(data, model, settings, {}), with_report=False)
print([name for name in ("transformers", "torch._dynamo", "sympy", "accelerate", "scipy.optimize") if name in sys.modules])
"""


def test_the_second_run_imports_less_and_ends_with_the_same_files(tmp_path: Path) -> None:
    folder = encoder_in(tmp_path / "model")
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    lines = [f"{'good' if row % 2 else 'bad'} film {row},{'yes' if row % 2 else 'no'}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    told, files, identities = [], [], []
    for name in ("first", "second"):
        command = [sys.executable, "-c", RUNS, str(folder), str(tmp_path / "rows.csv"), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
        told.append(done.stdout.splitlines()[-1])
        place = tmp_path / name / "model"
        kept = [path for path in sorted(place.rglob("*")) if path.is_file()]
        contents = {str(path.relative_to(place)): path.read_bytes() for path in kept}
        for written in ("README.md", "calibration.json"):  # which say how long the run took, and when it ended
            contents.pop(written, None)
        files.append(contents)
        identities.append(json.loads((tmp_path / name / "run.json").read_text())["identity"])
    assert "transformers" in told[0]
    assert told[1] == "[]"
    assert files[0] == files[1]
    assert identities[0] == identities[1]
