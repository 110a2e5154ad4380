"""The ejected file: every number of the run is in it, nothing of ours is, and it is Python whatever the labels are called."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import DataError, ModelError, ResourceError
from glassloop.base.records import NotARecordError, decoded, sealed
from glassloop.cli.export import eject
from glassloop.runs.record import RunRecord
from glassloop.share.eject import eject_run, script_of


@pytest.fixture
def described(text_run: Path) -> dict[str, Any]:
    return json.loads((text_run / "run.json").read_text(encoding="utf-8"))


def script(found: dict[str, Any]) -> str:
    return script_of(decoded(RunRecord, found))


def values_of(text: str) -> dict[str, Any]:
    """The constants at the top of the script."""
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
            target = node.targets[0]
            names = [target.id] if isinstance(target, ast.Name) else [entry.id for entry in target.elts]
            try:
                values = ast.literal_eval(node.value)
            except ValueError:
                continue
            found |= dict(zip(names, [values] if len(names) == 1 else values, strict=False))
    return found


def test_the_numbers_of_the_run_are_in_it(described: dict[str, Any], lively_dir: Path) -> None:
    found = values_of(script(described))
    data = {"LABELS": ["pos, really", "neg"], "TASK": "single_label_classification", "TEXTS": ["text"], "MAX_LENGTH": 24}
    steps = {"SEED": 42, "DATA_SEED": 42, "BATCH_SIZE": 16, "ACCUMULATE": 1, "MAX_STEPS": 12, "WARMUP_STEPS": 0}
    head = {"POOLING": "mean", "NORMALIZE": False, "TOWERS": False}
    rates = {"LEARNING_RATE": 5e-3, "WEIGHT_DECAY": 0.0, "MAX_GRAD_NORM": 1.0}
    assert {name: found[name] for name in found if name.isupper()} == {
        **{"MODEL": str(lively_dir)},
        **(data | steps | rates | head),
    }


RESTARTS = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}'}


def test_settings_that_change_the_numbers_change_the_file(described: dict[str, Any]) -> None:
    for settings, lines in [
        ({"data_seed": 7}, ["SEED, DATA_SEED = 42, 7"]),
        ({"dataloader_drop_last": True}, ["range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE)"]),
        ({"group_by_length": True}, ["random.permutation(len(batches))] + short"]),
        ({"group_by_length": True, "dataloader_drop_last": True}, ["random.permutation(len(batches))]\n"]),
        ({"pad_to_multiple_of": 8}, ['return_tensors="pt", pad_to_multiple_of=8)']),
        ({"label_smoothing_factor": 0.25}, ["label_smoothing=0.25"]),
        ({"adam_beta1": 0.5, "adam_epsilon": 1e-6, "optim": "adamw_torch"}, ["betas=(0.5, 0.999), eps=1e-06, fused=False"]),
        (RESTARTS, ["'cosine_with_restarts'", "scheduler_specific_kwargs={'num_cycles': 2}"]),
    ]:
        text = script(described | {"settings": described["settings"] | settings})
        ast.parse(text)
        for line in lines:
            assert line in text


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("task", ["single_label_classification", "multi_label_classification", "regression"])
def test_every_task_is_python_with_nothing_left_open(described: dict[str, Any], task: str, pooled: bool) -> None:
    described["data"]["task"] = task
    described["model"]["pooling"] = described["model"]["pooling"] if pooled else None
    if task == "regression":
        described["data"]["labels"] = None
    for weights in (None, [0.5, 2.0]):
        described["class_weights"] = weights
        text = script(described)
        nodes = [*ast.walk(ast.parse(text))]
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        usual = {"json", "numpy", "torch", "torch.nn", "transformers"}
        assert imported == (usual | {"inspect", "safetensors.torch"} if pooled else usual)
        assert not re.search("{{|{%", text)
        if task != "regression":
            assert ("torch.tensor([0.5, 2.0], device=logits.device)" in text) is (weights is not None)


def test_names_stay_names_whatever_they_look_like_when_the_file_runs_too(described: dict[str, Any], tmp_path: Path) -> None:
    """A label may be called anything: it is data, and never becomes code."""
    labels = ["{{ seed }}", "it's", '"quoted"', "{% if %}", "<&>", "a\\b", '"""', "Ü", "{x}", "x" * 150]
    described["data"]["labels"] = labels
    described["data"]["columns"] = {"text": "{{ task }}", "text_pair": "se'cond", "label": ["label"]}
    found = values_of(script(described))
    assert found["LABELS"] == labels
    assert found["TEXTS"] == ["{{ task }}", "se'cond"]
    assert found["TASK"] == "single_label_classification"
    # The constants of the file are evaluated for real; a sentinel shows whether anything else was.
    sentinel = tmp_path / "sentinel"
    attack = f"open({str(sentinel)!r}, 'w')"
    names = [f"{quote}{end}{attack}{end}{quote}" for quote in ("'", '"', '"""', "\\'", "") for end in ("\n", "\r", "; ", "#")]
    described["data"]["labels"] = described["savings"] = names
    described["data"]["columns"] |= {"text": names[0], "text_pair": names[1]}
    found: dict[str, Any] = {}
    exec(script(described).partition("# The data: ")[0], found)
    assert found["LABELS"] == names
    assert found["TEXTS"] == names[:2]
    assert not sentinel.exists()


HOSTILE: list[Any] = [
    "0; __import__('os').abort()",
    '"""\nimport os\n"""',
    "'\nimport os\n'",
    "x\rimport os",
    "x\u2028import os\\",
    "{{ weights }} __import__('os')",
    ["__import__('os')"],
    {"__import__('os')": "__import__('os')"},
]


class Blank(ast.NodeTransformer):
    """Replaces every literal, so that only the code is left."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        try:
            ast.literal_eval(node)  # type: ignore[arg-type]
        except (ValueError, TypeError, SyntaxError):
            return node
        return ast.Constant(0) if isinstance(node, ast.expr) else node


def code_of(text: str) -> str:
    return ast.dump(Blank().visit(ast.parse(text)))


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from (leaf for name, entry in inside for leaf in leaves_of(entry, (*path, name)))
    if not isinstance(value, dict | list):
        yield path


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_value_of_a_crafted_record_becomes_code(described: dict[str, Any], hostile: Any) -> None:
    """Every entry of run.json in turn is replaced by hostile text: it is refused, or it stays a literal."""
    described["class_weights"] = [0.5, 2.0]
    described["settings"]["pad_to_multiple_of"] = 8
    whole = script(described)
    expected, written = code_of(whole), 0
    for path in leaves_of(copy.deepcopy(described)):
        crafted = copy.deepcopy(described)
        entry = crafted
        for name in path[:-1]:
            entry = entry[name]
        entry[path[-1]] = hostile
        try:
            text = script(crafted)
        except (NotARecordError, ModelError):
            continue
        if text != whole:
            assert code_of(text) == expected, path
            written += 1
    assert written > 3 or not isinstance(hostile, str), "labels, columns and savings may be any text"


@pytest.fixture
def changed(text_run: Path, tmp_path: Path):
    """A run folder with another description."""

    def change(**changes: Any) -> Path:
        run = json.loads((text_run / "run.json").read_text(encoding="utf-8"))
        run |= {name: run[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "run.json").write_text(json.dumps(sealed(run)), encoding="utf-8")
        return tmp_path / "run"

    return change


ONE_PROCESS = "train with --processes 1 --precision fp32 first"
BEST = {"load_best_model_at_end": True, "eval_strategy": "epoch"}
UNLIKE = {
    "used 2 processes": ({"processes": 2}, ONE_PROCESS),
    "used bf16": ({"precision": "bf16"}, ONE_PROCESS),
    "loaded its best weights at the end": ({"settings": BEST}, "train without load_best_model_at_end first"),
    "stopped before its last step": ({"stop_reason": "eval_loss did not improve"}, "train without early stopping first"),
    "replaced the head of its model": ({"model": {"new_head": True}}, "train without --new_head first"),
}


def test_a_run_whose_weights_or_data_the_file_could_not_reach(says, changed, tmp_path: Path, text_run: Path) -> None:
    for what, (changes, remedy) in UNLIKE.items():
        why = "but an ejected script trains in one process in fp32"
        why = why if remedy == ONE_PROCESS else "so an ejected script would end with different weights"
        with says(f"the run {what}, {why}", remedy):
            eject_run(changed(**changes), tmp_path / "plain")
        assert not (tmp_path / "plain").exists()
    splits = json.loads((text_run / "run.json").read_text())["data"]["splits"]
    splits["train"]["fingerprint"] = "another"
    problem = r"the data has changed since the run: train: 40 rows \(another\) then, 40 rows \(.{8}\) now"
    with pytest.raises(DataError, match=problem):
        eject_run(changed(data={"splits": splits}), tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_an_out_that_cannot_be_written_and_no_run_are_refused(says, text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    for target, state in ((tmp_path, "not empty"), (tmp_path / "mine", "a file")):
        with says(f"{target} is {state}", "choose a new folder with --out"):
            eject_run(text_run, target)
    with says(f"{tmp_path / 'mine' / 'plain'}: Not a directory", "choose a folder that can be written to", ResourceError):
        eject_run(text_run, tmp_path / "mine" / "plain")
    with says('"": the path is empty', "use another path"):
        eject(str(text_run), "")
    (tmp_path / "mine").unlink()
    with says(f"{tmp_path} is not a run folder: run.json is missing", "name the folder of a run", ModelError):
        eject_run(tmp_path, tmp_path / "plain")


def test_the_rows_go_with_it(text_run: Path, tmp_path: Path) -> None:
    assert eject_run(text_run, tmp_path / "plain") == tmp_path / "plain" / "train.py"
    names = {path.name for path in (tmp_path / "plain").iterdir()}
    assert names == {"head.safetensors", "test.jsonl", "train.jsonl", "train.py", "validation.jsonl"}
    rows = [json.loads(line) for line in (tmp_path / "plain" / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[:2] == [{"text": "bad film 0", "label": 1}, {"text": "very good film 1", "label": 0}]
    assert len(rows) == 40
