"""What to write instead of a `compute_loss` that only computes a usual loss, so that a GPU can capture its steps."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from glassloop.compat.script import Script

# Methods that change neither what a loss is made of nor the order of rows.
HARMLESS = {
    *("get", "pop", "items", "keys", "view", "reshape", "to", "float", "long", "squeeze", "flatten", "size", "contiguous"),
    *("cuda", "cpu", "type", "mean", "type_as", "int", "double", "half"),
}
TENSORS = ("tensor", "FloatTensor", "Tensor", "as_tensor", "from_numpy")
HARMLESS_FUNCTIONS = ("super", "len", "isinstance", "getattr", "hasattr", "float", "int", "dict")
LOSSES = {"CrossEntropyLoss": "cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits"}
FOCAL = ["Mult", "Pow", "Sub"]  # (1 - exp(-losses)) ** gamma * losses
NOT_A_LITERAL = ...
USE = "use Trainer itself; on a GPU its steps are then captured as CUDA graphs"


@dataclass(frozen=True)
class Loss:
    """A loss of torch.nn.functional, as a script calls it, with its arguments that are not at their defaults."""

    name: str
    arguments: dict[str, ast.expr]
    is_per_row: bool


class LossReader:
    def __init__(self, script: Script, owner: ast.ClassDef, method: ast.FunctionDef) -> None:
        self.script, self.owner, self.method = script, owner, method
        arguments = [one.arg for one in method.args.args]
        self.model, self.inputs = [*arguments[1:3], "", ""][:2]

    def suggestion(self) -> tuple[str, str] | None:
        """Return what the method computes, and what to write instead; None if that is not known."""
        nodes = [*ast.walk(self.method)]
        calls = [one for one in nodes if isinstance(one, ast.Call)]
        if not self.is_usual(nodes, calls):
            return None
        losses = [loss for one in calls if (loss := self.loss_of(one)) is not None]
        focal = [one for one in calls if self.focal_loss(one) is not None]
        operators = sorted(type(one.op).__name__ for one in nodes if isinstance(one, ast.BinOp | ast.AugAssign))
        is_changed = bool(operators) or any(last_name(one.func) in ("mean", "exp", "pow") for one in calls)
        if len(focal) == 1 and not losses and not is_changed:
            return self.for_focal_of_script(focal[0])
        if len(losses) == 1 and losses[0].name == "cross_entropy" and losses[0].is_per_row:
            return self.for_focal(losses[0]) if operators == FOCAL else None
        if losses and not focal and not is_changed and not any(one.is_per_row for one in losses):
            return self.for_loss(max(losses, key=lambda one: len(one.arguments)))
        return None

    def is_usual(self, nodes: list[ast.AST], calls: list[ast.Call]) -> bool:
        """Return whether every call of the method, and everything it reads of the inputs, belongs to a usual loss."""
        read: set[object] = set()  # the columns that the method reads
        for node in nodes:
            if isinstance(node, ast.For | ast.While | ast.With | ast.Try | ast.Slice):
                return False  # a slice of the logits is another loss
            if isinstance(node, ast.Subscript) and is_name(node.value, self.inputs):
                read.add(literal(node.slice))
        for call in calls:
            if last_name(call.func) in ("get", "pop") and is_name(getattr(call.func, "value", None), self.inputs) and call.args:
                read.add(literal(call.args[0]))
        return read <= {"labels", "label"} and all(map(self.is_known, calls))

    def is_known(self, node: ast.Call) -> bool:
        name = last_name(node.func)
        if is_name(node.func, self.model) or name in LOSSES or self.loss_of(node) or self.focal_loss(node):
            return True
        if self.maker(node) is not None or self.focal_of(node.func) is not None:
            return True
        if not isinstance(node.func, ast.Attribute):
            return name in HARMLESS_FUNCTIONS
        is_torch = any(one.startswith("torch.") for one in self.script.origins(node.func))
        return name in HARMLESS or (name in (*TENSORS, "exp", "pow") and is_torch)

    # --- what is called ---

    def values(self, node: ast.AST) -> list[ast.AST]:
        """Return what a name, or an attribute of self, was given."""
        if isinstance(node, ast.Attribute) and is_name(node.value, "self"):
            return [one.node for one in self.script.attributes.get((self.owner, node.attr), []) if one.node is not None]
        return [one.node for one in self.script.bindings(node)[-5:] if one.node is not None and not one.is_parameter]

    def maker(self, node: ast.Call) -> ast.Call | None:
        """Return the call that makes the module which another call applies, such as CrossEntropyLoss()."""
        calls = [one for one in (node.func, *self.values(node.func)) if isinstance(one, ast.Call)]
        return calls[-1] if calls else None

    def loss_of(self, node: ast.Call) -> Loss | None:
        """Return the loss of torch that a call computes; None if it computes none."""
        name, called = last_name(node.func), node
        by_place: tuple[str, ...] = ("input", "target", "weight")
        if name not in LOSSES.values():
            maker = self.maker(node)
            if maker is None or last_name(maker.func) not in LOSSES:
                return None
            name, called, by_place = LOSSES[last_name(maker.func)], maker, ("weight",)
        arguments = dict(zip(by_place, called.args, strict=False))
        arguments |= {one.arg: one.value for one in called.keywords if one.arg is not None}
        is_per_row = "reduction" in arguments and literal(arguments["reduction"]) != "mean"
        usual = ("input", "target", "reduction")
        set_ones = {name: one for name, one in arguments.items() if name not in usual and literal(one) is not None}
        return Loss(name, set_ones, is_per_row)

    def focal_of(self, node: ast.AST) -> ast.AST | None:
        """Return the class or function of the script that a name stands for, if it is called after the focal loss."""
        made = [one for one in self.values(node) if isinstance(one, ast.ClassDef | ast.FunctionDef)]
        return made[-1] if made and "focal" in made[-1].name.lower() else None

    def focal_loss(self, node: ast.Call) -> ast.AST | None:
        """Return the focal loss of the script that a call applies to logits and labels."""
        maker = self.maker(node)
        focal = self.focal_of(node.func if maker is None else maker.func)
        return focal if isinstance(focal, ast.ClassDef) == (maker is not None) else None

    # --- what is suggested ---

    def for_loss(self, loss: Loss) -> tuple[str, str] | None:
        """Return settings for a loss of torch, or a function for a weighted loss of several labels."""
        names = {*loss.arguments}
        weight, smoothing = loss.arguments.get("weight"), loss.arguments.get("label_smoothing")
        if loss.name == "cross_entropy":
            if not names <= {"weight", "label_smoothing"}:
                return None
            settings, does, note = [], [], ""
            if weight is not None:
                settings.append(f"class_weights={self.weights(weight)}")
                does.append("weights classes")
                note = "; the loss is divided by the number of rows instead of the sum of their weights"
            if smoothing is not None:
                settings.append(f"label_smoothing_factor={self.outside(smoothing)}")
                does.append("smooths labels")
            code = f"\nargs = TrainingArguments(…, {', '.join(settings)})" if settings else ""
            return f"only {' and '.join(does)}" if does else "computes the usual loss", f"{USE}{note}{code}"
        if not names:
            code = '\nmodel = ….from_pretrained(…, problem_type="multi_label_classification")'
            return "computes the usual loss of several labels", USE + code
        if not names <= {"weight", "pos_weight"}:
            return None
        return "only weights labels", self.function("weighted_loss", loss, "labels.float()", "losses.mean(dim=-1)")

    def for_focal(self, loss: Loss) -> tuple[str, str]:
        powers = [one for one in ast.walk(self.method) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)]
        power = self.outside(powers[0].right) if powers else "2.0"
        result = f"(1 - torch.exp(-losses)) ** {power} * losses"
        return "computes the focal loss", self.function("focal_loss", loss, "labels", result)

    def function(self, name: str, loss: Loss, labels: str, result: str) -> str:
        """Return a weighted loss as a function with one result per row, and how to pass it to the Trainer."""
        given = {key: self.weights(value) for key, value in loss.arguments.items() if key in ("weight", "pos_weight")}
        weights = "".join(f", {key}=torch.tensor({value}, device=logits.device)" for key, value in given.items())
        return (
            f"{USE}\n"
            f"def {name}(logits, labels):\n"
            f"    losses = torch.nn.functional.{loss.name}(logits, {labels}{weights}, reduction='none')\n"
            f"    return {result}\n"
            f"trainer = Trainer(…, loss={name})"
        )

    def for_focal_of_script(self, node: ast.Call) -> tuple[str, str]:
        """Return how to pass a focal loss that the script defines, with one loss per row."""
        maker, made = self.maker(node), self.focal_loss(node)
        called = node if maker is None else maker
        start = next((part for part in getattr(made, "body", []) if getattr(part, "name", "") == "__init__"), made)
        names = [one.arg for one in [*start.args.args, *start.args.kwonlyargs]] if isinstance(start, ast.FunctionDef) else []
        loss = "focal_loss)  # one loss per row: no mean at the end"
        if "reduction" in names:
            options = [self.outside(one) for one in (called.args[2:] if maker is None else called.args)]
            options += [f"{one.arg}={self.outside(one.value)}" for one in called.keywords if one.arg != "reduction"]
            arguments, name = ", ".join([*options, "reduction='none'"]), last_name(called.func)
            loss = f"lambda logits, labels: {name}(logits, labels, {arguments}))" if maker is None else f"{name}({arguments}))"
        return "computes the focal loss", f"{USE}\ntrainer = Trainer(…, loss={loss}"

    # --- what values are called outside of the class ---

    def weights(self, node: ast.expr) -> str:
        text = self.outside(node)
        return text if text.startswith("[") else f"[*map(float, {text})]"

    def outside(self, node: ast.AST, depth: int = 0) -> str:
        """Return the code of a value as it is written outside of the class, where `self` does not exist."""
        node = unwrapped(node)
        if isinstance(node, ast.Attribute) and is_name(node.value, "self") and depth < 4:
            values = [one for one in self.values(node) if literal(one) is not None]
            return self.outside(values[0], depth + 1) if values else node.attr
        if isinstance(node, ast.Name) and depth < 4:
            scope = self.script.scopes[node].holder(node.id)
            if scope is not None and isinstance(scope.node, ast.FunctionDef) and scope.node in self.owner.body:
                local = self.values(node)
                return self.outside(local[0], depth + 1) if local else self.argument(node.id)
        key = literal(node.args[0]) if isinstance(node, ast.Call) and node.args else None
        is_taken = isinstance(node, ast.Call) and last_name(node.func) in ("pop", "get")
        return self.argument(key) if is_taken and isinstance(key, str) else self.script.code(node)

    def argument(self, name: str) -> str:
        """Return what the script passes to the class as an argument; its default, or its name, if it passes nothing."""
        for call in self.script.of(ast.Call):
            for one in call.keywords if self.owner in self.script.classes(call.func) else ():
                if one.arg == name:
                    return self.script.code(unwrapped(one.value))
        start = next((part for part in self.owner.body if getattr(part, "name", "") == "__init__"), None)
        if isinstance(start, ast.FunctionDef):
            by_place = [*start.args.posonlyargs, *start.args.args]
            defaults = [
                *zip(by_place[len(by_place) - len(start.args.defaults) :], start.args.defaults, strict=True),
                *zip(start.args.kwonlyargs, start.args.kw_defaults, strict=True),
            ]
            for parameter, default in defaults:
                if parameter.arg == name and default is not None and literal(default) is not None:
                    return self.script.code(default)
        return name


def unwrapped(node: ast.AST) -> ast.AST:
    """Return what a tensor is made of: the list in torch.tensor([1.0, 2.0]).to(device)."""
    while True:
        if isinstance(node, ast.IfExp):
            node = node.orelse if literal(node.body) is None else node.body
        elif isinstance(node, ast.Call) and last_name(node.func) in TENSORS and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "get") in HARMLESS - {"get", "pop"}:
            node = node.func.value  # type: ignore[attr-defined]  # an attribute
        else:
            return node


def is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.AST) -> object:
    """Return the value of a node that is a literal, else `NOT_A_LITERAL`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOT_A_LITERAL
