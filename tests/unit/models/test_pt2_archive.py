"""A .pt2 file is loaded only if it contains nothing but a model: whatever could run code is refused before torch reads it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassloop.errors import ModelError
from glassloop.models.pt2_archive import is_size, load_pt2

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
