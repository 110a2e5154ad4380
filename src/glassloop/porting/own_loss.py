"""Suggest settings or a `loss=` in place of a Trainer that overrides `compute_loss` only for a usual loss.

The plain backend trains such a subclass; with a setting or a function of logits and labels, the fast ones do. A suggestion is
made only if nothing in the method is unknown: a second model, a further term or a column of the data keeps the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from glassloop.porting.findings import SUGGESTED
from glassloop.porting.uses import NOT_A_LITERAL, Uses, literal

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
        if isinstance(node, ast.ClassDef) and any(map(uses.is_trainer, node.bases)):
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
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
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
            if isinstance(call, ast.Call) and self.owner in self.script.classes(call.func):
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
