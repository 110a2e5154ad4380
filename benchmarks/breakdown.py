"""Where the time of Glassloop's own step goes, by kind of kernel, beside the least bytes and products the model needs."""

from __future__ import annotations

import re
import tempfile
import time
from typing import Any

from contenders import Glassloop
from jobs import Clock, Job, Parts, load_rows, make_model

KINDS = {  # the first that fits a kernel's name
    "attention": "flash|fmha|attention|softmax",
    "AdamW": "adam|update_kernel|scalars_kernel|multi_tensor",
    "gradient norm": "squares|lpnorm|vector_norm|foreach_norm",
    "GELU": "gelu",
    "embedding": "embed|table_gradient|index|gather|scatter|sort|unique",
    "norms and dropout": "norm|dropout|bernoulli|philox",
    "products": "gemm|gemv|cutlass|nvjet|xmma|cublas|splitk|mma|addmm|aten::b?mm|linear",
    "bias gradients": "reduce|aten::sum",
    "copies and fills": "memcpy|memset|copy|fill|zero|cat|join|clone",
}
TOP = 60


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), "other")


def measure(job: Job, before: int, watched: int) -> dict[str, Any]:
    """Microseconds a step by kind, over `watched` steps after `before` that are not watched, the second half of them timed."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from glassloop import Callback

    on_gpu = job.device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    rows, labels, tokenizer = load_rows(job)
    parts = Parts(rows, tokenizer, make_model(job, labels, tokenizer))
    needed = floor_of(job, parts)
    profiler, times = profile(activities=[activity]), {}
    with profile(activities=[activity]):  # the tracer must be there before graphs are captured
        torch.zeros(1, device=job.device).add_(1)

    class Watch(Callback):
        def on_step(self, state: Any, batches: Any) -> None:
            if state.step in (before // 2, before, before + watched):
                if on_gpu:
                    torch.cuda.synchronize()
                times[state.step] = time.perf_counter()
            if state.step == before:
                profiler.start()
            if state.step == before + watched:
                profiler.stop()

    with tempfile.TemporaryDirectory() as folder:
        contender = Glassloop(job, parts, Clock(job, time.time()), folder)
        contender.prepare()
        contender.trainer.callbacks.append(Watch())
        contender.trainer._quiet = True
        contender.train()
    events = []
    for event in profiler.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        events.append((spent / watched, event.count / watched, event.key))
    events.sort(reverse=True)
    by_kind: dict[str, list[float]] = {kind: [0.0, 0.0] for kind in (*KINDS, "other")}
    for spent, count, name in events:
        by_kind[kind_of(name)][0] += spent
        by_kind[kind_of(name)][1] += count
    return {
        "backend": contender.facts["backend"],
        "gpu": torch.cuda.get_device_name() if on_gpu else "",
        "step_ms": (times[before] - times[before // 2]) / (before - before // 2) * 1000,
        "watched_step_ms": (times[before + watched] - times[before]) / watched * 1000,
        "kernel_us": sum(spent for spent, _, _ in events),
        "launches": sum(count for _, count, _ in events),
        "kinds": {kind: {"us": spent, "launches": count} for kind, (spent, count) in by_kind.items()},
        "kernels": [{"us": spent, "launches": count, "name": name[:160]} for spent, count, name in events[:TOP]],
        "floor": needed,
    }


def floor_of(job: Job, parts: Parts) -> dict[str, float]:
    """The least a step needs: bytes of weights, gradients and AdamW's state; operations of products and attention.

    Bytes: fp32 weight and both moments are read and written (24); the low copy of a weight is written once and read twice,
    its gradient written and read once. Rows of the word table that the data never use cost nothing. Operations: real tokens
    only; in the last layer all but keys and values is needed for first tokens alone; backward costs twice forward.
    """
    import numpy as np

    from glassloop.data.rows import lengths_of

    model, rows = parts.model, parts.rows["train"]
    config, lengths = model.config, lengths_of(rows).astype(np.float64)
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, squares = job.batch_size * lengths.mean(), job.batch_size * (lengths**2).mean()
    whole_layer = 2 * tokens * (4 * width**2 + 2 * width * inner) + 4 * squares * width
    first_only = 2 * job.batch_size * (2 * width**2 + 2 * width * inner) + 4 * tokens * width
    last_layer = 2 * tokens * 2 * width**2 + first_only
    operations = 3 * ((layers - 1) * whole_layer + last_layer)
    table = model.get_input_embeddings().weight
    used = len(np.unique(rows.data.column("input_ids").combine_chunks().flatten().to_numpy(zero_copy_only=False)))
    dense = sum(weight.numel() for weight in model.parameters()) - table.numel()
    low = 2 if job.precision == "bf16" else 4
    per_weight = 24 + 2 * low + (3 * low if low == 2 else 2 * low)  # in fp32 the copy is the weight itself
    return {
        "tokens": float(tokens),
        "used_rows": used,
        "dense_weights": dense,
        "bytes": dense * per_weight + used * width * 24,
        "flop": float(operations),
        "flop_of_whole_layers": float(3 * layers * whole_layer),
    }


def show(found: dict[str, Any], title: str, tflops: float, terabytes: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind of kernel", "µs a step", "launches", "share", title=title)
    for kind, figures in sorted(found["kinds"].items(), key=lambda entry: -entry[1]["us"]):
        share = figures["us"] / max(found["kernel_us"], 1e-9)
        table.add_row(kind, f"{figures['us']:,.0f}", f"{figures['launches']:.1f}", f"{share:.0%}")
    table.add_row("all kernels", f"{found['kernel_us']:,.0f}", f"{found['launches']:.1f}", "")
    table.add_row("a whole step", f"{found['step_ms'] * 1000:,.0f}", "", "")
    floor = found["floor"]
    for name, amount, rate in (("bytes", floor["bytes"], terabytes), ("flop", floor["flop"], tflops)):
        table.add_row(f"floor: {amount / 1e9:,.2f} G{name} at {rate:g} T/s", f"{amount / rate / 1e6:,.0f}", "", "")
    Console(width=120).print(table)
