"""Checkpoints: everything a run needs to resume as if it had never stopped, and what must not have changed until then."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from glassloop.base.errors import ModelError, ResourceError, ResumeError, counted, listed, resource_error, shortened
from glassloop.base.files import fault_point, replacing_dir, set_aside, sha256_of
from glassloop.base.records import sealed
from glassloop.data.interfaces import Config
from glassloop.runs.record import EARLIER_CHECKPOINTS, KEPT_CHECKPOINTS_NAME, checkpoint_name, checkpoints_in, step_of
from glassloop.training.callbacks import Callback, State
from glassloop.training.interfaces import LRScheduler, Optimizer, OptimizerState, Tensors
from glassloop.training.optimizer import unwrap_optimizer

Identity: TypeAlias = dict[str, object]  # values that JSON can hold


# Entries of a config that describe where a model comes from, not what it computes. Labels are compared by name.
ORIGIN = (
    "_name_or_path",
    "_commit_hash",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "id2label",
    "label2id",
)


# Attributes of a schedule that change while it runs.
COUNTERS = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "lr_lambdas")


JSON = (bool, int, float, str, type(None))


PLAIN = (*JSON, bytes, complex)


MOST_DEPTH, MOST_SHOWN = 6, 8


def digest(text: str | bytes, size: int = 8) -> str:
    """Return a hash of `size` bytes in hexadecimal."""
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=size).hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash over names, types, shapes and bytes of all weights, computed on all cores."""
    # Only compared before the first checkpoint, which replaces all weights: a script that creates a new head without a
    # seed starts with different ones each time.
    weights = sorted(model.state_dict().items())

    def one(entry: tuple[str, torch.Tensor]) -> str:
        return f"{entry[0]} {tensor_digest(entry[1])}"

    with ThreadPoolExecutor() as pool:
        return digest("\n".join(pool.map(one, weights)), 16)


def tensor_digest(value: torch.Tensor) -> str:
    content = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(value.shape)} {value.dtype} {blake2b(content.data, digest_size=16).hexdigest()}"


def rows_fingerprint(hashes: np.ndarray) -> str:
    """Return the number of rows and a short hash of them all."""
    return f"{len(hashes):,} rows ({digest(hashes.tobytes())})"


def config_values(config: Config) -> Identity:
    """Return the entries of a model's config that change what it computes."""
    found: Identity = json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}
    return {name: value for name, value in sorted(found.items()) if name not in ORIGIN}


def frozen_names(model: torch.nn.Module) -> list[str]:
    return sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def weightless_parts(model: torch.nn.Module) -> str:
    """Return the dropout rates of a model, and a hash over its modules without weights, which a checkpoint does not restore."""
    leaves = {name: part for name, part in model.named_modules() if not ([*part.children()] or part.state_dict())}
    rates = sorted({part.p for part in leaves.values() if isinstance(part, torch.nn.Dropout)})
    shown = " ".join(f"{name} {part!r}" for name, part in leaves.items())
    return f"dropout {listed(rates) or 'none'} ({digest(shown)})"


def optimizer_values(model: torch.nn.Module, optimizer: Optimizer) -> Identity:
    """Return class and settings of an optimizer, and which parameters each of its groups holds."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        held = sorted(names.get(id(parameter), "unknown") for parameter in group["params"])
        kept = {name: group[name] for name in sorted(group) if name not in ("params", "initial_lr")}
        settings = {name: value if isinstance(value, JSON) else text_of(value) for name, value in kept.items()}
        settings |= {"lr": float(group.get("initial_lr", group["lr"]))}  # a schedule changes lr itself
        groups.append(settings | {"weights": f"{len(held):,} ({digest(' '.join(held))})"})
    return {"class": type(optimizer).__qualname__, "groups": {str(number): group for number, group in enumerate(groups)}}


def schedule_values(schedule: LRScheduler) -> Identity:
    """Return class and settings of a schedule, without its counters."""
    state = {name: value for name, value in vars(schedule).items() if name not in (*COUNTERS, "optimizer")}
    kept = {name: value for name, value in sorted(state.items()) if isinstance(value, (*PLAIN, list, tuple))}
    rates = [identified(rate) for rate in getattr(schedule, "lr_lambdas", ())]
    return {"class": type(schedule).__qualname__, "settings": digest(text_of(kept)), "functions": rates}


def identified(call: object) -> str:
    """Return the name of a function or callable object, with a hash of its code and of the values it uses."""
    # Bytecode, defaults, closure and plain values: a change that computes the same is refused too, one that computes
    # something else is never accepted.
    target = call.func if isinstance(call, partial) else call
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{name} ({digest(text_of(call))})"


def text_of(value: object, depth: int = 0) -> str:
    """Return a text that changes if a value changes, or the code and the plain values behind it."""
    if isinstance(value, PLAIN):
        return repr(value)
    if depth == MOST_DEPTH:
        return type(value).__qualname__
    deeper = depth + 1
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {text_of(entry, deeper)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text_of(entry, deeper) for entry in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(text_of(entry, deeper) for entry in value)) + "}"
    if isinstance(value, torch.Tensor):
        return tensor_digest(value)
    if isinstance(value, partial):
        return text_of([value.func, value.args, value.keywords], deeper)
    if isinstance(value, CodeType):
        return text_of([value.co_code, value.co_names, value.co_varnames, value.co_consts], deeper)
    if isinstance(value, FunctionType):
        used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        plain = {name: found for name, found in used.items() if isinstance(found, (*PLAIN, FunctionType, torch.Tensor))}
        return text_of([value.__code__, value.__defaults__, value.__kwdefaults__, cell_values(value), plain], deeper)
    if isinstance(value, MethodType):
        return text_of([value.__func__, value.__self__], deeper)
    if isinstance(value, type | BuiltinFunctionType):
        return value.__qualname__
    if isinstance(value, torch.nn.Module):
        own = {name: entry for name, entry in vars(value).items() if isinstance(entry, PLAIN) and name != "training"}
        return text_of([type(value).__qualname__, type(value).forward, repr(value), own, value.state_dict()], deeper)
    code = next((vars(kind)["__call__"] for kind in type(value).__mro__ if "__call__" in vars(kind)), None)
    return text_of(
        [type(value).__qualname__, code if isinstance(code, FunctionType) else None, getattr(value, "__dict__", {})], deeper
    )


def cell_values(function: FunctionType) -> list[object]:
    """Return the values of a function's closure; None for a cell that is still empty."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def differences(stored: object, now: object, name: str = "") -> list[str]:
    """Return a sentence for each value that differs, with both values side by side."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        names = [*stored, *(entry for entry in now if entry not in stored)]
        inside = ((entry, f"{name}.{entry}" if name else entry) for entry in names)
        return [line for entry, place in inside for line in differences(stored.get(entry), now.get(entry), place)]
    if stored == now:
        return []
    if isinstance(stored, list) and isinstance(now, list):
        removed, added = ([entry for entry in one if entry not in other] for one, other in ((stored, now), (now, stored)))
        if (removed or added) and max(len(stored), len(now)) > MOST_SHOWN:
            return [
                f"{name}: {len(stored):,} then ({listed(removed, 3) or 'all'}), {len(now):,} now ({listed(added, 3) or 'all'})"
            ]
    return [f"{name}: {shown(stored)} then, {shown(now)} now"]


def shown(value: object) -> str:
    """Return a value as text; of a long list only the first entries."""
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        return listed(value, MOST_SHOWN)
    return shortened(value)


OTHER_MODEL = "the checkpoint belongs to another model"


PlainRandom: TypeAlias = list[Any]  # the random states of Python and of NumPy


class OptimizerSettings(TypedDict):
    """The settings of each group of an optimizer's parameters, such as its learning rate."""

    groups: list[dict[str, Any]]


class PlainValues(TypedDict):
    """Everything about a training that is not a tensor; state.json of a checkpoint holds it."""

    state: dict[str, Any]
    optimizer: OptimizerSettings
    scheduler: dict[str, Any]
    scaler: dict[str, Any]
    random: list[PlainRandom]  # one per process
    processes: int
    versions: dict[str, str]
    tensors: NotRequired[dict[str, dict[str, str]]]  # shape and type of each tensor in each file


@dataclass(frozen=True)
class Snapshot:
    """A training between two steps, copied to main memory, so that it can continue while the copy is written."""

    model: Tensors
    optimizer: Tensors
    best: Tensors  # the weights of the best evaluation
    randoms: list[Tensors]  # one per process
    rows: torch.Tensor  # a hash of each training row
    plain: PlainValues
    identity: Identity  # what must not change when the run is resumed
    texts: Mapping[str, str] = field(default_factory=dict)  # files for other programs, by name

    @property
    def step(self) -> int:
        """Return the number of steps that were taken."""
        return int(self.plain["state"]["step"])

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensors."""
        tensors = [*self.model.values(), *self.optimizer.values(), *self.best.values(), self.rows]
        return sum(tensor.nbytes for tensor in tensors)


def optimizer_tensors(
    model: torch.nn.Module, optimizer: Optimizer, gathered: OptimizerState | None = None
) -> tuple[Tensors, OptimizerSettings]:
    """Return the optimizer's state by the names of the parameters, and its settings.

    `gathered` is used in place of the optimizer's own state, of which a process may hold only a part.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = unwrap_optimizer(optimizer)
    own: Mapping[Any, Mapping[str, Any]] = inner.torch_state() if hasattr(inner, "torch_state") else inner.state
    tensors = {}
    for parameter, values in (own if gathered is None else gathered).items():
        for key, value in values.items():
            if value is not None:  # as SGD without momentum has it
                tensors[f"{key}/{names[id(parameter)]}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    return tensors, {"groups": groups}


def restore_optimizer(model: torch.nn.Module, optimizer: Optimizer, tensors: Tensors, settings: OptimizerSettings) -> None:
    """Restore what `optimizer_tensors` returned; raise `ModelError` if it does not fit the model."""
    inner, parameters = unwrap_optimizer(optimizer), dict(model.named_parameters())
    inner.state.clear()
    for name, value in tensors.items():
        key, _, parameter_name = name.partition("/")
        if parameter_name not in parameters:
            raise ModelError(f"optimizer.safetensors: {name} does not belong to a parameter of the model", OTHER_MODEL)
        parameter = parameters[parameter_name]
        if value.dim() == parameter.dim() and value.shape != parameter.shape:  # Adafactor keeps rows and columns
            raise ModelError(f"optimizer.safetensors: {name} has the shape {tuple(value.shape)}", OTHER_MODEL)
        where = "cpu" if key == "step" and not inner.defaults.get("fused") else parameter.device
        inner.state[parameter][key] = value.to(where)
    if hasattr(inner, "load_torch_state"):
        inner.load_torch_state()
    for group, stored in zip(inner.param_groups, settings["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})


def random_tensors(device: torch.device) -> tuple[Tensors, PlainRandom]:
    """Return the random states of this process: torch's as tensors, Python's and NumPy's as plain values."""
    tensors = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    kind, numpy_keys, *rest = np.random.get_state()
    return tensors, [random.getstate(), [kind, np.asarray(numpy_keys).tolist(), *rest]]


def restore_random(tensors: Tensors, plain: PlainRandom, device: torch.device) -> None:
    """Restore what `random_tensors` returned."""
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)
    version, values, gauss = plain[0]
    random.setstate((version, tuple(values), gauss))
    kind, numpy_keys, *rest = plain[1]
    np.random.set_state((kind, np.array(numpy_keys, dtype=np.uint32), *rest))


FORMAT = 1


MANIFEST = "manifest.json"


WEIGHTS_NAME = "model.safetensors"


OTHER_CHECKPOINT = "resume from another checkpoint"


OF_TRANSFORMERS = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "training_args.bin")  # which cannot be read safely


class FileSum(TypedDict):
    """Size and SHA-256 of a file."""

    size: int
    sha256: str


class Manifest(TypedDict):
    """What manifest.json holds: which files belong to a checkpoint, and what must not change when the run is resumed."""

    format: int
    step: int
    identity: Identity
    files: dict[str, FileSum]
    state: NotRequired[dict[str, Any]]  # of a final model
    metrics: NotRequired[dict[str, float]]  # of a final model


def shapes_of(tensors: Tensors) -> dict[str, str]:
    """Return shape and type of each tensor."""
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}


def write_checkpoint(path: Path, snapshot: Snapshot, save_model: Callable[[Path, Tensors], None]) -> None:
    """Write a snapshot under a temporary name: its files, then the manifest. Then give it the name `path`."""
    # The layout of transformers, because scripts, callbacks and other programs look for it. The exact state lies beside
    # the model's files, under names that transformers does not use.
    with replacing_dir(path, replace=True) as writing:
        save_model(writing, dict(snapshot.model))  # save_pretrained empties this dict
        fault_point("write", writing / WEIGHTS_NAME)
        tensors = {"optimizer": snapshot.optimizer, "rows": {"rows": snapshot.rows}}
        tensors |= {f"random-{rank}": state for rank, state in enumerate(snapshot.randoms)}
        tensors |= {"best": snapshot.best} if snapshot.best else {}
        if not holds(writing / WEIGHTS_NAME, snapshot.model):  # an adapter was merged, for example
            tensors["weights"] = snapshot.model
        for name, content in tensors.items():
            save_file(content, writing / f"{name}.safetensors")
            fault_point("write", writing / name)
        for name, text in snapshot.texts.items():
            (writing / name).write_text(text, encoding="utf-8")
        plain = {**snapshot.plain, "tensors": {name: shapes_of(content) for name, content in tensors.items()}}
        (writing / "state.json").write_text(json.dumps(plain, allow_nan=False), encoding="utf-8")
        fault_point("write", writing / "state.json")
        files = sums_of(writing)
        manifest = {"format": FORMAT, "step": snapshot.step, "identity": snapshot.identity, "files": files}
        (writing / MANIFEST).write_text(json.dumps(sealed(manifest), indent=1, allow_nan=False), encoding="utf-8")
        fault_point("write", writing / MANIFEST)


def holds(path: Path, weights: Tensors) -> bool:
    """Return whether a safetensors file holds exactly these weights."""
    # A script's save_model may write other weights; comparing them costs little next to the SHA-256 of the same file.
    if not path.is_file() or names_in(path) != {*weights}:
        return False
    with safe_open(path, framework="pt") as opened:
        found = ((opened.get_tensor(name), value) for name, value in weights.items())
        return all(one.dtype == value.dtype and torch.equal(one, value) for one, value in found)


def names_in(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file."""
    with safe_open(path, framework="pt") as opened:
        return {*opened.keys()}


def sums_of(folder: Path) -> dict[str, FileSum]:
    """Return the size and SHA-256 of every file below a folder."""
    return {str(file.relative_to(folder)): sum_of(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def sum_of(file: Path) -> FileSum:
    """Return the size and SHA-256 of a file."""
    return {"size": file.stat().st_size, "sha256": sha256_of(file)}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files agree with its manifest."""

    path: Path
    manifest: Manifest

    @property
    def plain(self) -> PlainValues:
        """Return the content of state.json."""
        found: PlainValues = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return found

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file, none if nothing was written; raise `ModelError` if they are not those that were."""
        path, written = self.path / f"{name}.safetensors", self.plain.get("tensors", {})
        if name not in written:
            return {}
        try:
            found = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: cannot be read: {error}", OTHER_CHECKPOINT) from error
        then, now = written[name], shapes_of(found)
        for tensor in (key for key in {**then, **now} if then.get(key) != now.get(key)):
            problem = f"{path}: the tensor {tensor} is {now.get(tensor, 'missing')}, but was {then.get(tensor, 'missing')}"
            raise ModelError(problem, OTHER_CHECKPOINT)
        return found

    def weights(self) -> Tensors:
        """Return the weights under the names they have in training: those of the model, unless it was saved in another form."""
        try:
            return self.tensors("weights") or load_file(self.path / WEIGHTS_NAME)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path / WEIGHTS_NAME}: cannot be read: {error}", OTHER_CHECKPOINT) from error


def open_checkpoint(path: Path, manifest_name: str = MANIFEST) -> Checkpoint:
    """Return a checkpoint after comparing all its files with its manifest; raise `ModelError` with the first that differs.

    Files that are not in the manifest, such as a `.DS_Store` or an editor's backup, are ignored.
    """
    manifest = read_manifest(path, manifest_name)
    try:
        files = {str(name): (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"checkpoint {path}: {manifest_name} is damaged", OTHER_CHECKPOINT) from error
    for name, (size, digest) in files.items():
        file = path / name
        try:
            if not file.is_file():
                raise ModelError(f"checkpoint {path}: {name} is missing", OTHER_CHECKPOINT)
            if file.stat().st_size != size or sha256_of(file) != digest:
                raise ModelError(f"checkpoint {path}: {name} is damaged", OTHER_CHECKPOINT)
        except (OSError, ValueError) as error:
            raise ModelError(f"checkpoint {path}: {name} cannot be read: {error}", OTHER_CHECKPOINT) from error
    return Checkpoint(path, manifest)


def read_manifest(path: Path, name: str = MANIFEST) -> Manifest:
    """Return the manifest of a checkpoint; raise `ModelError` if it is missing, damaged, or in another format."""
    if not (path / name).exists() and any((path / other).is_file() for other in OF_TRANSFORMERS):
        problem = f"checkpoint {path} was written by transformers' Trainer, which cannot be resumed exactly"
        raise ModelError(problem, f"start a new training from its model: model={path}")
    try:
        if not (path / name).is_file():  # a pipe would wait forever, a device never end
            raise ValueError("not a file")
        content = json.loads((path / name).read_text(encoding="utf-8"))
        version = content["format"]
        if type(version) is int and version > FORMAT:  # first: a newer format may compute the checksum differently
            raise ModelError(
                f"checkpoint {path}: written in format {version} by a newer version of Glassloop; this version reads {FORMAT}",
                "update Glassloop",
            )
        if version != FORMAT or sealed(content) != content:
            raise ValueError("wrong checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"checkpoint {path}: {name} is missing or damaged", OTHER_CHECKPOINT) from error
    manifest: Manifest = content
    return manifest


def refuse_other_tensors(expected: Tensors, found: Tensors, where: str) -> None:
    """Raise `ModelError` with the first tensor that is missing, unknown, or of another shape or type."""
    for name in expected:
        if name not in found:
            raise ModelError(f"{where}: the tensor {name} is missing", OTHER_MODEL)
        if found[name].shape != expected[name].shape or found[name].dtype != expected[name].dtype:
            is_now = f"{tuple(found[name].shape)} {found[name].dtype}"
            raise ModelError(
                f"{where}: the tensor {name} is {is_now}, not {tuple(expected[name].shape)} {expected[name].dtype}",
                OTHER_MODEL,
            )
    if added := [name for name in found if name not in expected]:
        raise ModelError(f"{where}: the tensor {added[0]} does not belong to the model", OTHER_MODEL)


def refuse_other_identity(stored: Identity, now: Identity, stored_rows: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise `ResumeError` with both values if settings or data that change the numbers differ from those of the checkpoint."""
    if changed := differences(stored, now):
        raise ResumeError(
            "the run was started with different settings: " + "; ".join(changed), "use the settings it was started with"
        )
    if len(stored_rows) == len(rows) and stored_rows.any():
        rows = torch.where(stored_rows == 0, stored_rows, rows)  # rows that the run had not read yet
    if not torch.equal(stored_rows, rows):
        raise ResumeError(f"the training data has changed: {row_changes(stored_rows, rows)}", "restore the original data")


def row_changes(before: torch.Tensor, after: torch.Tensor) -> str:
    """Return what happened to the rows, from their hashes."""
    if len(before) != len(after):
        difference = len(after) - len(before)
        return f"{len(before):,} rows then, {len(after):,} now ({abs(difference):,} {'added' if difference > 0 else 'removed'})"
    different = (before != after).nonzero().flatten().tolist()
    if torch.equal(before.sort().values, after.sort().values):
        return f"the same rows in another order (from row {different[0] + 1:,} on)"
    return f"{len(different):,} rows edited (first row {different[0] + 1:,})"


RESTART = "restore one of them, or start again from step 0 and move them aside: --restart, or train(restart=True)"


class CheckpointFolder:
    """The checkpoints in a run folder. Damaged ones are never overwritten, counted or removed.

    Checkpoints that this process wrote or opened are known to be intact. Others are verified once, when they are needed.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.verified: dict[Path, bool] = {}

    def open(self, path: Path) -> Checkpoint:
        """Return a checkpoint after verifying it; raise `ModelError` with the file that is damaged."""
        self.verified[path] = False
        found = open_checkpoint(path)
        self.verified[path] = True
        return found

    def is_intact(self, path: Path) -> bool:
        """Return whether all files of a checkpoint are as they were written."""
        if path not in self.verified:
            try:
                self.open(path)
            except ModelError as error:
                self.say(f"kept, but not counted in save_total_limit: {error.problem}")
        return self.verified[path]

    def newest(self, skipped: Iterable[str] = ()) -> Checkpoint | None:
        """Return the intact checkpoint with the highest step, and report skipped ones; None if there are no checkpoints.

        `skipped` names what the caller has skipped before. Raises `ModelError` with all reasons if nothing can be used.
        """
        # Unusable checkpoints are an error, not a new start, which would discard hours of training.
        reasons = [*skipped, *(f"{path} was written by an earlier version" for path in self.folder.glob(EARLIER_CHECKPOINTS))]
        for path in checkpoints_in(self.folder):
            try:
                found = self.open(path)
            except ModelError as error:
                reasons.append(error.problem)
                continue
            for reason in reasons:
                self.say(f"skipped: {reason}")
            return found
        if reasons:
            number = counted(len(reasons), "checkpoint, which cannot", "checkpoints, none of which can")
            raise ModelError(f"{self.folder}: {number} be used: {'; '.join(reasons)}", RESTART)
        return None

    def write(self, snapshot: Snapshot, save_model: Callable[[Path, Tensors], None]) -> Path:
        """Write a snapshot. Replace an intact checkpoint of the same step; move a damaged one aside."""
        path = self.folder / checkpoint_name(snapshot.step)
        if os.path.lexists(path) and not self.is_intact(path):
            self.set_aside(path)
        self.verified.pop(path, None)
        write_checkpoint(path, snapshot, save_model)
        self.verified[path] = True
        return path

    def rotate(self, written: Path, keep: int | None, best_step: int | None) -> None:
        """Remove old intact checkpoints until `keep` are left, counting `written`; never that of the best evaluation.

        Checkpoints of later steps, which exist after a resume from an earlier one, stay until training has passed them.
        """
        # Only older ones: after resuming from an earlier checkpoint, later ones stay until training has passed
        # them.
        if keep is None:
            return
        best = None if best_step is None else self.folder / checkpoint_name(best_step)
        older = [path for path in checkpoints_in(self.folder) if step_of(path) < step_of(written) and self.is_intact(path)]
        for path in older[max(keep - 1, 0) :]:
            if path != best:
                renamed = path.with_name(f".{path.name}.old")
                path.rename(renamed)  # at once: a checkpoint that is partly removed never has its final name
                fault_point("rename", path)
                shutil.rmtree(renamed, ignore_errors=True)

    def restart(self) -> None:
        """Move all checkpoints aside, into one folder, so that a run can start from step 0."""
        # The newest last, so that a crash in between leaves a run that can be resumed.
        found, gathered = checkpoints_in(self.folder), self.folder / KEPT_CHECKPOINTS_NAME
        if found or any(self.folder.glob(EARLIER_CHECKPOINTS)):
            gathered.mkdir(exist_ok=True)
            for path in reversed(found):  # the newest last: a crash leaves a run that can be resumed
                path.rename(gathered / path.name)
            self.set_aside(gathered)
            self.verified.clear()

    def set_aside(self, path: Path) -> None:
        """Give `path` a name that no run uses, and report it."""
        self.say(f"moved aside: {path} is now {set_aside(path).name}")


class Saver:
    """Writes snapshots one after the other in a thread; the next call raises an error that occurred there.

    `keep`: the number of checkpoints to keep; None keeps all.
    """

    def __init__(self, checkpoints: CheckpointFolder, keep: int | None, save_model: Callable[[Path, Tensors], None]) -> None:
        self.checkpoints, self.keep, self.save_model = checkpoints, keep, save_model
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.step = self.num_bytes = 0

    def save(self, snapshot: Snapshot, *, in_background: bool = True) -> None:
        """Write a snapshot, `in_background` while training continues."""
        self.wait()
        self.step, self.num_bytes = snapshot.step, snapshot.num_bytes
        if in_background:
            self.thread = threading.Thread(target=self.write, args=(snapshot,), name="checkpoint")
            self.thread.start()
        else:
            self.write(snapshot)
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot and remove old checkpoints."""
        try:
            written = self.checkpoints.write(snapshot, self.save_model)
            self.checkpoints.rotate(written, self.keep, snapshot.plain["state"]["best_step"])
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until the last snapshot is written; raise the error that occurred."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            path = self.checkpoints.folder / checkpoint_name(self.step)
            raise full_disk(error, path, "a checkpoint", self.num_bytes) or error from error


def full_disk(error: BaseException, folder: Path, what: str, num_bytes: int | None = None) -> ResourceError | None:
    """Return an error with path, needed and free bytes and how to resume, if a write into a run folder failed; else None."""
    if isinstance(error, ResourceError) or not (isinstance(error, OSError) or resource_error(error)):
        return None
    reason = error.strerror if isinstance(error, OSError) else error  # safetensors has its own error class
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    needed = f"{num_bytes:,} bytes needed, " if num_bytes is not None else ""
    room = f"{needed}{shutil.disk_usage(existing).free:,} bytes free"
    return ResourceError(
        f"{getattr(error, 'filename', None) or folder}: {reason} while writing {what} ({room})",
        f"free disk space, then resume: glassloop train --resume {folder.parent}",
    )


class SaveBest(Callback):
    """Asks for a checkpoint after each evaluation that is the best one so far."""

    reads_weights = False

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Ask for a checkpoint if this evaluation is the best one."""
        if state.best_step == state.step:
            state.asked.add("save")


class BestWeights(Callback):
    """Keeps a copy of the weights of the best evaluation in main memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.weights: Tensors = {}

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Copy the weights if this evaluation is the best one."""
        if state.best_step == state.step:
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}
