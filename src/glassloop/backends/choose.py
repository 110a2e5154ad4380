"""Which device, precision and backend a run gets: asked for, or the fastest that is safe here."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

import torch

from glassloop.arguments import TrainingArguments
from glassloop.backends.accelerate import AccelerateBackend
from glassloop.backends.plain import PlainBackend
from glassloop.errors import SettingsError, say
from glassloop.machine import GOOD, bf16_found

MOMENT = 0.3


def choose_device(wanted: str) -> str:
    """cuda, mps or cpu; an error where the one asked for is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, found in there.items() if found)
    if not there[wanted]:
        raise SettingsError(f"device is {wanted}, but torch sees none here", "use device auto; glassloop doctor says more")
    return wanted


def choose_precision(wanted: str, device: str) -> str:
    """fp32, bf16 or fp16. auto: bf16 on a GPU made for it, else fp32; a kind that fails here is an error, not a crash."""
    if wanted == "auto":
        return "bf16" if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if wanted == "fp8":  # from accelerate's config
        raise SettingsError("precision fp8 is not supported", "use bf16")
    if wanted == "fp16" and device == "cpu":
        raise SettingsError("precision fp16 does not work on a CPU", "use precision fp32")
    if wanted == "bf16" and device == "cpu":
        finding = bf16_found()  # in a child process: on some machines it dies of an illegal instruction
        if "works" not in finding.found:
            raise SettingsError(f"precision bf16 on this CPU: {finding.found}", "use precision fp32")
        if finding.state != GOOD:
            say(f"bf16 {finding.found}")
    return wanted


def launched_processes() -> int:
    """How many processes a launcher (torchrun, accelerate launch, mpirun) has started of this program."""
    names = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    return int(next((os.environ[name] for name in names if name in os.environ), "1"))


def choose_backend(args: TrainingArguments, accelerator: Any = None) -> PlainBackend:
    """Accelerate where it is asked for, has started this process, or several processes were launched; else the fastest."""
    launched, by_accelerate = launched_processes(), "ACCELERATE_USE_CPU" in os.environ  # so does its launcher of one process
    split = asked_for_fsdp(accelerator)
    alone = accelerator is None and launched == 1
    if alone and args.backend != "accelerate" and not (args.backend == "auto" and (by_accelerate or split)):
        device = choose_device(args.device)
        return single_backend(args.backend, device, choose_precision(args.precision, device))
    if args.backend not in ("auto", "accelerate") and launched > 1:
        problem = f"backend is {args.backend}, but several processes were launched"
        raise SettingsError(problem, "use backend auto or accelerate")
    if by_accelerate and launched == 1 and "MASTER_PORT" in os.environ:
        problem = "accelerate launch was asked for several processes, but has started one: on a CPU it needs mpirun"
        raise SettingsError(problem, "use torchrun, or --processes")
    if accelerator is None:
        from accelerate import Accelerator

        on_cpu = args.device == "auto" and os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")
        device = choose_device("cpu" if on_cpu else args.device)
        from_config = os.environ.get("ACCELERATE_MIXED_PRECISION", "auto").replace("no", "fp32")
        precision = choose_precision(from_config if args.precision == "auto" else args.precision, device)
        accelerator = Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=device == "cpu")
        if accelerator.num_processes != launched:
            problem = f"{launched} processes were launched, but Accelerate knows of {accelerator.num_processes}"
            raise SettingsError(problem, "start them with torchrun")
    if accelerator.device.type == "cpu":
        atexit.register(wait_for_threads)
    return split_backend(accelerator) if split else AccelerateBackend(accelerator)


def wait_for_threads() -> None:
    """A moment at the very end: threads of gloo may still hold tensors, and abort if they free them when Python is gone."""
    if torch.distributed.is_initialized():
        time.sleep(MOMENT)


def single_backend(wanted: str, device: str, precision: str) -> PlainBackend:
    """The backend of one process. auto: graphs on a CUDA device, packed on a CPU, else plain."""
    name = {"cuda": "graphs", "cpu": "packed"}.get(device, "plain") if wanted == "auto" else wanted
    if name == "graphs" and device != "cuda":
        raise SettingsError(f"backend graphs needs a CUDA device; the device is {device}", "use backend auto")
    if name == "plain":
        return PlainBackend(device, precision)
    from glassloop.backends.graphs import GraphsBackend
    from glassloop.backends.packed import PackedBackend

    return GraphsBackend(device, precision) if name == "graphs" else PackedBackend(device, precision)


def asked_for_fsdp(accelerator: Any) -> bool:
    """Whether a model is to be split over processes by FSDP of version 2; raises for other ways to split it."""

    def asked(name: str) -> bool:
        named = os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true")
        return named or (accelerator is not None and accelerator.distributed_type.name == name)

    for name in ("DEEPSPEED", "MEGATRON_LM"):
        if asked(name):
            raise SettingsError(f"{name} is not supported", "use distributed_type MULTI_GPU, or FSDP with fsdp_version 2")
    if not asked("FSDP"):
        return False
    plugin = getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)
    version = plugin.fsdp_version if plugin is not None else os.environ.get("FSDP_VERSION", "1")
    if int(version) != 2:
        raise SettingsError(f"FSDP of version {version} is not supported", "set fsdp_version: 2 in accelerate's fsdp_config")
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # else transformers loads a model in the main process alone
    return True


def split_backend(accelerator: Any) -> PlainBackend:
    """The backend of a model that is split. On a CPU Accelerate passes over FSDP without a word, so it is told here."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from glassloop.backends.fsdp import SplitBackend

    state = accelerator.state
    if not torch.distributed.is_initialized():
        raise SettingsError("FSDP needs processes that know of each other", "start even one with accelerate launch or torchrun")
    if state.distributed_type != DistributedType.FSDP:
        if torch.accelerator.is_available():  # torch would split over it
            raise SettingsError("FSDP on a CPU beside a GPU is not supported", "hide the GPU: CUDA_VISIBLE_DEVICES=")
        state.fsdp_plugin, state.distributed_type = FullyShardedDataParallelPlugin(), DistributedType.FSDP
        PartialState().distributed_type = DistributedType.FSDP  # else the next AcceleratorState() takes it back
    state.fsdp_plugin.cpu_ram_efficient_loading = False
    return SplitBackend(accelerator)
