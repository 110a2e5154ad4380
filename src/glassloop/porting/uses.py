"""Read a script once: what it uses of transformers, datasets and evaluate, and what cannot be translated."""

from __future__ import annotations

import ast
from contextlib import redirect_stderr
from io import StringIO

import libcst as cst
from libcst.metadata import PositionProvider, QualifiedNameProvider, QualifiedNameSource

from glassloop.arguments import TrainingArguments as OwnSettings
from glassloop.arguments import translated
from glassloop.compatibility import INSTEAD, unused_names
from glassloop.drop_in.arguments import OWN, TrainingArguments
from glassloop.drop_in.settings import COMPILE, REFUSED, SETTINGS
from glassloop.drop_in.trainer import Trainer
from glassloop.errors import SettingsError
from glassloop.porting.findings import Finding
from glassloop.porting.names import (
    CALLED_INSTEAD,
    MOVED,
    MOVED_BY_CALL,
    OF_TRAINER,
    REPLACED_ARGUMENTS,
    is_gone,
    is_portable,
    why_untranslated,
)

REMOVABLE = tuple(name for name, theirs in SETTINGS.items() if theirs.text == COMPILE)
NOT_A_LITERAL = object()
TRAINED_WITH = ("transformers", "glassloop")


class Uses(cst.CSTVisitor):  # type: ignore[misc]  # libcst has no types here
    """Collects the uses of a module.

    Attributes:
        portable: The function nodes of calls that Glassloop can do.
        used, portable_uses: The number of references to a qualified name, and of calls among them that Glassloop can do.
        removed: Arguments to remove.
        findings: What a person should know.
    """

    METADATA_DEPENDENCIES = (QualifiedNameProvider, PositionProvider)

    def __init__(self) -> None:
        super().__init__()
        self.portable: set[cst.CSTNode] = set()
        self.used: dict[str, int] = {}
        self.portable_uses: dict[str, int] = {}
        self.removed: set[cst.CSTNode] = set()
        self.findings: list[Finding] = []
        self.trainers: set[str] = {*(name for name, target in MOVED.items() if target == "Trainer"), "glassloop.Trainer"}
        self.trainer_variables: set[str] = set()
        self.models: set[bool] = set()  # whether each class of models is a classifier
        self.classes: list[bool] = []  # whether each class around a node is a Trainer
        self.imports = False

    # --- names ---

    def name_of(self, node: cst.CSTNode) -> str | None:
        """Return where the thing that a node names was imported from, such as transformers.Trainer."""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        names = [one.name for one in found if one.source is QualifiedNameSource.IMPORT]
        return names[0] if names else None

    def note(self, node: cst.CSTNode, problem: str, remedy: str, *, removed: bool = False) -> None:
        """Add a finding at the line of a node."""
        line = self.get_metadata(PositionProvider, node).start.line
        self.findings.append(Finding(line, problem, remedy, removed))

    def visit_Import(self, node: cst.Import) -> bool:  # noqa: N802
        self.imports = self.imports or any(dotted(alias.name).partition(".")[0] in TRAINED_WITH for alias in node.names)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:  # noqa: N802
        package = dotted(node.module).partition(".")[0]
        self.imports = self.imports or (not node.relative and package in TRAINED_WITH)
        if node.relative or package != "transformers":
            return False
        if isinstance(node.names, cst.ImportStar):
            self.note(node, "from transformers import *", "import the names that the script uses")
            return False
        for alias in node.names:
            self.check_name(alias, dotted(alias.name), f"{dotted(node.module)}.{dotted(alias.name)}")
        return False

    def check_name(self, node: cst.CSTNode, name: str, place: str) -> None:
        """Note a name of transformers without a replacement, and whether it is a model."""
        reason = why_untranslated(name)
        if reason is None and place == f"transformers.{name}" and place not in MOVED and is_gone(name):
            reason = "the installed version of transformers does not have it"
        if ("For" in name and "Model" in name) or name.endswith("ForSequenceClassification"):
            self.models.add(reason is None)
        if reason is not None:
            self.note(node, name, reason)

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        name = self.name_of(node)
        if name is not None:
            self.used[name] = self.used.get(name, 0) + 1

    def visit_Attribute(self, node: cst.Attribute) -> None:  # noqa: N802
        name = self.name_of(node)
        owner, attribute = node.value, node.attr.value
        if name is not None and name.startswith("transformers.") and name.count(".") == 1:
            self.check_name(node, attribute, name)
        own = isinstance(owner, cst.Name) and (
            owner.value in self.trainer_variables or (owner.value == "self" and any(self.classes))
        )
        if own and attribute in REFUSED_NAMES and not hasattr(Trainer, attribute):
            self.note(node, f"Glassloop's Trainer has no {attribute}", REFUSED_NAMES[attribute])

    # --- classes and objects ---

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        is_trainer = any(self.is_trainer(base.value) for base in node.bases)
        self.classes.append(is_trainer)
        if not is_trainer:
            return
        self.trainers.add(node.name.value)
        for part in node.body.body:
            if isinstance(part, cst.FunctionDef) and part.name.value in REFUSED_NAMES:
                name = part.name.value
                self.note(part, f"{node.name.value} overrides {name}, which Glassloop does not call", REFUSED_NAMES[name])

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802
        self.classes.pop()

    def is_trainer(self, node: cst.CSTNode) -> bool:
        """Return whether a node names Trainer or a subclass of it in the same file."""
        return self.name_of(node) in self.trainers or (isinstance(node, cst.Name) and node.value in self.trainers)

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        if isinstance(node.value, cst.Call) and self.is_trainer(node.value.func):
            names = [target.target.value for target in node.targets if isinstance(target.target, cst.Name)]
            self.trainer_variables.update(names)

    # --- calls ---

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        name = self.name_of(node.func) or ""
        target = MOVED.get(name) or MOVED_BY_CALL.get(name)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "generate" and self.imports:
            self.note(node, "generate", "Glassloop trains classifiers; text is generated with transformers alone")
        if target in ("load_metric", "load_dataset"):
            self.check_load(node, name, str(target))
        if target == "TrainingArguments" or name == "glassloop.TrainingArguments":
            self.check_settings(node)
        for argument in node.args:
            old = argument.keyword.value if argument.keyword is not None else ""
            if self.replaces(name, old):
                self.note(argument, f"{old} no longer exists", f"replaced by {REPLACED_ARGUMENTS[old][0]}", removed=True)
        if self.calls_instead(node):
            self.note(node, f"{node.func.attr.value} no longer exists", "the tokenizer is called instead", removed=True)

    def replaces(self, called: str | None, argument: str) -> bool:
        """Return whether an argument of a call has another name now."""
        return (argument == "fp16" and called == "accelerate.Accelerator") or (argument == "pad_to_max_length" and self.imports)

    def calls_instead(self, node: cst.Call) -> bool:
        """Return whether a call of a tokenizer's method is now a call of the tokenizer."""
        return self.imports and isinstance(node.func, cst.Attribute) and node.func.attr.value in CALLED_INSTEAD

    def check_load(self, node: cst.Call, name: str, target: str) -> None:
        """Find out whether Glassloop has the data set or metric that a call loads."""
        values = [literal(argument.value) for argument in node.args]
        known = all(value is not NOT_A_LITERAL for value in values)
        positional = [value for value, argument in zip(values, node.args, strict=True) if argument.keyword is None]
        keywords = [argument.keyword.value if argument.keyword is not None else "" for argument in node.args]
        named = {keyword: value for keyword, value in zip(keywords, values, strict=True) if keyword}
        if known and is_portable(target, positional, named):
            self.portable.add(node.func)
            self.portable_uses[name] = self.portable_uses.get(name, 0) + 1
        elif target == "load_metric":
            what = cst.Module([]).code_for_node(node)
            self.note(node, what, "glassloop.load_metric has no such metric, or the name is known only at run time")

    def check_settings(self, node: cst.Call) -> None:
        """Check each argument of TrainingArguments as Glassloop does."""
        if len([argument for argument in node.args if argument.keyword is None and not argument.star]) > 1:
            self.note(node, "TrainingArguments has more than one argument without a name", "name all arguments but output_dir")
        for argument in node.args:
            if argument.keyword is None:
                continue
            name, value = argument.keyword.value, literal(argument.value)
            theirs = SETTINGS.get(name)
            if value is NOT_A_LITERAL:
                if theirs is not None and theirs.outcome == REFUSED:
                    self.note(argument, f"{name} is refused, unless its value asks for nothing", theirs.text)
                elif theirs is None and name not in OWN:
                    self.note(argument, f"{name} is not a setting", "remove it")
                continue
            if theirs is not None and not theirs.refuses(value):
                continue
            for problem in translated({name: value}, OwnSettings)[1]:
                if name in REMOVABLE:
                    self.removed.add(argument)
                removed, remedy = name in REMOVABLE, problem.remedy.removeprefix(f"{name}: ")
                self.note(argument, f"{name}={value!r}" if theirs else problem.text, remedy, removed=removed)
        self.check_together(node)

    def check_together(self, node: cst.Call) -> None:
        """Let Glassloop check the settings together, if the script gives all of them as literals and each one is known."""
        named = {argument.keyword.value: literal(argument.value) for argument in node.args if argument.keyword is not None}
        given = {name: value for name, value in named.items() if name != "output_dir" and name not in REMOVABLE}
        known = all(name in OWN or (name in SETTINGS and not SETTINGS[name].refuses(value)) for name, value in given.items())
        if not known or NOT_A_LITERAL in given.values() or any(argument.star for argument in node.args):
            return
        try:
            with redirect_stderr(StringIO()):
                TrainingArguments("out", **given)
        except SettingsError as error:
            self.note(node, error.problem, error.remedy)


REFUSED_NAMES = {name: remedy for name, remedy in unused_names(Trainer).items() if name in INSTEAD}


def literal(node: cst.CSTNode) -> object:
    """Return the value of a node that is a literal, else `NOT_A_LITERAL`."""
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOT_A_LITERAL


def dotted(node: cst.CSTNode | None) -> str:
    """Return a name such as transformers.trainer as text."""
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def moved_names(uses: Uses) -> dict[str, str]:
    """Return the names whose import is replaced: all uses of them can be those of Glassloop."""
    stays = OF_TRAINER if uses.models == {False} else ()
    moved = {name: target for name, target in MOVED.items() if target not in stays}
    for name, target in MOVED_BY_CALL.items():
        if uses.portable_uses.get(name, 0) == uses.used.get(name, 0) > 0:
            moved[name] = target
    return moved
