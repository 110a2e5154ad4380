"""Find what a script uses of transformers, datasets and evaluate, what becomes of it, and what cannot be translated."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from functools import cache
from io import StringIO

from glassloop.base.errors import SettingsError
from glassloop.compat.arguments import OWN, TrainingArguments
from glassloop.compat.names import (
    ABOUT_DOWNLOADS,
    CALLED_INSTEAD,
    GONE,
    GONE_OF_TRAINER,
    LIBRARIES,
    MOVED,
    MOVED_BY_CALL,
    NO_LONGER_IN_PLACE,
    OF_TRAINER,
    PACKAGES,
    RENAMED_ARGUMENTS,
    RENAMED_ATTRIBUTES,
    REPLACED_ARGUMENTS,
    TELEMETRY,
    instead_of,
    is_gone,
    is_portable,
    present_place,
    remedy_of,
    todays_package,
    why_untranslated,
)
from glassloop.compat.script import SAME_VALUE, Binding, Scope, Script
from glassloop.compat.trainer import READ_BY_SCRIPTS, Trainer, TrainerState
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
    """Something in a script that a person should know about.

    Args:
        line: The number of the line, from 1; in a notebook, within the cell.
        problem: What was found.
        remedy: Why it was removed, or what to do instead.
        kind: `REMOVED` if the line was changed, else `NOT_TRANSLATED`, `DIFFERS` or `SUGGESTED`.
        cell: The number of the cell, from 1; None in a script.
    """

    line: int
    problem: str
    remedy: str
    kind: str = NOT_TRANSLATED
    cell: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}" if self.cell is None else f"cell {self.cell}, line {self.line}"
        return f"{where}: {self.problem}: {self.remedy}"

    def within(self, cell: int, first_line: int) -> Finding:
        """Return the finding with its place in a cell, whose first line has the number `first_line`."""
        return replace(self, cell=cell, line=self.line - first_line + 1)


@dataclass(frozen=True)
class Ported:
    """A rewritten script or notebook.

    Args:
        text: The new text; the old one if nothing had to change.
        findings: What a person should know, in the order of the lines.
        before, after: The code alone, for the diff.
    """

    text: str
    findings: list[Finding] = field(default_factory=list)
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten."""
        return self.before != self.after


NOT_A_LITERAL = ...
TRAINED_WITH = ("transformers", "glassloop")
KNOWN = (*TRAINED_WITH, "datasets", "evaluate", *PACKAGES)
LOADED = ("from_pretrained", "from_config")
PARSED = ("parse_args_into_dataclasses", "parse_json_file", "parse_dict", "parse_yaml_file")

CALLBACKS = (
    "transformers.TrainerCallback",
    "transformers.trainer_callback.TrainerCallback",
    "transformers.trainer.TrainerCallback",
)

# The kinds of objects that the checks know.
TRAINER, ARGUMENTS, MODEL, TOKENIZER, PARSER, STATE = "trainer", "arguments", "model", "tokenizer", "parser", "state"
OF_CALLBACKS = {"args": ARGUMENTS, "state": STATE, "model": MODEL}
GROUPED = (("group_by_length", True), ("train_sampling_strategy", "group_by_length"))
OBJECTS: dict[str, type] = {TRAINER: Trainer, ARGUMENTS: TrainingArguments, STATE: TrainerState}
REFUSED_NAMES = {name: remedy for name, remedy in unused_names(Trainer).items() if name in INSTEAD}

ARGUMENTS_OF_TRAINER = {
    name
    for kind in Trainer.__mro__
    if "__init__" in vars(kind)
    for name in inspect.signature(vars(kind)["__init__"]).parameters
}


class Uses:
    """What a script uses, and what becomes of it.

    Args:
        script: The script.

    Attributes:
        moved: Where each imported name is today, if it is not where the script imports it from.
        portable: The functions of calls that Glassloop can do.
        used: The number of references to each imported name.
        removed: Arguments to remove.
        renamed_arguments: Arguments with another name today, and that name.
        replaced_arguments: Arguments with another name and other values today.
        renamed_attributes: Attributes with another name today, and that name.
        called_instead: Calls of a tokenizer's former methods.
        in_place: Calls of methods of a data set that once changed it in place.
        unpacked: Calls of a model whose outputs are unpacked, and into how many names.
        is_grouped: Whether a setting groups rows by their length.
        telemetry: Functions that are gone and only reported the use of an example.
        findings: What a person should know.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.moved: dict[str, str] = {}
        self.portable: set[ast.AST] = set()
        self.used: dict[str, int] = {}
        self.removed: set[ast.AST] = set()
        self.renamed_arguments: dict[ast.keyword, str] = {}
        self.replaced_arguments: set[ast.keyword] = set()
        self.renamed_attributes: dict[ast.Attribute, str] = {}
        self.called_instead: set[ast.AST] = set()
        self.in_place: list[ast.Call] = []
        self.unpacked: dict[ast.AST, int] = {}
        self.telemetry: set[str] = set()
        self.findings: list[Finding] = []
        self._kinds: dict[tuple[Scope, str], str] = {}
        self.is_grouped = False
        self._trained: dict[tuple[Scope, str], list[list[tuple[ast.AST, str]]]] = {}
        self._portable_uses: dict[str, int] = {}
        self._find()

    def _find(self) -> None:
        """Find everything, in an order in which later steps know what earlier ones have found."""
        models = self.check_names()
        self.is_trained_here = models != {False}
        for node in self.script.of(ast.Call):
            self.check_call(node)
        if not self.is_trained_here:  # no model is a classifier: the Trainer stays that of transformers
            self.moved = {place: today for place, today in self.moved.items() if today not in OF_TRAINER}
        for place, number in self._portable_uses.items():
            if self.used.get(place, 0) == number:  # all calls of the function can move
                self.moved[place] = MOVED_BY_CALL[todays_package(place)]
        if not self.imports:
            return
        self.check_old_code()
        if self.is_trained_here:
            self.check_classes()
            self.check_attributes()
            self.check_assigned_settings()
            self.check_results()

    # --- names ---

    @property
    def imports(self) -> bool:
        """Whether the script imports transformers or Glassloop."""
        return any(PACKAGES.get(one, one) in TRAINED_WITH for one in self.packages)

    def origin(self, node: ast.AST | None) -> str:
        """Return where the thing that an expression names was imported from, such as transformers.Trainer; else nothing."""
        found = self.script.origins(node)
        known = [one for one in found if one.partition(".")[0] in KNOWN]
        return (known or [*found] or [""])[0]

    def name_of(self, node: ast.AST | None) -> str:
        """Return the same, with the present name of a package that was renamed."""
        return todays_package(self.origin(node))

    def note(self, node: ast.AST, problem: str, remedy: str, kind: str = NOT_TRANSLATED) -> None:
        """Add a finding at the line of a node."""
        self.findings.append(Finding(node.lineno, problem, remedy, kind))  # type: ignore[attr-defined]

    def check_names(self) -> set[bool]:
        """Find where each imported name is today, and return whether each class of models is a classifier."""
        self.packages: set[str] = set()
        models: set[bool] = set()
        for node in self.script.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                self.packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self.packages.add((node.module or "").partition(".")[0])
                for alias in node.names if node.names[0].name != "*" else []:
                    models |= self.check_name(alias, f"{node.module}.{alias.name}")
        for name in self.script.of(ast.Name, ast.Attribute):
            if not isinstance(name.ctx, ast.Load):  # type: ignore[attr-defined]  # both have it
                continue
            origin = self.origin(name)
            if isinstance(name, ast.Name) and origin:
                self.used[origin] = self.used.get(origin, 0) + 1
            is_star = isinstance(name, ast.Name) and self.script.scopes[name].holder(name.id) is None
            if is_star and origin and (origin in MOVED or not is_gone(origin)):  # else the name is that of another module
                models |= self.check_name(name, origin)
            if isinstance(name, ast.Attribute) and origin and (origin.count(".") == 1 or origin in MOVED):
                models |= self.check_name(name, origin)
        return models

    def check_name(self, node: ast.AST, place: str) -> set[bool]:
        """Find out what became of a name. Return, for a class of models, whether it is one of classifiers."""
        package, name = place.partition(".")[0], place.rpartition(".")[2]
        library = PACKAGES.get(package, package)
        is_alone = not self.script.is_guarded(node)
        if is_alone and library in ("pytorch_pretrained_bert", "apex"):
            self.note(node, place, str(instead_of(package)))
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
        reason = why_untranslated(name)
        if reason is None and (place.count(".") == 1 or today == place or name in GONE) and is_gone(today):
            reason = remedy_of(name) if is_alone else None
        if reason is not None:
            self.note(node, name, reason)
        is_model = ("For" in name and "Model" in name) or name.endswith("ForSequenceClassification")
        return {reason is None} if is_model else set()

    def names_of_star(self, module: str) -> list[str]:
        """Return imports of the names that are elsewhere today and that `from MODULE import *` once gave."""
        unbound = {node.id for node in self.script.of(ast.Name) if self.script.scopes[node].holder(node.id) is None}
        groups: dict[str, list[str]] = {}
        for name in sorted(unbound):
            today, _, present = self.moved.get(f"{module}.{name}", "").rpartition(".")
            if today:
                groups.setdefault(today, []).append(present if present == name else f"{present} as {name}")
        return [f"from {today} import {', '.join(names)}" for today, names in groups.items()]

    # --- kinds of objects ---

    def is_trainer(self, node: ast.AST | None) -> bool:
        """Return whether an expression is the Trainer, or a class of the script that is derived from it."""
        return any(present_name(one) == "glassloop.Trainer" for one in self.script.bases(node))

    def kind(self, node: ast.AST | None, depth: int = 0) -> str:
        """Return what kind of object an expression is, as far as the script tells; nothing if it does not."""
        if depth > 8:
            return ""
        if isinstance(node, ast.Name):
            scope = self.script.scopes[node].holder(node.id)
            if scope is None:
                return ""
            key = (scope, node.id)
            if key not in self._kinds:
                self._kinds[key] = ""
                found = (self.kind_of_binding(node.id, one, scope, depth) for one in scope.bindings[node.id])
                self._kinds[key] = next((one for one in found if one), "")
            return self._kinds[key]
        if isinstance(node, ast.Attribute):
            return self.kind_of_attribute(node, depth)
        return self.kind_of_call(node, depth) if isinstance(node, ast.Call) else ""

    def kind_of_binding(self, name: str, binding: Binding, scope: Scope, depth: int) -> str:
        """Return what kind of object a name was given."""
        if binding.is_parameter:
            return self.kind_of_parameter(name, binding.node, scope)
        if binding.place is None:
            return self.kind(binding.node, depth + 1)
        call = binding.node
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in PARSED:
            parts = self.parsed_classes(call.func.value)
            if binding.place < len(parts) and self.is_arguments(parts[binding.place]):
                return ARGUMENTS
        return ""

    def parsed_classes(self, parser: ast.AST) -> list[ast.expr]:
        """Return the dataclasses that an HfArgumentParser makes."""
        given = self.script.bindings(parser) if isinstance(parser, ast.Name) else []
        for call in [one.node for one in given[-3:]] or [parser]:
            if isinstance(call, ast.Call) and call.args and self.name_of(call.func).endswith(".HfArgumentParser"):
                first = call.args[0]
                return [*first.elts] if isinstance(first, ast.Tuple | ast.List) else [first]
        return []

    def kind_of_parameter(self, name: str, annotation: ast.AST | None, scope: Scope) -> str:
        """Return what kind of object a parameter is: by its annotation, or because it is one of a callback or a Trainer."""
        owner = scope.parent.node if scope.parent is not None else None
        if annotation is not None:
            place = self.name_of(annotation).rpartition(".")[2]
            named = {"Trainer": TRAINER, "TrainingArguments": ARGUMENTS, "PreTrainedModel": MODEL, "TrainerState": STATE}
            if place in named or "Tokenizer" in place:
                return named.get(place, TOKENIZER)
        if isinstance(owner, ast.ClassDef):
            bases = self.script.bases_of(owner)
            if any(base in CALLBACKS for base in bases):
                return OF_CALLBACKS.get(name, "")
            if any(present_name(base) == "glassloop.Trainer" for base in bases):
                return {"model": MODEL, "self": TRAINER, "args": ARGUMENTS}.get(name, "")
        return ""

    def kind_of_attribute(self, node: ast.Attribute, depth: int) -> str:
        """Return what kind of object an attribute is."""
        owner = self.script.class_of_self(node.value)
        for binding in self.script.attributes.get((owner, node.attr), []) if owner is not None else []:
            if found := self.kind(binding.node, depth + 1):
                return found
        of_trainer = {"args": ARGUMENTS, "model": MODEL, "state": STATE, "processing_class": TOKENIZER}
        return of_trainer.get(node.attr, "") if self.kind(node.value, depth + 1) == TRAINER else ""

    def kind_of_call(self, node: ast.Call, depth: int) -> str:
        """Return what kind of object a call makes."""
        if self.is_trainer(node.func):
            return TRAINER
        if self.is_arguments(node.func):
            return ARGUMENTS
        name = self.name_of(node.func)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in (*LOADED, *SAME_VALUE):
            is_model = name.startswith("transformers.") and ("Model" in name or "ForSequenceClassification" in name)
            return MODEL if is_model and not name.endswith("Config") else ""
        if node.func.attr in SAME_VALUE:
            return self.kind(node.func.value, depth + 1)
        of = [one.rpartition(".")[2] for one in self.script.bases(node.func.value) if one.partition(".")[0] in KNOWN]
        if any("Tokenizer" in one for one in of):
            return TOKENIZER
        return MODEL if any("Model" in one or one.endswith("ForSequenceClassification") for one in of) else ""

    def is_arguments(self, node: ast.AST) -> bool:
        """Return whether an expression is TrainingArguments, or a class of the script that is derived from it."""
        return any(present_name(one) == "glassloop.TrainingArguments" for one in self.script.bases(node))

    # --- calls ---

    def check_call(self, node: ast.Call) -> None:
        """Find out what becomes of a call and of its arguments."""
        name = self.name_of(node.func)
        target = MOVED.get(name) or MOVED_BY_CALL.get(name)
        if target in ("glassloop.load_metric", "glassloop.load_dataset"):
            self.check_load(node, name, target)
        if self.imports and self.is_trained_here and self.is_arguments(node.func):
            self.check_settings(node)
        if self.imports and self.is_trained_here and self.is_trainer(node.func):
            self.check_trainer(node)
        if target == "glassloop.AdamW":
            self.check_optimizer(node)
        renamed = RENAMED_ARGUMENTS.get(name, {})
        for argument in node.keywords:
            old = argument.arg or ""
            if old in renamed:
                self.renamed_arguments[argument] = renamed[old]
            is_half = old == "fp16" and name == "accelerate.Accelerator"
            if is_half or (old == "pad_to_max_length" and self.imports):
                self.replaced_arguments.add(argument)
                self.note(argument, f"{old} no longer exists", f"replaced by {REPLACED_ARGUMENTS[old][0]}", REMOVED)

    def check_load(self, node: ast.Call, name: str, target: str) -> None:
        """Find out whether Glassloop has the data set or metric that a call loads."""
        positional = [literal(one) for one in node.args]
        named = {str(one.arg): literal(one.value) for one in node.keywords}
        if is_portable(target, positional, named):
            self.portable.add(node.func)
            origin = self.origin(node.func)
            if name in MOVED_BY_CALL:
                self._portable_uses[origin] = self._portable_uses.get(origin, 0) + 1
            if target == "glassloop.load_metric":
                for argument in (one for one in node.keywords if one.arg in ABOUT_DOWNLOADS):
                    self.removed.add(argument)
                    self.note(argument, f"{argument.arg} has no effect", "metrics of Glassloop are local", REMOVED)
        elif name in MOVED:  # evaluate.load still loads what Glassloop does not have
            self.note(
                node,
                self.script.code(node),
                "glassloop.load_metric has no such metric, or the name is known only at run time",
            )

    def check_optimizer(self, node: ast.Call) -> None:
        """Report arguments of the former AdamW that Glassloop's does not take."""
        for argument in node.keywords:
            if argument.arg == "no_deprecation_warning" and literal(argument.value) is False:
                self.removed.add(argument)
                self.note(argument, "no_deprecation_warning=False", "there is no such warning", REMOVED)
            elif argument.arg == "correct_bias" and literal(argument.value) is not True:
                remedy = "remove it: AdamW always corrects the bias, as torch's does; first steps are then smaller"
                self.note(argument, self.script.code(argument), remedy)

    def check_trainer(self, node: ast.Call) -> None:
        """Report arguments that Glassloop's Trainer does not take."""
        if self.script.classes(node.func):
            return  # a class of the script may take others
        for argument in node.keywords:
            name = argument.arg
            if name is None or name in ARGUMENTS_OF_TRAINER:
                continue
            remedy = GONE_OF_TRAINER.get(name) or UNSUPPORTED.get(name) or "remove it"
            if literal(argument.value) is None:
                self.removed.add(argument)
            self.note(
                argument, f"Trainer has no argument {name}", remedy, REMOVED if argument in self.removed else NOT_TRANSLATED
            )

    # --- settings ---

    def settings_of(self, node: ast.Call) -> list[tuple[str, ast.expr, ast.AST]]:
        """Return the settings of a call: names, values, and where they stand, also those of a dict that is passed with **."""
        found: list[tuple[str, ast.expr, ast.AST]] = []
        for argument in node.keywords:
            if argument.arg is not None:
                found.append((argument.arg, argument.value, argument))
                continue
            given = self.script.bindings(argument.value) if isinstance(argument.value, ast.Name) else []
            for value in [one.node for one in given] if len(given) == 1 else [argument.value]:
                found += entries_of(value)
        return found

    def check_settings(self, node: ast.Call) -> None:
        """Check each argument of TrainingArguments as Glassloop does."""
        is_derived = bool(self.script.classes(node.func))  # a class of the script may have settings of its own
        if not is_derived and len([one for one in node.args if not isinstance(one, ast.Starred)]) > 1:
            problem = "TrainingArguments has more than one argument without a name"
            self.note(node, problem, "name all arguments but output_dir")
        settings = self.settings_of(node)
        for name, value, place in settings:
            self.check_setting(name, literal(value), place, is_known=not is_derived)
        self.check_together(node, settings)

    def check_setting(self, name: str, value: object, place: ast.AST, *, is_known: bool = True) -> None:
        """Check one setting."""
        theirs = SETTINGS.get(name)
        self.is_grouped = self.is_grouped or (name, value) in GROUPED
        if value is NOT_A_LITERAL:
            if theirs is not None and theirs.outcome == REFUSED:
                self.note(place, f"{name} is refused, unless its value asks for nothing", theirs.text)
            elif theirs is None and name not in OWN and is_known:
                self.note(place, f"{name} is not a setting", "remove it")
            return
        if (theirs is not None and not theirs.refuses(value)) or (theirs is None and name not in OWN and not is_known):
            return
        with redirect_stderr(StringIO()):
            problems = translated({name: value}, OwnSettings)[1]
        for problem in problems:
            what = f"{name}={value!r}" if theirs else problem.text
            self.note(place, what, problem.remedy.removeprefix(f"{name}: "))

    def check_together(self, node: ast.Call, settings: list[tuple[str, ast.expr, ast.AST]]) -> None:
        """Let Glassloop check the settings together, if the script gives all of them as literals and each one is known."""
        named = {name: literal(value) for name, value, _ in settings}
        given = {name: value for name, value in named.items() if name != "output_dir"}
        known = all(name in OWN or (name in SETTINGS and not SETTINGS[name].refuses(value)) for name, value in given.items())
        is_open = any(one.arg is None for one in node.keywords) or any(isinstance(one, ast.Starred) for one in node.args)
        if not known or NOT_A_LITERAL in given.values() or is_open:
            return
        try:
            with redirect_stderr(StringIO()):
                TrainingArguments("out", **given)
        except SettingsError as error:
            self.note(node, error.problem, error.remedy)

    def check_assigned_settings(self) -> None:
        """Check settings that are assigned to TrainingArguments later."""
        for node in self.script.of(ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and self.kind(target.value) == ARGUMENTS and target.attr in SETTINGS:
                    self.check_setting(target.attr, literal(node.value), target)

    # --- classes and objects ---

    def check_classes(self) -> None:
        """Report methods of a Trainer that Glassloop does not call."""
        for node in self.script.of(ast.ClassDef):
            for part in node.body if any(map(self.is_trainer, node.bases)) else []:
                if isinstance(part, ast.FunctionDef) and part.name in REFUSED_NAMES:
                    problem = f"{node.name} overrides {part.name}, which Glassloop does not call"
                    self.note(part, problem, REFUSED_NAMES[part.name])

    def check_attributes(self) -> None:
        """Report attributes that Glassloop's objects do not have, and rename those that have another name today."""
        for node in self.script.of(ast.Attribute):
            if node.attr == "generate" and (self.kind(node.value) == MODEL or "model" in last_name(node.value).lower()):
                self.note(node, "generate", "Glassloop trains classifiers; text is generated with transformers alone")
            kind = self.kind(node.value)
            if not kind:
                continue
            today = RENAMED_ATTRIBUTES.get(kind, {}).get(node.attr)
            is_own = self.is_of_script(node)
            if today is not None and not is_own and not (kind == TRAINER and node.attr in names_of(Trainer)):
                self.renamed_attributes[node] = today
                self.note(node, f"{node.attr} no longer exists", f"replaced by {today}", REMOVED)
            elif kind == TRAINER and not is_own and isinstance(node.ctx, ast.Load) and is_missing(kind, node.attr):
                remedy = REFUSED_NAMES.get(node.attr, "it is an internal of transformers' Trainer: write the script without it")
                self.note(node, f"Glassloop's Trainer has no {node.attr}", remedy)
            elif kind in (ARGUMENTS, STATE) and isinstance(node.ctx, ast.Load) and is_missing(kind, node.attr):
                what = "TrainingArguments" if kind == ARGUMENTS else "state"
                self.note(node, f"Glassloop's {what} has no {node.attr}", "write the script without it")

    def is_of_script(self, node: ast.Attribute) -> bool:
        """Return whether a class of the script gives its objects an attribute."""
        owner = self.script.class_of_self(node.value)
        if owner is None:
            return False
        methods = {part.name for part in owner.body if isinstance(part, ast.FunctionDef)}
        return node.attr in methods or (owner, node.attr) in self.script.attributes

    def check_results(self) -> None:
        """Report results that a script reads and that are others with transformers."""
        reads_loss = any(one.attr == "training_loss" for one in self.script.of(ast.Attribute))
        reads_loss = reads_loss or any(one.value == "train_loss" for one in self.script.of(ast.Constant))
        for node in self.script.of(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            name = node.func.attr
            if name not in ("predict", "train") or self.kind(node.func.value) != TRAINER:
                continue
            if name == "predict" and self.is_grouped:
                remedy = "they are in the order of the rows; transformers sorts them by length with group_by_length"
                self.note(node, "predictions", remedy, DIFFERS)
            given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "resume_from_checkpoint")]
            if name == "train" and reads_loss and any(literal(one) not in (None, False) for one in given):
                remedy = "it is the mean over all steps; transformers omits those before a resume"
                self.note(node, "train_loss of a resumed run", remedy, DIFFERS)

    def check_repeated_training(self, node: ast.Call) -> None:
        """Report a Trainer that trains more than once: its second training has another optimizer."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "train" or self.kind(node.func.value) != TRAINER:
            return
        name = node.func.value
        if not isinstance(name, ast.Name) or (scope := self.script.scopes[name].holder(name.id)) is None or node.args:
            return
        key = (scope, name.id)
        loop = self.script.enclosing(node, ast.For, ast.While)
        made = [one.node for one in scope.bindings[name.id] if one.node is not None]
        path, earlier = self.script.branches(node), self._trained.setdefault(key, [])
        is_repeated = loop is not None and not any(self.script.is_inside(one, loop) for one in made)
        follows = len(made) == 1 and not node.keywords and any(path[: len(one)] == one for one in earlier[:9])
        if is_repeated or follows:
            self.note(
                node,
                f"{name.id} trains more than once",
                "each training starts with a new optimizer; that of transformers keeps its moments",
                DIFFERS,
            )
        earlier.append(path)

    # --- code of earlier years ---

    def check_old_code(self) -> None:
        """Find methods that are gone, and outputs of models that are no tuples any more."""
        for node in self.script.of(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in CALLED_INSTEAD:
                self.called_instead.add(node)
                self.note(node, f"{node.func.attr} no longer exists", "the tokenizer is called instead", REMOVED)
            is_statement = isinstance(self.script.parents.get(node), ast.Expr) and isinstance(node.func.value, ast.Name)
            if node.func.attr in NO_LONGER_IN_PLACE and is_statement and {*KNOWN[2:]} & self.packages:
                self.in_place.append(node)
                self.note(node, f"{node.func.attr} no longer exists", "the changed data set is assigned instead", REMOVED)
            if node.func.attr == "train" and self.kind(node.func.value) == TRAINER:
                for argument in (one for one in node.keywords if one.arg == "model_path"):
                    self.renamed_arguments[argument] = "resume_from_checkpoint"
                    remedy = "replaced by resume_from_checkpoint, which must be a checkpoint of Glassloop"
                    self.note(argument, "model_path no longer exists", remedy, REMOVED)
            self.check_repeated_training(node)
        for assignment in self.script.of(ast.Assign):
            value = assignment.value
            several = [one for one in assignment.targets if isinstance(one, ast.Tuple | ast.List)]
            if not several or not isinstance(value, ast.Call) or self.kind(value.func) != MODEL:
                continue
            tuples = any(one.arg == "return_dict" and literal(one.value) is False for one in value.keywords)
            if not tuples and not any(isinstance(part, ast.Starred) for part in several[0].elts):
                self.unpacked[value] = len(several[0].elts)
                self.note(value, "outputs of a model are no tuple any more", "the first ones are unpacked", REMOVED)


def present_name(place: str) -> str:
    """Return where a name is today, by the tables alone."""
    place = todays_package(place)
    return MOVED.get(place, place)


def entries_of(value: ast.AST | None) -> list[tuple[str, ast.expr, ast.AST]]:
    """Return the entries of a dict that is written down: names, values and places."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(key.value, one, key) for key, one in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        return [(one.arg, one.value, one) for one in value.keywords if one.arg is not None]
    return []


@cache
def names_of(kind: type) -> frozenset[str]:
    """Return the names of a class, and those that its methods assign to self."""
    found = {*dir(kind), *OWN, *SETTINGS} if issubclass(kind, OwnSettings) else {*dir(kind)}
    found |= {*READ_BY_SCRIPTS} if kind is Trainer else set()
    for parent in kind.__mro__:
        found |= {*getattr(parent, "__annotations__", {})}
        if parent.__module__.partition(".")[0] in TRAINED_WITH:
            found |= {*re.findall(r"self\.(\w+)\b", inspect.getsource(parent))}
    return frozenset(found)


def is_missing(kind: str, name: str) -> bool:
    """Return whether transformers' objects of a kind have a name, and Glassloop's do not."""
    if name in names_of(OBJECTS[kind]):
        return False
    import transformers  # takes a second, and most scripts use no such name

    return (kind == TRAINER and name in REFUSED_NAMES) or name in names_of(getattr(transformers, OBJECTS[kind].__name__))


def literal(node: ast.AST) -> object:
    """Return the value of a node that is a literal, else `NOT_A_LITERAL`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOT_A_LITERAL


# Methods that change neither what a loss is made of nor the order of rows.
HARMLESS = {
    *("get", "pop", "items", "keys", "view", "reshape", "to", "float", "long", "squeeze", "flatten", "size", "contiguous"),
    *("cuda", "cpu", "type", "mean", "type_as", "int", "double", "half"),
}

TENSORS = ("tensor", "FloatTensor", "Tensor", "as_tensor", "from_numpy", "exp", "pow")
PLAIN_FUNCTIONS = ("super", "len", "isinstance", "getattr", "hasattr", "float", "int", "dict")
CLASSES = {"CrossEntropyLoss": "cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits"}
FUNCTIONS = {*CLASSES.values()}
FOCAL = [ast.Mult, ast.Pow, ast.Sub]  # (1 - exp(-losses)) ** gamma * losses
SEVERAL_LABELS = 'problem_type="multi_label_classification"'
FAST = "the fast backends then train it"


@dataclass(frozen=True)
class Loss:
    """A loss of torch, as a script calls it.

    Args:
        name: The function of torch.nn.functional.
        given: Its arguments by name, without reduction and those at their defaults.
        is_per_row: Whether the script asks for one loss per row.
    """

    name: str
    given: dict[str, ast.expr]
    is_per_row: bool


def suggest(uses: Uses) -> None:
    """Add a suggestion for each Trainer of the script whose own loss has a shorter form."""
    for node in uses.script.of(ast.ClassDef):
        if any(map(uses.is_trainer, node.bases)):
            methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            if "compute_loss" in methods and {*methods} <= {"__init__", "compute_loss"} and len(node.bases) == 1:
                Reading(uses, node, methods["compute_loss"]).suggest()


class Reading:
    """Reads one `compute_loss`.

    Args:
        uses: What the script uses.
        owner: The class.
        method: Its compute_loss.
    """

    def __init__(self, uses: Uses, owner: ast.ClassDef, method: ast.FunctionDef) -> None:
        self.uses, self.script, self.owner, self.method = uses, uses.script, owner, method
        arguments = [one.arg for one in method.args.args]
        self.model, self.inputs = [*arguments[1:3], "", ""][:2]

    def suggest(self) -> None:
        """Add the suggestion, if there is one."""
        calls = [one for one in ast.walk(self.method) if isinstance(one, ast.Call)]
        if not self.is_usual(calls):
            return
        losses = [loss for one in calls if (loss := self.loss_of(one)) is not None]
        own = [one for one in calls if self.own_loss(one) is not None]
        operators = [type(one.op) for one in ast.walk(self.method) if isinstance(one, ast.BinOp | ast.AugAssign)]
        changes = any(last_name(one.func) in ("mean", "exp", "pow") for one in calls)
        if len(own) == 1 and not losses and not operators and not changes:
            self.suggest_own(own[0])
        elif len(losses) == 1 and losses[0].name == "cross_entropy" and losses[0].is_per_row:
            if sorted(one.__name__ for one in operators) == [one.__name__ for one in FOCAL]:
                self.suggest_focal(losses[0])
        elif losses and not own and not operators and not changes and not any(one.is_per_row for one in losses):
            self.suggest_settings(max(losses, key=lambda one: len(one.given)))

    def is_usual(self, calls: list[ast.Call]) -> bool:
        """Return whether every call of the method, and everything it reads of the inputs, belongs to a usual loss."""
        read = {literal(key) for key in self.keys_of_inputs()}
        others = (ast.For, ast.While, ast.With, ast.Try, ast.Slice)  # a slice of the logits is another loss
        is_simple = not any(isinstance(one, others) for one in ast.walk(self.method))
        return read <= {"labels", "label"} and is_simple and all(map(self.is_known, calls))

    def keys_of_inputs(self) -> Iterator[ast.AST]:
        """Yield the names of the columns that the method reads."""
        for node in ast.walk(self.method):
            if isinstance(node, ast.Subscript) and is_name(node.value, self.inputs):
                yield node.slice
            is_get = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
            if is_get and is_name(node.func.value, self.inputs) and node.args:  # type: ignore[attr-defined]
                yield node.args[0]  # type: ignore[attr-defined]

    def is_known(self, node: ast.Call) -> bool:
        """Return whether a call belongs to a usual loss."""
        name = last_name(node.func)
        if is_name(node.func, self.model) or self.loss_of(node) is not None or self.own_loss(node) is not None:
            return True
        if name in CLASSES or self.applied(node) is not None or self.class_of_own(node.func) is not None:
            return True
        if isinstance(node.func, ast.Attribute):
            return name in HARMLESS or (name in TENSORS and self.uses.origin(node.func).startswith("torch."))
        return name in PLAIN_FUNCTIONS

    # --- what is called ---

    def values(self, node: ast.AST) -> list[ast.AST]:
        """Return what a name, or an attribute of self, was given."""
        if isinstance(node, ast.Attribute) and is_name(node.value, "self"):
            return [one.node for one in self.script.attributes.get((self.owner, node.attr), []) if one.node is not None]
        if isinstance(node, ast.Name):
            return [one.node for one in self.script.bindings(node)[-5:] if one.node is not None and not one.is_parameter]
        return []

    def applied(self, node: ast.Call) -> ast.Call | None:
        """Return the call that makes the module which another call applies, such as CrossEntropyLoss()."""
        made = [node.func, *self.values(node.func)]
        found = [one for one in made if isinstance(one, ast.Call)]
        return found[-1] if found else None

    def loss_of(self, node: ast.Call) -> Loss | None:
        """Return the loss of torch that a call computes; None if it computes none."""
        name = last_name(node.func)
        if name in FUNCTIONS:
            names = ("input", "target", "weight")
            return loss(name, {**dict(zip(names, node.args, strict=False)), **named(node)})
        maker = self.applied(node)
        if maker is None or last_name(maker.func) not in CLASSES:
            return None
        return loss(CLASSES[last_name(maker.func)], {**dict(zip(("weight",), maker.args, strict=False)), **named(maker)})

    def class_of_own(self, node: ast.AST) -> ast.AST | None:
        """Return the class or function of the script that a name stands for, if it is called after the focal loss."""
        found = [one for one in self.values(node) if isinstance(one, ast.ClassDef | ast.FunctionDef)]
        return found[-1] if found and "focal" in found[-1].name.lower() else None

    def own_loss(self, node: ast.Call) -> ast.AST | None:
        """Return the class or function of the script that a call applies to logits and labels."""
        maker = self.applied(node)
        found = self.class_of_own(node.func) if maker is None else self.class_of_own(maker.func)
        return found if isinstance(found, ast.ClassDef) == (maker is not None) else None

    # --- what is suggested ---

    def note(self, what: str, code: list[str], note: str = "") -> None:
        """Add the suggestion."""
        first = f"use Trainer itself; {FAST}{note}"
        self.uses.note(self.owner, f"{self.owner.name} {what}", "\n".join([first, *code]), SUGGESTED)

    def suggest_settings(self, loss: Loss) -> None:
        """Suggest settings for a loss of torch."""
        weight, smoothing = loss.given.get("weight"), loss.given.get("label_smoothing")
        if loss.name != "cross_entropy":
            if not loss.given:
                self.note("computes the usual loss of several labels", [f"model = ….from_pretrained(…, {SEVERAL_LABELS})"])
            elif {*loss.given} <= {"weight", "pos_weight"}:
                self.suggest_weighted_labels(loss)
            return
        if not {*loss.given} <= {"weight", "label_smoothing"}:
            return
        settings = [] if weight is None else [f"class_weights={self.weights(weight)}"]
        settings += [] if smoothing is None else [f"label_smoothing_factor={self.outside(smoothing)}"]
        what = " and ".join([*(["weights classes"] if weight is not None else []), *(["smooths labels"] if smoothing else [])])
        note = "; the loss is divided by the number of rows instead of the sum of their weights" if weight is not None else ""
        code = [f"args = TrainingArguments(…, {', '.join(settings)})"] if settings else []
        self.note(f"only {what}" if what else "computes the usual loss", code, note)

    def suggest_weighted_labels(self, loss: Loss) -> None:
        """Suggest a function for a weighted loss of several labels."""
        given = ", ".join(
            f"{name}=torch.tensor({self.weights(value)}, device=logits.device)" for name, value in loss.given.items()
        )
        code = [
            "def weighted_loss(logits, labels):",
            f"    losses = torch.nn.functional.{loss.name}(logits, labels.float(), {given}, reduction='none')",
            "    return losses.mean(dim=-1)",
            "trainer = Trainer(…, loss=weighted_loss)",
        ]
        self.note("only weights labels", code)

    def suggest_focal(self, loss: Loss) -> None:
        """Suggest a function for the focal loss."""
        powers = [one for one in ast.walk(self.method) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)]
        power = self.outside(powers[0].right) if powers else "2.0"
        weight = loss.given.get("weight")
        given = f", weight=torch.tensor({self.weights(weight)}, device=logits.device)" if weight is not None else ""
        code = [
            "def focal_loss(logits, labels):",
            f"    losses = torch.nn.functional.cross_entropy(logits, labels{given}, reduction='none')",
            f"    return (1 - torch.exp(-losses)) ** {power} * losses",
            "trainer = Trainer(…, loss=focal_loss)",
        ]
        self.note("computes the focal loss", code)

    def suggest_own(self, node: ast.Call) -> None:
        """Suggest to pass a focal loss that the script defines, with one loss per row."""
        maker, made = self.applied(node), self.own_loss(node)
        called = maker if maker is not None else node
        start = next((part for part in getattr(made, "body", []) if getattr(part, "name", "") == "__init__"), made)
        names = [one.arg for one in [*start.args.args, *start.args.kwonlyargs]] if isinstance(start, ast.FunctionDef) else []
        given = [self.outside(one) for one in (called.args if maker is not None else called.args[2:])]
        given += [f"{one.arg}={self.outside(one.value)}" for one in called.keywords if one.arg != "reduction"]
        code = ["trainer = Trainer(…, loss=focal_loss)  # one loss per row: no mean at the end"]
        if "reduction" in names:
            options = ", ".join([*given, "reduction='none'"])
            name = last_name(called.func)
            whole = f"{name}({options})" if maker is not None else f"lambda logits, labels: {name}(logits, labels, {options})"
            code = [f"trainer = Trainer(…, loss={whole})"]
        self.note("computes the focal loss", code)

    # --- what values are called outside of the class ---

    def weights(self, node: ast.expr) -> str:
        """Return the weights as a list that stands outside of the class."""
        text = self.outside(node)
        return text if text.startswith("[") else f"[*map(float, {text})]"

    def outside(self, node: ast.AST, depth: int = 0) -> str:
        """Return the code of a value as it is written outside of the class, where `self` does not exist."""
        node = unwrapped(node)
        if isinstance(node, ast.Attribute) and is_name(node.value, "self") and depth < 4:
            given = [one for one in self.values(node) if literal(one) is not None]
            return self.outside(given[0], depth + 1) if given else node.attr
        if isinstance(node, ast.Name) and depth < 4:
            scope = self.script.scopes[node].holder(node.id)
            if scope is not None and isinstance(scope.node, ast.FunctionDef) and scope.node in self.owner.body:
                local = self.values(node)
                return self.outside(local[0], depth + 1) if local else self.argument(node.id)
        is_pop = isinstance(node, ast.Call) and last_name(node.func) in ("pop", "get") and bool(node.args)
        if is_pop and isinstance(name := literal(node.args[0]), str):  # type: ignore[attr-defined]
            return self.argument(name)
        return self.script.code(node)

    def argument(self, name: str) -> str:
        """Return what the script passes to the class as an argument; its default, or its name, if it passes nothing."""
        for call in self.script.of(ast.Call):
            if self.owner in self.script.classes(call.func):
                for one in call.keywords:
                    if one.arg == name:
                        return self.script.code(unwrapped(one.value))
        start = next((part for part in self.owner.body if getattr(part, "name", "") == "__init__"), None)
        if isinstance(start, ast.FunctionDef):
            plain = [*start.args.posonlyargs, *start.args.args]
            pairs = [
                *zip(plain[len(plain) - len(start.args.defaults) :], start.args.defaults, strict=True),
                *zip(start.args.kwonlyargs, start.args.kw_defaults, strict=True),
            ]
            for parameter, default in pairs:
                if parameter.arg == name and default is not None and literal(default) is not None:
                    return self.script.code(default)
        return name


def loss(name: str, given: dict[str, ast.expr]) -> Loss:
    """Return a loss without what all of them have."""
    reduction = literal(given["reduction"]) if "reduction" in given else "mean"
    kept = {key: value for key, value in given.items() if key not in ("input", "target", "reduction")}
    kept = {key: value for key, value in kept.items() if literal(value) is NOT_A_LITERAL or literal(value) is not None}
    return Loss(name, kept, reduction != "mean")


def named(node: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a call that have a name."""
    return {one.arg: one.value for one in node.keywords if one.arg is not None}


def unwrapped(node: ast.AST) -> ast.AST:
    """Return what a tensor is made of: the list in torch.tensor([1.0, 2.0]).to(device)."""
    while True:
        if isinstance(node, ast.IfExp):
            node = node.orelse if literal(node.body) is None else node.body
        elif isinstance(node, ast.Call) and last_name(node.func) in TENSORS[:5] and node.args:
            node = node.args[0]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in HARMLESS - {"get", "pop"}
        ):
            node = node.func.value
        else:
            return node


def is_name(node: ast.AST, name: str) -> bool:
    """Return whether a node is a name."""
    return isinstance(node, ast.Name) and node.id == name


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
