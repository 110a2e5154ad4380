"""Checkpoints: everything a run needs to resume as if it had never stopped, written whole or not at all.

A checkpoint is a folder `step-00000500`: `model/` as any Hugging Face user expects it, `weights.safetensors` where the weights
have other names in training (an adapter), `optimizer.safetensors`, the random state of every process, `state.json`, and last of
all `manifest.json` with the size and SHA-256 of each file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from glassloop.engine.identity import differences
from glassloop.engine.interfaces import Tensors
from glassloop.errors import ModelError
from glassloop.files import fault_point, replacing_dir, sha256_of
from glassloop.records import sealed

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS_NAME = "model.safetensors"
OTHER_CHECKPOINT = "resume from another checkpoint"


@dataclass(frozen=True)
class Snapshot:
    """A run between two steps, copied off the device, so that training can go on while it is written."""

    model: Tensors
    optimizer: Tensors
    best: Tensors
    randoms: list[Tensors]  # of each process
    rows: torch.Tensor  # a hash of each training row
    plain: dict[str, Any]  # state, schedule, scaler, optimizer settings, random states: what JSON can hold
    identity: dict[str, Any]  # what must be the same when the run goes on

    @property
    def step(self) -> int:
        return int(self.plain["state"]["step"])

    @property
    def num_bytes(self) -> int:
        tensors = [*self.model.values(), *self.optimizer.values(), *self.best.values(), self.rows]
        return sum(tensor.nbytes for tensor in tensors)


def kinds_of(tensors: Tensors) -> dict[str, str]:
    """Shape and kind of each tensor."""
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}


def optimizer_of(optimizer: Any) -> Any:
    """The torch optimizer behind Accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)


def optimizer_tensors(model: torch.nn.Module, optimizer: Any, kept: Any = None) -> tuple[Tensors, dict[str, Any]]:
    """The optimizer's state (or what was `kept` of it) by the names of the parameters, and its plain settings."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = optimizer_of(optimizer)
    if kept is None:
        kept = inner.torch_state() if hasattr(inner, "torch_state") else inner.state
    tensors = {}
    for parameter, values in kept.items():
        for key, value in values.items():
            tensors[f"{key}/{names[id(parameter)]}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    return tensors, {"groups": groups}


def restore_optimizer(model: torch.nn.Module, optimizer: Any, tensors: Tensors, plain: dict[str, Any]) -> None:
    """Put back what `optimizer_tensors` took."""
    inner, parameters = optimizer_of(optimizer), dict(model.named_parameters())
    inner.state.clear()
    for name, value in tensors.items():
        key, _, parameter_name = name.partition("/")
        if parameter_name not in parameters:
            raise ModelError(
                f"optimizer.safetensors: {name} belongs to no parameter of the model", "the checkpoint is of another model"
            )
        parameter = parameters[parameter_name]
        if value.dim() and value.shape != parameter.shape:
            raise ModelError(
                f"optimizer.safetensors: {name} has the shape {tuple(value.shape)}", "the checkpoint is of another model"
            )
        where = "cpu" if key == "step" and not inner.defaults.get("fused") else parameter.device
        inner.state[parameter][key] = value.to(where)
    if hasattr(inner, "load_torch_state"):
        inner.load_torch_state()
    for group, stored in zip(inner.param_groups, plain["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})


def random_tensors(device: torch.device) -> tuple[Tensors, list[Any]]:
    """The random states of this process: torch's as tensors, Python's and NumPy's as plain numbers."""
    tensors = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    kind, numpy_keys, *rest = np.random.get_state()
    return tensors, [random.getstate(), [kind, np.asarray(numpy_keys).tolist(), *rest]]


def restore_random(tensors: Tensors, plain: list[Any], device: torch.device) -> None:
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["cuda"], device)
    version, values, gauss = plain[0]
    random.setstate((version, tuple(values), gauss))
    kind, numpy_keys, *rest = plain[1]
    np.random.set_state((kind, np.array(numpy_keys, dtype=np.uint32), *rest))


def write_checkpoint(path: Path, snapshot: Snapshot, save_model: Callable[[Path, Tensors], None]) -> None:
    """Write a snapshot to `path`: its files, then the manifest, then the name."""
    with replacing_dir(path, replace=True) as writing:
        save_model(writing / "model", dict(snapshot.model))  # save_pretrained empties the dict it is given
        fault_point("write", writing / "model")
        tensors = {"optimizer": snapshot.optimizer, "rows": {"rows": snapshot.rows}}
        tensors |= {f"random-{rank}": state for rank, state in enumerate(snapshot.randoms)}
        tensors |= {"best": snapshot.best} if snapshot.best else {}
        if names_in(writing / "model" / WEIGHTS_NAME) != {*snapshot.model}:  # saved in another form: an adapter is merged
            tensors["weights"] = snapshot.model
        for name, content in tensors.items():
            save_file(content, writing / f"{name}.safetensors")
            fault_point("write", writing / name)
        plain = {**snapshot.plain, "tensors": {name: kinds_of(content) for name, content in tensors.items()}}
        (writing / "state.json").write_text(json.dumps(plain, allow_nan=False), encoding="utf-8")
        fault_point("write", writing / "state.json")
        files = sums_of(writing)
        manifest = {"format": FORMAT, "step": snapshot.step, "identity": snapshot.identity, "files": files}
        (writing / MANIFEST).write_text(json.dumps(sealed(manifest), indent=1, allow_nan=False), encoding="utf-8")
        fault_point("write", writing / MANIFEST)


def names_in(path: Path) -> set[str]:
    """The names of the tensors in a safetensors file."""
    with safe_open(path, framework="pt") as opened:
        return {*opened.keys()}


def sums_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of every file below a folder."""
    return {
        str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files are as its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return found

    def tensors(self, name: str) -> Tensors:
        """The tensors of a file, which are those that were written; none where there was nothing to write."""
        path = self.path / f"{name}.safetensors"
        if name not in self.plain["tensors"]:
            return {}
        try:
            found = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: not readable: {error}", OTHER_CHECKPOINT) from error
        then, now = self.plain["tensors"][name], kinds_of(found)
        for tensor in (key for key in {**then, **now} if then.get(key) != now.get(key)):
            problem = f"{path}: the tensor {tensor} is {now.get(tensor, 'missing')}, but was {then.get(tensor, 'not there')}"
            raise ModelError(problem, OTHER_CHECKPOINT)
        return found

    def weights(self) -> Tensors:
        """The weights under the names of training: those of `model/`, unless it was saved in another form."""
        try:
            return self.tensors("weights") or load_file(self.path / "model" / WEIGHTS_NAME)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self.path}/model: not readable: {error}", OTHER_CHECKPOINT) from error


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


def read_manifest(path: Path, name: str = MANIFEST) -> dict[str, Any]:
    """Return the manifest of a checkpoint; raise `ModelError` if it is missing, damaged, or in another format."""
    try:
        manifest: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
        version = manifest["format"]
        if type(version) is int and version > FORMAT:  # before its sum, which a newer format may compute differently
            raise ModelError(
                f"checkpoint {path}: written in format {version} by a newer version of Glassloop; this one reads {FORMAT}",
                "update Glassloop",
            )
        if version != FORMAT or sealed(manifest) != manifest:
            raise ValueError("the sum of its content is wrong")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"checkpoint {path}: {name} is missing or damaged", OTHER_CHECKPOINT) from error
    return manifest


def refuse_other_tensors(expected: Tensors, found: Tensors, where: str) -> None:
    """Raise with the first tensor that is missing, added, or of another shape or kind."""
    for name in expected:
        if name not in found:
            raise ModelError(f"{where}: the tensor {name} is missing", "the checkpoint is of another model")
        if found[name].shape != expected[name].shape or found[name].dtype != expected[name].dtype:
            is_now = f"{tuple(found[name].shape)} {found[name].dtype}"
            raise ModelError(
                f"{where}: the tensor {name} is {is_now}, not {tuple(expected[name].shape)} {expected[name].dtype}",
                "the checkpoint is of another model",
            )
    if added := [name for name in found if name not in expected]:
        raise ModelError(
            f"{where}: the tensor {added[0]} belongs to no part of the model", "the checkpoint is of another model"
        )


def refuse_other_identity(stored: dict[str, Any], now: dict[str, Any], stored_rows: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise where settings or data that change the numbers are not those of the checkpoint, with both side by side."""
    if changed := differences(stored, now):
        raise ModelError(
            "the run was started with other settings: " + "; ".join(changed), "give the settings it was started with"
        )
    if not torch.equal(stored_rows, rows):
        raise ModelError(f"the training data have changed: {row_changes(stored_rows, rows)}", "put the data back as they were")


def row_changes(before: torch.Tensor, after: torch.Tensor) -> str:
    """What happened to the rows, from their hashes."""
    if len(before) != len(after):
        difference = len(after) - len(before)
        return f"{len(before):,} rows then, {len(after):,} now ({abs(difference):,} {'added' if difference > 0 else 'removed'})"
    different = (before != after).nonzero().flatten().tolist()
    if torch.equal(before.sort().values, after.sort().values):
        return f"the same rows in another order (from row {different[0] + 1:,} on)"
    return f"{len(different):,} rows edited (first row {different[0] + 1:,})"
