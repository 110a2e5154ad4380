"""Rewrite a script or notebook for transformers' Trainer to run on Glassloop, and find what a person should know about it."""

from __future__ import annotations

import ast
import inspect
import json
import re
from bisect import bisect_right
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from itertools import product

from glassloop.base.errors import SettingsError
from glassloop.base.records import Json
from glassloop.compat import names as tables
from glassloop.compat import script as scripts
from glassloop.compat.arguments import OWN, READ_AS, TrainingArguments
from glassloop.compat.script import Binding, Scope, Script
from glassloop.compat.suggestions import NOT_A_LITERAL, LossReader, last_name, literal
from glassloop.compat.trainer import READ_BY_SCRIPTS, Trainer, TrainerState
from glassloop.data.glue import GLUE_TASKS
from glassloop.scores.metrics import load_metric
from glassloop.settings.training import TrainingArguments as OwnSettings
from glassloop.settings.training import translated
from glassloop.settings.transformers_names import REFUSED, SETTINGS
from glassloop.trainer import INSTEAD, UNSUPPORTED, unused_names

# The kinds of findings, as `--json` calls them, and what the terminal prints above each list.
REMOVED, NOT_TRANSLATED, DIFFERS, SUGGESTED = "removed", "not_translated", "differs", "suggestions"
TITLES = {
    REMOVED: "removed or replaced:",
    NOT_TRANSLATED: "could not be translated:",
    DIFFERS: "runs differently on Glassloop:",
    SUGGESTED: "suggestions:",
}


@dataclass(frozen=True, order=True)
class Finding:
    """Something in a script that a person should know about: where it is, what, and what was done or is to do."""

    line: int  # from 1; in a notebook, within the cell
    problem: str
    remedy: str
    kind: str = NOT_TRANSLATED
    cell: int | None = None  # from 1; None in a script

    def __str__(self) -> str:
        where = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        return f"{where}: {self.problem}: {self.remedy}"


@dataclass(frozen=True)
class Ported:
    """A rewritten script or notebook, and its code alone before and after, for the diff."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


# --- where names are today
PACKAGES = {name: today for name, today in tables.OLD_MODULES.items() if "." not in name and not today.startswith("glassloop")}
LIBRARIES = frozenset(module.partition(".")[0] for module in tables.OLD_NAMES)

# Where a name was imported from -> where it is today. A renamed package has its present name here.
MOVED: dict[str, str] = {}
for module_name, old_names in tables.OLD_NAMES.items():
    for old_name, old in old_names.items():
        if old_name in ("Trainer", "TrainingArguments", "AdamW", "load_metric"):  # Glassloop's, wherever a library had them
            MOVED[f"{module_name}.{old_name}"] = f"glassloop.{old_name}"
        elif not old.always and not old.now.startswith("glassloop.compat."):
            MOVED[f"{module_name}.{old_name}"] = old.now.replace(":", ".").removeprefix("builtins.")
MOVED |= {
    "transformers.ConstantLRSchedule": "transformers.get_constant_schedule",
    "transformers.WarmupConstantSchedule": "transformers.get_constant_schedule_with_warmup",
    "transformers.WarmupLinearSchedule": "transformers.get_linear_schedule_with_warmup",
    "transformers.WarmupCosineSchedule": "transformers.get_cosine_schedule_with_warmup",
}

# The same, for functions that are only replaced where Glassloop can do what a call asks for.
MOVED_BY_CALL = {
    "datasets.load_dataset": "glassloop.load_dataset",
    "datasets.load.load_dataset": "glassloop.load_dataset",
    "evaluate.load": "glassloop.load_metric",
}

OF_TRAINER = ("glassloop.Trainer", "glassloop.TrainingArguments")

# Functions that are gone and only reported the use of an example: imports and calls of them are removed.
TELEMETRY = ("transformers.utils.send_example_telemetry",)

# Names that are gone, and what to do instead.
UNCHANGED = "or run the script as it is: glassloop run SCRIPT"
GONE = {
    **dict.fromkeys(("InputExample", "InputFeatures"), f"define a dataclass of this name, {UNCHANGED}"),
    **dict.fromkeys(("SingleSentenceClassificationProcessor", "DataProcessor"), f"read the rows yourself, {UNCHANGED}"),
    "glue_convert_examples_to_features": f"encode the texts with the tokenizer, {UNCHANGED}",
    "glue_compute_metrics": f'use glassloop.load_metric("glue", TASK).compute(predictions=…, references=…), {UNCHANGED}',
    "glue_output_modes": f'it is "regression" for stsb, else "classification", {UNCHANGED}',
    "glue_tasks_num_labels": f"read the labels of the data set, {UNCHANGED}",
    "cached_path": "use huggingface_hub.hf_hub_download",
    "set_caching_enabled": f"use datasets.enable_caching() or datasets.disable_caching(), {UNCHANGED}",
    "is_tf_available": f"it is False: transformers supports PyTorch only, {UNCHANGED}",
    "list_metrics": f"omit it, {UNCHANGED}",
    "list_datasets": "use huggingface_hub.list_datasets()",
}

# Arguments that have another name today: what is called -> the old name -> the present one.
OF_SCHEDULES = {"warmup_steps": "num_warmup_steps", "t_total": "num_training_steps", "cycles": "num_cycles"}
SCHEDULES = ("WarmupConstant", "WarmupLinear", "WarmupCosine", "ConstantLR")
RENAMED_ARGUMENTS = {f"transformers.{name}Schedule": OF_SCHEDULES for name in SCHEDULES}

# Arguments that are gone -> their present name, and what it is for True and for False.
REPLACED_ARGUMENTS = {
    "fp16": ("mixed_precision", '"fp16"', '"no"'),  # of Accelerator
    "pad_to_max_length": ("padding", '"max_length"', "False"),  # of tokenizers, which silently ignore it
}

# Arguments of datasets.load_metric and evaluate.load about downloads and processes, which a local metric does not need.
ABOUT_DOWNLOADS = """cache_dir download_config download_mode experiment_id keep_in_memory num_process process_id revision
    script_version trust_remote_code""".split()

# Methods and attributes that have another name today, by the kind of object.
RENAMED_ATTRIBUTES = {
    "trainer": {
        "is_world_master": "is_world_process_zero",
        "is_local_master": "is_local_process_zero",
        "tokenizer": "processing_class",
    },
    "tokenizer": {"max_len": "model_max_length"},
}


def todays_package(place: str) -> str:
    """Return a place such as nlp.load_metric with the present name of its package."""
    package, dot, rest = place.partition(".")
    return PACKAGES.get(package, package) + dot + rest


def present_place(place: str) -> str:
    """Return where a name, given as package.module.name, is today; the place itself if nothing is known about it."""
    package = place.partition(".")[0]
    place = todays_package(place)
    if place in MOVED:
        return MOVED[place] if MOVED[place].startswith("glassloop.") or is_gone(place) else place
    if (whole := tables.module_today(place)) is not None and is_gone(place) and not whole.startswith("glassloop"):
        return whole  # a module, such as sklearn.externals.joblib
    module, _, name = place.rpartition(".")
    newer = tables.module_today(module)
    if newer is not None and is_gone(place) and not is_gone(f"{newer}.{name}") and not newer.startswith("glassloop"):
        return f"{newer}.{name}"
    if package in PACKAGES and module.count("."):
        shorter = f"{module.partition('.')[0]}.{name}"  # pytorch_transformers.optimization.AdamW
        return MOVED.get(shorter, shorter)
    if module.startswith("transformers.") and is_gone(place) and not is_gone(f"transformers.{name}"):
        return f"transformers.{name}"
    return place


@cache
def is_gone(place: str) -> bool:
    """Return whether the installed packages lack a name, given as module.name. The first call imports the library."""
    module, _, name = place.rpartition(".")
    try:
        if find_spec(module) is None:
            return True
        if name in dir(import_module(module)):
            return False
        return not hasattr(import_module(module), name) and find_spec(place) is None
    except (ImportError, AttributeError, ValueError):
        return module.partition(".")[0] in LIBRARIES and find_spec(module.partition(".")[0]) is not None
    except Exception:  # a module that fails for another reason, such as a missing library, is there
        return False


def is_portable(name: str, arguments: list[object], named: dict[str, object]) -> bool:
    """Return whether Glassloop can do what a call of a replaced function asks for. Arguments that are no literals are `...`."""
    is_metric = name == "glassloop.load_metric"
    by_place = ("path", "config_name" if is_metric else "name")
    given = {key: value for key, value in named.items() if not (is_metric and key in ABOUT_DOWNLOADS)}
    given |= dict(zip(by_place, arguments, strict=False))
    path, detail = (given.pop(key, None) for key in by_place)
    split = "train" if is_metric else str(given.pop("split", "train"))
    if path in (None, ...) or len(arguments) > 2 or given:
        return False
    if detail is ... or not is_metric:
        return path == "glue" and (detail is ... or detail in GLUE_TASKS) and split.isidentifier()
    try:
        load_metric(str(path), None if detail is None else str(detail))
    except SettingsError:
        return False
    return True


# --- the script
OURS = "glassloop"
MODULE = re.compile(r"from(?:\s|\\\r?\n)+([\w.]+)")
TRAINED_WITH = ("transformers", OURS)
OF_DATA = ("datasets", "evaluate", *PACKAGES)
KNOWN = (*TRAINED_WITH, *OF_DATA)
PARSED = ("parse_args_into_dataclasses", "parse_json_file", "parse_dict", "parse_yaml_file")
CALLBACKS = {f"transformers.{module}TrainerCallback" for module in ("", "trainer_callback.", "trainer.")}
GROUPED = (("group_by_length", True), ("train_sampling_strategy", "group_by_length"))

# The kinds of objects that the checks know, and what attributes and parameters are of a kind.
TRAINER, ARGUMENTS, MODEL, TOKENIZER, STATE = "trainer", "arguments", "model", "tokenizer", "state"
OBJECTS: dict[str, type] = {TRAINER: Trainer, ARGUMENTS: TrainingArguments, STATE: TrainerState}
ANNOTATED = {"Trainer": TRAINER, "TrainingArguments": ARGUMENTS, "PreTrainedModel": MODEL, "TrainerState": STATE}
OF_CALLBACKS = {"args": ARGUMENTS, "state": STATE, "model": MODEL}
OF_A_TRAINER = {"args": ARGUMENTS, "model": MODEL, "state": STATE, "processing_class": TOKENIZER}
OF_METHODS = {"model": MODEL, "self": TRAINER, "args": ARGUMENTS}
REFUSED_NAMES = {name: remedy for name, remedy in unused_names(Trainer).items() if name in INSTEAD}
INITIALIZERS = [vars(kind)["__init__"] for kind in Trainer.__mro__ if "__init__" in vars(kind)]
ARGUMENTS_OF_TRAINER = {name for one in INITIALIZERS for name in inspect.signature(one).parameters}

Settings = list[tuple[str, ast.expr, ast.AST]]  # names, values, and where they stand


def rewritten(text: str) -> tuple[str, list[Finding]]:
    """Return a script that runs on Glassloop, and what a person should know about it. Raises if the script is not Python."""
    port = Port(Script(text))
    return port.result(), sorted({*port.findings})


class Port:
    """Finds what became of each name, call, setting and attribute of a script, and edits its text on the way."""

    def __init__(self, script: Script) -> None:
        self.script, self.edits = script, scripts.Edits(script)
        self.findings: list[Finding] = []
        self.packages: set[str] = set()  # that the script imports
        self.moved: dict[str, str] = {}  # where each imported name is today, if it is not where the script imports it from
        self.used: Counter[str] = Counter()  # references to each imported name
        self.portable: dict[ast.AST, str] = {}  # the functions of calls that Glassloop can do, and where they come from
        self.replaced: Counter[str] = Counter()  # what attributes were replaced on, such as transformers
        self.telemetry: set[str] = set()  # functions that are gone and only reported the use of an example
        self.kinds: dict[tuple[Scope, str], str] = {}
        self.trainings: dict[tuple[Scope, str], list[list[tuple[ast.AST, str]]]] = {}  # of each Trainer, in which branches
        self.is_grouped = False  # a setting groups rows by their length
        self.is_imported = False  # `import glassloop` stands at the top of the script

    def result(self) -> str:
        """Return the rewritten text: later steps know what earlier ones have found."""
        models = self.check_names()
        self.imports = any(PACKAGES.get(one, one) in TRAINED_WITH for one in self.packages)
        self.is_trained = self.imports and models != {False}  # else no model is a classifier
        for call in self.script.of(ast.Call):
            self.check_call(call)
        if models == {False}:  # the Trainer stays that of transformers
            self.moved = {place: today for place, today in self.moved.items() if today not in OF_TRAINER}
        for place, number in Counter(self.portable.values()).items():
            if place and self.used[place] == number:  # all calls of the function can move
                self.moved[place] = MOVED_BY_CALL[todays_package(place)]
        for assignment in self.script.of(ast.Assign) if self.imports else ():
            self.check_assignment(assignment)
        if self.is_trained:
            for node in self.script.of(ast.ClassDef):
                self.check_class(node)
            for attribute in self.script.of(ast.Attribute):
                self.check_attribute(attribute)
            self.check_results()
        for expression in self.script.of(ast.Attribute, ast.Name):
            self.replace_name(expression)
        for statement in sorted(self.script.of(ast.Import, ast.ImportFrom), key=lambda one: one.lineno):
            if isinstance(statement, ast.Import):
                self.change_import(statement)
            elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
                self.change_import_from(statement)
        return self.edits.result()

    def note(self, node: ast.AST, problem: str, remedy: str, kind: str = NOT_TRANSLATED) -> None:
        self.findings.append(Finding(node.lineno, problem, remedy, kind))  # type: ignore[attr-defined]

    # --- names ---

    def origin(self, node: ast.AST | None) -> str:
        """Return where the thing that an expression names was imported from, such as transformers.Trainer; else nothing."""
        origins = self.script.origins(node)
        known = [one for one in origins if one.partition(".")[0] in KNOWN]
        return (known or [*origins] or [""])[0]

    def name_of(self, node: ast.AST | None) -> str:
        """Return the same, with the present name of a package that was renamed."""
        return todays_package(self.origin(node))

    def check_names(self) -> set[bool]:
        """Find where each imported name is today, and return whether each class of models is a classifier."""
        models: set[bool] = set()
        for node in self.script.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                self.packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self.packages.add((node.module or "").partition(".")[0])
                for alias in node.names if node.names[0].name != "*" else []:
                    models |= self.check_name(alias, f"{node.module}.{alias.name}")
        for name in self.script.of(ast.Name, ast.Attribute):
            origin = self.origin(name) if isinstance(name.ctx, ast.Load) else ""  # type: ignore[attr-defined]  # both have it
            if isinstance(name, ast.Attribute):
                is_known = origin.count(".") == 1 or origin in MOVED
            else:
                self.used[origin] += 1
                is_star = self.script.scopes[name].holder(name.id) is None  # type: ignore[attr-defined]  # a name
                is_known = is_star and (origin in MOVED or not is_gone(origin))  # else the name is that of another module
            if origin and is_known:
                models |= self.check_name(name, origin)
        return models

    def check_name(self, node: ast.AST, place: str) -> set[bool]:
        """Find out what became of a name. Return, for a class of models, whether it is one of classifiers."""
        package, name = place.partition(".")[0], place.rpartition(".")[2]
        library = PACKAGES.get(package, package)
        is_alone = not self.script.is_guarded(node)
        if is_alone and library in ("pytorch_pretrained_bert", "apex"):
            self.note(node, place, str(tables.instead_of(package)))
        if library not in LIBRARIES:
            return set()
        if place in TELEMETRY and is_gone(place):
            self.telemetry.add(place)
            return set()
        today = present_place(place)
        if today != place:
            self.moved[place] = today
        if library != "transformers" or today.startswith("glassloop."):
            if is_alone and library == "datasets" and name in GONE and is_gone(today):
                self.note(node, f"{name} no longer exists", GONE[name])
            return set()
        reason = tables.why_untranslated(name)
        if reason is None and (place.count(".") == 1 or today == place or name in GONE) and is_gone(today):
            unknown = "the installed version of transformers does not have it"
            reason = GONE.get(name) or tables.instead_of(name) or unknown if is_alone else None
        if reason is not None:
            self.note(node, name, reason)
        is_model = ("For" in name and "Model" in name) or name.endswith("ForSequenceClassification")
        return {reason is None} if is_model else set()

    def replace_name(self, node: ast.expr) -> None:
        """Replace a name by that of Glassloop, if it is looked up on a module or is one of several uses."""
        name, target = self.name_of(node), self.moved.get(self.origin(node), "")
        if name in MOVED_BY_CALL:
            is_portable_call = node in self.portable and not (isinstance(node, ast.Name) and target)
            target = MOVED_BY_CALL[name] if is_portable_call else ""
        elif isinstance(node, ast.Name):
            target = ""
        if not target or not isinstance(getattr(node, "ctx", None), ast.Load):
            return
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            base = base.value
        package, dot, rest = target.partition(".")
        if package == OURS:
            self.edits.replace_node(node, target)
            self.replaced[self.origin(base)] += 1
        elif not dot or package == self.name_of(base).partition(".")[0]:  # the script keeps its own name for the package
            self.edits.replace_node(node, f"{self.script.code(base)}.{rest}" if dot else target)

    # --- kinds of objects ---

    def is_of(self, node: ast.AST | None, name: str) -> bool:
        """Return whether an expression is the Trainer or TrainingArguments, or a class of the script derived from it."""
        return is_ours(self.script.bases(node), name)

    def kind(self, node: ast.AST | None, depth: int = 0) -> str:
        """Return what kind of object an expression is, as far as the script tells; nothing if it does not."""
        if depth > 8:
            return ""
        if isinstance(node, ast.Call):
            return self.kind_of_call(node, depth)
        if isinstance(node, ast.Attribute):
            owner = self.script.class_of_self(node.value)
            for binding in self.script.attributes.get((owner, node.attr), []) if owner is not None else []:
                if kind := self.kind(binding.node, depth + 1):
                    return kind
            return OF_A_TRAINER.get(node.attr, "") if self.kind(node.value, depth + 1) == TRAINER else ""
        scope = self.script.scopes[node].holder(node.id) if isinstance(node, ast.Name) else None
        if scope is None:
            return ""
        key = (scope, node.id)  # type: ignore[union-attr]  # a name
        if key not in self.kinds:
            self.kinds[key] = ""
            kinds = (self.kind_of_binding(key[1], one, scope, depth) for one in scope.bindings[key[1]])
            self.kinds[key] = next((one for one in kinds if one), "")
        return self.kinds[key]

    def kind_of_binding(self, name: str, binding: Binding, scope: Scope, depth: int) -> str:
        """Return what kind of object a name was given: by its value, by its annotation, or because of the class it is in."""
        if not binding.is_parameter and binding.place is None:
            return self.kind(binding.node, depth + 1)
        if not binding.is_parameter:  # one of the dataclasses that an HfArgumentParser makes
            call = binding.node
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in PARSED):
                return ""
            makers = [one.node for one in self.script.bindings(call.func.value)[-3:]] or [call.func.value]
            for maker in makers:
                if isinstance(maker, ast.Call) and maker.args and self.name_of(maker.func).endswith(".HfArgumentParser"):
                    first = maker.args[0]
                    parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
                    place = binding.place or 0
                    return ARGUMENTS if place < len(parts) and self.is_of(parts[place], "TrainingArguments") else ""
            return ""
        annotated = self.name_of(binding.node).rpartition(".")[2]
        if annotated in ANNOTATED or "Tokenizer" in annotated:
            return ANNOTATED.get(annotated, TOKENIZER)
        owner = scope.parent.node if scope.parent is not None else None
        bases = self.script.bases_of(owner) if isinstance(owner, ast.ClassDef) else frozenset()
        if bases & CALLBACKS:
            return OF_CALLBACKS.get(name, "")
        return OF_METHODS.get(name, "") if is_ours(bases, "Trainer") else ""

    def kind_of_call(self, node: ast.Call, depth: int) -> str:
        for class_name, kind in (("Trainer", TRAINER), ("TrainingArguments", ARGUMENTS)):
            if self.is_of(node.func, class_name):
                return kind
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in scripts.SAME_VALUE:
            return self.kind(node.func.value, depth + 1)  # type: ignore[attr-defined]  # an attribute
        if method in ("from_pretrained", "from_config"):
            places = self.script.bases(node.func.value)  # type: ignore[attr-defined]
            names = [one.rpartition(".")[2] for one in places if one.partition(".")[0] in KNOWN]
            if any("Tokenizer" in one for one in names):
                return TOKENIZER
        else:
            name = self.name_of(node.func)
            names = [name] if name.startswith("transformers.") and not name.endswith("Config") else []
        return MODEL if any("Model" in one or "ForSequenceClassification" in one for one in names) else ""

    # --- calls ---

    def check_call(self, node: ast.Call) -> None:
        name = self.name_of(node.func)
        target = MOVED.get(name) or MOVED_BY_CALL.get(name)
        gone: list[ast.keyword] = []
        if target in ("glassloop.load_metric", "glassloop.load_dataset"):
            gone += self.check_load(node, name, target)
        if self.is_trained and self.is_of(node.func, "TrainingArguments"):
            self.check_settings(node)
        if self.is_trained and self.is_of(node.func, "Trainer") and not self.script.classes(node.func):
            gone += self.check_arguments(node)  # a class of the script may take others
        for argument in node.keywords:
            old = argument.arg or ""
            if target == "glassloop.AdamW" and old == "no_deprecation_warning" and literal(argument.value) is False:
                gone.append(argument)
                self.note(argument, "no_deprecation_warning=False", "there is no such warning", REMOVED)
            elif target == "glassloop.AdamW" and old == "correct_bias" and literal(argument.value) is not True:
                remedy = "remove it: AdamW always corrects the bias, as torch's does; first steps are then smaller"
                self.note(argument, self.script.code(argument), remedy)
            if old in RENAMED_ARGUMENTS.get(name, {}):
                self.rename_argument(argument, RENAMED_ARGUMENTS[name][old])
            if (old == "fp16" and name == "accelerate.Accelerator") or (old == "pad_to_max_length" and self.imports):
                new, on, off = REPLACED_ARGUMENTS[old]
                self.note(argument, f"{old} no longer exists", f"replaced by {new}", REMOVED)
                value = literal(argument.value)
                if value in (False, None):  # it asks for nothing
                    gone.append(argument)
                else:
                    chosen = on if value is True else f"{on} if {self.script.code(argument.value)} else {off}"
                    self.edits.replace_node(argument, f"{new}={chosen}")
        if self.imports and isinstance(node.func, ast.Attribute):
            self.check_method(node, node.func)
        statement = self.script.parents[node]
        if isinstance(statement, ast.Expr) and self.origin(node.func) in self.telemetry:
            self.note(node, self.script.code(node.func), "removed: transformers no longer has it", REMOVED)
            self.remove_statement(statement)
        if gone:
            items: list[ast.AST] = sorted([*node.args, *node.keywords], key=self.script.span)
            self.edits.remove_items(items, gone, self.script.span(node)[1] - 1)

    def rename_argument(self, argument: ast.keyword, name: str) -> None:
        start = self.script.span(argument)[0]
        self.edits.replace(start, start + len(argument.arg or ""), name)

    def check_load(self, node: ast.Call, name: str, target: str) -> list[ast.keyword]:
        """Find out whether Glassloop has the data set or metric that a call loads. Return arguments that have no effect."""
        by_place = [literal(one) for one in node.args]
        if is_portable(target, by_place, {str(one.arg): literal(one.value) for one in node.keywords}):
            self.portable[node.func] = self.origin(node.func) if name in MOVED_BY_CALL else ""
            gone = [one for one in node.keywords if one.arg in ABOUT_DOWNLOADS and target == "glassloop.load_metric"]
            for argument in gone:
                self.note(argument, f"{argument.arg} has no effect", "metrics of Glassloop are local", REMOVED)
            return gone
        if name in MOVED:  # evaluate.load still loads what Glassloop does not have
            remedy = "glassloop.load_metric has no such metric, or the name is known only at run time"
            self.note(node, self.script.code(node), remedy)
        return []

    def check_arguments(self, node: ast.Call) -> list[ast.keyword]:
        """Report arguments that Glassloop's Trainer does not take. Return those that ask for nothing."""
        unknown = [one for one in node.keywords if one.arg is not None and one.arg not in ARGUMENTS_OF_TRAINER]
        gone = [one for one in unknown if literal(one.value) is None]
        for one in unknown:
            remedy = tables.GONE_OF_TRAINER.get(str(one.arg)) or UNSUPPORTED.get(str(one.arg)) or "remove it"
            self.note(one, f"Trainer has no argument {one.arg}", remedy, REMOVED if one in gone else NOT_TRANSLATED)
        return gone

    def check_method(self, node: ast.Call, method: ast.Attribute) -> None:
        if method.attr in tables.CALLED_INSTEAD:
            start, end = self.script.span(method.value)[1], self.script.span(method)[1]
            dotted = re.search(r"[\s\\]*\.[\s\\]*\w+$", self.script.text[start:end])
            self.edits.replace(start + dotted.start() if dotted else end, end)
            self.note(node, f"{method.attr} no longer exists", "the tokenizer is called instead", REMOVED)
        is_statement = isinstance(self.script.parents.get(node), ast.Expr) and isinstance(method.value, ast.Name)
        if method.attr in tables.NO_LONGER_IN_PLACE and is_statement and {*OF_DATA} & self.packages:
            start, end = self.script.span(node)[0], self.script.span(method)[1]
            self.edits.replace(start, start, f"{self.script.code(method.value)} = ")
            self.edits.replace(end - 1, end)
            self.note(node, f"{method.attr} no longer exists", "the changed data set is assigned instead", REMOVED)
        if method.attr != "train" or self.kind(method.value) != TRAINER:
            return
        for argument in (one for one in node.keywords if one.arg == "model_path"):
            self.rename_argument(argument, "resume_from_checkpoint")
            remedy = "replaced by resume_from_checkpoint, which must be a checkpoint of Glassloop"
            self.note(argument, "model_path no longer exists", remedy, REMOVED)
        trainer = method.value
        scope = self.script.scopes[trainer].holder(trainer.id) if isinstance(trainer, ast.Name) else None
        if scope is None or node.args:
            return
        # A Trainer that trains more than once: its second training has another optimizer.
        name = trainer.id  # type: ignore[attr-defined]  # a name
        loop = next((one for one in self.script.around(node) if isinstance(one, ast.For | ast.While)), None)
        made = [one.node for one in scope.bindings[name] if one.node is not None]
        path, earlier = self.script.branches(node), self.trainings.setdefault((scope, name), [])
        is_repeated = loop is not None and not any(loop in self.script.around(one) for one in made)
        follows = len(made) == 1 and not node.keywords and any(path[: len(one)] == one for one in earlier[:9])
        if is_repeated or follows:
            remedy = "each training starts with a new optimizer; that of transformers keeps its moments"
            self.note(node, f"{name} trains more than once", remedy, DIFFERS)
        earlier.append(path)

    # --- settings ---

    def check_settings(self, node: ast.Call) -> None:
        is_derived = bool(self.script.classes(node.func))  # a class of the script may have settings of its own
        by_place = [one for one in node.args if not isinstance(one, ast.Starred)]
        if not is_derived and len(by_place) > 1:
            self.note(node, "TrainingArguments has more than one argument without a name", "name all arguments but output_dir")
        settings: Settings = []
        for argument in node.keywords:
            if argument.arg is not None:
                settings.append((argument.arg, argument.value, argument))
            else:  # a dict that is passed with **
                bindings = self.script.bindings(argument.value)
                settings += entries_of(bindings[0].node if len(bindings) == 1 else argument.value)
        for name, value, place in settings:
            self.check_setting(name, literal(value), place, is_known=not is_derived)
        values = {name: literal(value) for name, value, _ in settings if name != "output_dir"}
        others = {name: value for name, value in values.items() if name not in OWN}
        is_known = all(name in SETTINGS and not SETTINGS[name].refuses(value) for name, value in others.items())
        is_open = len(by_place) < len(node.args) or any(one.arg is None for one in node.keywords)
        if not is_known or NOT_A_LITERAL in values.values() or is_open:
            return
        try:
            with redirect_stderr(StringIO()):
                TrainingArguments("out", **values)
        except SettingsError as error:
            self.note(node, error.problem, error.remedy)

    def check_setting(self, name: str, value: object, place: ast.AST, *, is_known: bool = True) -> None:
        theirs = SETTINGS.get(name)
        self.is_grouped = self.is_grouped or (name, value) in GROUPED
        if value is NOT_A_LITERAL:
            if theirs is not None and theirs.outcome == REFUSED:
                self.note(place, f"{name} is refused, unless its value asks for nothing", theirs.text)
            elif theirs is None and name not in OWN and is_known:
                self.note(place, f"{name} is not a setting", "remove it")
        elif theirs.refuses(value) if theirs is not None else name in OWN or is_known:
            with redirect_stderr(StringIO()):
                problems = translated({name: value}, OwnSettings)[1]
            for problem in problems:
                self.note(place, f"{name}={value!r}" if theirs else problem.problem, problem.remedy.removeprefix(f"{name}: "))

    def check_assignment(self, node: ast.Assign) -> None:
        """Check settings that are assigned later, and outputs of models that are unpacked: they are no tuples any more."""
        value = node.value
        for target in node.targets:
            is_setting = isinstance(target, ast.Attribute) and target.attr in SETTINGS
            if is_setting and self.is_trained and self.kind(target.value) == ARGUMENTS:  # type: ignore[attr-defined]
                self.check_setting(target.attr, literal(value), target)  # type: ignore[attr-defined]  # an attribute
        several = [one for one in node.targets if isinstance(one, ast.Tuple | ast.List)]
        if not several or not isinstance(value, ast.Call) or self.kind(value.func) != MODEL:
            return
        tuples = any(one.arg == "return_dict" and literal(one.value) is False for one in value.keywords)
        if not tuples and not any(isinstance(part, ast.Starred) for part in several[0].elts):
            end = self.script.span(value)[1]
            self.edits.replace(end, end, f"[:{len(several[0].elts)}]")
            self.note(value, "outputs of a model are no tuple any more", "the first ones are unpacked", REMOVED)

    # --- classes and objects ---

    def check_class(self, node: ast.ClassDef) -> None:
        """Report methods of a Trainer that Glassloop does not call, and suggest something shorter for a usual loss."""
        if not any(self.is_of(base, "Trainer") for base in node.bases):
            return
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        for name in methods.keys() & REFUSED_NAMES.keys():
            self.note(methods[name], f"{node.name} overrides {name}, which Glassloop does not call", REFUSED_NAMES[name])
        only_loss = "compute_loss" in methods and {*methods} <= {"__init__", "compute_loss"} and len(node.bases) == 1
        if only_loss and (suggestion := LossReader(self.script, node, methods["compute_loss"]).suggestion()):
            self.note(node, f"{node.name} {suggestion[0]}", suggestion[1], SUGGESTED)

    def check_attribute(self, node: ast.Attribute) -> None:
        """Report an attribute that Glassloop's objects do not have, and rename one that has another name today."""
        kind, name = self.kind(node.value), node.attr
        if name == "generate" and (kind == MODEL or "model" in last_name(node.value).lower()):
            self.note(node, "generate", "Glassloop trains classifiers; text is generated with transformers alone")
        if not kind:
            return
        owner = self.script.class_of_self(node.value)
        methods = {part.name for part in owner.body if isinstance(part, ast.FunctionDef)} if owner else set()
        is_own = owner is not None and (name in methods or (owner, name) in self.script.attributes)
        today = RENAMED_ATTRIBUTES.get(kind, {}).get(name)
        is_missing_here = kind in OBJECTS and isinstance(node.ctx, ast.Load) and is_missing(kind, name)
        if today is not None and not is_own and not (kind == TRAINER and name in names_of(Trainer)):
            end = self.script.span(node)[1]
            self.edits.replace(end - len(name), end, today)
            self.note(node, f"{name} no longer exists", f"replaced by {today}", REMOVED)
        elif is_missing_here and kind != TRAINER:
            what = "TrainingArguments" if kind == ARGUMENTS else "state"
            self.note(node, f"Glassloop's {what} has no {name}", "write the script without it")
        elif is_missing_here and not is_own:
            remedy = REFUSED_NAMES.get(name, "it is an internal of transformers' Trainer: write the script without it")
            self.note(node, f"Glassloop's Trainer has no {name}", remedy)

    def check_results(self) -> None:
        """Report results that a script reads and that are others with transformers."""
        reads_loss = any(one.attr == "training_loss" for one in self.script.of(ast.Attribute))
        reads_loss = reads_loss or any(one.value == "train_loss" for one in self.script.of(ast.Constant))
        for node in self.script.of(ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in ("predict", "train") or self.kind(node.func.value) != TRAINER:  # type: ignore[attr-defined]
                continue
            if name == "predict" and self.is_grouped:
                remedy = "they are in the order of the rows; transformers sorts them by length with group_by_length"
                self.note(node, "predictions", remedy, DIFFERS)
            resumed = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "resume_from_checkpoint")]
            if name == "train" and reads_loss and any(literal(one) not in (None, False) for one in resumed):
                remedy = "it is the mean over all steps; transformers omits those before a resume"
                self.note(node, "train_loss of a resumed run", remedy, DIFFERS)

    # --- imports ---

    def change_import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.names[0].name == "*":
            added = self.imported_once(node) if any(one.startswith(f"{module}.") for one in self.replaced) else []
            self.add_lines(node, [*self.names_of_star(module), *added])
            return
        places = [f"{module}.{alias.name}" for alias in node.names]
        todays = [self.moved.get(place, place).rpartition(".") for place in places]
        groups: dict[str, list[int]] = {}
        for number, (today, _, _) in enumerate(todays):
            if places[number] not in self.telemetry:
                groups.setdefault(today, []).append(number)
        if not groups:
            self.remove_statement(node)
            return
        renamed = [with_name(one.asname or one.name, today) for one, (_, _, today) in zip(node.names, todays, strict=True)]
        lines = {}
        for today, numbers in groups.items():
            names = ", ".join(renamed[number] for number in numbers)
            lines[today] = f"from {today} import {names}" if today else f"import {names}"
        stays = module if module in groups else next(iter(groups))
        if not stays:  # a module that was a part of another, such as sklearn.externals.joblib
            self.edits.replace_node(node, lines[stays])
            return
        for number in groups[stays]:
            if (alias := node.names[number]).name != todays[number][2]:
                self.edits.replace_node(alias, renamed[number])
        if stays != module and (source := MODULE.match(self.script.text, self.script.span(node)[0])):
            self.edits.replace(*source.span(1), stays)
        moving = [alias for number, alias in enumerate(node.names) if number not in groups[stays]]
        end = self.script.span(node)[1]
        comments = self.edits.remove_items(node.names, moving, end - (self.script.text[end - 1] == ")"))
        added = [line for today, line in lines.items() if today != stays]
        if added:  # comments of the names that have moved go with them
            added[0] += "".join(f"  {one}" for one in comments)
        if any(place in self.replaced for place in places):
            added += self.imported_once(node)
        self.add_lines(node, added)

    def names_of_star(self, module: str) -> list[str]:
        """Return imports of the names that are elsewhere today and that `from MODULE import *` once gave."""
        unbound = {node.id for node in self.script.of(ast.Name) if self.script.scopes[node].holder(node.id) is None}
        groups: dict[str, list[str]] = {}
        for name in sorted(unbound):
            today, _, present = self.moved.get(f"{module}.{name}", "").rpartition(".")
            if today:
                groups.setdefault(today, []).append(with_name(name, present))
        return [f"from {today} import {', '.join(names)}" for today, names in groups.items()]

    def change_import(self, node: ast.Import) -> None:
        """Import Glassloop in place of, or in addition to, a package whose names were replaced."""
        bases = [alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names]
        for alias in node.names:  # a package that was renamed keeps its name in the script
            if (today := PACKAGES.get(alias.name, alias.name)) != alias.name:
                self.edits.replace_node(alias, f"{today} as {alias.asname or alias.name}")
        if not any(base in self.replaced for base in bases):
            return
        unused = {base for base in bases if base in self.replaced and self.used[base] <= self.replaced[base]}
        added = self.imported_once(node)
        if not {*bases} <= unused:
            gone = [alias for alias, base in zip(node.names, bases, strict=True) if base in unused]
            self.edits.remove_items(node.names, gone, self.script.span(node)[1])
            self.add_lines(node, added)
        elif added or not self.is_alone(node) or self.has_comment(node):
            self.edits.replace_node(node, "; ".join(added or [f"import {OURS}"]))
        else:
            self.remove_statement(node)

    def imported_once(self, node: ast.AST) -> list[str]:
        is_top = isinstance(self.script.parents[node], ast.Module)
        if self.is_imported and is_top:
            return []
        self.is_imported = self.is_imported or is_top
        return [f"import {OURS}"]

    # --- statements ---

    def remove_statement(self, node: ast.AST) -> None:
        """Remove a statement with its lines; in a block of its own, leave `pass`."""
        start, end = self.script.span(node)
        around = self.script.parents[node]
        blocks = [getattr(around, name, []) for name in ("body", "orelse", "finalbody")]
        if ([node] in blocks and not isinstance(around, ast.Module)) or not self.is_alone(node):
            self.edits.replace(start, end, "pass")
        else:
            self.edits.replace(self.script.line_start(start), self.script.next_line(end))

    def is_alone(self, node: ast.AST) -> bool:
        start, end = self.script.span(node)
        before = self.script.text[self.script.line_start(start) : start].strip()
        after = self.script.text[end : self.script.line_end(end)].strip()
        return not before and (not after or after.startswith("#"))

    def has_comment(self, node: ast.AST) -> bool:
        start, end = self.script.span(node)
        first = self.script.line_start(start)
        above = self.script.text[self.script.line_start(first - 1) : first].strip() if first else ""
        return above.startswith("#") or "#" in self.script.text[end : self.script.line_end(end)]

    def add_lines(self, node: ast.AST, statements: list[str]) -> None:
        """Add statements behind a statement, each on its own line if the statement has one."""
        start, end = self.script.span(node)
        before = "; "
        if self.is_alone(node):
            end = self.script.line_end(end)
            before = self.script.newline + self.script.text[self.script.line_start(start) : start]
        if statements:
            self.edits.replace(end, end, "".join(before + one for one in statements))


def is_ours(places: frozenset[str], name: str) -> bool:
    """Return whether one of these places is, by the tables alone, that of a name of Glassloop."""
    return any(MOVED.get(place, place) == f"{OURS}.{name}" for place in map(todays_package, places))


def with_name(used: str, name: str) -> str:
    """Return an imported name that is called differently now; the script keeps its own name for it."""
    return name if used == name else f"{name} as {used}"


def entries_of(value: ast.AST | None) -> Settings:
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(key.value, one, key) for key, one in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if isinstance(value, ast.Call) and last_name(value.func) == "dict":
        return [(one.arg, one.value, one) for one in value.keywords if one.arg is not None]
    return []


@cache
def names_of(kind: type) -> frozenset[str]:
    """Return the names of a class, and those that its methods assign to self."""
    names = {*dir(kind), *OWN, *SETTINGS, *READ_AS} if issubclass(kind, OwnSettings) else {*dir(kind)}
    names |= {*READ_BY_SCRIPTS} if kind is Trainer else set()
    for parent in kind.__mro__:
        names |= {*getattr(parent, "__annotations__", {})}
        if parent.__module__.partition(".")[0] in TRAINED_WITH:
            names |= {*re.findall(r"self\.(\w+)\b", inspect.getsource(parent))}
    return frozenset(names)


def is_missing(kind: str, name: str) -> bool:
    """Return whether transformers' objects of a kind have a name, and Glassloop's do not."""
    if name in names_of(OBJECTS[kind]):
        return False
    import transformers  # takes a second, and most scripts use no such name

    return (kind == TRAINER and name in REFUSED_NAMES) or name in names_of(getattr(transformers, OBJECTS[kind].__name__))


# --- the diff
AGREE = 2  # how many lines must agree to end a change


def difference(before: str, after: str, name: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, old, new)
    matcher.opcodes = opcodes(old, new)  # type: ignore[attr-defined]  # its own take seconds for a long script of similar lines
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes():
        ranges = line_range(group[0][1], group[-1][2]), line_range(group[0][3], group[-1][4])
        lines.append("@@ -{} +{} @@".format(*ranges))
        for tag, start, end, first, last in group:
            marks = (" ", "") if tag == "equal" else ("-", "+")
            lines += [f"{marks[0]}{line}" for line in old[start:end]]
            lines += [f"{marks[1]}{line}" for line in new[first:last] if marks[1]]
    return "\n".join([f"--- {name}", f"+++ {name} (ported)", *lines]) if lines else ""


def line_range(start: int, end: int) -> str:
    number = end - start
    return f"{start + 1}" if number == 1 else f"{start + (number > 0)},{number}"


def opcodes(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Return which lines are equal, and which were replaced by which, as `SequenceMatcher.get_opcodes` does."""
    codes: list[tuple[str, int, int, int, int]] = []
    place, other = 0, 0
    while place < len(old) or other < len(new):
        start, first = place, other
        while place < len(old) and other < len(new) and old[place] == new[other]:
            place += 1
            other += 1
        if place > start:
            codes.append(("equal", start, place, first, other))
        else:
            place, other = next_agreement(old, new, place, other)
            codes.append(("replace", start, place, first, other))
    return codes


def next_agreement(old: list[str], new: list[str], place: int, other: int) -> tuple[int, int]:
    """Return where both versions agree again, with the fewest lines between: the ends if they do not."""
    for distance in range(1, 2 * max(len(old) - place, len(new) - other) + 1):
        for left, right in ((place + distance - skipped, other + skipped) for skipped in range(distance + 1)):
            if left <= len(old) and right <= len(new) and old[left : left + AGREE] == new[right : right + AGREE]:
                return left, right
    return len(old), len(new)


# --- notebooks
MARK = "# glassloop port: cell {}"
MAGIC = "pass  # glassloop port: magic {}"
STYLES = tuple(product((1, 2, 4, None), (False, True), (None, (",", ":"))))


def ported_notebook(text: str, name: str) -> Ported:
    notebook, cells, codes = scripts.read_cells(text, name)
    findings: list[Finding] = []
    magics: dict[int, list[tuple[int, str]]] = {}
    masked: dict[int, str] = {}  # the Python code of each cell, with a statement in place of each magic
    for number, code in codes.items():
        python, hidden = scripts.without_magics(code, MAGIC)
        if scripts.is_magic_cell(code):
            continue
        if scripts.parsed(python):
            masked[number], magics[number] = python, hidden
        else:
            findings.append(Finding(1, "the cell is not Python", "it stays as it is", cell=number))
    # All cells are rewritten as one script, in which a mark stands above each.
    new, in_script = rewritten("".join(f"{MARK.format(number)}\n{code}\n" for number, code in masked.items()))
    marks = "|".join(re.escape(MARK.format(number)) for number in masked)
    parts = re.split(rf"^(?:{marks})\n", new, flags=re.MULTILINE)[1:] if masked else []
    changed: dict[int, str] = {}
    starts: list[int] = []  # the first line of each cell in the script
    line = 2
    for (number, before), part in zip(masked.items(), parts, strict=True):
        starts.append(line)
        line += 2 + before.count("\n")
        if (after := part.removesuffix("\n")) != before:
            for place, (_, magic) in enumerate(magics[number]):
                after = after.replace(MAGIC.format(place), magic, 1)
            changed[number] = after
    for finding in in_script:
        place = bisect_right(starts, finding.line) - 1
        findings.append(replace(finding, cell=[*masked][place], line=finding.line - starts[place] + 1))
    for number, code in codes.items() if changed else ():
        for line, words in enumerate(map(str.split, code.splitlines()), 1):
            if words and words[0][0] in "!%" and "install" in words and any(one.startswith("transformers") for one in words):
                findings.append(Finding(line, " ".join(words), "install glassloop, too: pip install glassloop", cell=number))
    for number, cell in cells:
        if number in changed:
            lines: list[Json] = [*changed[number].splitlines(keepends=True)]
            cell["source"] = lines if isinstance(cell["source"], list) else changed[number]
    before, after = (
        "".join(f"# cell {number}\n{code.rstrip()}\n\n" for number, code in each.items()) for each in (codes, codes | changed)
    )
    findings.sort(key=lambda one: (one.cell or 0, one))
    return Ported(in_style_of(text, notebook) if changed else text, findings, before, after)


def in_style_of(text: str, notebook: Json) -> str:
    content = json.loads(text)
    end = "\n" if text.endswith("\n") else ""

    def written(value: object, style: tuple[int | None, bool, tuple[str, str] | None]) -> str:
        return json.dumps(value, indent=style[0], ensure_ascii=style[1], separators=style[2]) + end

    return written(notebook, next((style for style in STYLES if written(content, style) == text), STYLES[0]))
