"""Settings as scripts for transformers read them: resolved, and in transformers' types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from glassloop.settings import Problem

Stored = Mapping[str, object]
OUTPUT_DIR, LOGGING_STEPS, EVAL_STEPS = "trainer_output", 10, 500


def best_metric(stored: Stored) -> object:
    """Return the metric of the best evaluation: the loss, if only the best model is asked for."""
    return stored["metric_for_best_model"] or ("loss" if stored["load_best_model_at_end"] else None)


def greater_is_better(stored: Stored) -> object:
    """Return whether a higher value is better: not for a loss."""
    given, metric = stored["greater_is_better"], best_metric(stored)
    return given if given is not None or metric is None else not str(metric).endswith("loss")


def eval_steps(stored: Stored) -> object:
    """Return the steps between evaluations: those between log entries, if only these are given."""
    given = stored["eval_steps"] or (stored["logging_steps"] or EVAL_STEPS if stored["eval_strategy"] == "steps" else None)
    return given


def debug_options(stored: Stored) -> object:
    """Return the debug options, as a list of transformers' own."""
    from transformers.debug_utils import DebugOption

    given = stored.get("debug") or ""
    return [DebugOption(name) for name in (given.split() if isinstance(given, str) else given)]  # type: ignore[attr-defined]


def compiles(stored: Stored) -> bool:
    """Return whether the settings ask for compiling, also by its mode or backend alone."""
    return any(stored.get(f"torch_compile{part}") for part in ("", "_mode", "_backend"))


# How each setting is read whose stored value is not what transformers would return.
READ_AS: dict[str, Callable[[Stored], object]] = {
    "fp16": lambda stored: stored["precision"] == "fp16",
    "bf16": lambda stored: stored["precision"] == "bf16",
    "output_dir": lambda stored: stored["output_dir"] or OUTPUT_DIR,
    "report_to": lambda stored: [name for name in str(stored["report_to"]).split(",") if name not in ("", "none")],
    "lr_scheduler_kwargs": lambda stored: json.loads(str(stored["lr_scheduler_kwargs"] or "null")),
    "metric_for_best_model": best_metric,
    "greater_is_better": greater_is_better,
    "logging_steps": lambda stored: stored["logging_steps"] or LOGGING_STEPS,
    "eval_steps": eval_steps,
    "do_eval": lambda stored: bool(stored.get("do_eval")) or stored["eval_strategy"] != "no",
    "dataloader_pin_memory": lambda stored: bool(stored.get("dataloader_pin_memory")) and stored["device"] != "cpu",
    "debug": debug_options,
    "torch_compile": compiles,
    "torch_compile_backend": lambda stored: stored.get("torch_compile_backend") or ("inductor" if compiles(stored) else None),
    "include_num_input_tokens_seen": lambda stored: {True: "all", False: "no", None: "no"}.get(
        stored.get("include_num_input_tokens_seen"),
        stored.get("include_num_input_tokens_seen"),  # type: ignore[call-overload]
    ),
}


def contradictions(stored: Stored) -> list[Problem]:
    """Return a problem for each combination of settings that transformers refuses, too."""
    problems = []
    if stored.get("fp16_full_eval") and stored.get("bf16_full_eval"):
        problems.append(Problem("fp16_full_eval and bf16_full_eval are both set", "set one of them"))
    cache = stored.get("torch_empty_cache_steps")
    if cache is not None and not (isinstance(cache, int) and cache > 0):
        problems.append(Problem(f"torch_empty_cache_steps is {cache!r}", "set it to 1 or more, or omit it"))
    if stored.get("dataloader_prefetch_factor") and not stored.get("dataloader_num_workers"):
        problems.append(Problem("dataloader_prefetch_factor needs workers", "set dataloader_num_workers to 1 or more"))
    if stored["save_strategy"] == "best" and best_metric(stored) is None:
        text = "`args.metric_for_best_model` must be provided if save_strategy is best"
        problems.append(Problem(text, "set metric_for_best_model, such as to loss"))
    return problems
