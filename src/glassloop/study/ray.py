"""The runs of a study as tasks of a Ray cluster, without a shared disk: what a task needs and writes travels as bytes."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import Any

from glassloop.base.errors import DataError, ResourceError, SettingsError, counted, visible
from glassloop.base.files import LOCK_NAME, find_path, replacing, sha256_of
from glassloop.base.output import say
from glassloop.data.glue import find_glue_files
from glassloop.runs.record import FAILED, RUN_NAME, RUNGS_NAME, STOPPED, write_run
from glassloop.runs.study import SeedRecord, StudyRecord
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import PATHS
from glassloop.study.tasks import WAIT_SECONDS, Task, record_of

RUNS_PER_GPU = 4  # if the user does not say how many
RETRIES = 8  # of a task whose node died
MOST_BYTES = 2 * 2**30  # of data and models that are sent to nodes
LOCAL = "ray"  # the running cluster, or this machine
ADDRESS = re.compile(r"(?:ray://)?(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")
MOST_SECONDS = 10.0
Files = dict[str, bytes]


def refuse_unreachable(address: str) -> None:
    """Raise if Ray is not installed, if this is not "ray", ray://host:port or host:port, or if nothing answers there."""
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
        raise unreachable(address, error) from error


def unreachable(address: str, error: Exception) -> ResourceError:
    problem = f"the Ray cluster {address} cannot be reached: {error}"
    return ResourceError(problem, "start it with ray start --head, or check the address")


@dataclass(frozen=True)
class Shipment:
    """What nodes need of the machine of the study."""

    files: Files  # of data and models, by their path
    validation: str | None = None  # the fingerprint of the validation rows
    glue_dir: str | None = None  # the folder of the files of a GLUE task


class RayTrials:
    """Trains runs on a Ray cluster, by default four at a time on each GPU. The block connects to it and disconnects."""

    def __init__(self, record: StudyRecord, address: str, at_once: int | None) -> None:
        self.record, self.address, self.at_once = record, address, at_once
        self.running: dict[Any, Task] = {}
        self.threads: int | None = record.threads or 1
        self.stopped = False

    def __enter__(self) -> RayTrials:
        import ray

        self.ray = ray
        self.was_connected = ray.is_initialized()
        if not self.was_connected:
            self.connect()
        resources = ray.cluster_resources()
        device = str(self.record.base.training.get("device", "auto"))
        gpus = resources.get("GPU", 0) if device in ("auto", "cuda") else 0
        share = self.at_once or RUNS_PER_GPU
        self.slots = max(1, int(gpus * share) if gpus else int(resources.get("CPU", 1)) // (self.threads or 1))
        self.remote = ray.remote(max_retries=RETRIES, num_cpus=self.threads, num_gpus=1 / share if gpus else 0)(remote_part)
        self.shipment = ray.put(shipment_of(self.record))
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        say(f"Ray: {counted(nodes, 'node', 'nodes')}, {counted(self.slots, 'run', 'runs')} at a time")
        return self

    def connect(self) -> None:
        """Connect to the cluster. Without an address, a running one is used, else this machine becomes one."""
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        try:
            if self.address != LOCAL:
                self.ray.init(address=self.address, **options)
                return
            try:
                self.ray.init(address="auto", **options)
            except ConnectionError:
                self.ray.init(include_dashboard=False, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise unreachable(self.address, error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if not self.was_connected:
            self.ray.shutdown()

    def start(self, task: Task) -> None:
        """Hand a task to the cluster, with the files that its run has so far."""
        self.running[self.remote.remote(task, packed(task.folder), self.shipment)] = task

    def wait(self) -> list[tuple[str, SeedRecord]]:
        """Return the tasks that ended, after at most half a second, with their files in their run folders."""
        if self.stopped:
            stopped = [(task.name, SeedRecord(status=STOPPED)) for task in self.running.values()]
            self.running.clear()
            return stopped
        ready, _ = self.ray.wait([*self.running], num_returns=1, timeout=WAIT_SECONDS) if self.running else ([], [])
        ended = []
        for ref in ready:
            task = self.running.pop(ref)
            try:
                answer, files = self.ray.get(ref)
                unpack(files, task.folder)
                restore_names(task)
            except self.ray.exceptions.RayError as error:  # its node was lost too often
                lines = tuple(str(error).splitlines()[:2])
                answer = SeedRecord(status=FAILED, exit_code=ResourceError.exit_code, error=lines)
            ended.append((task.name, answer))
        return ended

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
    names = [base.source, base.model, base.data.get("validation"), base.data.get("test"), *models]
    glue: list[Path] = []
    if (base.source or "").startswith("glue/"):
        folder = base.data.get("data_dir")
        splits = find_glue_files(str(base.source).partition("/")[2], str(folder) if folder else None)
        glue = [path for path in (splits or {}).values() if path]
    places = [place for name in names if name and (place := find_path(str(name)))]
    paths = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    files = {str(path.absolute()): path.read_bytes() for path in (*paths, *glue) if path.is_file()}
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        problem = f"data and models of {size / 2**30:.1f} GiB are too much to send to every node"
        raise SettingsError(problem, "put them on a disk that all nodes share, under the same path")
    return Shipment(files, record.data.get("validation"), str(glue[0].parent.absolute()) if glue else None)


def remote_part(task: Task, files: Files, shipment: Shipment) -> tuple[SeedRecord, Files]:
    """Train a part of a run on a node. Return the result and the files of the run."""
    import torch

    from glassloop.study.worker import train_part

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory(prefix="glassloop-study-") as scratch:
        folder = Path(scratch) / task.name
        unpack(files, folder)
        given = placed(task.given, shipment, Path(scratch) / "shipped")
        answer = train_part(replace(task, given=replace(given, training={**given.training, "output_dir": str(folder)})))
        record = record_of(folder)
        rows = record.data.splits.get("validation") if record else None
        if rows and shipment.validation and rows.fingerprint != shipment.validation:
            error = (f"the data on node {os.uname().nodename} is not that of the study", "give all nodes the same data")
            answer = SeedRecord(status=FAILED, exit_code=DataError.exit_code, error=error)
        return answer, packed(folder)


def placed(given: GivenSettings, shipment: Shipment, scratch: Path) -> GivenSettings:
    """Return settings whose data and model are on this node: if a file is missing or differs, all are written to `scratch`."""

    def is_here(name: str, content: bytes) -> bool:
        try:
            return Path(name).stat().st_size == len(content) and sha256_of(Path(name)) == sha256(content).hexdigest()
        except OSError:
            return False

    def moved(name: object) -> object:
        if not isinstance(name, str) or not name.startswith("/"):
            return name
        is_shipped = any(path == name or path.startswith(f"{name.rstrip('/')}/") for path in shipment.files)
        return str(scratch / name.lstrip("/")) if is_shipped else name

    if all(starmap(is_here, shipment.files.items())):
        return given
    for name, content in shipment.files.items():
        path = scratch / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = {name: moved(value) for name, value in given.data.items()}
    if shipment.glue_dir:
        data["data_dir"] = str(scratch / shipment.glue_dir.lstrip("/"))
    return replace(given, source=moved(given.source), model=moved(given.model), data=data)  # type: ignore[arg-type]  # texts


def packed(folder: Path) -> Files:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_NAME) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def unpack(files: Files, folder: Path) -> None:
    """Make a run folder contain exactly these files. Its record is written last: without it, the run starts again."""
    for path in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name, content in sorted(files.items(), key=lambda item: item[0] in (RUN_NAME, RUNGS_NAME)):
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
    changed = replace(
        record,
        data=replace(record.data, source=given.source, settings=replace(record.data.settings, **paths)),  # type: ignore[arg-type]
        settings=replace(record.settings, output_dir=str(folder)),
        model=replace(record.model, name=given.model or record.model.name),
    )
    if changed != record:
        write_run(folder, changed)
