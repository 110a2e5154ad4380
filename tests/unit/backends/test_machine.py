"""What fits on a GPU, and the doctor: every finding with its remedy, and nothing that a sick machine does brings it down."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from glassloop.backends import machine
from glassloop.backends.machine import BAD, FAIR, GOOD, Finding, memory_need, runs_on_gpus
from glassloop.base.errors import ModelError
from glassloop.cli import main as cli
from glassloop.models import loading
from glassloop.training.session import machine_name

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "cores", "wanted"),
    [
        pytest.param((139,), 16, [8], id="at most eight"),
        pytest.param((139,), 4, [4], id="at most the cores"),
        pytest.param((20,), 16, [3], id="what fits"),
        pytest.param((1,), 16, [1], id="one is always tried"),
        pytest.param((), 16, [1], id="nobody knows"),
        pytest.param((139, 20, 1), 16, [5, 3, 0], id="each for itself"),
        pytest.param((1, 4, 3), 16, [0, 1, 0], id="one is tried where most is free"),
        pytest.param((139, 0, 0), 16, [5, 0, 0], id="of one GPU known"),
        pytest.param((139, 139, 139), 2, [1, 1, 1], id="few cores"),
    ],
)
def test_each_gpu_gets_the_runs_that_fit(monkeypatch, free: tuple[int, ...], cores: int, wanted: list[int]) -> None:
    """Free memory is asked for in another process; a tenth of it is left alone."""
    answer = f"print(*{[one * GIB for one in free if one]})" if free else "raise SystemExit(1)"
    monkeypatch.setattr(machine, "FREE_MEMORY", answer)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert runs_on_gpus(len(wanted), 5 * GIB, 8, 10**6) == wanted
    few = [min(1, runs) for runs in wanted]
    assert runs_on_gpus(len(wanted), 5 * GIB, 3, 100) == few, "little to train: one run at a time on each GPU"


def test_more_runs_train_at_a_time_if_there_is_more_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FREE_MEMORY", f"print({139 * GIB})")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    runs = {
        (num, steps): runs_on_gpus(1, 5 * GIB, num, steps)[0] for num, steps in ((3, 10), (10, 1_000), (3, 5_000), (125, 500))
    }
    assert [*runs.values()] == [1, 3, 3, 8]


def test_the_need_of_a_run_is_not_too_small() -> None:
    """Activations of a layer in fp32 without fused attention: tokens x (68 hidden + 10 heads length) bytes."""
    for num_parameters, layers, hidden, heads in [
        (22_700_000, 6, 384, 12),
        (110_000_000, 12, 768, 12),
        (335_000_000, 24, 1024, 16),
    ]:
        length, rows = 512, 16
        least = 16 * num_parameters + rows * length * layers * (68 * hidden + 10 * heads * length)
        assert least < memory_need(num_parameters, rows * length) < 4 * least + 3 * GIB


NAMES = ["Python", "torch", "transformers", "datasets", "accelerate", "device", "bf16", "packaged model", "model hub"]
NAMES += ["GLASSLOOP_DATA", "disk"]


@pytest.fixture
def torch_stub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch without any device, quick to import; a test gives it what it needs."""
    cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 2, get_device_name=lambda _: "H200")
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    stub = SimpleNamespace(cuda=cuda, backends=backends, version=SimpleNamespace(cuda=None), get_num_threads=lambda: 3)
    monkeypatch.setitem(sys.modules, "torch", stub)
    return stub


def test_python_packages_and_devices(monkeypatch: pytest.MonkeyPatch, torch_stub: SimpleNamespace) -> None:
    python = machine.python_found()
    assert (python.state, python.remedy) == (GOOD, "")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (3, 10, 4))
        assert machine.python_found() == Finding("Python", BAD, python.found, "install Python 3.11 or newer")
    assert machine.package_found("pytest") == Finding("pytest", GOOD, importlib.metadata.version("pytest"))
    assert machine.package_found("no-such") == Finding("no-such", BAD, "not installed", "pip install no-such")
    remedy = "fine for small models; to use a GPU, install torch with CUDA"
    assert machine.device_found() == Finding("device", FAIR, "CPU only, 3 threads (this torch is built without CUDA)", remedy)
    torch_stub.version.cuda = "12.8"
    no_driver = "CPU only, 3 threads (no usable GPU or driver)"
    assert machine.device_found() == Finding("device", FAIR, no_driver, "check nvidia-smi")
    torch_stub.backends.mps.is_available = lambda: True
    assert machine.device_found() == Finding("device", GOOD, "Apple GPU (mps)")
    torch_stub.cuda.is_available = lambda: True
    assert machine.device_found() == Finding("device", GOOD, "2 × H200, CUDA 12.8")


@pytest.mark.parametrize("error", [ImportError("no libtorch"), OSError("libcudart.so: cannot open shared object file")])
def test_a_torch_that_cannot_be_imported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert machine.device_found() == Finding("device", BAD, f"torch cannot be imported: {error}", "pip install torch")
    assert machine.bf16_found() == Finding("bf16", FAIR, f"could not be tested ({type(error).__name__})", "train in fp32")


ADVICE = "train in fp32, as precision auto does"
KILLED = "kills the process ({}), although the CPU reports support"
BF16 = {
    "illegal instruction": ("import os; os.kill(os.getpid(), 4)", FAIR, KILLED.format("SIGILL"), ADVICE),
    "segmentation fault": ("import os; os.kill(os.getpid(), 11)", FAIR, KILLED.format("SIGSEGV"), ADVICE),
    "a signal without a name": ("import os; os.kill(os.getpid(), 39)", FAIR, KILLED.format("signal 39"), ADVICE),
    "slower": ("print('gain', 0.25)", FAIR, "works on the cpu, 4.0 times slower than fp32", ADVICE),
    "faster": ("print('gain', 2.5)", GOOD, "works on the cpu, 2.5 times as fast as fp32", ""),
    "after chatter": ("print('hello: 7'); print('gain', 2.5)", GOOD, "works on the cpu, 2.5 times as fast as fp32", ""),
    "an exception": ("raise RuntimeError('not there')", FAIR, "fails: RuntimeError: not there", "train in fp32"),
    "an exit without words": ("raise SystemExit(3)", FAIR, "fails: no reason given", "train in fp32"),
    "no answer": ("print('hello')", FAIR, "fails: no reason given", "train in fp32"),
    "a long reason": ("raise RuntimeError('x' * 500)", FAIR, "fails: RuntimeError: " + "x" * 86, "train in fp32"),
}


@pytest.mark.parametrize(("trial", "state", "text", "remedy"), BF16.values(), ids=BF16)
def test_bf16(trial: str, state: str, text: str, remedy: str, torch_stub: SimpleNamespace, monkeypatch) -> None:
    """In a child of its own."""
    monkeypatch.setattr(machine, "BF16_TRIAL", trial)
    assert machine.bf16_found() == Finding("bf16", state, text, remedy)


def test_bf16_is_tried_on_a_gpu_or_cannot_be_tested(torch_stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BF16_TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(machine, "BF16_SECONDS", 0.2)
    assert machine.bf16_found() == Finding("bf16", FAIR, "could not be tested (TimeoutExpired)", "train in fp32")
    monkeypatch.setattr(machine, "BF16_SECONDS", 60)
    torch_stub.cuda.is_available = lambda: True
    monkeypatch.setattr(machine, "BF16_TRIAL", "import sys; print('gain', 3 if sys.argv[1] == 'cuda' else 0)")
    assert machine.bf16_found() == Finding("bf16", GOOD, "works on the cuda, 3.0 times as fast as fp32")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert machine.bf16_found() == Finding("bf16", FAIR, "could not be tested (FileNotFoundError)", "train in fp32")


@pytest.mark.slow
def test_the_real_trial_gives_an_answer_and_the_machine_has_a_name() -> None:
    """Faster, slower or deadly: that depends on the machine."""
    bf16 = machine.bf16_found()
    assert bf16.state in (GOOD, FAIR)
    assert "no reason given" not in bf16.found
    assert "Error" not in bf16.found, bf16.found
    assert machine_name("cpu").endswith(("core", "cores"))


def test_the_packaged_model_the_hub_and_glassloop_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise ModelError("quickstart: the packaged model is not installed", "pip install it")

    monkeypatch.setattr(loading, "quickstart_model", lambda: tmp_path / "model")
    assert machine.model_found() == Finding("packaged model", GOOD, "all-MiniLM-L6-v2, checksum correct (model/)")
    monkeypatch.setattr(loading, "quickstart_model", absent)
    problem = "quickstart: the packaged model is not installed"
    assert machine.model_found() == Finding("packaged model", FAIR, problem, "pip install it")
    monkeypatch.setattr(machine, "hub_unreachable", lambda: None)
    assert machine.hub_found() == Finding("model hub", GOOD, "reachable")
    monkeypatch.setattr(machine, "hub_unreachable", lambda: "no answer in time")
    remedy = "use local models and data, or quickstart"
    assert machine.hub_found() == Finding("model hub", FAIR, "not reachable (no answer in time)", remedy)
    hint = "set it to a folder that contains glue/MRPC/"
    assert machine.data_found() == Finding("GLASSLOOP_DATA", GOOD, "not set", f"{hint} to use local GLUE files")
    for place in (str(tmp_path), "/no/such/folder"):
        monkeypatch.setenv("GLASSLOOP_DATA", place)
        assert machine.data_found() == Finding("GLASSLOOP_DATA", FAIR, f"{place} contains no folder glue", hint)
    monkeypatch.setenv("GLASSLOOP_DATA", "~nobody-is-called-this")
    assert machine.data_found().state == BAD
    (tmp_path / "glue").mkdir()
    monkeypatch.setenv("GLASSLOOP_DATA", str(tmp_path))
    assert machine.data_found() == Finding("GLASSLOOP_DATA", GOOD, str(tmp_path))


def test_the_disk_and_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * GIB))
    text = f"GiB free; the cache {tmp_path / 'cache'} uses"
    assert machine.disk_found() == Finding("disk", GOOD, f"100 {text} 0 MiB")
    assert not (tmp_path / "cache").exists(), "looking makes no folder"
    (tmp_path / "cache" / "deep").mkdir(parents=True)
    (tmp_path / "cache" / "deep" / "file").write_bytes(bytes(3 * 1024**2))
    assert machine.disk_found() == Finding("disk", GOOD, f"100 {text} 3 MiB")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * GIB))
    assert machine.disk_found() == Finding("disk", FAIR, f"2 {text} 3 MiB", "free some disk space")
    monkeypatch.setenv("GLASSLOOP_CACHE", "~nobody-is-called-this/cache")
    problem = '"~nobody-is-called-this/cache": no such user, or the user has no home folder'
    assert machine.disk_found() == Finding("disk", BAD, problem, "set GLASSLOOP_CACHE to another folder")
    file, remedy = write("regular", "a file"), "set GLASSLOOP_CACHE to a folder that can be written to"
    monkeypatch.setenv("GLASSLOOP_CACHE", str(file / "cache"))
    assert machine.disk_found() == Finding("disk", BAD, f"{file} cannot be written to", remedy)
    monkeypatch.setenv("GLASSLOOP_CACHE", str(file.parent))
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine.disk_found() == Finding("disk", BAD, f"{file.parent} cannot be written to", remedy)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, torch_stub: SimpleNamespace) -> None:
    """A machine on which no check takes time."""
    monkeypatch.setattr(machine, "BF16_TRIAL", "print('gain', 2)")
    monkeypatch.setattr(machine, "hub_unreachable", lambda: None)
    monkeypatch.setattr(loading, "quickstart_model", lambda: Path("model"))
    monkeypatch.setattr(machine, "package_version", lambda name: "1.0")


def run_doctor(columns: int) -> tuple[int, list[str]]:
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(cli.app, ["doctor"], catch_exceptions=False, standalone_mode=False)
    return done.return_value.exit_status, done.stdout.splitlines()


def test_the_command_shows_every_finding(healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    status, lines = run_doctor(200)
    assert status == 0
    assert [line.split("  ")[1].strip() for line in lines[1:]] == NAMES
    assert "fine for small models; to use a GPU, install torch with CUDA" in lines[6]
    assert {line[0] for line in lines[1:]} == {"✓", "!"}
    status, lines = run_doctor(40)
    assert (status, max(map(len, lines)) <= 40) == (0, True)

    monkeypatch.setattr(machine, "package_version", lambda name: None)
    status, lines = run_doctor(200)
    assert status == 1, "something essential is missing"
    (line,) = [line for line in lines if line.startswith("✗  datasets        not installed")]
    assert "pip install datasets" in line


def test_a_gpu_is_opened_early_only_where_a_run_will_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread that ends with the process, once, and without raising what the run will raise."""
    opened: list[str] = []

    def zeros(size: int, device: str) -> None:
        opened.append(device)
        raise RuntimeError("out of memory")

    class Thread:
        def __init__(self, target: Any, daemon: bool) -> None:
            assert daemon
            self.start = target

    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "may_have_gpu", lambda: True)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for device, number in (("cpu", 0), ("mps", 0), ("auto", 1), ("cuda", 2)):
        machine.open_gpu_early(device)
        assert opened == ["cuda"] * number
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    machine.open_gpu_early("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    machine.open_gpu_early("auto")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(machine, "may_have_gpu", lambda: False)
    machine.open_gpu_early("auto")
    assert len(opened) == 2
