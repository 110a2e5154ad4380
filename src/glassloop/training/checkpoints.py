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
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from glassloop.base.errors import ModelError, ResourceError, ResumeError, counted, resource_error
from glassloop.base.files import fault_point, replacing_dir, set_aside, sha256_of
from glassloop.base.records import differences, sealed
from glassloop.runs.record import EARLIER_CHECKPOINTS, KEPT_CHECKPOINTS_NAME, checkpoint_name, checkpoints_in, step_of
from glassloop.training.interfaces import LRScheduler, Optimizer, OptimizerState, Tensors
from glassloop.training.optimizer import unwrap_optimizer

FORMAT = 1
MANIFEST, WEIGHTS_NAME = "manifest.json", "model.safetensors"
OTHER_MODEL = "the checkpoint belongs to another model"
OTHER_CHECKPOINT = "resume from another checkpoint"
RESTART = "restore one of them, or start again from step 0 and move them aside: --restart, or train(restart=True)"
OF_TRANSFORMERS = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "training_args.bin")  # which cannot be read safely
# Attributes of a schedule that change while it runs.
COUNTERS = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "lr_lambdas", "optimizer")
JSON = (bool, int, float, str, type(None))
PLAIN = (*JSON, bytes, complex)
MOST_DEPTH = 6

Identity: TypeAlias = dict[str, object]  # values that JSON can hold
FileSums: TypeAlias = dict[str, dict[str, int | str]]  # size and SHA-256 by name
PlainRandom: TypeAlias = list[object]  # the random states of Python and of NumPy
OptimizerSettings: TypeAlias = dict[str, list[dict[str, object]]]  # "groups": the settings of each group of parameters
SaveModel: TypeAlias = Callable[[Path, Tensors], None]


# --- identity: everything that determines the numbers of a training, as short values -----------------------------------
def digest(text: str | bytes, size: int = 8) -> str:
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=size).hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash over names, types, shapes and bytes of all weights."""
    # Only compared before the first checkpoint, which replaces all weights: a script that creates a new head without a
    # seed starts with different ones each time.
    return fingerprint_of(tensor_digests(model.state_dict()))


def fingerprint_of(digests: Mapping[str, str], prefix: str = "") -> str:
    """Return the fingerprint of weights from the digest of each; of those whose names have a `prefix`, unless none has it."""
    inside = {name: text for name, text in digests.items() if name.startswith(prefix)} or digests
    return digest("\n".join(f"{name} {text}" for name, text in sorted(inside.items())), 16)


def tensor_digests(weights: Tensors) -> dict[str, str]:
    """Return the digest of each tensor by its name, computed on all cores."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(weights, pool.map(tensor_digest, weights.values()), strict=True))


def tensor_digest(value: torch.Tensor) -> str:
    content = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(value.shape)} {value.dtype} {blake2b(content.data, digest_size=16).hexdigest()}"


def rows_fingerprint(hashes: np.ndarray) -> str:
    return f"{len(hashes):,} rows ({digest(hashes.tobytes())})"


def optimizer_values(model: torch.nn.Module, optimizer: Optimizer) -> Identity:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {}
    for number, group in enumerate(optimizer.param_groups):
        members = sorted(names.get(id(parameter), "unknown") for parameter in group["params"])
        settings = {name: group[name] for name in sorted(group) if name not in ("params", "initial_lr")}
        groups[str(number)] = {
            **{name: value if isinstance(value, JSON) else text_of(value) for name, value in settings.items()},
            "lr": float(group.get("initial_lr", group["lr"])),  # a schedule changes lr itself
            "weights": f"{len(members):,} ({digest(' '.join(members))})",
        }
    return {"class": type(optimizer).__qualname__, "groups": groups}


def schedule_values(schedule: LRScheduler) -> Identity:
    state = {name: value for name, value in sorted(vars(schedule).items()) if name not in COUNTERS}
    settings = {name: value for name, value in state.items() if isinstance(value, (*PLAIN, list, tuple))}
    rates = [identified(rate) for rate in getattr(schedule, "lr_lambdas", ())]
    return {"class": type(schedule).__qualname__, "settings": digest(text_of(settings)), "functions": rates}


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
    inner = partial(text_of, depth=depth + 1)
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}: {inner(entry)}" for name, entry in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(inner, value)) + "]"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(inner, value))) + "}"
        case torch.Tensor():
            return tensor_digest(value)
        case type() | BuiltinFunctionType():
            return value.__qualname__
        case partial():
            return inner([value.func, value.args, value.keywords])
        case MethodType():
            return inner([value.__func__, value.__self__])
        case CodeType():
            return inner([value.co_code, value.co_names, value.co_varnames, value.co_consts])
        case FunctionType():
            used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
            simple = {name: found for name, found in used.items() if isinstance(found, (*PLAIN, FunctionType, torch.Tensor))}
            return inner([value.__code__, value.__defaults__, value.__kwdefaults__, cell_values(value), simple])
        case torch.nn.Module():
            simple = {name: entry for name, entry in vars(value).items() if isinstance(entry, PLAIN) and name != "training"}
            return inner([type(value).__qualname__, type(value).forward, repr(value), simple, value.state_dict()])
    code = next((vars(kind)["__call__"] for kind in type(value).__mro__ if "__call__" in vars(kind)), None)
    code = code if isinstance(code, FunctionType) else None
    return inner([type(value).__qualname__, code, getattr(value, "__dict__", {})])


def cell_values(function: FunctionType) -> list[object]:
    """Return the values of a function's closure; None for a cell that is still empty."""
    values: list[object] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            values.append(None)
    return values


def refuse_other_identity(stored: Identity, now: Identity, stored_rows: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise `ResumeError` with both values if settings or data that change the numbers differ from those of the checkpoint."""
    if changed := differences(stored, now):
        problem = f"the run was started with different settings: {'; '.join(changed)}"
        raise ResumeError(problem, "use the settings it was started with")
    if len(stored_rows) == len(rows) and stored_rows.any():
        rows = torch.where(stored_rows == 0, stored_rows, rows)  # rows that the run had not read yet
    if not torch.equal(stored_rows, rows):
        raise ResumeError(f"the training data has changed: {row_changes(stored_rows, rows)}", "restore the original data")


def row_changes(before: torch.Tensor, after: torch.Tensor) -> str:
    if difference := len(after) - len(before):
        change = f"{abs(difference):,} {'added' if difference > 0 else 'removed'}"
        return f"{len(before):,} rows then, {len(after):,} now ({change})"
    different = (before != after).nonzero().flatten().tolist()
    if torch.equal(before.sort().values, after.sort().values):
        return f"the same rows in another order (from row {different[0] + 1:,} on)"
    return f"{len(different):,} rows edited (first row {different[0] + 1:,})"


# --- the states of optimizers and random generators --------------------------------------------------------------------
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


def optimizer_tensors(
    model: torch.nn.Module, optimizer: Optimizer, gathered: OptimizerState | None = None
) -> tuple[Tensors, OptimizerSettings]:
    """Return the state of the optimizer, or the one `gathered` of all processes, by parameter name, and its settings."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = unwrap_optimizer(optimizer)
    states: Mapping[Any, Mapping[str, Any]] = inner.torch_state() if hasattr(inner, "torch_state") else inner.state
    tensors = {
        f"{key}/{names[id(parameter)]}": torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
        for parameter, values in (states if gathered is None else gathered).items()
        for key, value in values.items()
        if value is not None  # as SGD without momentum has it
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    return tensors, {"groups": groups}


def restore_optimizer(model: torch.nn.Module, optimizer: Optimizer, tensors: Tensors, settings: OptimizerSettings) -> None:
    inner, parameters = unwrap_optimizer(optimizer), dict(model.named_parameters())
    inner.state.clear()
    for name, value in tensors.items():
        key, _, parameter_name = name.partition("/")
        parameter = parameters.get(parameter_name)
        if parameter is None:
            raise ModelError(f"optimizer.safetensors: {name} does not belong to a parameter of the model", OTHER_MODEL)
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
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)
    states: list[Any] = plain
    (version, values, gauss), (kind, numpy_keys, *rest) = states
    random.setstate((version, tuple(values), gauss))
    np.random.set_state((kind, np.array(numpy_keys, dtype=np.uint32), *rest))


# --- one checkpoint ----------------------------------------------------------------------------------------------------
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
        return int(self.plain["state"]["step"])

    @property
    def num_bytes(self) -> int:
        tensors = [*self.model.values(), *self.optimizer.values(), *self.best.values(), self.rows]
        return sum(tensor.nbytes for tensor in tensors)


class Manifest(TypedDict):
    """What manifest.json holds: which files belong to a checkpoint, and what must not change when the run is resumed."""

    format: int
    step: int
    identity: Identity
    files: FileSums
    state: NotRequired[dict[str, Any]]  # of a final model
    metrics: NotRequired[dict[str, float]]  # of a final model


def write_checkpoint(path: Path, snapshot: Snapshot, save_model: SaveModel) -> None:
    """Write a snapshot under a temporary name: its files, then the manifest. Then give it the name `path`."""
    # The layout of transformers, because scripts, callbacks and other programs look for it. The exact state lies beside
    # the model's files, under names that transformers does not use.
    with replacing_dir(path, replace=True) as writing:

        def write(name: str, content: object, indent: int | None = None) -> None:
            (writing / name).write_text(json.dumps(content, indent=indent, allow_nan=False), encoding="utf-8")
            fault_point("write", writing / name)

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
        write("state.json", {**snapshot.plain, "tensors": {name: shapes_of(content) for name, content in tensors.items()}})
        write(MANIFEST, manifest_of(snapshot.step, snapshot.identity, sums_of(writing)), indent=1)


def manifest_of(step: int, identity: Identity, files: FileSums, **of_final_model: object) -> dict[str, object]:
    return sealed({"format": FORMAT, "step": step, "identity": identity, "files": files, **of_final_model})


def holds(path: Path, weights: Tensors) -> bool:
    """Return whether a safetensors file holds exactly these weights."""
    # A script's save_model may write other weights; comparing them costs little next to the SHA-256 of the same file.
    if not path.is_file() or names_in(path) != {*weights}:
        return False
    with safe_open(path, framework="pt") as opened:
        pairs = ((opened.get_tensor(name), value) for name, value in weights.items())
        return all(stored.dtype == value.dtype and torch.equal(stored, value) for stored, value in pairs)


def names_in(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as opened:
        return {*opened.keys()}


def sums_of(folder: Path, below: str = ".") -> FileSums:
    """Return the size and SHA-256 of a file in a folder, or of every file below a folder in it."""
    place = folder / below
    files = [place] if place.is_file() else [file for file in sorted(place.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": sha256_of(file)} for file in files}


def shapes_of(tensors: Tensors) -> dict[str, str]:
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}


def refuse_other_tensors(expected: Mapping[str, str], tensors: Tensors, where: str, remedy: str = OTHER_MODEL) -> None:
    shapes = shapes_of(tensors)
    for name in (name for name in {**expected, **shapes} if expected.get(name) != shapes.get(name)):
        problem = "is unknown" if name not in expected else f"is {shapes.get(name, 'missing')}, not {expected[name]}"
        raise ModelError(f"{where}: the tensor {name} {problem}", remedy)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files agree with its manifest."""

    path: Path
    manifest: Manifest

    @cached_property
    def plain(self) -> PlainValues:
        content: PlainValues = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return content

    def load(self, name: str) -> Tensors:
        try:
            return load_file(self.path / name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path / name}: cannot be read: {error}", OTHER_CHECKPOINT) from error

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file, none if nothing was written; raise `ModelError` if they are not those that were."""
        written = self.plain.get("tensors", {})
        if name not in written:
            return {}
        tensors = self.load(f"{name}.safetensors")
        refuse_other_tensors(written[name], tensors, f"{self.path / name}.safetensors", OTHER_CHECKPOINT)
        return tensors

    def weights(self) -> Tensors:
        """Return the weights under the names they have in training: those of the model, unless it was saved in another form."""
        return self.tensors("weights") or self.load(WEIGHTS_NAME)


def open_checkpoint(path: Path, manifest_name: str = MANIFEST) -> Checkpoint:
    """Return a checkpoint after comparing all its files with its manifest; raise `ModelError` with the first that differs."""

    def refusal(name: str, problem: str) -> ModelError:
        return ModelError(f"checkpoint {path}: {name} {problem}", OTHER_CHECKPOINT)

    written = path / manifest_name
    if not written.exists() and any((path / other).is_file() for other in OF_TRANSFORMERS):
        problem = f"checkpoint {path} was written by transformers' Trainer, which cannot be resumed exactly"
        raise ModelError(problem, f"start a new training from its model: model={path}")
    try:
        if not written.is_file():  # a pipe would wait forever, a device never end
            raise ValueError("not a file")
        manifest: Manifest = json.loads(written.read_text(encoding="utf-8"))
        version = manifest["format"]
        if type(version) is int and version > FORMAT:  # first: a newer format may compute the checksum differently
            problem = f"written in format {version} by a newer version of Glassloop; this version reads {FORMAT}"
            raise ModelError(f"checkpoint {path}: {problem}", "update Glassloop")
        if version != FORMAT or sealed(dict(manifest)) != manifest:
            raise ValueError("wrong checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refusal(manifest_name, "is missing or damaged") from error
    # Files that are not in the manifest, such as a `.DS_Store` or an editor's backup, are ignored.
    try:
        files = {str(name): (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise refusal(manifest_name, "is damaged") from error
    for name, (size, digest) in files.items():
        file = path / name
        try:
            if not file.is_file():
                raise refusal(name, "is missing")
            if file.stat().st_size != size or sha256_of(file) != digest:
                raise refusal(name, "is damaged")
        except (OSError, ValueError) as error:
            raise refusal(name, f"cannot be read: {error}") from error
    return Checkpoint(path, manifest)


# --- all checkpoints of a run ------------------------------------------------------------------------------------------
class CheckpointFolder:
    """The checkpoints in a run folder, of which `keep` stay. Damaged ones are never overwritten, counted or removed."""

    def __init__(self, folder: Path, say: Callable[[str], None], save_model: SaveModel, keep: int | None = None) -> None:
        self.folder, self.say, self.save_model, self.keep = folder, say, save_model, keep
        self.verified: dict[Path, bool] = {}  # those that this process wrote or opened; others are verified when needed
        self.thread: threading.Thread | None = None  # writes the latest snapshot
        self.error: BaseException | None = None  # that occurred while it was written
        self.step = self.num_bytes = 0  # of that snapshot

    def open(self, path: Path) -> Checkpoint:
        self.verified[path] = False
        checkpoint = open_checkpoint(path)
        self.verified[path] = True
        return checkpoint

    def is_intact(self, path: Path) -> bool:
        if path not in self.verified:
            try:
                self.open(path)
            except ModelError as error:
                self.say(f"kept, but not counted in save_total_limit: {error.problem}")
        return self.verified[path]

    def newest(self, skipped: Iterable[str] = ()) -> Checkpoint | None:
        """Return the newest intact checkpoint, and report skipped ones, also those of the caller; None if there is nothing."""
        # Unusable checkpoints are an error, not a new start, which would discard hours of training.
        reasons = [*skipped, *(f"{path} was written by an earlier version" for path in self.folder.glob(EARLIER_CHECKPOINTS))]
        for path in checkpoints_in(self.folder):
            try:
                checkpoint = self.open(path)
            except ModelError as error:
                reasons.append(error.problem)
                continue
            for reason in reasons:
                self.say(f"skipped: {reason}")
            return checkpoint
        if reasons:
            number = counted(len(reasons), "checkpoint, which cannot", "checkpoints, none of which can")
            raise ModelError(f"{self.folder}: {number} be used: {'; '.join(reasons)}", RESTART)
        return None

    def save(self, snapshot: Snapshot, *, in_background: bool = True) -> None:
        """Write a snapshot, `in_background` while training continues: then the next call raises an error that occurred."""
        self.wait()
        self.step, self.num_bytes = snapshot.step, snapshot.num_bytes
        if in_background:
            self.thread = threading.Thread(target=self.write, args=(snapshot,), name="checkpoint")
            self.thread.start()
        else:
            self.write(snapshot)
            self.wait()

    @property
    def is_writing(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def wait(self) -> None:
        """Wait until the last snapshot is written; raise the error that occurred."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise full_disk(error, self.folder / checkpoint_name(self.step), "a checkpoint", self.num_bytes) or error from error

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot. Replace an intact checkpoint of the same step; move a damaged one aside."""
        path = self.folder / checkpoint_name(snapshot.step)
        try:
            if os.path.lexists(path) and not self.is_intact(path):
                self.set_aside(path)
            self.verified.pop(path, None)
            write_checkpoint(path, snapshot, self.save_model)
            self.verified[path] = True
            if self.keep is not None:
                self.rotate(snapshot.step, self.keep, snapshot.plain["state"]["best_step"])
        except BaseException as error:
            self.error = error

    def rotate(self, written: int, keep: int, best_step: int | None) -> None:
        """Remove old intact checkpoints until `keep` are left, counting that of step `written`; never the best."""
        # Those of later steps, which exist after a resume from an earlier one, stay until training has passed them.
        older = [path for path in checkpoints_in(self.folder) if step_of(path) < written and self.is_intact(path)]
        for path in older[max(keep - 1, 0) :]:
            if step_of(path) != best_step:
                renamed = path.with_name(f".{path.name}.old")
                path.rename(renamed)  # at once: a checkpoint that is partly removed never has its final name
                fault_point("rename", path)
                shutil.rmtree(renamed, ignore_errors=True)

    def restart(self) -> None:
        """Move all checkpoints aside, into one folder, so that a run can start from step 0."""
        checkpoints, gathered = checkpoints_in(self.folder), self.folder / KEPT_CHECKPOINTS_NAME
        if checkpoints or any(self.folder.glob(EARLIER_CHECKPOINTS)):
            gathered.mkdir(exist_ok=True)
            for path in reversed(checkpoints):  # the newest last: a crash leaves a run that can be resumed
                path.rename(gathered / path.name)
            self.set_aside(gathered)
            self.verified.clear()

    def set_aside(self, path: Path) -> None:
        """Give `path` a name that no run uses, and report it."""
        self.say(f"moved aside: {path} is now {set_aside(path).name}")


def full_disk(error: BaseException, folder: Path, what: str, num_bytes: int | None = None) -> ResourceError | None:
    """Return an error with path, needed and free bytes and how to resume, if a write into a run folder failed; else None."""
    if isinstance(error, ResourceError) or not (isinstance(error, OSError) or resource_error(error)):
        return None
    reason = error.strerror if isinstance(error, OSError) else error  # safetensors has its own error class
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    needed = f"{num_bytes:,} bytes needed, " if num_bytes is not None else ""
    room = f"{needed}{shutil.disk_usage(existing).free:,} bytes free"
    problem = f"{getattr(error, 'filename', None) or folder}: {reason} while writing {what} ({room})"
    return ResourceError(problem, f"free disk space, then resume: glassloop train --resume {folder.parent}")
