"""The runs of a study as tasks of a Ray cluster: several on a GPU, repeated if a node dies, and without a shared disk.

What a task needs travels as bytes: the files of its run so far, and the data and model files that its node does not have. What
it wrote comes back the same way.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from glassloop.base.errors import ResourceError, SettingsError, counted, visible
from glassloop.base.files import LOCK_NAME, find_path, replacing, sha256_of
from glassloop.base.output import say
from glassloop.data.glue import find_glue_files
from glassloop.runs.record import FAILED, STOPPED, write_run
from glassloop.runs.study import StudyRecord
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import PATHS
from glassloop.study.trials import Done, Task, record_of

RUNS_PER_GPU = 4  # if the user does not say how many
RETRIES = 8  # of a task whose node died
MOST_BYTES = 2 * 2**30  # of data and models that are sent to nodes
WAIT_SECONDS = 0.5
LOCAL = "ray"  # the running cluster, or this machine
ADDRESS = re.compile(r"(?:ray://)?(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")
MOST_SECONDS = 10.0


def refuse_unreachable(address: str) -> None:
    """Raise if Ray is not installed, if this is not the address of a cluster, or if nothing answers there.

    Args:
        address: "ray", ray://host:port or host:port.

    Raises:
        SettingsError: If Ray is not installed or the address has another form.
        ResourceError: If there is no connection.
    """
    if find_spec("ray") is None:
        raise SettingsError("--on ray needs the package ray", "pip install 'glassloop[ray]'")
    if address == LOCAL:
        return
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise SettingsError(f"--on {visible(address)} is not the address of a Ray cluster", "use ray, or ray://host:10001")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), MOST_SECONDS).close()
    except (OSError, OverflowError) as error:
        problem = f"the Ray cluster {address} cannot be reached: {error}"
        raise ResourceError(problem, "start it with ray start --head, or check the address") from error


Files = dict[str, bytes]


@dataclass(frozen=True)
class Shipment:
    """What nodes need of the machine of the study.

    Attributes:
        files: Data and model files by their path.
        validation: The fingerprint of the validation rows.
        glue_dir: The folder of the files of a GLUE task.
    """

    files: Files
    validation: str | None = None
    glue_dir: str | None = None


class RayTrials:
    """Trains runs on a Ray cluster. The block connects to it and disconnects.

    Args:
        record: The study.
        address: "ray" for a running cluster or, without one, this machine; else ray://host:port or host:port.
        at_once: Number of runs at a time on each GPU. Default: 4.
        need: GPU memory that a run may need, in bytes.
    """

    def __init__(self, record: StudyRecord, address: str, at_once: int | None, need: float) -> None:
        self.record, self.address, self.at_once, self.need = record, address, at_once, need
        self.running: dict[Any, Task] = {}
        self.threads: int | None = record.threads or 1
        self.stopped = False

    def __enter__(self) -> RayTrials:
        try:
            import ray
        except ImportError as error:
            raise SettingsError("--on ray needs the package ray", "pip install 'glassloop[ray]'") from error
        self.ray = ray
        self.was_connected = ray.is_initialized()
        if not self.was_connected:
            self.connect()
        found = ray.cluster_resources()
        wanted = str(self.record.base.training.get("device", "auto"))
        gpus = found.get("GPU", 0) if wanted in ("auto", "cuda") else 0
        share = self.at_once or RUNS_PER_GPU
        self.slots = max(1, int(gpus * share) if gpus else int(found.get("CPU", 1)) // (self.threads or 1))
        gpu = 1 / share if gpus else 0
        self.remote = ray.remote(max_retries=RETRIES, num_cpus=self.threads, num_gpus=gpu)(remote_part)
        self.shipment = ray.put(shipment_of(self.record))
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        say(f"Ray: {counted(nodes, 'node', 'nodes')}, {counted(self.slots, 'run', 'runs')} at a time")
        return self

    def connect(self) -> None:
        """Connect to the cluster. Without an address, a running one is used, else this machine becomes one."""
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        try:
            if self.address != "ray":
                self.ray.init(address=self.address, **options)
                return
            try:
                self.ray.init(address="auto", **options)
            except ConnectionError:
                self.ray.init(include_dashboard=False, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            problem = f"the Ray cluster {self.address} cannot be reached: {error}"
            raise ResourceError(problem, "start it with ray start --head, or check the address") from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for ref in self.running:
            self.ray.cancel(ref, force=True)
        if not self.was_connected:
            self.ray.shutdown()

    def start(self, task: Task) -> None:
        """Hand a task to the cluster, with the files that its run has so far."""
        self.running[self.remote.remote(task, packed(task.folder), self.shipment)] = task

    def wait(self) -> list[Done]:
        """Return the tasks that ended, after at most half a second, with their files in their run folders."""
        if self.stopped:
            found = [Done(task.name, STOPPED) for task in self.running.values()]
            self.running.clear()
            return found
        ready, _ = self.ray.wait([*self.running], num_returns=1, timeout=WAIT_SECONDS) if self.running else ([], [])
        return [self.gathered(ref, self.running.pop(ref)) for ref in ready]

    def gathered(self, ref: object, task: Task) -> Done:
        """Return the result of a task, and write its files. A node that was lost too often is a failure of the run."""
        try:
            done, files = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            lines = tuple(str(error).splitlines()[:2])
            return Done(task.name, FAILED, exit_code=ResourceError.exit_code, error=lines)
        unpack(files, task.folder)
        restore_names(task)
        found: Done = done
        return found

    def stop(self) -> None:
        """Cancel all tasks. Their runs continue from what they had reached before."""
        if not self.stopped:
            self.stopped = True
            for ref in self.running:
                self.ray.cancel(ref, force=True)


def shipment_of(record: StudyRecord) -> Shipment:
    """Return the files that nodes need: those of local data and of local models."""
    base = record.base
    models = [str(value) for values in record.study.space.values() for value in getattr(values, "values", ())]
    others = [str(base.data[name]) for name in ("validation", "test") if base.data.get(name)]
    names = [name for name in (base.source, base.model, *others, *models) if name]
    found: Files = {}
    for place in (find_path(name) for name in names):
        for path in sorted(place.rglob("*")) if place and place.is_dir() else [place] if place else []:
            if path.is_file():
                found[str(path.absolute())] = path.read_bytes()
    glue = glue_files(base)
    for path in glue:
        found[str(path.absolute())] = path.read_bytes()
    if (size := sum(map(len, found.values()))) > MOST_BYTES:
        problem = f"data and models of {size / 2**30:.1f} GiB are too much to send to every node"
        raise SettingsError(problem, "put them on a disk that all nodes share, under the same path")
    return Shipment(found, record.data.get("validation"), str(glue[0].parent.absolute()) if glue else None)


def glue_files(base: GivenSettings) -> list[Path]:
    """Return the local files of a GLUE task; empty for other data."""
    if not (base.source or "").startswith("glue/"):
        return []
    folder = base.data.get("data_dir")
    found = find_glue_files(str(base.source).partition("/")[2], str(folder) if folder else None)
    return [path for path in (found or {}).values() if path]


def remote_part(task: Task, files: Files, shipment: Shipment) -> tuple[Done, Files]:
    """Train a part of a run on a node. Return the result and the files of the run."""
    import torch

    from glassloop.study.worker import train_part

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory(prefix="glassloop-study-") as scratch:
        folder = Path(scratch) / task.name
        unpack(files, folder)
        given = placed(task.given, shipment, Path(scratch) / "shipped")
        done = train_part(replace(task, given=replace(given, training={**given.training, "output_dir": str(folder)})))
        record = record_of(folder)
        rows = record.data.splits.get("validation") if record else None
        if rows and shipment.validation and rows.fingerprint != shipment.validation:
            problem = f"the data on node {os.uname().nodename} is not that of the study"
            done = Done(done.name, FAILED, exit_code=3, error=(problem, "give all nodes the same data"))
        return done, packed(folder)


def placed(given: GivenSettings, shipment: Shipment, scratch: Path) -> GivenSettings:
    """Return settings whose data and model are on this node: files that are missing or differ are written to `scratch`."""
    moved = [name for name, content in shipment.files.items() if not is_same(Path(name), content)]
    if not moved:
        return given
    for name, content in shipment.files.items():
        path = scratch / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = {name: moved_name(value, shipment, scratch) for name, value in given.data.items()}
    if shipment.glue_dir:
        data["data_dir"] = str(scratch / shipment.glue_dir.lstrip("/"))
    source, model = (moved_name(name, shipment, scratch) for name in (given.source, given.model))
    return replace(given, source=source, model=model, data=data)  # type: ignore[arg-type]  # texts stay texts


def moved_name(name: object, shipment: Shipment, scratch: Path) -> object:
    """Return the place of a shipped file or folder on this node, and any other value as it is."""
    if not isinstance(name, str) or not name.startswith("/"):
        return name
    is_shipped = any(path == name or path.startswith(f"{name.rstrip('/')}/") for path in shipment.files)
    return str(scratch / name.lstrip("/")) if is_shipped else name


def is_same(path: Path, content: bytes) -> bool:
    """Return whether a file on this node has the content of the shipped one."""
    try:
        return path.stat().st_size == len(content) and sha256_of(path) == sha256(content).hexdigest()
    except OSError:
        return False


def packed(folder: Path) -> Files:
    """Return the files of a run by their path in its folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_NAME) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def unpack(files: Files, folder: Path) -> None:
    """Make a run folder contain exactly these files. Its record is written last: without it, the run starts again."""
    for path in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name, content in sorted(files.items(), key=lambda item: item[0] in ("run.json", "rungs.json")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as writing:
            writing.write_bytes(content)


def restore_names(task: Task) -> None:
    """Give the record of a run the names of data and model that the study has, if its node had them elsewhere."""
    folder, given, record = task.folder, task.given, record_of(task.folder)
    if record is None or given.source is None:
        return
    paths = {name: None if (path := given.data.get(name)) is None else str(path) for name in PATHS}
    described = replace(record.data.settings, **paths)  # type: ignore[arg-type]  # paths are texts
    data = replace(record.data, source=given.source, settings=described)
    settings = replace(record.settings, output_dir=str(folder))
    model = replace(record.model, name=given.model or record.model.name)
    if (data, settings, model) != (record.data, record.settings, record.model):
        write_run(folder, replace(record, data=data, settings=settings, model=model))
