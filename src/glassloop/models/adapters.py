"""The parts of a LoRA adapter that peft has put around the linear layers of a model, and a model without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from glassloop.base.errors import SettingsError, listed
from glassloop.data.interfaces import Model
from glassloop.settings.training import ALL_LINEAR

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Linear, Module, ModuleDict


@dataclass(frozen=True, eq=False)
class AdaptedLinear:
    """A linear layer with a LoRA adapter: x @ weight^T + bias + scale * dropout(x) @ shrink^T @ expand^T."""

    weight: Tensor
    bias: Tensor
    shrink: Tensor
    expand: Tensor
    scale: float
    dropout: Module

    @property
    def rate(self) -> float:
        return float(getattr(self.dropout, "p", 0.0))  # peft has an `Identity` for no dropout


LinearPart: TypeAlias = "Linear | AdaptedLinear"


def with_lora(model: Model, rank: int, alpha: int, dropout: float, targets: str, seed: int) -> Model:
    """Return a model with LoRA adapters of peft around linear layers of its encoder, whose head is trained as well.

    `targets` are names of layers separated by commas, or "all-linear". Raises `SettingsError` if peft is not installed, or if
    a name is not that of a linear layer of the encoder.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise SettingsError("adapter lora needs the package peft", "pip install 'glassloop[peft]'") from error
    from torch import manual_seed, random
    from torch.nn import Linear

    encoder, names = model.base_model, [part.strip() for part in targets.split(",")]
    linear = [name for name, part in encoder.named_modules() if isinstance(part, Linear)]
    known = {name.rpartition(".")[2] for name in linear} | {*linear}
    if unknown := [name for name in names if name not in known and targets != ALL_LINEAR]:
        problem = f"lora_target_modules names {listed(unknown)}, which is no linear layer of the encoder"
        last = sorted({name.rpartition(".")[2] for name in linear})
        raise SettingsError(problem, f"use names among {listed(last)}, or {ALL_LINEAR}")
    chosen = [name for name in linear if targets == ALL_LINEAR or {name, name.rpartition(".")[2]} & {*names}]
    heads = [name for name, part in model.named_children() if part is not encoder and [*part.parameters()]]
    config = LoraConfig(
        task_type="SEQ_CLS" if hasattr(model, "prepare_inputs_for_generation") else None,
        r=rank, lora_alpha=alpha, lora_dropout=dropout,
        target_modules=[f"{model.base_model_prefix}.{name}" for name in chosen], modules_to_save=heads,
    )  # fmt: skip
    with random.fork_rng(devices=[]):
        manual_seed(seed)
        adapted: Model = get_peft_model(model, config)
    return adapted


def is_adapter(part: object) -> bool:
    """Return whether a module is peft's LoRA around a linear layer. It is recognized by name: peft need not be installed."""
    return (type(part).__module__, type(part).__name__) == ("peft.tuners.lora.layer", "Linear")


def adapted_linear(part: Model) -> AdaptedLinear:
    name, base = part.active_adapters[0], part.base_layer
    shrink, expand = part.lora_A[name].weight, part.lora_B[name].weight
    return AdaptedLinear(base.weight, base.bias, shrink, expand, float(part.scaling[name]), part.lora_dropout[name])


def why_not_adapter(part: Model) -> str | None:
    """Return why peft's LoRA around a linear layer has no fast form; None if it has one."""
    from torch.nn import Dropout, Identity, Linear

    if len(part.active_adapters) != 1 or part.disable_adapters or part.merged or part.active_adapters[0] not in part.lora_A:
        return "not exactly one adapter is active"
    name = part.active_adapters[0]
    if name in part.lora_variant or part.fan_in_fan_out:
        return "the adapter is not plain LoRA"
    usual = type(part.lora_A[name]) is type(part.lora_B[name]) is Linear
    if not usual or part.lora_A[name].bias is not None or part.lora_B[name].bias is not None:
        return "the adapter is not plain LoRA"
    return None if type(part.lora_dropout[name]) in (Dropout, Identity) else "the dropout of the adapter is not torch's"


def unwrapped(part: Module) -> Module:
    """Return the module that peft has wrapped to adapt it, or whose copy it trains; any other as it is."""
    if is_adapter(part):
        return cast("Module", part.base_layer)
    if (type(part).__module__, type(part).__name__) == ("peft.utils.other", "ModulesToSaveWrapper"):
        copies, active = cast("ModuleDict", part.modules_to_save), cast("list[str]", part.active_adapters)
        return copies[active[0]] if len(active) == 1 and active[0] in copies else part
    return part


def modules_of(model: Module) -> dict[str, Module]:
    """Return every module once by the name that it has without adapters."""
    found: dict[str, Module] = {}

    def visit(name: str, part: Module) -> None:
        part = unwrapped(part)
        if not any(part is other for other in found.values()):
            found[name] = part
            for child, module in part.named_children():
                visit(f"{name}.{child}" if name else child, module)

    visit("", model)
    return found
