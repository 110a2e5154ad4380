"""Which device, precision and backend a run gets: asked for, or the fastest that is safe here."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from glassloop.arguments import TrainingArguments
from glassloop.doctor import GOOD, bf16_found
from glassloop.engine.backends import AccelerateBackend, PlainBackend
from glassloop.errors import SettingsError


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
    if wanted == "fp16" and device == "cpu":
        raise SettingsError("precision fp16 does not work on a CPU", "use precision fp32")
    if wanted == "bf16" and device == "cpu":
        finding = bf16_found()  # in a child process: on some machines it dies of an illegal instruction
        if "works" not in finding.found:
            raise SettingsError(f"precision bf16 on this CPU: {finding.found}", "use precision fp32")
        if finding.state != GOOD:
            print(f"glassloop: bf16 {finding.found}", file=sys.stderr)
    return wanted


def launched_processes() -> int:
    """How many processes a launcher (torchrun, accelerate launch) has started of this program."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def choose_backend(args: TrainingArguments, accelerator: Any = None) -> PlainBackend:
    """Accelerate where it is asked for or several processes were launched; else plain torch."""
    if accelerator is None and args.backend != "accelerate" and launched_processes() == 1:
        device = choose_device(args.device)
        return PlainBackend(device, choose_precision(args.precision, device))
    if args.backend == "plain" and launched_processes() > 1:
        raise SettingsError("backend is plain, but several processes were launched", "use backend auto or accelerate")
    if accelerator is None:
        from accelerate import Accelerator

        device = choose_device(args.device)
        from_config = args.precision == "auto" and os.environ.get("ACCELERATE_MIXED_PRECISION")
        precision = None if from_config else choose_precision(args.precision, device)
        accelerator = Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=device == "cpu")
    return AccelerateBackend(accelerator)
