"""Write ONNX files: a program of torch.export, its layers fused, and its weights in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from glassloop.transformers_types import Config

MOST_BYTES = 1_800_000_000  # of weights inside an ONNX file; its format ends at 2 GiB


def write_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str], config: Config, path: Path) -> None:
    """Write a program as an ONNX file. Weights of more than 1.8 GB are stored beside it."""
    found = torch.onnx.export(
        program, dynamo=True, input_names=[*inputs], output_names=["logits"], verbose=False, optimize=True
    )
    if found is None:
        raise RuntimeError("torch.onnx returned no program")
    size = sum(weight.numel() * weight.element_size() for weight in program.state_dict.values())
    found.save(path, external_data=size > MOST_BYTES)


def write_int8(path: Path) -> None:
    """Replace the weights in an ONNX file by 8-bit numbers. Activations are quantized while the model runs."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # sizes that torch wrote; the quantizer infers them again, and fails if they differ
    quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True)
