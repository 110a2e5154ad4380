"""Exported models: the right device and threads, errors for what is damaged, and nothing in a .pt2 file can run code.

Two archives in one file, capital letters, code as the name of an input, and from_file ran before. The rest is caution.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_folders import RECORD

from glassloop.base.errors import ModelError, SettingsError
from glassloop.models.exported import ExportedModel, device_of, is_size, load_pt2, onnx_runner
from glassloop.runs.export import ExportRecord

slow = pytest.mark.slow  # torch.export
CPU = torch.device("cpu")


def test_onnx_runs_on_the_cpu_unless_a_device_is_named() -> None:
    devices = {("onnx", "auto"): "cpu", ("onnx-int8", "auto"): "cpu", ("torch", "auto"): "auto", ("onnx", "cuda"): "cuda"}
    for (kind, asked), device in devices.items():
        assert device_of(ExportRecord(kind, "regression", None, 64, ("input_ids",), "mrpc", RECORD), asked) == device


def model_of(inputs: tuple[str, ...], run: Callable[[Any], Any]) -> ExportedModel:
    return ExportedModel(SimpleNamespace(num_labels=3), run, inputs, "torch.export", Path("model.pt2"))


def test_a_model_gets_its_inputs_in_their_order() -> None:
    seen: list[str] = []
    model = model_of(("attention_mask", "input_ids"), lambda inputs: seen.extend(inputs) or torch.zeros(2, 3))
    output = model(input_ids=torch.ones(2, 4), attention_mask=torch.ones(2, 4), token_type_ids=torch.ones(2, 4))
    assert output.logits.shape == (2, 3)
    assert seen == ["attention_mask", "input_ids"]
    assert not model.training


NO_INPUT = 'export.json: the model needs the input "nothing", but the tokenizer produces input_ids'
NO_LOGITS = "model.pt2: the exported model does not return 3 logits per row"


def test_a_model_that_does_not_fit_its_record(says) -> None:
    def fail(_: object) -> torch.Tensor:
        raise RuntimeError("two\nlines")

    wrong = (torch.zeros(2, 4), torch.zeros(3), torch.zeros(2, 3).long())
    cases = [("input_ids", lambda _, answer=answer: answer, NO_LOGITS) for answer in wrong]
    cases += [("nothing", lambda _: torch.zeros(2, 3), NO_INPUT)]
    cases += [("input_ids", fail, "model.pt2: the exported model cannot be run: two lines")]
    for name, run, problem in cases:
        with says(problem, "restore the folder from a copy, or export the run again", ModelError):
            model_of((name,), run)(input_ids=torch.ones(2, 4))


def test_onnx_on_a_gpu_without_its_runtime_and_damaged(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "model.onnx", builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'", name=name)
        return real(name, *rest)

    with says(f"{path}: an ONNX export runs on the CPU here, not on cuda", "use --device cpu"):
        onnx_runner(path, torch.device("cuda"))
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with says(f"{path}: an ONNX export needs the package onnxruntime", 'pip install "glassloop[onnx]"', SettingsError):
            onnx_runner(path, CPU)
    pytest.importorskip("onnxruntime")
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError) as caught:
        onnx_runner(path, CPU)
    assert caught.value.problem.startswith(f"{path}: the exported model cannot be loaded: ")


# --- programs of torch.export
class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values.reshape(-1, 3))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = torch.export.export(Small(), (torch.ones(5, 6),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    program._example_inputs = None
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    torch.export.save(program, path)
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def packed(entries: Iterable[tuple[str, bytes]], **options: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def problem_of(path: Path, tmp_path: Path) -> Callable[..., str]:
    """Writes the archive again, its model.json changed by a function, and other files replaced or added.

    Returns why it is not loaded.
    """

    def write(change: Change = lambda model: None, archive: bytes | None = None, **files: bytes) -> str:
        entries = contents(path)
        for name in entries:
            if name.endswith("models/model.json"):
                model = json.loads(entries[name])
                change(model)
                entries[name] = json.dumps(model).encode()
            last = name.rpartition("/")[2].replace(".", "_")
            entries[name] = files.pop(last, entries[name])
        entries |= {f"model/data/{name}": content for name, content in files.items()}
        target = tmp_path / "model.pt2"
        target.write_bytes(packed(entries.items()) if archive is None else archive)
        with pytest.raises(ModelError) as caught:
            load_pt2(target)
        return caught.value.problem.removeprefix(f"{target}: ")

    return write


@pytest.fixture
def marker(tmp_path: Path):
    """A folder that does not exist after the test: nothing has made it."""
    yield tmp_path / "it-ran"
    assert not (tmp_path / "it-ran").exists()


@pytest.fixture
def pickled(marker: Path) -> bytes:
    class Malicious:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(marker),)

    stream = io.BytesIO()
    torch.save(Malicious(), stream)
    return stream.getvalue()


@slow
def test_a_model_is_loaded_and_a_damaged_one_is_not(path: Path, problem_of) -> None:
    model = load_pt2(path).module()
    assert [model(torch.ones(rows, 6)).shape for rows in (1, 9)] == [(2, 2), (18, 2)]
    assert problem_of(archive=path.read_bytes()[:2000]).startswith("the exported model cannot be loaded: ")


def two_archives(seen: bytes, hidden: bytes) -> bytes:
    """One file in which zipfile finds `seen` and torch finds `hidden`.

    zipfile takes the directory just before the end and shifts all offsets to fit; torch goes where the end points to.
    """
    (shown, hides), ends = [divided(archive) for archive in (seen, hidden)], bytearray(seen[-22:])
    start = len(hides[0])
    shift = len(shown[0]) + len(shown[1])
    directory, place = bytearray(shown[1]), 0
    assert len(directory) == len(hides[1])
    while place < len(directory):
        *lengths, _, _, _, _ = struct.unpack_from("<HHHHHLL", directory, place + 28)
        (offset,) = struct.unpack_from("<L", directory, place + 42)
        struct.pack_into("<L", directory, place + 42, offset + start + len(hides[1]) - shift)
        place += 46 + sum(lengths)
    struct.pack_into("<LL", ends, 12, len(directory), start)
    return hides[0] + hides[1] + shown[0] + bytes(directory) + bytes(ends)


def divided(archive: bytes) -> tuple[bytes, bytes]:
    """The entries and the directory of a ZIP file."""
    size, start = struct.unpack_from("<LL", archive, len(archive) - 10)
    return archive[:start], archive[start : start + size]


@slow
def test_two_archives_in_one_file(path: Path, tmp_path: Path, pickled: bytes, problem_of) -> None:
    seen = contents(path)
    hidden = {name: pickled if name.endswith("model.pt") else content for name, content in seen.items()}
    archive = two_archives(packed(seen.items()), packed(hidden.items()))
    assert problem_of(archive=archive).startswith("it contains something before or after the archive")
    crafted = tmp_path / "model.pt2"
    assert contents(crafted) == seen, "zipfile sees nothing wrong"
    record = torch._C.PyTorchFileReader(str(crafted)).get_record("data/sample_inputs/model.pt")
    assert record == pickled, "torch would read the other archive"


@slow
@pytest.mark.parametrize("odd", ["comment", "before", "after", "compressed", "letters", "folder", "twice", "another model"])
def test_an_archive_as_torch_does_not_write_it(odd: str, path: Path, pickled: bytes, problem_of) -> None:
    entries = [*contents(path).items()]
    inputs = next(name for name, _ in entries if name.endswith("model.pt"))
    others = [(name, content) for name, content in entries if name != inputs]
    model = next(content for name, content in entries if name.endswith("models/model.json"))
    with pytest.warns(UserWarning, match="Duplicate name") if odd == "twice" else contextlib.nullcontext():
        archive = {
            "comment": lambda: packed(entries)[:-2] + b"\x04\0note",
            "before": lambda: b"12345" + packed(entries),
            "after": lambda: packed(entries) + b"12345",
            "compressed": lambda: packed(entries, compression=zipfile.ZIP_DEFLATED),
            "letters": lambda: packed([*others, (inputs.replace(".pt", ".PT"), pickled)]),
            "folder": lambda: packed([*entries, ("other/data/sample_inputs/model.pt", pickled)]),
            "twice": lambda: packed([*entries, (inputs, pickled)]),
            "another model": lambda: packed([*entries, (inputs.replace("data/sample_inputs/model.pt", "models/x"), model)]),
        }[odd]()
    assert problem_of(archive=archive)


@slow
@pytest.mark.parametrize("name", ["values", "reshape", "linear.weight"])
def test_a_name_that_is_code_is_refused(name: str, problem_of, marker: Path) -> None:
    """torch makes Python code of a graph and runs it; the names of inputs are written into it as they are."""
    code = f"{name}=__import__('os').mkdir({str(marker)!r})"

    def change(model: dict[str, Any]) -> None:
        text = json.dumps(model).replace(json.dumps(name), json.dumps(code))  # keys included
        model.clear()
        model.update(json.loads(text))

    assert problem_of(change).startswith(f'it contains the name "{name}=__import__')


def graph_of(model: dict[str, Any]) -> dict[str, Any]:
    return model["graph_module"]["graph"]


@slow
@pytest.mark.parametrize("name", ["from_file.default", "save.default", "linear.__init__", "nothing.default"])
def test_an_operator_that_opens_a_file_is_refused(name: str, problem_of, marker: Path) -> None:
    """With shared=True, from_file makes a file and maps it for writing."""
    arguments = {"filename": {"as_string": str(marker)}, "shared": {"as_bool": True}, "size": {"as_int": 8}}

    def change(model: dict[str, Any]) -> None:
        graph = graph_of(model)
        node = {**graph["nodes"][0], "target": f"torch.ops.aten.{name}", "name": "file"}
        node["inputs"] = [{"name": argument, "arg": value, "kind": 1} for argument, value in arguments.items()]
        graph["nodes"].insert(0, {**node, "outputs": [{"as_tensor": {"name": "file"}}]})
        graph["tensor_values"]["file"] = {**graph["tensor_values"]["p_linear_bias"], "sizes": [{"as_int": 8}]}

    assert problem_of(change) == f'it calls "torch.ops.aten.{name}", which Glassloop does not load'


def calls_of(model: dict[str, Any]) -> list[dict[str, Any]]:
    return model["graph_module"]["module_call_graph"]


LEAF = {"type": None, "context": None, "children_spec": []}
FACTORY = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a"]}
TREE = {"type": "collections.defaultdict", "context": json.dumps(FACTORY), "children_spec": [LEAF]}
WEIGHTS = {"config": {"linear.weight": {"path_name": "weight_0", "use_pickle": True}}}


@slow
def test_what_could_run_is_refused(problem_of) -> None:
    for change, files, problem in (
        (lambda model: calls_of(model)[0]["signature"].update(out_spec=json.dumps([1, TREE])), {}, "it makes objects of "),
        (lambda model: graph_of(model)["nodes"][-1].update(target="torch.os.system"), {}, 'it calls "torch.os.system", which '),
        (lambda model: model.update(guards_code=["__import__('os').x"]), {}, "it evaluates \"__import__('os')"),
        (dict, {"model_pt": b"pickle"}, 'it contains "model.pt", a file that can run code'),
        (dict, {"model_weights_config_json": json.dumps(WEIGHTS).encode()}, "it contains a pickled object"),
        (dict, {"model_json": b'{"guards_code": ["1"], "guards_code": []}'}, "it contains a key twice"),
        (dict, {"model.so": b"code"}, 'it contains "model.so"'),
    ):
        assert problem_of(change, **files).startswith(problem)


SIZES = [
    "Mul(Integer(2), Pow(Symbol('s0', positive=True, integer=True), Integer(2)))",
    "L['tensors'][2].size()[1] == L['tensors'][0].size()[1]",
    "L['tensors'][0].size()[1] <= 80",
    "min(16*L['t'][0].size()[1], 32*L['t'][0].size()[1]) == (16*L['t'][0].size()[1])",
]
NO_SIZES = ["Symbol.__class__", "L.__class__", "open('x')", "Symbol('a; b')", "[x for x in L]", "(lambda: 1)()"]
NO_SIZES += ["L['a'].size.__self__", "1; 2", "__import__('os')", "f'{L}'", "(" * 500 + ")" * 500]


def test_sizes() -> None:
    assert [text for text in (*SIZES, *NO_SIZES) if is_size(text)] == SIZES
