"""ONNX files: standard operators only, inputs by name, and weights in 8 bits that need a quarter of the space."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import tiny_model

from glassloop.share.conversion import write_model

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def test_both_files(tmp_path: Path) -> None:
    model, found = tiny_model(hidden_size=32).eval(), {}
    for kind in ("onnx", "onnx-int8"):
        (tmp_path / kind).mkdir()
        write_model(model, INPUTS, kind, tmp_path / kind)
        found[kind] = onnx.load(tmp_path / kind / "model.onnx")
        onnx.checker.check_model(found[kind])
        assert [entry.name for entry in found[kind].graph.input] == [*INPUTS]
        assert [entry.name for entry in found[kind].graph.output] == ["logits"]
        assert {node.domain for node in found[kind].graph.node} <= {"", "ai.onnx"}, "any runtime knows them"
        sizes = found[kind].graph.input[0].type.tensor_type.shape.dim
        assert all(size.dim_param for size in sizes), "rows and tokens are free"
    operators = {kind: [node.op_type for node in one.graph.node] for kind, one in found.items()}
    assert "MatMulInteger" in operators["onnx-int8"]
    assert "MatMulInteger" not in operators["onnx"]
    text = (tmp_path / "onnx" / "model.onnx").read_bytes()
    assert b"site-packages" not in text, "paths of this machine"
