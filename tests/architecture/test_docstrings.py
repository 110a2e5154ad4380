"""Check the docstrings of public names: each one exists and documents every parameter."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest
from house import tree_of

import glassloop
from glassloop import PUBLIC

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters_of(function: Function) -> list[str]:
    """Return the names of the parameters, without self, cls and those that begin with an underscore."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = [argument.arg for argument in every if not argument.arg.startswith("_")]
    return [name for name in names if name not in ("self", "cls")]


def needs_docstring(function: Function) -> bool:
    """Return whether a method is public and neither a setter nor an overload, which share the docstring of another one."""
    shared = any(ast.unparse(decorator).endswith((".setter", "overload")) for decorator in function.decorator_list)
    return not function.name.startswith("_") and not shared


def undocumented(doc: str, names: list[str]) -> list[str]:
    """Return the parameters without an entry `name:` or `*name:` in the docstring."""
    return [name for name in names if not re.search(rf"^\s*\*{{0,2}}{name}(?: \([^)]*\))?:", doc, re.MULTILINE)]


def faults_of(node: ast.stmt, name: str) -> Iterator[str]:
    """Yield what is missing: docstrings, also of public methods, and parameters of functions and constructors."""
    if isinstance(node, Function | ast.ClassDef):
        doc, parameters = ast.get_docstring(node) or "", []
        if not doc:
            yield f"{name} has no docstring"
        if isinstance(node, Function):
            parameters = parameters_of(node)
        for method in (inner for inner in node.body if isinstance(node, ast.ClassDef) and isinstance(inner, Function)):
            if method.name == "__init__":
                doc, parameters = f"{doc}\n{ast.get_docstring(method) or ''}", parameters_of(method)
            elif needs_docstring(method) and not ast.get_docstring(method):
                yield f"{name}.{method.name} has no docstring"
        yield from (f"{name} does not document {parameter}" for parameter in undocumented(doc, parameters))


def test_public_names_document_every_parameter() -> None:
    found = [
        f"{module}: {fault}"
        for name, module in PUBLIC.items()
        for node in tree_of(module).body
        if getattr(node, "name", None) == name
        for fault in faults_of(node, name)
    ]
    assert not found, f"{len(found)} gaps:\n" + "\n".join(found)


def test_gaps_are_found() -> None:
    code = '''
def good(a: int, *, b: int) -> None:
    """Do it.

    Args:
        a: The first.
        b (int): The second.
    """
def bad(a: int) -> None:
    """Do it with a."""
class Good:
    """A thing.

    Args:
        a: The first.
    """
    def __init__(self, a: int) -> None: ...
    def silent(self) -> None: ...
'''
    found = [fault for node in ast.parse(code).body for fault in faults_of(node, node.name)]
    assert found == ["bad does not document a", "Good.silent has no docstring"]


# --- what a class shows --------------------------------------------------------------------------------------------
def own_classes(kind: type) -> list[type]:
    """Return a class and those of its parents that are part of Glassloop."""
    return [parent for parent in kind.__mro__ if parent.__module__.startswith("glassloop.")]


def class_node(kind: type) -> ast.ClassDef:
    module = tree_of(kind.__module__.removeprefix("glassloop."))
    return next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the public names that a class assigns to itself or declares as fields; `self.a, self.b = ...` are two."""
    found = {entry.target.id for entry in node.body if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)}
    for entry in ast.walk(node):
        if isinstance(entry, ast.Attribute) and isinstance(entry.ctx, ast.Store) and ast.unparse(entry.value) == "self":
            found.add(entry.attr)
    return {name for name in found if not name.startswith("_")}


def undescribed(kind: type) -> Iterator[str]:
    """Yield every public attribute, method and parameter of a class that its docstrings do not describe."""
    nodes = [class_node(parent) for parent in own_classes(kind)]
    described = "\n".join(inspect.getdoc(parent) or "" for parent in own_classes(kind))
    methods = {method.name: method for node in reversed(nodes) for method in node.body if isinstance(method, Function)}
    fields = {name for node in nodes for name in attributes_of(node)} - {*methods}
    yield from (f"{kind.__name__}.{name}" for name in undocumented(described, sorted(fields)))
    for name, method in methods.items():
        if needs_docstring(method):
            doc = inspect.getdoc(getattr(kind, name)) or ""
            missing = [given for given in undocumented(doc, parameters_of(method)) if f"`{given}`" not in doc]
            yield from (f"{kind.__name__}.{name}({given})" for given in missing)


CLASSES = sorted(name for name in PUBLIC if inspect.isclass(getattr(glassloop, name)))


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_describe_what_they_show(name: str) -> None:
    assert not [*undescribed(getattr(glassloop, name))]


def test_names_without_a_description_are_found() -> None:
    node = ast.parse("class A:\n a: int\n def f(self): self.b, self._c = 1, 2\n").body[0]
    assert attributes_of(node) == {"a", "b"}
    assert undocumented("a: The first.", ["a", "b"]) == ["b"]


SHOWN_BY_A_TRAINER = {
    *("args", "backend", "callbacks", "compute_metrics", "data_collator", "eval_dataset", "loss", "measures", "model"),
    *("on_gradients", "optimizers", "processing_class", "state", "task", "train_dataset"),
    *("evaluate", "evaluation", "metrics_of", "predict", "report", "save_model", "train", "write_model"),
    "baselines",
    "training_parts",  # of a run of the command
    # what scripts for transformers read, call and override
    *("compute_loss", "compute_loss_func", "create_model_card", "create_optimizer", "create_optimizer_and_scheduler"),
    *("create_scheduler", "get_eval_dataloader", "get_test_dataloader", "get_train_dataloader", "hyperparameter_search"),
    *("label_names", "get_optimizer_group", "is_in_train", "model_wrapped", "training_step", "get_learning_rates"),
    *("compute_loss_context_manager", "current_gradient_accumulation_steps", "get_decay_parameter_names"),
    *("accelerator", "callback_handler", "control", "get_num_trainable_parameters"),
    *("add_callback", "is_local_process_zero", "is_world_process_zero", "log", "log_metrics", "lr_scheduler", "model_init"),
    *("num_examples", "optimizer", "optimizer_cls_and_kwargs", "pop_callback", "prediction_step", "push_to_hub"),
    *("preprocess_logits_for_metrics", "remove_callback", "save_metrics", "save_state"),
}


def test_a_trainer_shows_only_what_users_need() -> None:
    attributes = {name for parent in own_classes(glassloop.Trainer) for name in attributes_of(class_node(parent))}
    assert attributes | {name for name in dir(glassloop.Trainer) if not name.startswith("_")} == SHOWN_BY_A_TRAINER
    text = inspect.getdoc(glassloop.Trainer) or ""
    assert not undocumented(text, [*inspect.signature(glassloop.Trainer).parameters])
