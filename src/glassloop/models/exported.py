"""Run an exported model with onnxruntime or torch.export: inputs and logits are those of the model it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch

from glassloop.errors import ModelError, SettingsError, listed, resource_error, shortened, visible
from glassloop.models.light import LightOutput
from glassloop.models.loading import load_config
from glassloop.models.pt2_archive import load_pt2
from glassloop.run_folder.export_json import EXPORT_NAME, MODEL_FILES, RESTORE, TORCH, ExportRecord
from glassloop.transformers_types import Config

INSTALL = 'pip install "glassloop[onnx]"'
RunInputs: TypeAlias = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


class ExportedModel(torch.nn.Module):
    """An exported model that is called like a model of transformers. It cannot be trained.

    Args:
        config: The config of the model it was made from.
        run: Returns the logits of padded rows.
        inputs: The names of its inputs.
        runtime: What runs it.
        path: Its file, for messages.
    """

    def __init__(self, config: Config, run: RunInputs, inputs: tuple[str, ...], runtime: str, path: Path) -> None:
        super().__init__()
        self.config, self.run, self.inputs, self.runtime, self.path = config, run, inputs, runtime, path
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> LightOutput:
        """Return the logits of padded rows. Raises `ModelError` if the model, its record and its tokenizer do not fit."""
        if missing := [name for name in self.inputs if name not in inputs]:
            problem = f"{self.path.parent / EXPORT_NAME}: the model needs the input {visible(missing[0])}"
            raise ModelError(f"{problem}, but the tokenizer produces {listed(inputs)}", RESTORE)
        try:
            logits = self.run({name: inputs[name] for name in self.inputs})
        except Exception as error:
            if resource_error(error) is not None:
                raise
            reason = shortened(" ".join(str(error).split()) or type(error).__name__)
            raise ModelError(f"{self.path}: the exported model cannot be run: {reason}", RESTORE) from error
        wanted = (len(next(iter(inputs.values()))), self.config.num_labels)
        if tuple(logits.shape) != wanted or not logits.is_floating_point():
            raise ModelError(f"{self.path}: the exported model does not return {wanted[1]:,} logits per row", RESTORE)
        return LightOutput(logits)


def load_exported(folder: Path, record: ExportRecord, device: torch.device) -> ExportedModel:
    """Return the model in an exported folder, whose files have been checked.

    Raises:
        ModelError: If it cannot be loaded.
        SettingsError: If its runtime is not installed, or does not run on the device.
    """
    path = folder / MODEL_FILES[record.kind]
    run = torch_runner(path, device) if record.kind == TORCH else onnx_runner(path, device)
    runtime = "torch.export" if record.kind == TORCH else "onnxruntime"
    return ExportedModel(load_config(folder), run, record.inputs, runtime, path)


def device_of(record: ExportRecord, device: str) -> str:
    """Return the device that a user means: "auto" is the CPU for an ONNX export, which runs nowhere else."""
    return "cpu" if device == "auto" and record.kind != TORCH else device


def torch_runner(path: Path, device: torch.device) -> RunInputs:
    """Return what runs a program of torch.export on a device."""
    program = load_pt2(path)
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module = program.module()

    def run(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = module(*inputs.values())
        return logits if isinstance(logits, torch.Tensor) else torch.empty(0)  # of another program, which is refused

    return run


def onnx_runner(path: Path, device: torch.device) -> RunInputs:
    """Return what runs an ONNX file on a CPU, with as many threads as torch uses."""
    if device.type != "cpu":
        raise SettingsError(f"{path}: an ONNX export runs on the CPU here, not on {device.type}", "use --device cpu")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise SettingsError(f"{path}: an ONNX export needs the package {error.name}", INSTALL) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{path}: the exported model cannot be loaded: {reason}", RESTORE) from error

    def run(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        (logits,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return torch.from_numpy(logits)

    return run
