"""One checkpoint on disk: everything a run needs to resume as if it had never stopped, written completely or not at all.

A checkpoint is a folder such as `checkpoint-500`. It holds the model's files as any Hugging Face user expects them,
`weights.safetensors` if they do not hold the weights as they are trained (an adapter), `optimizer.safetensors`, the random
state of every process, `state.json`, and `manifest.json` with the size and SHA-256 of each file, which is written last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from glassloop.engine.identity import Identity, differences
from glassloop.engine.interfaces import Tensors
from glassloop.engine.snapshot import OTHER_MODEL, PlainValues, Snapshot
from glassloop.errors import ModelError, ResumeError
from glassloop.files import fault_point, replacing_dir, sha256_of
from glassloop.records import sealed

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
