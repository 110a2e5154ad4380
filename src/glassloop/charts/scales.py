"""Axes and scales: ranges and ticks at round numbers, linear or logarithmic, and the numbers written at them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

LINEAR, LOG, PERCENT, COUNT = "linear", "log", "percent", "count"


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: What the axis shows.
        kind: "linear", "log", "percent" (0.25 is written 25 %) or "count" (only whole numbers, from zero).
        low: The lowest value; by default a round number below the data.
        high: The highest value; by default a round number above the data.
    """

    title: str = ""
    kind: str = LINEAR
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """Maps values of an axis to places between `start` and `stop`.

    Attributes:
        low: The value at `start`.
        high: The value at `stop`.
        start: The place of the lowest value.
        stop: The place of the highest value.
        kind: The kind of the axis.
        ticks: The values with a tick.
    """

    low: float
    high: float
    start: float
    stop: float
    kind: str = LINEAR
    ticks: tuple[float, ...] = field(default=())

    def place(self, value: float) -> float:
        """Return the place of a value; one outside of the range is at its end."""
        share = self.share(value)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    def share(self, value: float) -> float:
        """Return where a value lies between the lowest, 0, and the highest, 1."""
        if self.kind == LOG:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def written(self, value: float) -> str:
        """Return the text of a tick."""
        return tick_text(value, self.ticks, self.kind)


def scale_of(axis: Axis, values: Iterable[float], start: float, stop: float, most_ticks: int = 6) -> Scale:
    """Return the scale of an axis that shows all values. Values that are not finite are ignored."""
    found = [value for value in values if math.isfinite(value)]
    if axis.low is not None and axis.high is not None and axis.high <= axis.low:
        axis = replace(axis, high=None)  # an axis whose ends are equal has no length
    if axis.kind == LOG:
        return log_scale(axis, found, start, stop)
    low = axis.low if axis.low is not None else 0.0 if axis.kind == COUNT else min(found, default=0.0)
    high = axis.high if axis.high is not None else max(found, default=1.0)
    high = max(high, low + 1) if axis.kind == COUNT else high
    if high <= low:
        spread = abs(low) / 10 or 1.0
        low, high = (low if axis.low is not None else low - spread), low + spread
    step = round_step(high - low, most_ticks, axis.kind)
    low = axis.low if axis.low is not None else math.floor(low / step + 1e-9) * step
    high = axis.high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    return Scale(low, high, start, stop, axis.kind, tuple(multiples(low, high, step)))


def log_scale(axis: Axis, found: Sequence[float], start: float, stop: float) -> Scale:
    """Return a logarithmic scale over whole powers of ten, or over 1, 2 and 5 times them if there are few."""
    positive = [value for value in found if value > 0]
    least, most = axis.low or min(positive, default=1.0), axis.high or max(positive, default=10.0)
    powers = range(math.floor(math.log10(least) - 1e-9), math.ceil(math.log10(most) + 1e-9) + 1)
    parts = (1, 2, 5) if math.log10(most / least) < 2 else (1,)
    ticks = [float(f"{part}e{power}") for power in powers for part in parts]
    low = axis.low or max((tick for tick in ticks if tick <= least * (1 + 1e-9)), default=least)
    high = axis.high or min((tick for tick in ticks if tick >= most * (1 - 1e-9) and tick > low), default=most * 10)
    every = max(1, math.ceil(len(powers) / 6)) if parts == (1,) else 1
    kept = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)][::every]
    return Scale(low, high, start, stop, LOG, tuple(kept))


def round_step(span: float, most: int, kind: str = LINEAR) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that divides a span into at most `most` parts."""
    power = math.floor(math.log10(span / most))
    steps = [float(f"{part}e{power + extra}") for extra in (0, 1) for part in (1, 2, 5)]
    step = next((step for step in steps if span / step <= most + 1e-9), steps[-1] * 2)
    return max(step, 1.0) if kind == COUNT else step


def multiples(low: float, high: float, step: float) -> list[float]:
    """Return the multiples of a step between two values, without rounding errors such as 0.30000000000000004."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float, ticks: Sequence[float], kind: str) -> str:
    """Return the text of a tick, with as many decimals as its neighbors need."""
    if kind == LOG or value == 0:
        return number_text(value) + (" %" if kind == PERCENT else "")
    times = 100 if kind == PERCENT else 1
    distance = abs(ticks[1] - ticks[0]) * times if len(ticks) > 1 else abs(value) * times or 1.0
    if 0 < distance < 1e-4:
        mantissa, power = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(power)}" if value else "0"
    decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
    largest = max((abs(tick) for tick in ticks), default=abs(value))
    if largest >= 1e6 and kind != PERCENT:
        return number_text(value)
    return f"{value * times:,.{decimals}f}" + (" %" if kind == PERCENT else "")


def number_text(value: float) -> str:
    """Return a number with about four significant digits: 12,345, 0.1234, 2.5e-5, 3.2M."""
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.4g}G"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 1e-4 else f"{value:.2e}".replace("e-0", "e-").replace(".00e", "e")


def value_text(value: float | None, kind: str = LINEAR) -> str:
    """Return a value as it is shown on hover and in tables."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value * 100:.1f} %" if kind == PERCENT else number_text(value)
