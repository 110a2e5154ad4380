"""Find what a script uses of transformers, datasets and evaluate, what becomes of it, and what cannot be translated."""

from __future__ import annotations

import ast
import inspect
import re
from contextlib import redirect_stderr
from functools import cache
from io import StringIO

from glassloop.arguments import TrainingArguments as OwnSettings
from glassloop.arguments import translated
from glassloop.compatibility import INSTEAD, UNSUPPORTED, unused_names
from glassloop.drop_in.arguments import OWN, TrainingArguments
from glassloop.drop_in.overridable import READ_BY_SCRIPTS
from glassloop.drop_in.settings import REFUSED, SETTINGS
from glassloop.drop_in.trainer import Trainer
from glassloop.errors import SettingsError
from glassloop.porting.findings import DIFFERS, NOT_TRANSLATED, REMOVED, Finding
from glassloop.porting.names import (
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
    is_gone,
    is_portable,
    present_place,
    remedy_of,
    why_untranslated,
)
from glassloop.porting.old_names import instead_of
from glassloop.porting.script import SAME_VALUE, Binding, Scope, Script

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
            self.check_call(node)  # type: ignore[arg-type]
        self._decide()
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
        package, dot, rest = self.origin(node).partition(".")
        return PACKAGES.get(package, package) + dot + rest

    def today_of_module(self, module: str) -> str:
        """Return what a package or module is called today."""
        return PACKAGES.get(module, module)

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
        for node in self.script.of(ast.Name, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            origin = self.origin(node)
            if isinstance(node, ast.Name) and origin:
                self.used[origin] = self.used.get(origin, 0) + 1
            is_star = isinstance(node, ast.Name) and self.script.scopes[node].holder(node.id) is None
            if is_star and origin and (origin in MOVED or not is_gone(origin)):  # else the name is that of another module
                models |= self.check_name(node, origin)
            if isinstance(node, ast.Attribute) and origin and (origin.count(".") == 1 or origin in MOVED):
                models |= self.check_name(node, origin)
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

    def _decide(self) -> None:
        """Keep the Trainer of transformers if no model is a classifier, and move functions if all their calls can move."""
        if not self.is_trained_here:
            self.moved = {place: today for place, today in self.moved.items() if today not in OF_TRAINER}
        for place, number in self._portable_uses.items():
            package, dot, rest = place.partition(".")
            if self.used.get(place, 0) == number:
                self.moved[place] = MOVED_BY_CALL[PACKAGES.get(package, package) + dot + rest]

    def names_of_star(self, module: str) -> list[str]:
        """Return imports of the names that are elsewhere today and that `from MODULE import *` once gave."""
        unbound = {
            node.id  # type: ignore[attr-defined]
            for node in self.script.of(ast.Name)
            if self.script.scopes[node].holder(node.id) is None  # type: ignore[attr-defined]
        }
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
        if self.script.classes(node.func):
            own = False
        else:
            own = True
            if len([one for one in node.args if not isinstance(one, ast.Starred)]) > 1:
                self.note(
                    node, "TrainingArguments has more than one argument without a name", "name all arguments but output_dir"
                )
        settings = self.settings_of(node)
        for name, value, place in settings:
            self.check_setting(name, literal(value), place, is_known=own)
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
            for target in node.targets:  # type: ignore[attr-defined]
                if isinstance(target, ast.Attribute) and self.kind(target.value) == ARGUMENTS and target.attr in SETTINGS:
                    self.check_setting(target.attr, literal(node.value), target)  # type: ignore[attr-defined]

    # --- classes and objects ---

    def check_classes(self) -> None:
        """Report methods of a Trainer that Glassloop does not call."""
        for node in self.script.of(ast.ClassDef):
            if not isinstance(node, ast.ClassDef) or not any(map(self.is_trainer, node.bases)):
                continue
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name in REFUSED_NAMES:
                    problem = f"{node.name} overrides {part.name}, which Glassloop does not call"
                    self.note(part, problem, REFUSED_NAMES[part.name])

    def check_attributes(self) -> None:
        """Report attributes that Glassloop's objects do not have, and rename those that have another name today."""
        for node in self.script.of(ast.Attribute):
            if not isinstance(node, ast.Attribute):
                continue
            if node.attr == "generate" and self.is_model(node.value):
                self.note(node, "generate", "Glassloop trains classifiers; text is generated with transformers alone")
            kind = self.kind(node.value)
            if not kind:
                continue
            today = RENAMED_ATTRIBUTES.get(kind, {}).get(node.attr)
            is_own = self.is_of_script(node)
            if today is not None and not is_own and not (kind == TRAINER and node.attr in names_of_ours(kind)):
                self.renamed_attributes[node] = today
                self.note(node, f"{node.attr} no longer exists", f"replaced by {today}", REMOVED)
            elif kind == TRAINER and not is_own and isinstance(node.ctx, ast.Load) and is_missing(kind, node.attr):
                remedy = REFUSED_NAMES.get(node.attr, "it is an internal of transformers' Trainer: write the script without it")
                self.note(node, f"Glassloop's Trainer has no {node.attr}", remedy)
            elif kind in (ARGUMENTS, STATE) and isinstance(node.ctx, ast.Load) and is_missing(kind, node.attr):
                what = "TrainingArguments" if kind == ARGUMENTS else "state"
                self.note(node, f"Glassloop's {what} has no {node.attr}", "write the script without it")

    def is_model(self, node: ast.AST) -> bool:
        """Return whether an expression is a model, by what it is or by its name."""
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return self.kind(node) == MODEL or "model" in name.lower()

    def is_of_script(self, node: ast.Attribute) -> bool:
        """Return whether a class of the script gives its objects an attribute."""
        owner = self.script.class_of_self(node.value)
        if owner is None:
            return False
        methods = {part.name for part in owner.body if isinstance(part, ast.FunctionDef)}
        return node.attr in methods or (owner, node.attr) in self.script.attributes

    def check_results(self) -> None:
        """Report results that a script reads and that are others with transformers."""
        reads_loss = any(one.attr == "training_loss" for one in self.script.of(ast.Attribute)) or any(  # type: ignore[attr-defined]
            one.value == "train_loss"  # type: ignore[attr-defined]
            for one in self.script.of(ast.Constant)
        )
        for node in self.script.of(ast.Call):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
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
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
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
        for node in self.script.of(ast.Assign):
            value, targets = node.value, node.targets  # type: ignore[attr-defined]
            several = [one for one in targets if isinstance(one, ast.Tuple | ast.List)]
            if not several or not isinstance(value, ast.Call) or self.kind(value.func) != MODEL:
                continue
            tuples = any(one.arg == "return_dict" and literal(one.value) is False for one in value.keywords)
            if not tuples and not any(isinstance(part, ast.Starred) for part in several[0].elts):
                self.unpacked[value] = len(several[0].elts)
                self.note(value, "outputs of a model are no tuple any more", "the first ones are unpacked", REMOVED)


def present_name(place: str) -> str:
    """Return where a name is today, by the tables alone."""
    package, dot, rest = place.partition(".")
    place = PACKAGES.get(package, package) + dot + rest
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
def names_of_ours(kind: str) -> frozenset[str]:
    """Return the names that Glassloop's objects of a kind have, of which some are assigned when they are constructed."""
    from glassloop.drop_in.state import TrainerState

    read = {*READ_BY_SCRIPTS} if kind == TRAINER else set()
    return names_of({TRAINER: Trainer, ARGUMENTS: TrainingArguments, STATE: TrainerState}[kind]) | read


@cache
def names_of_theirs(kind: str) -> frozenset[str]:
    """Return the same for transformers' objects."""
    import transformers

    return names_of(getattr(transformers, {TRAINER: "Trainer", ARGUMENTS: "TrainingArguments", STATE: "TrainerState"}[kind]))


def names_of(kind: type) -> frozenset[str]:
    """Return the names of a class, and those that its methods assign to self."""
    found = {*dir(kind), *OWN, *SETTINGS} if issubclass(kind, OwnSettings) else {*dir(kind)}
    for parent in kind.__mro__:
        found |= {*getattr(parent, "__annotations__", {})}
        if parent.__module__.partition(".")[0] in TRAINED_WITH:
            source = inspect.getsource(parent)
            found |= {*re.findall(r"self\.(\w+)\b", source)}
    return frozenset(found)


def is_missing(kind: str, name: str) -> bool:
    """Return whether transformers' objects of a kind have a name, and Glassloop's do not."""
    if name in names_of_ours(kind):
        return False
    return (kind == TRAINER and name in REFUSED_NAMES) or name in names_of_theirs(kind)


def literal(node: ast.AST) -> object:
    """Return the value of a node that is a literal, else `NOT_A_LITERAL`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOT_A_LITERAL
