"""Upload a model to a hub: which of its files, without texts of data, optimizer states and local paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from glassloop.base.errors import ModelError, ResourceError, SettingsError, shortened, visible
from glassloop.base.files import sha256_of
from glassloop.base.network import hub_unreachable, is_hub_name
from glassloop.base.output import say
from glassloop.base.records import Json, object_of, sealed_text
from glassloop.runs.export import EXPORT_NAME, read_record
from glassloop.runs.record import RUN_NAME, SEEDS_NAME, STUDY_NAME, TRAINED_NAME, TRAINED_WEIGHTS_NAME

KINDS = (".safetensors", ".json", ".txt", ".model", ".md", ".onnx", ".onnx_data", ".data", ".pt2", ".jinja")
LICENCES = ("LICENSE", "LICENCE", "NOTICE")
NEVER = (RUN_NAME, SEEDS_NAME, STUDY_NAME, TRAINED_NAME, TRAINED_WEIGHTS_NAME, "trainer_state.json", "optimizer.safetensors")
SETTINGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "adapter_config.json", "generation_config.json")
LABELS = ("id2label", "label2id", "labels", "label_order", "label_counts")


@dataclass(frozen=True)
class Published:
    """One file of an upload: its name in the repository, its path, and its content if it differs from the file."""

    name: str
    path: Path
    content: bytes | None = None

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size if self.content is None else len(self.content)


def published_files(folder: Path, more: Mapping[str, Path] | None = None) -> list[Published]:
    """Return what is uploaded from a model folder, and `more` files by their names. Raises `ModelError` if it has no model."""
    # By kind instead of exclusion: a new kind of file stays private until somebody decides otherwise. Checkpoints, optimizer
    # states, predictions, histories and reports are private; a local path in settings is shortened to its last part.
    found = []
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        hidden = any(part.startswith((".", "checkpoint")) for part in place.parts)
        known = path.suffix in KINDS or path.name in LICENCES
        if path.is_file() and not path.is_symlink() and known and not hidden and path.name not in NEVER:
            found.append(Published(place.as_posix(), path, without_paths(path)))
    if not any(file.name == "config.json" for file in found):
        raise ModelError(f"{folder}: there is no model to upload", "name the folder of a finished run, or of a model")
    found = [replace(file, content=shared_record(file.path, found)) if file.name == EXPORT_NAME else file for file in found]
    return found + [Published(name, path) for name, path in (more or {}).items()]


def without_paths(path: Path) -> bytes | None:
    """Return the content of a file with settings whose local paths are shortened; None if it has none."""
    if path.name not in SETTINGS:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        changed = shortened_paths(found)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}", "restore the file") from error
    return None if changed == found else (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()


def shortened_paths(value: Json) -> Json:
    """Return a JSON value in which absolute paths are their last parts. Labels may look like paths and are left alone."""
    if isinstance(value, dict):
        return {name: part if name in LABELS else shortened_paths(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shortened_paths(part) for part in value]
    if isinstance(value, str) and len(value) < 4096 and Path(value).is_absolute() and len(Path(value).parts) > 2:
        return Path(value).name
    return value


def shared_record(path: Path, files: Sequence[Published]) -> bytes:
    """Return the record of an export without local paths, with the checksums of the files that are uploaded."""
    record = object_of(json.loads(json.dumps(asdict(read_record(path.parent)), allow_nan=False)), "")
    sums = {file.name: sha256_of(file.path) if file.content is None else sha256(file.content).hexdigest() for file in files}
    record["files"] = {name: sums[name] for name in object_of(record["files"], "") if name in sums}
    record["run"] = shortened_paths(record["run"])
    return sealed_text(record).encode()


def refuse_repository(name: str) -> None:
    if not is_hub_name(name):
        raise SettingsError(f"{visible(name)} is not the name of a repository", "use owner/name, such as me/mrpc")


def upload(
    folder: Path, name: str, message: str, *, token: str | None = None, revision: str | None = None,
    private: bool | None = None, more: Mapping[str, Path] | None = None,
) -> str:  # fmt: skip
    """Upload a model folder to a repository of the model hub in one commit, and return its address."""
    # Repository and branch (`revision`) are created if they do not exist; `private` counts for a new repository.
    refuse_repository(name)
    remedy = f"the model is saved in {folder}; upload it later with hf upload {name} {folder}"
    files = published_files(folder, more)
    for file in files:
        if file.content is not None:
            say(f"{file.name}: local paths are shortened to their last parts")
    if reason := hub_unreachable():
        raise ResourceError(f"the model hub cannot be reached: {reason}", remedy)
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token

    if not (token or get_token()):
        raise ResourceError("there is no access token for the model hub", f"run hf auth login, or set HF_TOKEN; {remedy}")
    api = HfApi(token=token)
    try:
        place = api.create_repo(name, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(place, branch=revision, exist_ok=True)
        added = [CommitOperationAdd(file.name, file.content if file.content is not None else file.path) for file in files]
        api.create_commit(place, added, commit_message=message, revision=revision)
    except Exception as error:  # of huggingface_hub, of the library it sends requests with, or of hf_xet
        problem = shortened(" ".join(str(error).split()) or type(error).__name__, 400)
        raise ResourceError(f"the upload of {name} failed: {problem}", f"check the token and the name; {remedy}") from error
    return f"{constants.ENDPOINT}/{place}"


def pushed(push: Callable[[], str]) -> str:
    """Upload a trained model and return a line that says where it is. A hub that cannot be reached loses no training."""
    # Any error: huggingface_hub, its HTTP library and hf_xet share no base class.
    try:
        return f"the model is at {push()}"
    except (ResourceError, SettingsError) as error:
        return f"the model was not uploaded: {error.problem}; {error.remedy}"
