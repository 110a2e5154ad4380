"""The backend that predicts in int8 on a CPU: it measures the ranges of values in fp32, then runs quantized layers."""

from __future__ import annotations

from glassloop.backends.packed import PackedBackend
from glassloop.speed.encoder_parts import LayerParts
from glassloop.speed.encoders.inference_layers import InferenceLayer, InferenceLayers, PackedLayer
from glassloop.speed.encoders.int8_layers import Int8Layer, MeasuredLayer, Ranges
from glassloop.speed.encoders.recognition import has_replaceable_layers
from glassloop.speed.operations.int8_linear import why_no_kernels
from glassloop.transformers_types import Model


class Int8Backend(PackedBackend):
    """Packed batches on a CPU. The first passes are in fp32, and measure; after `quantize`, linear layers run in int8."""

    name = "int8"

    def __init__(self) -> None:
        super().__init__("cpu", "fp32")
        self.ranges: Ranges = {}
        self.quantized = False

    def why_not(self, model: Model) -> str | None:
        """Return why this backend cannot run a model; None if it can."""
        reason = super().why_not(model)
        return reason or (None if has_replaceable_layers(model) else f"{type(model).__name__} has layers without an int8 form")

    def quantize(self) -> None:
        """Run the layers whose ranges were measured in int8 from now on."""
        self.quantized = True

    def fast_form(self, model: Model) -> InferenceLayers:
        """Return the model with layers that measure, or with quantized ones."""
        return InferenceLayers(model, self.make_layer)

    def make_layer(self, parts: LayerParts) -> PackedLayer:
        """Return the form of one layer. The last one, whose ranges nobody measures, stays in fp32."""
        if not self.quantized:
            return MeasuredLayer(parts, self.ranges)
        seen = self.ranges.get(parts.module)
        return InferenceLayer(parts) if seen is None else Int8Layer(parts, seen)


def why_not_int8(model: Model) -> str | None:
    """Return why a model cannot predict in int8 on this CPU; None if it can."""
    if (reason := Int8Backend().why_not(model)) is not None:
        return reason
    reason = why_no_kernels()
    return None if reason is None else f"this CPU: {reason}"
