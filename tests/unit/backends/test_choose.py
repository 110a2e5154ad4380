"""Device, precision and backend: what is asked for, or the fastest that is safe; what is not there is an error."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from families import tiny_model
from trials import Servers

import glassloop
from glassloop.backends import choose as devices
from glassloop.backends.accelerate import AccelerateBackend
from glassloop.backends.choose import choose_backend, choose_device, choose_precision, launched_processes
from glassloop.backends.machine import FAIR, GOOD, Finding
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import SettingsError
from glassloop.settings.training import TrainingArguments


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


def test_auto_takes_the_first_device_that_is_there_and_a_missing_one_is_refused(there, says) -> None:
    for seen, chosen in [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("mps", "cuda"), "cuda")]:
        there(*seen)
        assert choose_device("auto") == chosen
        assert choose_device("cpu") == "cpu"
    there()
    for wanted in ["cuda", "mps"]:
        with says(f"device is {wanted}, but torch cannot find this device", "use device auto; glassloop doctor shows details"):
            choose_backend(TrainingArguments(device=wanted))


def test_bf16_where_it_is_fast_works_or_is_slow(monkeypatch, tried: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    for made_for_it, chosen in [(True, "bf16"), (False, "fp32")]:
        supported = partial(lambda made_for_it, including_emulation=True: made_for_it or including_emulation, made_for_it)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        assert choose_precision("auto", "cuda") == chosen
        # Without any trial of bf16.
        assert choose_precision("auto", "mps") == choose_precision("auto", "cpu") == choose_precision("fp32", "cpu") == "fp32"
        assert choose_precision("bf16", "cuda") == "bf16"
        assert choose_precision("fp16", "cuda") == "fp16"
    slow = Finding("bf16", FAIR, "works on the cpu, 3.1 times slower than fp32", "train in fp32")
    tried += [slow, Finding("bf16", GOOD, "works on the cpu, 2.0 times as fast as fp32")]
    assert choose_precision("bf16", "cpu") == "bf16"
    assert capsys.readouterr().err == ""
    assert choose_precision("bf16", "cpu") == "bf16"
    assert capsys.readouterr().err == "glassloop: bf16 works on the cpu, 3.1 times slower than fp32\n"


UNUSABLE = {
    "precision fp16 does not work on a CPU": None,
    "precision bf16 on this CPU: kills the process (SIGILL)": Finding("bf16", FAIR, "kills the process (SIGILL)"),
    "precision bf16 on this CPU: fails: no reason given": Finding("bf16", FAIR, "fails: no reason given"),
}


def test_a_precision_that_fails_is_refused_or_script_and_trainer_fall_back_to_fp32(says, tried: list[Finding], capsys) -> None:
    for problem, finding in UNUSABLE.items():
        tried += [finding] * 2 if finding else []
        args = TrainingArguments(device="cpu", precision=problem.split()[1])
        with says(problem, "use precision fp32"):
            choose_backend(args)
        assert choose_backend(args, falls_back=True).precision == "fp32"
        assert f"{problem}: using fp32" in capsys.readouterr().err
        assert not tried, "bf16 was chosen without a trial"
    trainer = glassloop.Trainer(tiny_model(), glassloop.TrainingArguments(fp16=True, use_cpu=True))
    assert (trainer.backend.precision, trainer.args.fp16) == ("fp32", True)


def chosen(**settings: Any) -> PlainBackend:
    return choose_backend(TrainingArguments(device="cpu", precision="fp32", **settings))


def test_one_process_on_a_cpu_is_packed_unless_another_or_an_accelerator_is_given_and_graphs_need_a_gpu() -> None:
    kinds = {"auto": PackedBackend, "packed": PackedBackend, "plain": PlainBackend, "accelerate": AccelerateBackend}
    for backend, kind in kinds.items():
        made = chosen(backend=backend)
        assert type(made) is kind
        assert (made.name, made.device.type, made.precision) == (kind.name, "cpu", "fp32")
        assert (made.processes.rank, made.processes.num_processes, made.processes.is_main) == (0, 1, True)
    with pytest.raises(SettingsError, match="backend graphs needs a CUDA device"):
        chosen(backend="graphs")
    accelerator = Accelerator(cpu=True)
    backend = choose_backend(TrainingArguments(), accelerator)
    assert isinstance(backend, AccelerateBackend)
    assert backend.accelerator is accelerator


def test_launched_processes_are_counted_and_plain_is_refused_for_several(monkeypatch: pytest.MonkeyPatch, says) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched_processes() == 1
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert launched_processes() == 3
    for text in ["x", "", "0", "-1", "2.0", "９", "1" * 5000]:
        monkeypatch.setenv("WORLD_SIZE", text)
        with pytest.raises(SettingsError, match=r"the variable WORLD_SIZE is \".*\", not a number of processes"):
            launched_processes()
    # Each would train a model of its own and all would write into one folder.
    monkeypatch.setenv("WORLD_SIZE", "2")
    with says("backend is plain, but several processes were launched", "use backend auto or accelerate"):
        chosen(backend="plain")


def test_processes_without_the_address_of_the_first(servers: Servers, write) -> None:
    """WORLD_SIZE alone is what a job scheduler may leave in the environment."""
    code = "from glassloop import TrainingArguments\nfrom glassloop.backends.choose import choose_backend\n"
    code += "from glassloop.base.errors import SettingsError\ntry:\n    choose_backend(TrainingArguments(device='cpu'))\n"
    code += "except SettingsError as error:\n    print(error.remedy)"
    done = servers.run(script=write("alone.py", code), WORLD_SIZE="2", RANK="1", LOCAL_RANK="1")
    assert done.out == "start them with torchrun or --processes; for one process, unset WORLD_SIZE\n"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Accelerate is asked for; it answers with as many processes as `WORLD_SIZE` says when it is asked."""
    asked: list[dict[str, Any]] = []

    def fake(mixed_precision: str, cpu: bool) -> SimpleNamespace:
        asked.append({"mixed_precision": mixed_precision, "cpu": cpu})
        number = int(os.environ.get("WORLD_SIZE", "1"))
        made = {"device": torch.device("cpu"), "mixed_precision": mixed_precision}
        return SimpleNamespace(**made, process_index=0, num_processes=number)

    monkeypatch.setattr("accelerate.Accelerator", fake)
    return asked


def test_several_processes_are_accelerates_and_wait_a_moment_at_their_end(made: list[Any], monkeypatch) -> None:
    """Else some died of SIGABRT after their last line: gloo's threads freed tensors of a Python that was gone."""
    registered, waited = [], []
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert isinstance(chosen(), AccelerateBackend)
    assert made == [{"mixed_precision": "no", "cpu": True}]
    assert registered == [devices.wait_for_threads]
    monkeypatch.setattr("time.sleep", waited.append)
    for known in (False, True):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda known=known: known)
        devices.wait_for_threads()
        assert waited == [devices.EXIT_DELAY] * known


def test_processes_that_accelerate_or_its_launcher_left_alone_are_refused(says, made: list[Any], monkeypatch) -> None:
    """Each would train a model of its own."""
    for name in ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]:
        monkeypatch.setenv(name, "2")
        with says("2 processes were launched, but Accelerate found 1", "start them with torchrun"):
            chosen()
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_PORT", "29500")
    problem = "accelerate launch was asked for several processes but started one: on a CPU it needs mpirun"
    with says(problem, "use torchrun, or --processes"):
        chosen()
    assert chosen(backend="plain").name == "plain"


def test_the_precision_of_accelerates_config_file_counts_where_none_is_asked_for(
    says, made: list[dict[str, Any]], tried: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    choose_backend(TrainingArguments(device="cpu", backend="accelerate"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    choose_backend(TrainingArguments(device="cpu", backend="accelerate", precision="fp32"))
    tried.append(Finding("bf16", GOOD, "works"))
    choose_backend(TrainingArguments(device="cpu", backend="accelerate"))
    assert [options["mixed_precision"] for options in made] == ["no", "no", "bf16"]
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with says("precision fp8 is not supported", "use bf16"):
        choose_backend(TrainingArguments(device="cpu", backend="accelerate"))


def test_one_process_of_accelerates_launcher_is_accelerates(made: list[dict[str, Any]], there, monkeypatch) -> None:
    """Its config file was not read before: bf16 trained in fp32."""
    there("cuda")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert choose_backend(TrainingArguments()).name == "accelerate"
    assert choose_backend(TrainingArguments(backend="plain", device="cpu")).name == "plain"
    assert made == [{"mixed_precision": "no", "cpu": True}]


@pytest.mark.parametrize("name", ["DEEPSPEED", "MEGATRON_LM"])
def test_other_ways_to_split_a_model_are_refused(says, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    own = SimpleNamespace(distributed_type=SimpleNamespace(name=name))
    remedy = "use distributed_type MULTI_GPU, or FSDP with fsdp_version 2"
    with says(f"{name} is not supported", remedy):
        choose_backend(TrainingArguments(), own)
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with says(f"{name} is not supported", remedy):
        chosen()


@pytest.fixture
def fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of an accelerate config of FSDP."""
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("version", ["1", None])
def test_fsdp_of_version_1_is_refused(says, fsdp, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """It is what accelerate takes where a config names none."""
    monkeypatch.setenv("FSDP_VERSION", version) if version else monkeypatch.delenv("FSDP_VERSION")
    with says("FSDP version 1 is not supported", "set fsdp_version: 2 in accelerate's fsdp_config"):
        chosen()
    for plugin in (SimpleNamespace(fsdp_version=1), None):
        own = SimpleNamespace(distributed_type=SimpleNamespace(name="FSDP"), state=SimpleNamespace(fsdp_plugin=plugin))
        with says("FSDP version 1 is not supported"):
            choose_backend(TrainingArguments(), own)


def splittable(monkeypatch: pytest.MonkeyPatch, *, known: bool = True, gpu: bool = False) -> Any:
    """An Accelerator on a CPU, which has ignored FSDP, in a process that a launcher has started."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: known)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.setattr("accelerate.PartialState", lambda: SimpleNamespace())
    state = SimpleNamespace(distributed_type="MULTI_CPU", fsdp_plugin=None)
    return SimpleNamespace(
        state=state, distributed_type=SimpleNamespace(name="MULTI_CPU"), device=torch.device("cpu"), mixed_precision="no",
        process_index=0, num_processes=1, parallelism_config=None,
    )  # fmt: skip


def test_fsdp_of_version_2_splits_even_on_a_cpu_in_a_process_group(fsdp, monkeypatch: pytest.MonkeyPatch, says) -> None:
    """Accelerate passes over it there without a word. Every process loads the model, whatever the config says."""
    accelerator = splittable(monkeypatch)
    backend = choose_backend(TrainingArguments(), accelerator)
    assert type(backend).__name__ == "FSDPBackend"
    assert accelerator.state.distributed_type == "FSDP"
    assert accelerator.state.fsdp_plugin.fsdp_version == 2
    assert not accelerator.state.fsdp_plugin.cpu_ram_efficient_loading
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
    monkeypatch.setattr("accelerate.Accelerator", lambda **options: splittable(monkeypatch))
    assert type(chosen()).__name__ == "FSDPBackend"
    assert chosen(backend="plain").name == "plain"
    with says("FSDP needs a process group", "start with accelerate launch or torchrun, even a single process"):
        choose_backend(TrainingArguments(), splittable(monkeypatch, known=False))
    with says("FSDP on the CPU of a machine with a GPU is not supported", "hide the GPU: CUDA_VISIBLE_DEVICES="):
        choose_backend(TrainingArguments(), splittable(monkeypatch, gpu=True))
