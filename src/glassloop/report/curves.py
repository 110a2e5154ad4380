"""The section with the learning curves: loss, evaluations, learning rate and gradient norm by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.charts.line import Event, LineChart, Series, smoothed
from glassloop.charts.scales import COUNT, LINEAR, LOG, Axis
from glassloop.pages.parts import grid, paragraph
from glassloop.report.drawn import Drawn
from glassloop.report.source import RunSource, numbers_by_step
from glassloop.run_folder.record import is_timing

STEPS = Axis("step", COUNT, low=0)
MOST_RANGE = 30.0  # a gradient norm that varies more is drawn on a logarithmic axis


def curves(source: RunSource, drawn: Drawn) -> str:
    """Return the learning curves of a run; empty if nothing was logged."""
    history, events = source.history, events_of(source)
    losses, evaluated = numbers_by_step(history, "loss"), numbers_by_step(history, "eval_loss")
    lines = [Series("training", smoothed(losses, 0.06), raw=losses if len(losses) > 40 else ())] if losses else []
    lines += [Series("evaluation", evaluated, dots=True)] if evaluated else []
    parts = []
    if lines:
        name = "Loss"
        told = f"The training loss goes from {losses[0][1]:.3g} to {losses[-1][1]:.3g}." if losses else "The evaluation loss."
        note = "Thin line: logged values. Thick line: their moving average." if len(losses) > 40 else ""
        parts.append(drawn.figure("loss", LineChart(name, told, STEPS, Axis("loss"), lines, events), note))
    parts += [evaluation_chart(source, drawn, events)]
    rates, norms = numbers_by_step(history, "learning_rate"), numbers_by_step(history, "grad_norm")
    if len(rates) > 1:
        told = f"The learning rate reaches {max(rate for _, rate in rates):g}."
        chart = LineChart("Learning rate", told, STEPS, Axis("learning rate", low=0), [Series("learning rate", rates)])
        parts.append(drawn.figure("learning-rate", chart))
    if len(norms) > 1:
        parts.append(drawn.figure("gradient-norm", norm_chart(norms, source)))
    if not any(parts):
        return paragraph("Nothing was logged yet.", "soft")
    return grid(*parts)


def events_of(source: RunSource) -> list[Event]:
    """Return the vertical lines of a chart by step: resumes and the best evaluation."""
    best = source.record.best_step if source.record else None
    events = [Event(step, "resumed") for step in dict.fromkeys(source.resumes)]
    return events + ([Event(best, "best")] if best is not None else [])


def evaluation_chart(source: RunSource, drawn: Drawn, events: Sequence[Event]) -> str:
    """Return the metrics of all evaluations by step; empty if there was none."""
    lines = []
    for key, title in metric_names(source).items():
        points = numbers_by_step(source.history, f"eval_{key}")
        if points:
            lines.append(Series(title, points, dots=True))
    if not lines:
        return ""
    baseline = source.record.baseline or {} if source.record else {}
    first = next(iter(metric_names(source)))
    references = [(f"baseline: {first}", baseline[first])] if first in baseline else []
    last = ", ".join(f"{line.name} {line.points[-1][1]:.4f}" for line in lines)
    chart = LineChart("Evaluations", f"The last evaluation: {last}.", STEPS, Axis("score"), lines[:8], events, references)
    return drawn.figure("evaluations", chart)


def metric_names(source: RunSource) -> Mapping[str, str]:
    """Return the metrics of the evaluations during training and their names for a person."""
    measures = source.measures
    if measures.keys:
        return {key: measures.title(key) for key in measures.keys}
    names = dict.fromkeys(name for entry in source.history for name in entry if name.startswith("eval_"))
    keys = [name.removeprefix("eval_") for name in names if not is_timing(name)]
    return {key: key for key in keys if key != "loss"}


def norm_chart(norms: Sequence[tuple[float, float]], source: RunSource) -> LineChart:
    """Return the gradient norm by step, with the value that gradients are clipped to."""
    values = [value for _, value in norms if value > 0]
    wide = bool(values) and max(values) / min(values) > MOST_RANGE
    limit = source.record.settings.max_grad_norm if source.record else 0
    told = f"The gradient norm is between {min(values, default=0):.3g} and {max(values, default=0):.3g}."
    raw = norms if len(norms) > 40 else ()
    lines = [Series("gradient norm", smoothed(norms, 0.06), raw=raw)]
    axis = Axis("norm before clipping", LOG if wide else LINEAR, low=None if wide else 0)
    return LineChart("Gradient norm", told, STEPS, axis, lines, (), [("clipped above", limit)] if limit else ())
