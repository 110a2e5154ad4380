"""Turn a model of transformers into a program of torch.export, and that into ONNX, in fp32 or with 8-bit weights."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from glassloop.base.errors import GlassloopError, ModelError, SettingsError, resource_error
from glassloop.data.interfaces import Config, Model
from glassloop.models.exported import INSTALL
from glassloop.models.families import FAMILIES
from glassloop.models.loading import quiet_transformers, short_reason
from glassloop.models.pooled import PooledClassifier, pooling_of
from glassloop.runs.export import MODEL_FILES, ONNX_INT8, TORCH

MOST_BYTES = 1_800_000_000  # of weights inside an ONNX file; its format ends at 2 GiB
ROWS, TOKENS = 3, 11  # of the example: sizes of 1, and sizes that the model has too, would be taken for constants
REHEARSED_LAYERS = 2
PACKAGES, ONNX_PACKAGES = ("torch", "transformers"), ("onnx", "onnxscript", "onnxruntime")
ANOTHER = "use glassloop serve or Predictor with the run itself"


class Logits(torch.nn.Module):
    """A model that takes its inputs in the order of their names, `inputs`, and returns only logits."""

    def __init__(self, model: Model, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.inputs, tensors, strict=True))).logits
        return logits


def refuse_missing_packages(kind: str) -> None:
    if missing := [name for name in (*PACKAGES, *(ONNX_PACKAGES if kind != TORCH else ())) if find_spec(name) is None]:
        raise SettingsError(f"an export to {kind} needs the package {missing[0]}", INSTALL)


def refuse_unknown_family(config: Config, inputs: Sequence[str]) -> None:
    """Export a small copy of a model whose family is not known, which takes seconds. Raises `ModelError` if that fails."""
    if config.model_type in FAMILIES:  # the tests export each of them
        return
    small = copy.deepcopy(config)
    for name in ("num_hidden_layers", "n_layers", "num_layers"):
        if isinstance(number := getattr(small, name, None), int):
            setattr(small, name, min(number, REHEARSED_LAYERS))
    from transformers import AutoModelForSequenceClassification

    try:
        with quiet_transformers():
            build = AutoModelForSequenceClassification.from_config if pooling_of(small) is None else PooledClassifier
            model: Model = build(small).eval()
    except Exception:
        return  # settings of single layers do not fit: the whole model is exported without a rehearsal
    program_of(model, inputs)


def example_inputs(config: Config, inputs: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return a padded batch that a model is traced with: rows of tokens or, with two towers, pairs of rows."""
    pooling = pooling_of(config)
    shape = (ROWS, 2, TOKENS) if pooling is not None and pooling.towers else (ROWS, TOKENS)
    ids = torch.arange(math.prod(shape)).reshape(shape) % max(2, min(config.vocab_size, 100))
    mask = torch.ones_like(ids)
    padding = getattr(config, "pad_token_id", None) or 0
    ids[ids == padding] = padding + 1 if padding + 1 < config.vocab_size else padding - 1
    ids[-1, ..., -4:], mask[-1, ..., -4:] = padding, 0
    known = {"input_ids": ids, "attention_mask": mask}
    return tuple(known.get(name, torch.zeros_like(ids)) for name in inputs)


def program_of(model: Model, inputs: Sequence[str]) -> torch.export.ExportedProgram:
    """Return a model as a program with any number of rows and tokens. Raises `ModelError` if torch cannot trace it."""
    example = example_inputs(model.config, inputs)
    size = {0: torch.export.Dim.DYNAMIC, example[0].ndim - 1: torch.export.Dim.DYNAMIC}
    with converting(model.config), torch.no_grad():
        program = torch.export.export(
            Logits(model, inputs).eval(),
            example,
            dynamic_shapes=(tuple(size for _ in inputs),),
            strict=False,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def write_model(model: Model, inputs: Sequence[str], kind: str, folder: Path) -> None:
    """Write the file of a format ("onnx", "onnx-int8" or "torch") into a folder. Raises `ModelError` if that fails."""
    program, path = program_of(model, inputs), folder / MODEL_FILES[kind]
    with converting(model.config):
        if kind == TORCH:
            program._example_inputs = None  # torch would pickle them
            torch.export.save(program, path)
            return
        converted = torch.onnx.export(
            program, dynamo=True, input_names=[*inputs], output_names=["logits"], verbose=False, optimize=True
        )
        if converted is None:
            raise RuntimeError("torch.onnx returned no program")
        size = sum(weight.numel() * weight.element_size() for weight in program.state_dict.values())
        converted.save(path, external_data=size > MOST_BYTES)
        if kind == ONNX_INT8:
            import onnx
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantized = onnx.load(path)
            # Sizes that torch wrote; the quantizer infers them again, and fails if they differ.
            del quantized.graph.value_info[:]
            # Activations are quantized while the model runs.
            quantize_dynamic(quantized, path, weight_type=QuantType.QInt8, per_channel=True)


@contextmanager
def converting(config: Config) -> Iterator[None]:
    """Silence the libraries that convert, and turn what they raise into one clear error."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except GlassloopError:
        raise
    except Exception as error:
        if resources := resource_error(error):
            raise resources from error
        title = FAMILIES[config.model_type].title if config.model_type in FAMILIES else config.model_type
        raise ModelError(f"this model ({title}) cannot be exported: {short_reason(error)}", ANOTHER) from error
    finally:
        logging.disable(level)
