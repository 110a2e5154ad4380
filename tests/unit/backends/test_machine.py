"""How many runs a GPU has memory for."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from glassloop.backends import machine as doctor
from glassloop.backends import machine as gpu_memory
from glassloop.backends.machine import BAD, FAIR, GOOD, Finding, memory_need, runs_at_once, runs_on_gpus
from glassloop.base.errors import ModelError
from glassloop.cli import main as cli
from glassloop.training.recorder import machine_name

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "cores", "found"),
    [(139 * GIB, 16, 8), (139 * GIB, 4, 4), (20 * GIB, 16, 3), (1 * GIB, 16, 1), (None, 16, 1)],
    ids=["at most eight", "at most the cores", "what fits", "one is always tried", "nobody knows"],
)
def test_as_many_runs_as_a_gpu_has_room_for(monkeypatch, free: int | None, cores: int, found: int) -> None:
    """Free memory is asked for in another process; a tenth of it is left alone."""
    answer = f"print({free})" if free is not None else "raise SystemExit(1)"
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", answer)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert runs_at_once("cuda", 5 * GIB) == found


@pytest.mark.parametrize(
    ("free", "cores", "found"),
    [
        ((139, 20, 1), 16, [5, 3, 0]),
        ((1, 4, 3), 16, [0, 1, 0]),
        ((139,), 16, [5, 0, 0]),
        ((), 16, [1, 0, 0]),
        ((139, 139, 139), 2, [1, 1, 1]),
    ],
    ids=["each for itself", "one is tried where most is free", "of one GPU known", "nobody knows", "few cores"],
)
def test_each_gpu_gets_the_runs_that_fit(monkeypatch, free: tuple[int, ...], cores: int, found: list[int]) -> None:
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", f"print(*{[one * GIB for one in free]})")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert runs_on_gpus(3, 5 * GIB) == found


def test_one_run_at_a_time_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", f"print({139 * GIB})")
    assert [runs_at_once("cpu", 1.0), runs_at_once("mps", 1.0)] == [1, 1]


@pytest.mark.parametrize(
    ("num_parameters", "layers", "hidden", "heads"),
    [(22_700_000, 6, 384, 12), (110_000_000, 12, 768, 12), (335_000_000, 24, 1024, 16)],
)
def test_the_need_of_a_run_is_not_too_small(num_parameters: int, layers: int, hidden: int, heads: int) -> None:
    """Activations of a layer in fp32 without fused attention: tokens x (68 hidden + 10 heads length) bytes."""
    length, rows = 512, 16
    activations = rows * length * layers * (68 * hidden + 10 * heads * length)
    least = 16 * num_parameters + activations
    assert least < memory_need(num_parameters, rows * length) < 4 * least + 3 * GIB


# --- The doctor: every finding with its remedy, and nothing that a sick machine does brings the doctor down.


NAMES = [
    *("Python", "torch", "transformers", "datasets", "accelerate"),
    *("device", "bf16", "packaged model", "model hub", "GLASSLOOP_DATA", "disk"),
]


@pytest.fixture
def torch_stub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch without any device, quick to import; a test gives it what it needs."""
    stub = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
        version=SimpleNamespace(cuda=None),
        get_num_threads=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "torch", stub)
    return stub


# --- Python, packages, devices -----------------------------------------------------------------------------------


def test_python(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.python_found()
    assert (found.state, found.remedy) == (GOOD, "")
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert doctor.python_found() == Finding("Python", BAD, found.found, "install Python 3.11 or newer")


def test_a_package() -> None:
    assert doctor.package_found("pytest") == Finding("pytest", GOOD, importlib.metadata.version("pytest"))


def test_an_absent_package() -> None:
    assert doctor.package_found("no-such-package") == Finding(
        "no-such-package", BAD, "not installed", "pip install no-such-package"
    )


@pytest.mark.parametrize("error", [ImportError("no libtorch"), OSError("libcudart.so: cannot open shared object file")])
def test_a_torch_that_cannot_be_imported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert doctor.device_found() == Finding("device", BAD, f"torch cannot be imported: {error}", "pip install torch")
    assert doctor.bf16_found() == Finding("bf16", FAIR, f"could not be tested ({type(error).__name__})", "train in fp32")


def test_gpus(torch_stub: SimpleNamespace) -> None:
    torch_stub.cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda _: "H200")
    torch_stub.version.cuda = "12.8"
    assert doctor.device_found() == Finding("device", GOOD, "2 × H200, CUDA 12.8")


def test_an_apple_gpu(torch_stub: SimpleNamespace) -> None:
    torch_stub.backends.mps.is_available = lambda: True
    assert doctor.device_found() == Finding("device", GOOD, "Apple GPU (mps)")


def test_no_gpu(torch_stub: SimpleNamespace) -> None:
    assert doctor.device_found() == Finding(
        "device",
        FAIR,
        "CPU only, 3 threads (this torch is built without CUDA)",
        "fine for small models; to use a GPU, install torch with CUDA",
    )
    torch_stub.version.cuda = "12.8"
    assert doctor.device_found() == Finding("device", FAIR, "CPU only, 3 threads (no usable GPU or driver)", "check nvidia-smi")


# --- bf16, in a child of its own ---------------------------------------------------------------------------------

BF16 = {
    "illegal instruction": (
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
        (FAIR, "kills the process (SIGILL), although the CPU reports support", "train in fp32, as precision auto does"),
    ),
    "segmentation fault": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        (FAIR, "kills the process (SIGSEGV), although the CPU reports support", "train in fp32, as precision auto does"),
    ),
    "a signal without a name": (
        "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 5)",
        (FAIR, "kills the process (signal 39), although the CPU reports support", "train in fp32, as precision auto does"),
    ),
    "slower": (
        "print('gain', 0.25)",
        (FAIR, "works on the cpu, 4.0 times slower than fp32", "train in fp32, as precision auto does"),
    ),
    "faster": ("print('gain', 2.5)", (GOOD, "works on the cpu, 2.5 times as fast as fp32", "")),
    "faster, after chatter": (
        "print('a library says hello: 7'); print('gain', 2.5)",
        (GOOD, "works on the cpu, 2.5 times as fast as fp32", ""),
    ),
    "an exception": (
        "raise RuntimeError('bf16 is not there')",
        (FAIR, "fails: RuntimeError: bf16 is not there", "train in fp32"),
    ),
    "an exit without words": ("raise SystemExit(3)", (FAIR, "fails: no reason given", "train in fp32")),
    "no answer": ("print('hello')", (FAIR, "fails: no reason given", "train in fp32")),
    "a long reason": ("raise RuntimeError('x' * 500)", (FAIR, "fails: RuntimeError: " + "x" * 86, "train in fp32")),
}


@pytest.mark.parametrize(("trial", "wanted"), BF16.values(), ids=BF16)
def test_bf16(trial: str, wanted: tuple[str, str, str], torch_stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BF16_TRIAL", trial)
    assert doctor.bf16_found() == Finding("bf16", *wanted)


def test_bf16_that_never_ends(torch_stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BF16_TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "BF16_SECONDS", 0.2)
    assert doctor.bf16_found() == Finding("bf16", FAIR, "could not be tested (TimeoutExpired)", "train in fp32")


def test_bf16_where_no_process_can_be_started(torch_stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert doctor.bf16_found() == Finding("bf16", FAIR, "could not be tested (FileNotFoundError)", "train in fp32")


def test_bf16_is_tried_on_the_gpu_where_there_is_one(torch_stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_stub.cuda.is_available = lambda: True
    monkeypatch.setattr(doctor, "BF16_TRIAL", "import sys; print('gain', 3 if sys.argv[1] == 'cuda' else 0)")
    assert doctor.bf16_found() == Finding("bf16", GOOD, "works on the cuda, 3.0 times as fast as fp32")


@pytest.mark.slow
def test_the_real_trial_gives_an_answer() -> None:
    """Faster, slower or deadly: that depends on the machine."""
    found = doctor.bf16_found()
    assert found.state in (GOOD, FAIR)
    assert "no reason given" not in found.found
    assert "Error" not in found.found, found.found


# --- model, hub, data, disk --------------------------------------------------------------------------------------


def test_the_packaged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "quickstart_model", lambda: tmp_path / "model")
    assert doctor.model_found() == Finding("packaged model", GOOD, "all-MiniLM-L6-v2, checksum correct (model/)")


def test_the_packaged_model_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise ModelError("quickstart: the packaged model is not installed", "pip install it")

    monkeypatch.setattr(doctor, "quickstart_model", absent)
    assert doctor.model_found() == Finding(
        "packaged model", FAIR, "quickstart: the packaged model is not installed", "pip install it"
    )


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "hub_unreachable", lambda: None)
    assert doctor.hub_found() == Finding("model hub", GOOD, "reachable")
    monkeypatch.setattr(doctor, "hub_unreachable", lambda: "no answer in time")
    assert doctor.hub_found() == Finding(
        "model hub", FAIR, "not reachable (no answer in time)", "use local models and data, or quickstart"
    )


def test_glassloop_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "set it to a folder that contains glue/MRPC/"
    assert doctor.data_found() == Finding("GLASSLOOP_DATA", GOOD, "not set", f"{hint} to use local GLUE files")
    monkeypatch.setenv("GLASSLOOP_DATA", str(tmp_path))
    assert doctor.data_found() == Finding("GLASSLOOP_DATA", FAIR, f"{tmp_path} contains no folder glue", hint)
    (tmp_path / "glue").mkdir()
    assert doctor.data_found() == Finding("GLASSLOOP_DATA", GOOD, str(tmp_path))
    monkeypatch.setenv("GLASSLOOP_DATA", "~nobody-is-called-this")
    assert doctor.data_found().state == doctor.BAD
    monkeypatch.setenv("GLASSLOOP_DATA", "/no/such/folder")
    assert doctor.data_found() == Finding("GLASSLOOP_DATA", FAIR, "/no/such/folder contains no folder glue", hint)


Usage = namedtuple("Usage", "total used free")


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 100 * 1024**3))
    text = f"GiB free; the cache {tmp_path / 'cache'} uses"
    assert doctor.disk_found() == Finding("disk", GOOD, f"100 {text} 0 MiB")
    assert not (tmp_path / "cache").exists(), "looking makes no folder"
    (tmp_path / "cache" / "deep").mkdir(parents=True)
    (tmp_path / "cache" / "deep" / "file").write_bytes(bytes(3 * 1024**2))
    assert doctor.disk_found() == Finding("disk", GOOD, f"100 {text} 3 MiB")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 2 * 1024**3))
    assert doctor.disk_found() == Finding("disk", FAIR, f"2 {text} 3 MiB", "free some disk space")


def test_a_cache_that_cannot_be_written_to(write, monkeypatch: pytest.MonkeyPatch) -> None:
    file, remedy = write("regular", "a file"), "set GLASSLOOP_CACHE to a folder that can be written to"
    monkeypatch.setenv("GLASSLOOP_CACHE", str(file / "cache"))
    assert doctor.disk_found() == Finding("disk", BAD, f"{file} cannot be written to", remedy)
    monkeypatch.setenv("GLASSLOOP_CACHE", str(file.parent))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor.disk_found() == Finding("disk", BAD, f"{file.parent} cannot be written to", remedy)


def test_a_cache_that_cannot_even_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", "~nobody-is-called-this/cache")
    assert doctor.disk_found() == Finding(
        "disk",
        BAD,
        '"~nobody-is-called-this/cache": no such user, or the user has no home folder',
        "set GLASSLOOP_CACHE to another folder",
    )


# --- all of it ---------------------------------------------------------------------------------------------------


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, torch_stub: SimpleNamespace) -> None:
    """A machine on which no check takes time."""
    monkeypatch.setattr(doctor, "BF16_TRIAL", "print('gain', 2)")
    monkeypatch.setattr(doctor, "hub_unreachable", lambda: None)
    monkeypatch.setattr(doctor, "quickstart_model", lambda: Path("model"))
    monkeypatch.setattr(doctor, "version", lambda name: "1.0")


def run_doctor(**environment: str) -> Any:
    found = CliRunner(env=environment).invoke(cli.app, ["doctor"], catch_exceptions=False, standalone_mode=False)
    found.exit_code = found.return_value.exit_status  # as main() leaves
    return found


def test_everything_is_looked_at(healthy: None) -> None:
    assert [finding.name for finding in doctor.examine()] == NAMES


def test_the_command_shows_every_finding_and_ends_well(healthy: None) -> None:
    result = run_doctor(COLUMNS="200")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split("  ")[1].strip() for line in lines[1:]] == NAMES
    assert "fine for small models; to use a GPU, install torch with CUDA" in lines[6]
    assert {line[0] for line in lines[1:]} == {"✓", "!"}


def test_the_command_fails_where_something_essential_is_missing(healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    result = run_doctor(COLUMNS="200")
    assert result.exit_code == 1
    assert "✗  datasets        not installed" in result.stdout
    assert "pip install datasets" in result.stdout


def test_the_command_survives_an_illegal_instruction(healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BF16_TRIAL", BF16["illegal instruction"][0])
    result = run_doctor(COLUMNS="200")
    assert result.exit_code == 0, "bf16 is not essential"
    assert "kills the process (SIGILL), although the CPU reports support" in result.stdout
    assert "train in fp32, as precision auto does" in result.stdout
    assert result.stdout.splitlines()[-1].split()[1] == "disk", "and goes on"


def test_the_command_fits_a_narrow_terminal(healthy: None) -> None:
    result = run_doctor(COLUMNS="40")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 40


def test_what_is_found_cannot_talk_to_the_terminal(healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_DATA", "[red]a\x1b[31m\nb[/red]")
    result = run_doctor(COLUMNS="200")
    assert r"[red]a\x1b[31m\nb[/red] contains no folder glue" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_machine_has_a_name() -> None:
    assert machine_name("cpu").endswith(("core", "cores"))
