"""Everything that determines the numbers of a training, as short values that can be stored and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import TypeAlias

import numpy as np
import torch

from glassloop.base.errors import listed, shortened
from glassloop.data.interfaces import Config
from glassloop.training.interfaces import LRScheduler, Optimizer

Identity: TypeAlias = dict[str, object]  # values that JSON can hold
# Entries of a config that describe where a model comes from, not what it computes. Labels are compared by name.
ORIGIN = (
    "_name_or_path",
    "_commit_hash",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "id2label",
    "label2id",
)
# Attributes of a schedule that change while it runs.
COUNTERS = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "lr_lambdas")
JSON = (bool, int, float, str, type(None))
PLAIN = (*JSON, bytes, complex)
MOST_DEPTH, MOST_SHOWN = 6, 8


def digest(text: str | bytes, size: int = 8) -> str:
    """Return a hash of `size` bytes in hexadecimal."""
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=size).hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash over names, types, shapes and bytes of all weights, computed on all cores."""
    # Only compared before the first checkpoint, which replaces all weights: a script that creates a new head without a
    # seed starts with different ones each time.
    weights = sorted(model.state_dict().items())

    def one(entry: tuple[str, torch.Tensor]) -> str:
        return f"{entry[0]} {tensor_digest(entry[1])}"

    with ThreadPoolExecutor() as pool:
        return digest("\n".join(pool.map(one, weights)), 16)


def tensor_digest(value: torch.Tensor) -> str:
    content = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(value.shape)} {value.dtype} {blake2b(content.data, digest_size=16).hexdigest()}"


def rows_fingerprint(hashes: np.ndarray) -> str:
    """Return the number of rows and a short hash of them all."""
    return f"{len(hashes):,} rows ({digest(hashes.tobytes())})"


def config_values(config: Config) -> Identity:
    """Return the entries of a model's config that change what it computes."""
    found: Identity = json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}
    return {name: value for name, value in sorted(found.items()) if name not in ORIGIN}


def frozen_names(model: torch.nn.Module) -> list[str]:
    return sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def weightless_parts(model: torch.nn.Module) -> str:
    """Return the dropout rates of a model, and a hash over its modules without weights, which a checkpoint does not restore."""
    leaves = {name: part for name, part in model.named_modules() if not ([*part.children()] or part.state_dict())}
    rates = sorted({part.p for part in leaves.values() if isinstance(part, torch.nn.Dropout)})
    shown = " ".join(f"{name} {part!r}" for name, part in leaves.items())
    return f"dropout {listed(rates) or 'none'} ({digest(shown)})"


def optimizer_values(model: torch.nn.Module, optimizer: Optimizer) -> Identity:
    """Return class and settings of an optimizer, and which parameters each of its groups holds."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        held = sorted(names.get(id(parameter), "unknown") for parameter in group["params"])
        kept = {name: group[name] for name in sorted(group) if name not in ("params", "initial_lr")}
        settings = {name: value if isinstance(value, JSON) else text_of(value) for name, value in kept.items()}
        settings |= {"lr": float(group.get("initial_lr", group["lr"]))}  # a schedule changes lr itself
        groups.append(settings | {"weights": f"{len(held):,} ({digest(' '.join(held))})"})
    return {"class": type(optimizer).__qualname__, "groups": {str(number): group for number, group in enumerate(groups)}}


def schedule_values(schedule: LRScheduler) -> Identity:
    """Return class and settings of a schedule, without its counters."""
    state = {name: value for name, value in vars(schedule).items() if name not in (*COUNTERS, "optimizer")}
    kept = {name: value for name, value in sorted(state.items()) if isinstance(value, (*PLAIN, list, tuple))}
    rates = [identified(rate) for rate in getattr(schedule, "lr_lambdas", ())]
    return {"class": type(schedule).__qualname__, "settings": digest(text_of(kept)), "functions": rates}


def identified(call: object) -> str:
    """Return the name of a function or callable object, with a hash of its code and of the values it uses."""
    # Bytecode, defaults, closure and plain values: a change that computes the same is refused too, one that computes
    # something else is never accepted.
    target = call.func if isinstance(call, partial) else call
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{name} ({digest(text_of(call))})"


def text_of(value: object, depth: int = 0) -> str:
    """Return a text that changes if a value changes, or the code and the plain values behind it."""
    if isinstance(value, PLAIN):
        return repr(value)
    if depth == MOST_DEPTH:
        return type(value).__qualname__
    deeper = depth + 1
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {text_of(entry, deeper)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text_of(entry, deeper) for entry in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(text_of(entry, deeper) for entry in value)) + "}"
    if isinstance(value, torch.Tensor):
        return tensor_digest(value)
    if isinstance(value, partial):
        return text_of([value.func, value.args, value.keywords], deeper)
    if isinstance(value, CodeType):
        return text_of([value.co_code, value.co_names, value.co_varnames, value.co_consts], deeper)
    if isinstance(value, FunctionType):
        used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        plain = {name: found for name, found in used.items() if isinstance(found, (*PLAIN, FunctionType, torch.Tensor))}
        return text_of([value.__code__, value.__defaults__, value.__kwdefaults__, cell_values(value), plain], deeper)
    if isinstance(value, MethodType):
        return text_of([value.__func__, value.__self__], deeper)
    if isinstance(value, type | BuiltinFunctionType):
        return value.__qualname__
    if isinstance(value, torch.nn.Module):
        own = {name: entry for name, entry in vars(value).items() if isinstance(entry, PLAIN) and name != "training"}
        return text_of([type(value).__qualname__, type(value).forward, repr(value), own, value.state_dict()], deeper)
    code = next((vars(kind)["__call__"] for kind in type(value).__mro__ if "__call__" in vars(kind)), None)
    return text_of(
        [type(value).__qualname__, code if isinstance(code, FunctionType) else None, getattr(value, "__dict__", {})], deeper
    )


def cell_values(function: FunctionType) -> list[object]:
    """Return the values of a function's closure; None for a cell that is still empty."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def differences(stored: object, now: object, name: str = "") -> list[str]:
    """Return a sentence for each value that differs, with both values side by side."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        names = [*stored, *(entry for entry in now if entry not in stored)]
        inside = ((entry, f"{name}.{entry}" if name else entry) for entry in names)
        return [line for entry, place in inside for line in differences(stored.get(entry), now.get(entry), place)]
    if stored == now:
        return []
    if isinstance(stored, list) and isinstance(now, list):
        removed, added = ([entry for entry in one if entry not in other] for one, other in ((stored, now), (now, stored)))
        if (removed or added) and max(len(stored), len(now)) > MOST_SHOWN:
            return [
                f"{name}: {len(stored):,} then ({listed(removed, 3) or 'all'}), {len(now):,} now ({listed(added, 3) or 'all'})"
            ]
    return [f"{name}: {shown(stored)} then, {shown(now)} now"]


def shown(value: object) -> str:
    """Return a value as text; of a long list only the first entries."""
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        return listed(value, MOST_SHOWN)
    return shortened(value)
