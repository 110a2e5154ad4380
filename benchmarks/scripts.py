"""Run scripts in the habits of real ones with transformers and with Glassloop, and compare everything they find.

    python benchmarks/scripts.py                              all scripts of benchmarks/scripts/, a table, a JSON file
    python benchmarks/scripts.py focal_loss kfold --show      some of them, with each difference and all output
    python benchmarks/scripts.py --prepare FOLDER             models and data for `cd FOLDER && python SCRIPT`

Each script runs in a forked child, in a new folder that holds four tiny models and four small CSV files, up to three times:
as it is, with the imports of `Trainer` and `TrainingArguments` changed to Glassloop, and as it is through `glassloop run`.
Scripts that need names transformers has removed are compared with a copy that uses the names of today. Dropout is off and
random numbers start from one seed, and no script depends on the order of rows that a Trainer draws. Compared are the variables
of the script at its end, and `log_history` of every Trainer it made; timings are left out, and so is what Glassloop adds.

A script is equal, or differs for a reason that is printed while it runs (`REASONS` names it), or is refused with a reason. It
fails if it differs without a word, or if it crashes.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import math
import os
import platform
import random
import re
import runpy
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
RESULT = HERE / "results" / "scripts.json"
TRANSFORMERS, IMPORT, RUN = "transformers", "import changed", "glassloop run"
EQUAL, REASON, REFUSED, SILENT, CRASH, SAME, BROKEN = (
    *("equal", "differs, reason printed", "refused, reason printed"),
    *("differs silently", "crashes", "fails as with transformers", "reference fails"),
)
FAILURES = (SILENT, CRASH, BROKEN)
MOVED = ("Trainer", "TrainingArguments")
# What a script that differs must print, and where it may differ.
REASONS = {
    "accumulation_compile": ("transformers' Trainer logs their sum", r"(?<!eval_)loss:|grad_norm:"),
    "commonlit_stdev": ("the default of transformers is 8", r"\.eval_loss:"),
    "group_by_length": ("transformers' Trainer sorts them with group_by_length", r"^\.predicted\["),
    "resume_checkpoint": ("transformers' Trainer omits those before a resume", r"\btrain(ing)?_loss:"),
    "train_twice": ("transformers' Trainer keeps the old one", r"^\.(second|losses\b)|^log_history at step"),
}
# How scripts of earlier years are written today. A script that fails as it is is compared with this copy of itself.
TODAY = [
    (r"\bevaluation_strategy=", "eval_strategy="),
    (r"\bper_gpu_(train|eval)_batch_size=", r"per_device_\1_batch_size="),
    (r"\bwarmup_steps=(\d+),(\s*)warmup_ratio=[\d.]+,", r"warmup_steps=\1,"),
    (r"\bwarmup_ratio\b", "warmup_steps"),
    (r"\bgroup_by_length=True", 'train_sampling_strategy="group_by_length"'),
    (r"\bno_cuda=True", "use_cpu=True"),
    (r"\badafactor=True", 'optim="adafactor"'),
    (r"\s*\b(overwrite_output_dir|save_safetensors)=True,", ""),
    (r"\s*\b(logging_dir|fp16_opt_level)=\"[^\"]*\",", ""),
    (r"\binclude_inputs_for_metrics=True", 'include_for_metrics=["inputs"]'),
    (r"\breturn_outputs=False\):", "return_outputs=False, **kwargs):"),
    (r"def training_step\(self, model, inputs\)", "def training_step(self, model, inputs, *rest)"),
    (r"def _get_train_sampler\(self\)", "def _get_train_sampler(self, *rest)"),
    (r"def log\(self, logs\)", "def log(self, logs, *rest)"),
    (r"from datasets import load_metric\n", "from scripts import load_metric\n"),
    (r"^import evaluate\n", "import scripts as evaluate\n"),
    (r"from datasets import Dataset, load_metric\n", "from datasets import Dataset\nfrom scripts import load_metric\n"),
    (r"\.encode_plus\(", "("),
    (r", correct_bias=True", ""),
    (r"from tqdm.notebook import", "from tqdm.auto import"),
]  # fmt: skip
FAMILIES = {"tiny-bert": "bert", "tiny-roberta": "roberta", "tiny-distilbert": "distilbert", "tiny-deberta": "deberta-v2"}
TIMINGS = re.compile("runtime|per_second|_time$|time_|flos|elapsed|memory|mem_|num_tokens|num_input_tokens")
LIMIT = 120  # seconds for one run of one script


@dataclass
class Run:
    """One run of one script.

    Attributes:
        variables: The variables of the script at its end, as JSON.
        trainers: Of each Trainer: its log entries, its backend.
        error: The last line of the error that ended it; empty if none did.
        trace: The whole error.
        is_refusal: Whether the error is one of Glassloop's own.
        output: What it printed.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    trainers: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    trace: str = ""
    is_refusal: bool = False
    output: str = ""


@dataclass
class Verdict:
    """How a run with Glassloop compares with transformers."""

    outcome: str
    detail: list[str] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Metric:
    """A stand-in for the metrics of `evaluate`, for the copies that use the names of today."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: tuple[list[Any], list[Any]] = ([], [])

    def add_batch(self, predictions: Any, references: Any) -> None:
        self.rows[0].extend(map(int, predictions))
        self.rows[1].extend(map(int, references))

    def compute(self, predictions: Any = None, references: Any = None, **options: Any) -> dict[str, float]:
        from sklearn import metrics

        predictions, references = self.rows if predictions is None else (predictions, references)
        self.rows = ([], [])
        functions = {"accuracy": metrics.accuracy_score, "f1": metrics.f1_score}
        if self.name == "glue":
            return {name: float(function(references, predictions)) for name, function in functions.items()}
        return {self.name: float(functions[self.name](references, predictions, **options))}


def load_metric(name: str, *_: str) -> Metric:
    """Return a metric by name."""
    return Metric(name)


load = load_metric


def former_adamw(params: Any, lr: float = 1e-3, eps: float = 1e-6, weight_decay: float = 0.0) -> Any:
    """Return the AdamW that transformers had: no weight decay by default, and `eps` is not divided by the bias correction."""
    import torch

    class Former(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in (weight for weight in group["params"] if weight.grad is not None):
                    state = self.state[weight]
                    number = state["step"] = state.get("step", 0) + 1
                    mean = state["mean"] = torch.lerp(state.get("mean", torch.zeros_like(weight)), weight.grad, 0.1)
                    square = state["square"] = torch.lerp(state.get("square", torch.zeros_like(weight)), weight.grad**2, 0.001)
                    rate = group["lr"] * math.sqrt(1 - 0.999**number) / (1 - 0.9**number)
                    weight -= rate * mean / (square.sqrt() + group["eps"])
                    weight -= group["lr"] * group["weight_decay"] * weight

    return Former(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})


# Models and data


def prepare(folder: Path) -> None:
    """Write tiny models without a head, their tokenizer, and CSV files with texts, pairs, labels and scores."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from families import WORDS, tiny_model, tiny_tokenizer

    for name, family in FAMILIES.items():
        tiny_model(family, dropout=0.0, initializer_range=0.2).base_model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    draw = random.Random(5)
    neutral = [word for word in WORDS if word not in ("good", "bad")]

    def text(mood: int) -> str:
        words = draw.choices(neutral, k=draw.randint(4, 12))
        words.insert(draw.randrange(len(words)), ("bad", "good")[mood])
        return " ".join(words)

    def row(number: int) -> dict[str, Any]:
        label = number % 2
        marks = {"toxic": label, "insult": number // 2 % 2, "threat": int(number % 5 == 0)}
        numbers = {"target": round(draw.gauss(label - 0.5, 0.5), 3), "stdev": round(draw.uniform(0.1, 0.9), 3)}
        kinds = {"label": label, "star": number % 3, "genre": ("news", "novel", "letter")[number % 3], "group": number % 4}
        return {"id": f"r{number}", "text": text(label), "text_b": text(number // 2 % 2), **kinds, **marks, **numbers}

    names = ("label", "star", "genre", "group", "toxic", "insult", "threat", "target", "stdev")
    for name, first, number in (("train", 0, 24), ("valid", 100, 12), ("test", 200, 10), ("pairs", 300, 24)):
        rows = [row(first + place) for place in range(number)]
        hidden = names if name == "test" else ()
        columns = [column for column in rows[0] if column not in hidden]
        lines = [",".join(columns), *(",".join(str(entry[column]) for column in columns) for entry in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


# The three variants of a script


def with_glassloop(text: str) -> str:
    """Return a script that imports Trainer and TrainingArguments from Glassloop. Nothing else changes."""
    lines = text.splitlines()
    moved = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in (
            "transformers",
            "transformers.trainer",
            "transformers.training_args",
        ):
            names = [name for name in node.names if name.name in MOVED]
            rest = [name for name in node.names if name.name not in MOVED]
            if names:
                written = [(node.module, rest)] * bool(rest) + [("glassloop", names)]
                new = "; ".join(f"from {module} import {', '.join(map(ast.unparse, entries))}" for module, entries in written)
                moved.append((node.lineno - 1, node.end_lineno, " " * node.col_offset + new))
    for first, end, new in sorted(moved, reverse=True):
        lines[first:end] = [new]
    text = "\n".join(lines) + "\n"
    if re.search(r"\btransformers\.(Trainer|TrainingArguments)\b", text):
        text = re.sub(r"\btransformers\.(Trainer|TrainingArguments)\b", r"glassloop.\1", text)
        text = re.sub(r"^import transformers$", "import glassloop, transformers", text, flags=re.MULTILINE)
    return text


def of_today(text: str) -> str:
    """Return a script with the names that transformers has today."""
    lines = text.splitlines(keepends=True)
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Trainer"):
            for word in call.keywords:
                if word.arg == "tokenizer":
                    line = lines[word.lineno - 1]
                    lines[word.lineno - 1] = line[: word.col_offset] + "processing_class" + line[word.col_offset + 9 :]
    text = "".join(lines)
    for old, new in TODAY:
        text = re.sub(old, new, text, flags=re.MULTILINE)
    names = re.search(r"from transformers import .*\bAdamW\b.*\n", text)
    if names:
        rest = re.sub(r"\bAdamW, |, AdamW\b", "", names[0])
        text = text.replace(names[0], rest + "from scripts import former_adamw as AdamW\n")
    return text


# One run, in a forked child


def plain(value: Any, depth: int = 5) -> Any:
    """Return a value as JSON, or None for what cannot be compared: functions, models, data sets."""
    import numpy as np
    import pandas as pd
    import torch

    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float | np.number | np.bool_):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, torch.Tensor):
        value = value.detach().float().cpu().numpy()
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), depth + 1)
    if isinstance(value, pd.DataFrame):
        return {str(name): plain(value[name].tolist()) for name in value}
    if not depth:
        return None
    if isinstance(value, dict):
        return {str(name): plain(entry, depth - 1) for name, entry in value.items() if not TIMINGS.search(str(name))}
    if hasattr(value, "_asdict"):
        return plain(value._asdict(), depth)
    if isinstance(value, list | tuple | set):
        return [plain(entry, depth - 1) for entry in (sorted(value, key=str) if isinstance(value, set) else value)]
    if type(value).__name__ in ("PredictionOutput", "EvalPrediction", "TrainOutput"):
        return plain(vars(value), depth)
    is_of_script = type(value).__module__ in ("__main__", "<run_path>") and not isinstance(
        value, torch.nn.Module | torch.optim.Optimizer
    )
    return (
        plain(vars(value), 2)
        if is_of_script
        and hasattr(value, "__dict__")
        and not hasattr(value, "log_metrics")
        and not hasattr(value, "output_dir")
        else None
    )


MADE: list[Any] = []  # every Trainer of this process
FOUND: dict[str, Any] = {}  # variables of the script


def observe(variables: dict[str, Any]) -> None:
    """Keep the variables of a script. A line that is added to the end of each script calls this."""
    variables = {name: value for name, value in variables.items() if not isinstance(value, Metric)}
    named = {name: plain(value) for name, value in variables.items() if not name.startswith("_") and not TIMINGS.search(name)}
    FOUND.update({name: value for name, value in named.items() if value is not None})


def record_trainers(kind: Any) -> None:
    """Keep every Trainer that is made."""
    made = kind.__init__

    @functools.wraps(made)
    def recorded(self: Any, *given: Any, **options: Any) -> None:
        MADE.append(self)
        made(self, *given, **options)

    kind.__init__ = recorded


def about(trainer: Any) -> dict[str, Any]:
    """Return what a Trainer has logged, and its backend."""
    state = getattr(trainer, "state", None)
    backend = getattr(getattr(trainer, "backend", None), "name", "transformers")
    return {"steps": getattr(state, "global_step", None), "log": plain(getattr(state, "log_history", [])), "backend": backend}


def seed_everything() -> None:
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.nn.functional.dropout = lambda values, *_, **__: values


def execute(name: str, text: str, variant: str) -> Run:
    """Run a script in this process and folder."""
    from glassloop.base.errors import GlassloopError

    run = Run()
    Path(f"{name}.py").write_text(text + "\n__import__('scripts').observe(globals())\n", encoding="utf-8")
    sys.modules["scripts"] = sys.modules["__main__"] if __name__ == "__main__" else sys.modules[__name__]
    sys.argv = [f"{name}.py"]
    sys.path[0] = "."
    seed_everything()
    try:
        import transformers

        import glassloop

        record_trainers(transformers.Trainer)
        record_trainers(glassloop.Trainer)
        if variant == RUN:
            from glassloop.cli.main import main

            sys.argv = ["glassloop", "run", f"{name}.py"]
            main()
        else:
            runpy.run_path(f"{name}.py", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            run.error = f"exit status {ended.code}"
    except BaseException as error:  # whatever a script raises
        run.error = re.sub(r" \(/[^)]*\)", "", f"{type(error).__name__}: {str(error).strip()}")[:600]  # no path of this machine
        run.trace, run.is_refusal = traceback.format_exc(), isinstance(error, GlassloopError)
    run.variables, run.trainers = FOUND, [about(trainer) for trainer in MADE]
    return run


def in_child(name: str, text: str, variant: str, prepared: Path) -> Run:
    """Run a script in a forked child and a new folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=prepared.parent)).resolve()
    for path in prepared.iterdir():
        (folder / path.name).symlink_to(path)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.chdir(folder)
            out = os.open("printed.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(out, 1)
            os.dup2(out, 2)
            run = execute(name, text, variant)
            Path("run.json").write_text(json.dumps(asdict(run), default=str), encoding="utf-8")
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    began = time.monotonic()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > LIMIT:
            os.kill(child, 9)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    result = folder / "run.json"
    run = Run(**json.loads(result.read_text())) if result.exists() else Run(error="the process ended without a result")
    run.output = (folder / "printed.txt").read_text(errors="replace").replace(str(folder), "FOLDER")
    shutil.rmtree(folder, ignore_errors=True)
    if variant == RUN and run.error.startswith("exit status"):  # the command has caught the error
        lines = re.findall(r"^(?:[\w.]*(?:Error|Exception)|error): .*", run.output, flags=re.MULTILINE)
        run.error = lines[-1] if lines else run.error
        run.is_refusal = run.error.startswith(("glassloop.base.errors.", "error: "))
    return run


# Comparison


is_close = functools.partial(math.isclose, rel_tol=2e-3, abs_tol=3e-4)


def differences(expected: Any, found: Any, where: str) -> list[str]:
    """Return where two values differ. Entries that only Glassloop has do not count."""
    if expected is None:
        return []
    if isinstance(expected, float):
        if isinstance(found, float) and ((math.isnan(expected) and math.isnan(found)) or is_close(expected, found)):
            return []
        return [f"{where}: {expected:.6g} with transformers, {found if not isinstance(found, float) else f'{found:.6g}'}"]
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [f"{where}: a dict with transformers, {str(found)[:60]}"]
        missing = [name for name in expected if name not in found]
        return [f"{where}.{name}: missing" for name in missing] + [
            line for name in expected if name in found for line in differences(expected[name], found[name], f"{where}.{name}")
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            size = len(found) if isinstance(found, list) else found
            return [f"{where}: {len(expected)} entries with transformers ({str(expected)[:80]}), {size} ({str(found)[:80]})"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for place, pair in pairs for line in differences(*pair, f"{where}[{place}]")]
    return [] if expected == found else [f"{where}: {expected!r:.80} with transformers, {found!r:.80}"]


def log_differences(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    """Return the log entries of transformers that Glassloop lacks or has with other numbers."""
    rest = list(found)
    lines = []
    for entry in expected:
        names = {name for name in entry if name not in ("grad_norm", "learning_rate")}
        same = [other for other in rest if other.get("step") == entry.get("step") and names <= set(other)]
        if not same:
            lines.append(f"log_history: no entry at step {entry.get('step')} with {', '.join(sorted(names))}")
            continue
        lines += differences(entry, same[0], f"log_history at step {entry.get('step')}")
        rest.remove(same[0])
    return lines


def told(output: str) -> list[str]:
    """Return the lines of Glassloop."""
    return [line.strip() for line in output.splitlines() if line.startswith("glassloop:") or line.startswith("warning:")]


def compare(name: str, reference: Run, run: Run, original: str) -> Verdict:
    """Return how a run with Glassloop compares with the reference, which may be another text than the original."""
    verdict = Verdict(EQUAL, backends=[trainer["backend"] for trainer in run.trainers], lines=told(run.output))
    if reference.error:
        return Verdict(BROKEN, [reference.error])
    if run.error:
        verdict.outcome = SAME if run.error == original else REFUSED if run.is_refusal else CRASH
        verdict.detail = [run.error]
        return verdict
    verdict.detail = differences(reference.variables, run.variables, "")
    if len(reference.trainers) != len(run.trainers):
        verdict.detail.append(f"{len(reference.trainers)} Trainers with transformers, {len(run.trainers)}")
    for expected, found in zip(reference.trainers, run.trainers, strict=False):
        verdict.detail += differences(expected["steps"], found["steps"], "global_step") + log_differences(
            expected["log"], found["log"]
        )
    if verdict.detail:
        said, where = REASONS.get(name, ("", "(?!)"))
        is_explained = said in run.output and all(re.search(where, line) for line in verdict.detail)
        verdict.outcome = REASON if is_explained else SILENT
    return verdict


def has_run() -> bool:
    """Return whether this version has `glassloop run`."""
    return (HERE.parent / "src" / "glassloop" / "cli" / "run.py").exists()


def examine(name: str, prepared: Path, variants: tuple[str, ...], show: bool) -> dict[str, Any]:
    """Run one script in all variants. Return what was found."""
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    reference = in_child(name, text, TRANSFORMERS, prepared)
    report: dict[str, Any] = {
        "script": name,
        "about": ast.get_docstring(ast.parse(text)),
        "transformers": reference.error or "runs",
    }
    original = reference.error
    if original:
        reference = in_child(name, of_today(text), TRANSFORMERS, prepared)
    uses_trainer = with_glassloop(text) != text
    for variant in variants:
        if variant == IMPORT and not uses_trainer:
            continue
        run = in_child(name, with_glassloop(text) if variant == IMPORT else text, variant, prepared)
        report[variant] = asdict(compare(name, reference, run, original))
        if show:
            print(
                f"\n--- {name}, {variant}: {report[variant]['outcome']}\n{run.output}\n{run.trace}{reference.trace}", flush=True
            )
            print("\n".join(report[variant]["detail"]))
    return report


def examine_some(names: list[str], prepared: Path, variants: tuple[str, ...], show: bool) -> NoReturn:
    """Run some of the scripts in this process, a fork, and end it."""
    for name in names:
        report = examine(name, prepared, variants, show)
        (prepared.parent / f"{name}.report").write_text(json.dumps(report), encoding="utf-8")
        print(line_of(report), flush=True)
    os._exit(0)


def is_fast(report: dict[str, Any]) -> bool | None:
    """Return whether every training of a script ran on a fast backend; None without a Trainer."""
    found = report.get(IMPORT, {}).get("backends") or report.get(RUN, {}).get("backends")
    return all(name != "plain" for name in found) if found else None


def plain_reasons(report: dict[str, Any]) -> set[str]:
    """Return why the Trainers of a script trained on the plain backend."""
    lines = report.get(IMPORT, report.get(RUN, {})).get("lines", [])
    return {line.partition("instead of packed: ")[2] for line in lines if "instead of packed: " in line}


def line_of(report: dict[str, Any]) -> str:
    outcomes = [report[variant]["outcome"] if variant in report else "-" for variant in (IMPORT, RUN)]
    details = [detail for variant in (IMPORT, RUN) for detail in report.get(variant, {}).get("detail", [])]
    speed = {True: "fast", False: "plain", None: "-"}[is_fast(report)]
    runs = "yes" if report["transformers"] == "runs" else "no"
    return (
        f"{report['script']:<30} {runs:<5} {outcomes[0]:<26} {outcomes[1]:<26} {speed:<6} {details[0][:110] if details else ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts (default: all)")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="write models and data into FOLDER, and stop")
    parser.add_argument("--show", action="store_true", help="print all output and each difference")
    parser.add_argument("--jobs", type=int, default=2, help="number of scripts at a time")
    parser.add_argument("--no_run", action="store_true", help="leave `glassloop run` out")
    parser.add_argument(
        "--json", type=Path, default=None, help="where to write the results (default, of all scripts: results/scripts.json)"
    )
    chosen = parser.parse_args()
    os.environ |= ENVIRONMENT  # before torch is imported
    if chosen.prepare:
        chosen.prepare.mkdir(parents=True, exist_ok=True)
        prepare(chosen.prepare)
        return 0
    names = chosen.scripts or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    variants = (IMPORT,) if chosen.no_run or not has_run() else (IMPORT, RUN)
    with tempfile.TemporaryDirectory(prefix="glassloop-scripts-") as top:
        os.environ |= {"HF_DATASETS_CACHE": f"{top}/datasets", "XDG_CACHE_HOME": f"{top}/cache"}
        prepared = Path(top).resolve() / "prepared"
        prepared.mkdir()
        import_all()
        prepare(prepared)
        print(f"{'script':<30} {'as is':<5} {IMPORT:<26} {RUN:<26} {'speed':<6}")
        children = []
        for place in range(chosen.jobs):
            child = os.fork()
            if not child:
                examine_some(names[place :: chosen.jobs], prepared, variants, chosen.show)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        found = {path.stem: json.loads(path.read_text()) for path in prepared.parent.glob("*.report")}
        reports = [found[name] for name in names]
    for variant in variants:
        counts = Counter(report[variant]["outcome"] for report in reports if variant in report)
        print(f"\n{variant}: " + ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common()))
    speeds = Counter(is_fast(report) for report in reports)
    print(f"of the scripts with a Trainer, {speeds[True]} ran on a fast backend and {speeds[False]} on the plain one")
    reasons = Counter(reason for report in reports for reason in plain_reasons(report))
    for reason, number in reasons.most_common():
        print(f"  {number:>2} plain: {reason}")
    if chosen.json or not chosen.scripts:
        found = {"versions": versions(), "scripts": reports}
        (chosen.json or RESULT).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(report.get(variant, {}).get("outcome") in FAILURES for report in reports for variant in variants))


def versions() -> dict[str, str]:
    """Return the versions that were compared."""
    names = ("glassloop", "transformers", "torch", "datasets", "peft")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def import_all() -> None:
    """Import what scripts import, once, before children are forked."""
    import datasets
    import pandas
    import peft
    import scipy.stats
    import sklearn.metrics
    import sklearn.model_selection
    import torch
    import transformers.trainer

    import glassloop.trainer

    torch.set_num_threads(1)
    _ = (datasets, pandas, peft, scipy.stats, sklearn.metrics, sklearn.model_selection, transformers.trainer, glassloop.trainer)
    _ = (transformers.Trainer, transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer)
    _ = (transformers.BertForSequenceClassification, transformers.DataCollatorWithPadding, glassloop.Trainer)


if __name__ == "__main__":
    sys.exit(main())
