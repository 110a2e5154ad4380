"""A .pt2 file is loaded only if it contains nothing but a model: whatever could run code is refused before torch reads it.

Two archives in one file, capital letters, code as the name of an input, and from_file ran before. The rest is caution.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassloop.base.errors import ModelError
from glassloop.models.exported import is_size, load_pt2

pytestmark = pytest.mark.slow  # torch.export


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


@pytest.fixture
def changed(path: Path, tmp_path: Path):
    """Writes the archive again, its model.json changed by a function, with other files added."""

    def write(change: Callable[[dict[str, Any]], None] = lambda model: None, **added: bytes) -> Path:
        target = tmp_path / "model.pt2"
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as written:
            for entry in archive.infolist():
                content = archive.read(entry)
                if entry.filename.endswith("models/model.json"):
                    model = json.loads(content)
                    change(model)
                    content = json.dumps(model).encode()
                name = entry.filename.rpartition("/")[2]
                written.writestr(entry.filename, added.pop(name.replace(".", "_"), content))
            for name, content in added.items():
                written.writestr(f"model/data/{name}", content)
        return target

    return write


def test_a_model_is_loaded(path: Path) -> None:
    found = load_pt2(path).module()
    assert found(torch.ones(1, 6)).shape == (2, 2)
    assert found(torch.ones(9, 6)).shape == (18, 2)


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_pt2(path)
    return caught.value.problem.removeprefix(f"{path}: ")


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path):
    """A folder that does not exist after the test: nothing has made it."""
    yield tmp_path / "it-ran"
    assert not (tmp_path / "it-ran").exists()


@pytest.fixture
def pickled(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save(Malicious(marker), stream)
    return stream.getvalue()


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def packed(entries: Iterable[tuple[str, bytes]], **options: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


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


def test_two_archives_in_one_file(path: Path, tmp_path: Path, pickled: bytes) -> None:
    seen = contents(path)
    hidden = {name: pickled if name.endswith("model.pt") else content for name, content in seen.items()}
    crafted = tmp_path / "model.pt2"
    crafted.write_bytes(two_archives(packed(seen.items()), packed(hidden.items())))
    assert contents(crafted) == seen, "zipfile sees nothing wrong"
    found = torch._C.PyTorchFileReader(str(crafted)).get_record("data/sample_inputs/model.pt")
    assert found == pickled, "torch would read the other archive"
    assert refused(crafted).startswith("it contains something before or after the archive")


@pytest.mark.parametrize("odd", ["comment", "before", "after", "compressed", "letters", "folder", "twice", "another model"])
def test_an_archive_as_torch_does_not_write_it(odd: str, path: Path, tmp_path: Path, pickled: bytes) -> None:
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
    crafted = tmp_path / "model.pt2"
    crafted.write_bytes(archive)
    assert refused(crafted)


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    """A change of every text that is `old`, keys included."""

    def change(model: dict[str, Any]) -> None:
        text = json.dumps(model).replace(json.dumps(old), json.dumps(new))
        model.clear()
        model.update(json.loads(text))

    return change


@pytest.mark.parametrize("name", ["values", "reshape", "linear.weight"])
def test_a_name_that_is_code_is_refused(name: str, changed, marker: Path) -> None:
    """torch makes Python code of a graph and runs it; the names of inputs are written into it as they are."""
    code = f"{name}=__import__('os').mkdir({str(marker)!r})"
    assert refused(changed(renamed(name, code))).startswith(f'it contains the name "{name}=__import__')


def test_a_structure_that_imports_a_module_is_refused(changed) -> None:
    context = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a"]}
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "collections.defaultdict", "context": json.dumps(context), "children_spec": [leaf]}

    def change(model: dict[str, Any]) -> None:
        model["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, tree])

    assert refused(changed(change)).startswith("it makes objects of ")


@pytest.mark.parametrize("name", ["from_file.default", "save.default", "linear.__init__", "nothing.default"])
def test_an_operator_that_opens_a_file_is_refused(name: str, changed, marker: Path) -> None:
    """With shared=True, from_file makes a file and maps it for writing."""
    given = {"filename": {"as_string": str(marker)}, "shared": {"as_bool": True}, "size": {"as_int": 8}}

    def change(model: dict[str, Any]) -> None:
        graph = model["graph_module"]["graph"]
        node = {**graph["nodes"][0], "target": f"torch.ops.aten.{name}", "name": "file"}
        node["inputs"] = [{"name": argument, "arg": value, "kind": 1} for argument, value in given.items()]
        graph["nodes"].insert(0, {**node, "outputs": [{"as_tensor": {"name": "file"}}]})
        graph["tensor_values"]["file"] = {**graph["tensor_values"]["p_linear_bias"], "sizes": [{"as_int": 8}]}

    assert refused(changed(change)) == f'it calls "torch.ops.aten.{name}", which Glassloop does not load'


def test_a_repeated_key_is_refused(path: Path, tmp_path: Path) -> None:
    entries = contents(path)
    name = next(name for name in entries if name.endswith("models/model.json"))
    entries[name] = entries[name].replace(b'"guards_code"', b'"guards_code": ["1"], "guards_code"')
    (tmp_path / "model.pt2").write_bytes(packed(entries.items()))
    assert refused(tmp_path / "model.pt2").startswith("it contains a key twice")


def test_another_function_is_refused(changed) -> None:
    def change(model: dict[str, Any]) -> None:
        model["graph_module"]["graph"]["nodes"][-1]["target"] = "torch.os.system"

    assert refused(changed(change)) == 'it calls "torch.os.system", which Glassloop does not load'


def test_an_expression_with_an_effect_is_refused(changed) -> None:
    def change(model: dict[str, Any]) -> None:
        model["guards_code"] = ["__import__('os').system('touch here')"]

    assert refused(changed(change)).startswith("it evaluates \"__import__('os')")


def test_a_pickle_is_refused(changed) -> None:
    stream = io.BytesIO()
    torch.save((1, 2), stream)
    assert refused(changed(model_pt=stream.getvalue())).startswith('it contains "model.pt", a file that can run code')


def test_pickled_weights_are_refused(changed) -> None:
    config = {"config": {"linear.weight": {"path_name": "weight_0", "use_pickle": True}}}
    problem = refused(changed(model_weights_config_json=json.dumps(config).encode()))
    assert problem == "it contains a pickled object, which Glassloop does not load"


def test_compiled_code_is_refused(changed) -> None:
    assert refused(changed(**{"model.so": b"code"})).startswith('it contains "model.so"')


def test_a_damaged_file(tmp_path: Path, path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(path.read_bytes()[:2000])
    assert refused(tmp_path / "model.pt2").startswith("the exported model cannot be loaded: ")


@pytest.mark.parametrize(
    "text",
    [
        "Mul(Integer(2), Pow(Symbol('s0', positive=True, integer=True), Integer(2)))",
        "L['tensors'][2].size()[1] == L['tensors'][0].size()[1]",
        "L['tensors'][0].size()[1] <= 80",
        "min(16*L['t'][0].size()[1], 32*L['t'][0].size()[1]) == (16*L['t'][0].size()[1])",
    ],
)
def test_sizes(text: str) -> None:
    assert is_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol.__class__",
        "L.__class__",
        "open('x')",
        "Symbol('a; b')",
        "[x for x in L]",
        "(lambda: 1)()",
        "L['a'].size.__self__",
        "1; 2",
        "__import__('os')",
        "f'{L}'",
        "(" * 500 + ")" * 500,
    ],
)
def test_what_is_no_size(text: str) -> None:
    assert not is_size(text)
