"""Run an exported model with onnxruntime or torch.export, loaded so that nothing in it can run code."""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from glassloop.base.errors import ModelError, SettingsError, listed, resource_error, shortened, visible
from glassloop.base.records import Json
from glassloop.data.interfaces import Config, LogitsOutput
from glassloop.models.loading import load_config
from glassloop.models.pooled import pooling_of, split_towers
from glassloop.runs.export import EXPORT_NAME, MODEL_FILES, RESTORE, TORCH, ExportRecord

if TYPE_CHECKING:
    from torch.export import ExportedProgram

INSTALL = 'pip install "glassloop[onnx]"'
RunInputs: TypeAlias = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
# The files of an archive, below its one folder. Everything else that torch looks for is a pickle or compiled code.
JSON_FILES = ("models/model.json", "data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
PICKLED_INPUTS = "data/sample_inputs/model.pt"  # empty in an export of Glassloop
TENSOR_FILES = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
VERSION_FILES = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
LARGE = 0xFFFFFFFF  # what the end of a ZIP file of more than 4 GB has as the place of its directory
# torch writes names into Python code, which it runs.
HARMLESS_NAME = re.compile(r"[\w.]*", re.ASCII)
VERSION = re.compile(r"[\w.+\n]{0,100}", re.ASCII)
TENSOR_NAME = re.compile(r"(weight|tensor)_\d+")
# What torch calls when the model runs. It would look up any other name and call that, too.
ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)", re.ASCII)
ARITHMETIC = re.compile(
    r"torch\.sym_\w+|math\.(ceil|floor|trunc)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_)",
    re.ASCII,
)
# Texts that an operator may take. Others are names of files: from_file opens one for writing.
OPERATOR_TEXTS = {*"approximate rounding_mode reduce mode norm side indexing equation padding assert_msg".split()}
OBJECTS = {"as_operator", "as_custom_obj", "as_opaque_obj", "as_graph", "custom_obj"}  # arguments that are no numbers
TREES = ("builtins.tuple", "builtins.list", "builtins.dict")  # for any other type, torch imports the module it names
# Sizes, and conditions on them, are Python expressions that torch evaluates. These are the names and syntax it writes.
NAMES = {
    *("L", "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Eq", "Ne", "Not", "And", "Or"),
    *("LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan", "Equality", "Unequality", "Piecewise", "Where"),
    *("FloorDiv", "PythonMod", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "CeilToInt", "FloorToInt", "ToFloat", "true", "false"),
    *("min", "max"),
}
SYNTAX = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.keyword, ast.Attribute, ast.Subscript),
    *(ast.Compare, ast.cmpop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop),
)


class UnsafeError(ValueError):
    """What in an archive could run code when it is loaded or used, or is not known to be harmless."""


def load_pt2(path: Path) -> ExportedProgram:
    """Return the program in a .pt2 file. Raises `ModelError` if it is damaged, or if it contains more than a model."""
    # torch.export.load unpickles, evaluates and imports what the file names, and reads ZIP files with another parser
    # than Python's. So the file is read once, checked against what an export needs, and handed to torch as a new
    # archive written in memory.
    try:
        return torch.export.load(checked_copy(path))
    except UnsafeError as error:
        problem = f"{path}: {error}, which Glassloop does not load"
        raise ModelError(problem, "export the run again where you trust it") from error
    except Exception as error:
        raise not_loaded(path, error) from error


def not_loaded(path: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ModelError(f"{path}: the exported model cannot be loaded: {reason}", RESTORE)


def checked_copy(path: Path) -> io.BytesIO:
    """Return a new archive with the checked entries of a .pt2 file. Raises `UnsafeError` for any other content."""
    copy, names = io.BytesIO(), set[str]()
    with path.open("rb") as file, zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as written:
        file.seek(-22, io.SEEK_END)  # the end of a ZIP file says where its list of entries begins; zipfile looks for the list
        if archive.comment or int.from_bytes(file.read()[16:20], "little") not in (archive.start_dir, LARGE):
            raise UnsafeError("it contains something before or after the archive")
        for entry in archive.infolist():
            name = entry.filename.partition("/")[2]
            if name in names or entry.compress_type != zipfile.ZIP_STORED:  # torch writes neither
                raise UnsafeError(f"it contains {visible(entry.filename)} {'twice' if name in names else 'compressed'}")
            names.add(name)
            content = archive.read(entry)
            if name in JSON_FILES:
                content = json.dumps(checked(json.loads(content, object_pairs_hook=without_repetition))).encode()
            elif not (
                TENSOR_FILES.fullmatch(name)
                or (name == PICKLED_INPUTS and not content)
                or (name in VERSION_FILES and VERSION.fullmatch(content.decode("latin-1")))
            ):
                raise UnsafeError(f"it contains {visible(name.rpartition('/')[2])}, a file that can run code")
            written.writestr(f"model/{name}", content)
    copy.seek(0)
    return copy


def without_repetition(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return a JSON object. Raises `UnsafeError` if a key is repeated: readers differ in which value they take."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise UnsafeError("it contains a key twice")
    return content


def checked(value: Json, key: str = "") -> Json:
    """Return a JSON value without metadata, which only describes. Raises `UnsafeError` for what could run code."""
    if isinstance(value, list):
        return [checked(entry, key) for entry in value]
    if isinstance(value, dict):
        if value.get("use_pickle") or value.get("treespec_namedtuple_fields") or OBJECTS & {*value}:
            raise UnsafeError("it contains a pickled object")
        return {str(checked(name)): {} if name == "metadata" else checked(entry, name) for name, entry in value.items()}
    if isinstance(value, str):
        match key:
            case "target" if not is_function(value):
                raise UnsafeError(f"it calls {visible(value)}")
            case "expr_str" | "guards_code" if not is_size(value):
                raise UnsafeError(f"it evaluates {visible(value)}")
            case "in_spec" | "out_spec" if not is_tree(json.loads(value)[1]):
                raise UnsafeError(f"it makes objects of {visible(value)}")
            case "path_name" if not TENSOR_NAME.fullmatch(value):
                raise UnsafeError("it contains a pickled object")
            case "target" | "expr_str" | "guards_code" | "in_spec" | "out_spec" | "path_name" | "as_string" | "torch_version":
                pass
            case _ if not HARMLESS_NAME.fullmatch(value):
                raise UnsafeError(f"it contains the name {visible(value)}")
    return value


def is_function(name: str) -> bool:
    """Return whether a name is that of arithmetic on sizes, or of an operator on tensors that opens no file."""
    from torch._ops import OpOverload

    parts = ATEN.fullmatch(name)
    if parts is None:
        return ARITHMETIC.fullmatch(name) is not None
    operator = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None)
    arguments = operator._schema.arguments if isinstance(operator, OpOverload) else None
    return arguments is not None and {entry.name for entry in arguments if "str" in str(entry.type)} <= OPERATOR_TEXTS


def is_tree(tree: Json) -> bool:
    """Return whether the structure of inputs or outputs consists of tuples, lists and dicts."""
    if not isinstance(tree, dict) or not isinstance(children := tree.get("children_spec"), list):
        return False
    kind, context = tree.get("type"), tree.get("context")
    known = context is None if kind is None else kind in TREES and isinstance(context, str)
    keys = json.loads(context) if isinstance(context, str) else None
    harmless = keys is None or (isinstance(keys, list) and all(isinstance(name, str) for name in keys))
    return known and harmless and all(map(is_tree, children))


def is_size(text: Json) -> bool:
    """Return whether a text is an expression of sizes, which has no effect when it is evaluated."""

    def is_known(node: ast.AST) -> bool:
        match node:
            case ast.Name():
                return node.id in NAMES
            case ast.Attribute():
                return node.attr == "size"
            case ast.Constant(value=str(content)):
                return re.fullmatch(r"\w+", content) is not None
        return isinstance(node, SYNTAX)

    try:
        return all(map(is_known, ast.walk(ast.parse(str(text), mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class ExportedModel(torch.nn.Module):
    """An exported model that is called like a model of transformers. It cannot be trained."""

    def __init__(self, config: Config, run: RunInputs, inputs: tuple[str, ...], runtime: str, path: Path) -> None:
        super().__init__()
        self.config, self.run, self.inputs, self.runtime, self.path = config, run, inputs, runtime, path
        pooling = pooling_of(config)
        self.towers = pooling is not None and pooling.towers
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> LogitsOutput:
        """Return the logits of padded rows. Raises `ModelError` if the model, its record and its tokenizer do not fit."""
        if missing := [name for name in self.inputs if name not in inputs]:
            problem = f"{self.path.parent / EXPORT_NAME}: the model needs the input {visible(missing[0])}"
            raise ModelError(f"{problem}, but the tokenizer produces {listed(inputs)}", RESTORE)
        wanted = (len(next(iter(inputs.values()))), self.config.num_labels)
        if self.towers:  # the program takes the texts of a pair apart: how long they are is not known when it is traced
            ids, mask, types = (inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
            ids, mask = split_towers(ids, mask, types, self.config)
            inputs = {"input_ids": ids, "attention_mask": mask}
        try:
            logits = self.run({name: inputs[name] for name in self.inputs})
        except Exception as error:
            if resource_error(error) is not None:
                raise
            reason = shortened(" ".join(str(error).split()) or type(error).__name__)
            raise ModelError(f"{self.path}: the exported model cannot be run: {reason}", RESTORE) from error
        if tuple(logits.shape) != wanted or not logits.is_floating_point():
            raise ModelError(f"{self.path}: the exported model does not return {wanted[1]:,} logits per row", RESTORE)
        return LogitsOutput(logits)


def load_exported(folder: Path, record: ExportRecord, device: torch.device) -> ExportedModel:
    """Return the model in an exported folder, whose files have been checked. Raise if its runtime cannot run it here."""
    path = folder / MODEL_FILES[record.kind]
    if record.kind != TORCH:
        return ExportedModel(load_config(folder), onnx_runner(path, device), record.inputs, "onnxruntime", path)
    program = load_pt2(path)
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module = program.module()

    def run_program(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = module(*inputs.values())
        return logits if isinstance(logits, torch.Tensor) else torch.empty(0)  # of another program, which is refused

    return ExportedModel(load_config(folder), run_program, record.inputs, "torch.export", path)


def device_of(record: ExportRecord, device: str) -> str:
    """Return the device that a user means: "auto" is the CPU for an ONNX export, which runs nowhere else."""
    return "cpu" if device == "auto" and record.kind != TORCH else device


def onnx_runner(path: Path, device: torch.device) -> RunInputs:
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
        raise not_loaded(path, error) from error

    def run(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        (logits,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return torch.from_numpy(logits)

    return run
