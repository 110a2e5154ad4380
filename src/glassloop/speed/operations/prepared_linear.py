"""Linear layers for forward passes on a CPU: weights in oneDNN's own layout, with GELU or a sum computed on the way out."""

from __future__ import annotations

import torch
from torch.nn import functional

TYPICAL_TOKENS = 512  # a layout is chosen for about this many tokens, and works for any number


def has_prepared_form() -> bool:
    """Return whether this build of torch can store the weights of a linear layer in oneDNN's layout."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    found = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(found and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"))


def joined(parts: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    """Return one weight, or several as one matrix."""
    return torch.cat([part.detach() for part in parts]) if isinstance(parts, list) else parts.detach()


class PreparedLinear:
    """x @ weight^T + bias, with weights that are copied once.

    Args:
        weight: The weight, or several that are multiplied as one matrix.
        bias: The bias, or as many as there are weights.
    """

    def __init__(self, weight: torch.Tensor | list[torch.Tensor], bias: torch.Tensor | list[torch.Tensor]) -> None:
        weights, self.bias = joined(weight), joined(bias)
        self.prepared = has_prepared_form()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weights, TYPICAL_TOKENS) if self.prepared else weights

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias."""
        if not self.prepared:
            return functional.linear(x, self.weight, self.bias)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return found

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """Return GELU(x @ weight^T + bias)."""
        if not self.prepared:
            return functional.gelu(self(x), approximate=approximate)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], approximate)
        return found

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias + residual."""
        if not self.prepared:
            return self(x).add_(residual)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return found
