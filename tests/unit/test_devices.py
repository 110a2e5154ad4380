"""Device, precision and backend: what is asked for, or the fastest that is safe; what is not there is an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator

from glassloop import devices
from glassloop.arguments import TrainingArguments
from glassloop.devices import choose_backend, choose_device, choose_precision, launched_processes
from glassloop.doctor import FAIR, GOOD, Finding
from glassloop.engine.backends import AccelerateBackend, PlainBackend


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch):
    """Lets torch see the devices named and no others."""

    def see(*names: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in names)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in names)

    see()
    return see


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the trial of bf16 finds is put into this list; each trial takes one out."""
    findings: list[Finding] = []
    monkeypatch.setattr(devices, "bf16_found", findings.pop)
    return findings


@pytest.mark.parametrize(("seen", "chosen"), [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("mps", "cuda"), "cuda")])
def test_auto_takes_the_first_that_is_there(there, seen: tuple[str, ...], chosen: str) -> None:
    there(*seen)
    assert choose_device("auto") == chosen
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize("wanted", ["cuda", "mps"])
def test_a_device_that_is_not_there(there, says, wanted: str) -> None:
    with says(f"device is {wanted}, but torch sees none here", "use device auto; glassloop doctor says more"):
        choose_backend(TrainingArguments(device=wanted))


def test_auto_is_fp32_on_a_cpu_without_any_trial(tried: list[Finding]) -> None:
    assert choose_precision("auto", "cpu") == "fp32"
    assert choose_precision("fp32", "cpu") == "fp32"


@pytest.mark.parametrize(("made_for_it", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_on_a_gpu_made_for_it(monkeypatch: pytest.MonkeyPatch, made_for_it: bool, chosen: str) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return made_for_it or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision("auto", "cuda") == chosen
    assert choose_precision("auto", "mps") == "fp32"


def test_fp16_does_not_work_on_a_cpu(says) -> None:
    with says("precision fp16 does not work on a CPU", "use precision fp32"):
        choose_backend(TrainingArguments(device="cpu", precision="fp16"))
    assert choose_precision("fp16", "cuda") == "fp16"


@pytest.mark.parametrize(
    "found", ["kills the process (SIGILL), whatever the CPU advertises", "fails: no reason given", "could not be tried"]
)
def test_bf16_that_fails_in_the_child_process_is_refused_here(says, tried: list[Finding], found: str) -> None:
    tried.append(Finding("bf16", FAIR, found, "train in fp32"))
    with says(f"precision bf16 on this CPU: {found}", "use precision fp32"):
        choose_backend(TrainingArguments(device="cpu", precision="bf16"))
    assert not tried, "bf16 was chosen without a trial"


def test_bf16_that_works_is_taken_and_a_slow_one_is_told(tried: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    tried += [
        Finding("bf16", FAIR, "works on the cpu, 3.1 times slower than fp32", "train in fp32"),
        Finding("bf16", GOOD, "works on the cpu, 2.0 times the speed of fp32"),
    ]
    assert choose_precision("bf16", "cpu") == "bf16"
    assert capsys.readouterr().err == ""
    assert choose_precision("bf16", "cpu") == "bf16"
    assert capsys.readouterr().err == "glassloop: bf16 works on the cpu, 3.1 times slower than fp32\n"


def test_bf16_on_a_gpu_needs_no_trial(tried: list[Finding]) -> None:
    assert choose_precision("bf16", "cuda") == "bf16"


# --- backends ----------------------------------------------------------------------------------------------------


def chosen(**settings: Any) -> PlainBackend:
    return choose_backend(TrainingArguments(device="cpu", precision="fp32", **settings))


def test_one_process_is_plain_unless_accelerate_is_asked_for() -> None:
    for settings in ({}, {"backend": "plain"}):
        backend = chosen(**settings)
        assert type(backend) is PlainBackend
        assert (backend.name, backend.device.type, backend.precision) == ("plain", "cpu", "fp32")
    backend = chosen(backend="accelerate")
    assert type(backend) is AccelerateBackend
    assert (backend.name, backend.device.type, backend.precision) == ("accelerate", "cpu", "fp32")
    assert (backend.rank, backend.num_processes, backend.is_main) == (0, 1, True)


def test_an_accelerator_of_the_users_own_is_used() -> None:
    accelerator = Accelerator(cpu=True)
    backend = choose_backend(TrainingArguments(), accelerator)
    assert isinstance(backend, AccelerateBackend)
    assert backend.accelerator is accelerator


def test_launched_processes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched_processes() == 1
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert launched_processes() == 3


def test_plain_in_several_processes_is_refused(says, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train a model of its own and all would write into one folder."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with says("backend is plain, but several processes were launched", "use backend auto or accelerate"):
        chosen(backend="plain")


def test_several_processes_are_accelerates(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def fake(**options: Any) -> Accelerator:
        made.append(options)
        return Accelerator(cpu=True)

    monkeypatch.setattr("accelerate.Accelerator", fake)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert isinstance(chosen(), AccelerateBackend)
    assert made == [{"mixed_precision": "no", "cpu": True}]


def test_the_precision_of_accelerates_config_file_counts_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def fake(**options: Any) -> Accelerator:
        made.append(options)
        return Accelerator(cpu=True)

    monkeypatch.setattr("accelerate.Accelerator", fake)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    choose_backend(TrainingArguments(device="cpu", backend="accelerate"))
    choose_backend(TrainingArguments(device="cpu", backend="accelerate", precision="fp32"))
    assert [options["mixed_precision"] for options in made] == [None, "no"]
