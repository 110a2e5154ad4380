"""Choose the device, the precision and the backend of a run: what the settings ask for, or the fastest that works here."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING

import torch

from glassloop.backends.machine import GOOD, bf16_found
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import SettingsError
from glassloop.base.output import say
from glassloop.settings.training import TrainingArguments, launched_processes
from glassloop.training.interfaces import Backend

if TYPE_CHECKING:
    from accelerate import Accelerator

EXIT_DELAY = 0.3  # seconds


def choose_device(wanted: str) -> str:
    """Return cuda, mps or cpu; raise `SettingsError` if this machine does not have the wanted device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, there in available.items() if there)
    if not available[wanted]:
        problem = f"device is {wanted}, but torch cannot find this device"
        raise SettingsError(problem, "use device auto; glassloop doctor shows details")
    return wanted


def choose_precision(wanted: str, device: str, *, falls_back: bool = False) -> str:
    """Return fp32, bf16 or fp16. One that does not work here is refused or, if the caller `falls_back`, replaced by fp32."""
    if wanted == "auto":
        return "bf16" if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    problem = ""
    if wanted == "fp8":  # from accelerate's config
        raise SettingsError("precision fp8 is not supported", "use bf16")
    if wanted == "fp16" and device == "cpu":
        problem = "precision fp16 does not work on a CPU"
    if wanted == "bf16" and device == "cpu":
        finding = bf16_found()  # in a child process: on some machines bf16 ends the process with an illegal instruction
        if "works" not in finding.found:
            problem = f"precision bf16 on this CPU: {finding.found}"
        elif finding.state != GOOD:
            say(f"bf16 {finding.found}")
    if problem and not falls_back:
        raise SettingsError(problem, "use precision fp32")
    if problem:
        say(f"{problem}: using fp32")
    return "fp32" if problem else wanted


def choose_backend(args: TrainingArguments, accelerator: Accelerator | None = None, *, falls_back: bool = False) -> Backend:
    """Return the backend for the settings. `falls_back`: use fp32 if half precision does not work on this machine."""
    # Accelerate is used if the settings ask for it, if it started this process, or if several processes were launched.
    launched, by_accelerate = launched_processes(), "ACCELERATE_USE_CPU" in os.environ  # set even for one process
    split, wanted = wants_fsdp(accelerator), vars(args)["device"]  # a script reads args.device as a device of torch
    alone = accelerator is None and launched == 1
    if alone and args.backend != "accelerate" and not (args.backend == "auto" and (by_accelerate or split)):
        device = choose_device(wanted)
        precision = choose_precision(args.precision, device, falls_back=falls_back)
        # auto takes a fast backend because the mathematics is the same. A custom optimizer, collator or hook could see the
        # difference, so it gets the plain one.
        name = {"cuda": "graphs", "cpu": "packed"}.get(device, "plain") if args.backend == "auto" else args.backend
        if name == "graphs" and device != "cuda":
            raise SettingsError(f"backend graphs needs a CUDA device, but the device is {device}", "use backend auto")
        if name == "plain":
            return PlainBackend(device, precision)
        from glassloop.backends.packed import PackedBackend

        return PackedBackend(device, precision, captures=name == "graphs")
    if args.backend not in ("auto", "accelerate") and launched > 1:
        problem = f"backend is {args.backend}, but several processes were launched"
        raise SettingsError(problem, "use backend auto or accelerate")
    if by_accelerate and launched == 1 and "MASTER_PORT" in os.environ:
        problem = "accelerate launch was asked for several processes but started one: on a CPU it needs mpirun"
        raise SettingsError(problem, "use torchrun, or --processes")
    if accelerator is None:
        from accelerate import Accelerator

        device = choose_device("cpu" if wanted == "auto" and is_set("ACCELERATE_USE_CPU") else wanted)
        from_config = os.environ.get("ACCELERATE_MIXED_PRECISION", "auto").replace("no", "fp32")
        asked = from_config if args.precision == "auto" else args.precision
        precision = choose_precision(asked, device, falls_back=falls_back)
        try:
            accelerator = Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=device == "cpu")
        except (ValueError, KeyError) as error:  # a variable of the launcher is missing or wrong
            remedy = "start them with torchrun or --processes; for one process, unset WORLD_SIZE"
            raise SettingsError(f"{launched} processes were launched, but cannot find each other: {error}", remedy) from error
        if accelerator.num_processes != launched:
            problem = f"{launched} processes were launched, but Accelerate found {accelerator.num_processes}"
            raise SettingsError(problem, "start them with torchrun")
    if accelerator.device.type == "cpu":
        atexit.register(wait_for_threads)
    if split:
        return fsdp_backend(accelerator)
    from glassloop.backends.accelerate import AccelerateBackend

    return AccelerateBackend(accelerator)


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true")


def wait_for_threads() -> None:
    """Wait a moment before the process exits: gloo's threads abort if they free tensors after Python has shut down."""
    if torch.distributed.is_initialized():
        time.sleep(EXIT_DELAY)


def wants_fsdp(accelerator: Accelerator | None) -> bool:
    """Return whether the model is to be split by FSDP 2; raise `SettingsError` for other ways to split it."""
    kind = accelerator.distributed_type.name if accelerator is not None else ""
    wanted = [name for name in ("DEEPSPEED", "MEGATRON_LM", "FSDP") if is_set(f"ACCELERATE_USE_{name}") or kind == name]
    if not wanted:
        return False
    if wanted[0] != "FSDP":
        raise SettingsError(f"{wanted[0]} is not supported", "use distributed_type MULTI_GPU, or FSDP with fsdp_version 2")
    plugin = getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)
    version = plugin.fsdp_version if plugin is not None else os.environ.get("FSDP_VERSION", "1")
    if int(version) != 2:
        raise SettingsError(f"FSDP version {version} is not supported", "set fsdp_version: 2 in accelerate's fsdp_config")
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # else transformers loads the model in the main process only
    return True


def fsdp_backend(accelerator: Accelerator) -> Backend:
    """Return the backend of a split model. On a CPU Accelerate silently ignores FSDP, so this turns it on."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from glassloop.backends.fsdp import FSDPBackend

    state = accelerator.state
    if not torch.distributed.is_initialized():
        raise SettingsError("FSDP needs a process group", "start with accelerate launch or torchrun, even a single process")
    if state.distributed_type != DistributedType.FSDP:
        if torch.accelerator.is_available():  # torch would use it
            problem = "FSDP on the CPU of a machine with a GPU is not supported"
            raise SettingsError(problem, "hide the GPU: CUDA_VISIBLE_DEVICES=")
        state.fsdp_plugin, state.distributed_type = FullyShardedDataParallelPlugin(), DistributedType.FSDP
        PartialState().distributed_type = DistributedType.FSDP  # else the next AcceleratorState() resets it
    state.fsdp_plugin.cpu_ram_efficient_loading = False
    return FSDPBackend(accelerator)
