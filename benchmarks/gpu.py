"""Glassloop beside the usual loops on a GPU. Each mode stays within a few minutes.

    python benchmarks/gpu.py job --data GLUE            # BERT-base on MRPC, batch 8, all contenders
    python benchmarks/gpu.py minilm --data GLUE         # the same with MiniLM
    python benchmarks/gpu.py parity --data GLUE         # dropout off: do 100 losses agree? [--weights SEED] [--ramp STEPS]
    python benchmarks/gpu.py large_batch                # batch 64, 128 and 512 tokens
    python benchmarks/gpu.py evaluate --data GLUE       # examples a second, each at its best batch size
    python benchmarks/gpu.py scaling --data GLUE --part rows|lengths|batches|models
    python benchmarks/gpu.py breakdown --data GLUE      # our own step by kind of kernel
    python benchmarks/gpu.py start --data GLUE          # from the start of the process to the saved model, by stage

BERT-base and -large have random weights. `--contenders trainer-bf16-compile` is never run by default: it compiles for minutes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import breakdown
from jobs import SEED, Job, load_rows
from reports import Report, parser_of, settings_of, show_stages

MODES = ("job", "minilm", "parity", "large_batch", "evaluate", "scaling", "breakdown", "start")
ALL = (
    "fast,plain,notes-fp32,notes-bf16,trainer-fp32,trainer-tf32,trainer-bf16,trainer-tf32-tuned,trainer-bf16-tuned,"
    "accelerate-bf16,lightning-bf16"
)
CONTENDERS = {
    "job": ALL,
    "minilm": ALL,
    "parity": (
        "notes-fp64,notes-fp32,notes-fp32-reversed,notes-fp32-wider,notes-fp32-alone,notes-fp32-eager,trainer-fp32,plain-fp32,"
        "fast-fp32,notes-bf16,notes-bf16-reversed,notes-bf16-wider,notes-bf16-alone,notes-bf16-eager,plain-bf16,fast-bf16"
    ),
    "large_batch": "fast,plain,trainer-bf16,trainer-bf16-tuned",
    "evaluate": "fast,plain,trainer-fp32,trainer-bf16,trainer-bf16-tuned,notes-bf16",
    "start": "fast,notes-fp32,trainer-fp32",
}
WHOLE = 1377  # three epochs of MRPC in batches of 8
SIZES = (8, 32, 64, 128, 256)
WAITS = "trainer-tf32"  # the Trainer at its fastest where it waits for Python
WORKS = "trainer-bf16-tuned"  # and where it waits for the GPU
PEERS = {"rows": (WAITS, WAITS), "lengths": (WAITS, WORKS), "batches": (WAITS, WORKS), "models": (WAITS, WAITS)}


def with_steps(job: Job, steps: int) -> Job:
    """So many steps: a fifth of them to warm up, the rest in five blocks."""
    block = max((steps - steps // 5) // 5, 1)
    return replace(job, steps=steps, warm_up=steps - 5 * block, block=block)


def contenders_of(given: argparse.Namespace) -> list[str]:
    return (given.contenders or CONTENDERS[given.mode]).split(",")


def is_ours(contender: str) -> bool:
    return contender.split("-")[0] == "fast"


def plain_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    """The reference job: ours in full, the others as many steps as they need to be steady."""
    ours, theirs = given.steps or WHOLE, given.slow_steps if given.steps is None else given.steps
    base = replace(base, schedule=max(WHOLE, ours))
    return [with_steps(replace(base, contender=name), ours if is_ours(name) else theirs) for name in contenders_of(given)]


def parity_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    base = with_steps(replace(base, no_dropout=True, schedule=WHOLE), given.steps or 100)
    return [replace(base, contender=name) for name in contenders_of(given)]


def large_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    jobs = []
    for length in (128, 512) if given.lengths is None else given.lengths:
        point = replace(base, data=None, synthetic=given.synthetic or 4096, length=length, batch_size=given.batch_size or 64)
        point = replace(point, point=f"{length} tokens")
        jobs += [with_steps(replace(point, contender=name), given.steps or 100) for name in contenders_of(given)]
    return jobs


def evaluate_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    base = replace(base, steps=0, eval_sizes=tuple(given.sizes or SIZES), eval_split="train")
    return [replace(base, contender=name) for name in contenders_of(given)]


def scaling_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    """Ours at every point of a series, transformers' Trainer at both ends; or only those of them that were asked for."""
    random = replace(base, data=None, synthetic=given.synthetic or 4096)
    lengths, sizes = given.lengths or (32, 64, 128, 256, 512), given.sizes or (8, 16, 32, 64, 128, 256)
    names = (given.model or "minilm,base,large").split(",") if given.part == "models" else []
    parts = {
        "rows": [replace(base, times=times, point=f"rows x {times}") for times in (1, 10, 100)],
        "lengths": [replace(random, length=length, point=f"{length} tokens") for length in lengths],
        "batches": [replace(random, length=64, batch_size=size, point=f"batch {size}") for size in sizes],
        "models": [replace(base, model=name, point=name) for name in names],
    }
    points, steps = parts[given.part], given.steps or (1000 if given.part == "rows" else 150)
    peers = [replace(points[end], contender=name) for end, name in zip((0, -1), PEERS[given.part], strict=True)]
    jobs = [with_steps(job, steps) for job in points] + [with_steps(job, min(steps, given.slow_steps)) for job in peers]
    asked = given.contenders.split(",") if given.contenders else ["fast", WAITS, WORKS]
    return [job for job in jobs if job.contender in asked]


def start_jobs(given: argparse.Namespace, base: Job) -> list[Job]:
    """The whole job, with nothing tokenized before and again with everything tokenized."""
    steps = given.steps or WHOLE
    return [
        with_steps(replace(base, contender=name, cold=cold, point="first time" if cold else "again"), steps)
        for cold in (True, False)
        for name in contenders_of(given)
    ]


JOBS = {
    "job": plain_jobs,
    "minilm": plain_jobs,
    "parity": parity_jobs,
    "large_batch": large_jobs,
    "evaluate": evaluate_jobs,
    "scaling": scaling_jobs,
    "start": start_jobs,
}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--part", choices=("rows", "lengths", "batches", "models"), default="rows", help="of scaling")
    parser.add_argument("--slow_steps", type=int, default=150, help="steps of the contenders that are not ours")
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--lengths", type=numbers, help="of large_batch and scaling, separated by commas")
    parser.add_argument("--sizes", type=numbers, help="batch sizes of evaluate and scaling, separated by commas")
    parser.add_argument("--tflops", type=float, default=790, help="of the GPU, for breakdown's floor")
    parser.add_argument("--terabytes", type=float, default=4.3, help="a second of the GPU's memory, for breakdown's floor")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    parser.set_defaults(budget=280)
    given = parser.parse_args()
    model = given.model or ("minilm" if given.mode == "minilm" else "base")
    base = Job("fast", device=given.device, **settings_of(given), model=model, batch_size=given.batch_size or 8)
    short = model.rsplit("/", 1)[-1].replace(",", "-")
    series = given.part if given.mode == "scaling" else ""
    random = given.synthetic or given.mode == "large_batch" or series in ("lengths", "batches")
    data = "random rows" if random else "MRPC" if given.data else "the quickstart pairs"
    size = given.batch_size or (64 if given.mode == "large_batch" else 8)
    name = f"gpu-{given.mode}" + (f"-{series}" if series else "" if short == given.mode else f"-{short}")
    model_named, size_named = "" if series == "models" else f"{short} ", "" if series == "batches" else f", batch {size}"
    name += "" if given.weights == SEED else f"-w{given.weights}"
    name += f"-ramp{given.ramp}" if given.ramp else ""
    rising = ", rising rate" if given.ramp else ""
    report = Report(given, name, f"{series or given.mode}: {model_named}on {data}{size_named}{rising}")
    if given.mode == "breakdown":
        job = replace(base, steps=given.steps or 400, schedule=WHOLE, contender=given.contenders or "fast")
        began, watched = time.time(), job.steps // 4
        found = breakdown.measure(job, job.steps - watched, watched)
        facts = {"contender": job.contender, "title": job.title, "precision": job.precision, "point": ""}
        report.add({**facts, **found}, time.time() - began)
        breakdown.show(found, report.facts["title"], given.tflops, given.terabytes)
        return
    jobs = JOBS[given.mode](given, base)
    if given.mode != "large_batch" and not base.synthetic:
        load_rows(jobs[0])  # tokenized once, for all
    report.run(jobs, given.repeats)
    report.show()
    if given.mode in ("start", "scaling"):
        show_stages(report.runs)


if __name__ == "__main__":
    main()
