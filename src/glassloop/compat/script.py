"""A parsed script or notebook: its cells, its nodes, what each name stands for, and edits of its text."""

from __future__ import annotations

import ast
import builtins
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from glassloop.base.errors import DataError
from glassloop.base.records import Json

Node = TypeVar("Node", bound=ast.AST)
PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")


def read_cells(text: str, name: str) -> tuple[Json, list[tuple[int, dict[str, Json]]], dict[int, str]]:
    """Return a notebook, its code cells with their numbers from 1, and their code. Raises `DataError` if it is not one."""
    try:
        notebook = json.loads(text)
        cells = [(number, cell) for number, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code"]
        return notebook, cells, {number: "".join(cell["source"]) for number, cell in cells}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{name} is not a notebook: it has no cells", "open it in Jupyter, and save it again") from error


def is_magic_cell(code: str) -> bool:
    """Return whether a whole cell is for a magic, such as %%bash."""
    return code.lstrip().startswith("%%") and code.split()[0] not in PYTHON_MAGICS


def parsed(code: str | bytes) -> ast.Module | None:
    """Return the tree of Python code; None if it is not Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def without_magics(code: str, statement: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the code of a cell with a statement, in which `{}` is a number, in place of each magic, and where these stand."""
    if parsed(code):
        return code, []
    magics: list[tuple[int, str]] = []
    lines = code.split("\n")
    for place, line in enumerate(lines):
        bare = line.lstrip()
        is_assigned = bare.partition("=")[2].lstrip().startswith(("!", "%")) and not bare.startswith("#")
        if bare.startswith(("%", "!", "?")) or bare.endswith("?") or is_assigned:
            lines[place] = line[: len(line) - len(bare)] + statement.format(len(magics))
            magics.append((place + 1, bare))
    return "\n".join(lines), magics


LINE_END = re.compile(r"\r\n|\r|\n")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAY_SKIP = (ast.If, ast.Try, ast.For, ast.While, ast.ExceptHandler, ast.FunctionDef, ast.match_case)
SAME_VALUE = ("to", "cuda", "cpu", "train", "eval", "half", "float", "double")  # methods of a model that return the model


@dataclass(frozen=True)
class Binding:
    """What one statement gives to a name."""

    origin: str = ""  # where it was imported from, such as transformers.Trainer; empty if it was not imported
    node: ast.AST | None = None  # the value that was assigned, a class, a function, or the annotation of a parameter
    place: int | None = None  # the number of the value among those that were unpacked together; None: the whole value
    is_parameter: bool = False


@dataclass(eq=False)
class Scope:
    """The names of a module, class or function, with what each was given, in the order of the text."""

    node: ast.AST
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # names that a `global` or `nonlocal` statement declares

    def bind(self, name: str, binding: Binding) -> None:
        self.elsewhere.get(name, self).bindings.setdefault(name, []).append(binding)

    def holder(self, name: str) -> Scope | None:
        """Return the scope that a name used here belongs to; None if no scope binds it."""
        scope: Scope | None = self
        while scope is not None:
            holder = scope.elsewhere.get(name, scope)
            is_visible = scope is self or not isinstance(scope.node, ast.ClassDef)  # whose functions cannot see its names
            if name in holder.bindings and is_visible:
                return holder
            scope = scope.parent
        return None


class Script:
    """A script that is read once, in time proportional to its length."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.starts = [0, *(found.end() for found in LINE_END.finditer(text))]
        self.newline = found.group() if (found := LINE_END.search(text)) else "\n"
        self.by_type: dict[type[ast.AST], list[ast.AST]] = {}  # in the order of the text
        self.scopes: dict[ast.AST, Scope] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.stars: list[str] = []  # the modules of `from MODULE import *`
        self.attributes: dict[tuple[ast.ClassDef, str], list[Binding]] = {}  # what methods assign to attributes of self
        self._origins: dict[tuple[Scope, str], tuple[str, ...]] = {}
        self._bases: dict[ast.ClassDef, frozenset[str]] = {}
        self._bytes: dict[int, bytes] = {}
        # Every node is visited once, without recursion: long sums and chains are nested deeply.
        stack: list[tuple[ast.AST, Scope]] = [(self.tree, Scope(self.tree))]
        while stack:
            node, scope = stack.pop()
            self.by_type.setdefault(type(node), []).append(node)
            self.scopes[node] = scope
            bind(node, scope, self.stars)
            inner = Scope(node, scope) if isinstance(node, (*FUNCTIONS, *COMPREHENSIONS, ast.ClassDef)) else scope
            if isinstance(node, FUNCTIONS):
                several = [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
                for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *several]:
                    inner.bind(one.arg, Binding(node=one.annotation, is_parameter=True))
            children = []
            for name, value in ast.iter_fields(node):
                is_inner = name in ("body", "type_params") or isinstance(node, COMPREHENSIONS)
                inside = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
                children += [(child, inner if is_inner else scope) for child in inside]
            self.parents.update((child, node) for child, _ in children)
            stack.extend(reversed(children))
        targets = [(target, node.value) for node in self.of(ast.Assign) for target in node.targets]
        targets += [(node.target, node.value) for node in self.of(ast.AnnAssign) if node.value is not None]
        for target, value in targets:
            if isinstance(target, ast.Attribute) and (owner := self.class_of_self(target.value)) is not None:
                self.attributes.setdefault((owner, target.attr), []).append(Binding(node=value))

    def of(self, *kinds: type[Node]) -> Iterator[Node]:
        """Yield the nodes of some types; those of one type in the order of the text."""
        for kind, nodes in self.by_type.items():
            if issubclass(kind, kinds):
                yield from nodes  # type: ignore[misc]  # all of them are of this kind

    # --- names ---

    def bindings(self, node: ast.AST | None) -> list[Binding]:
        scope = self.scopes[node].holder(node.id) if isinstance(node, ast.Name) else None
        return [] if scope is None else scope.bindings[node.id]  # type: ignore[union-attr]  # a name

    def origins(self, node: ast.AST | None) -> tuple[str, ...]:
        """Return where the thing that an expression names was imported from: several places, if it depends on a `try`."""
        if isinstance(node, ast.Attribute):
            return tuple(f"{base}.{node.attr}" for base in self.origins(node.value))
        if not isinstance(node, ast.Name):
            return ()
        scope = self.scopes[node].holder(node.id)
        if scope is None:
            return () if hasattr(builtins, node.id) else tuple(f"{module}.{node.id}" for module in self.stars)
        key = (scope, node.id)
        if key not in self._origins:
            self._origins[key] = ()  # a name that is assigned to itself ends here
            origins: list[str] = []
            for one in scope.bindings[node.id]:
                if one.origin:
                    origins.append(one.origin)
                elif one.place is None and not one.is_parameter:
                    origins += self.origins(one.node)  # of another name that was assigned
            self._origins[key] = tuple(dict.fromkeys(origins))
        return self._origins[key]

    def classes(self, node: ast.AST | None) -> list[ast.ClassDef]:
        return [one.node for one in self.bindings(node)[-20:] if isinstance(one.node, ast.ClassDef)]

    def bases(self, node: ast.AST | None) -> frozenset[str]:
        """Return where an expression, or the classes that a class of the script is derived from, was imported from."""
        return frozenset({*self.origins(node)}.union(*map(self.bases_of, self.classes(node))))

    def bases_of(self, node: ast.ClassDef) -> frozenset[str]:
        """Return where the classes that a class is derived from, directly or not, were imported from."""
        if node not in self._bases:
            origins: set[str] = set()
            related = [node]
            for kind in related:  # grows on the way
                for base in kind.bases:
                    origins |= {*self.origins(base)}
                    related += [one for one in self.classes(base) if one not in related]
            self._bases[node] = frozenset(origins)
        return self._bases[node]

    def class_of_self(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose object a name is: the first parameter of a method."""
        scope = self.scopes[node].holder(node.id) if isinstance(node, ast.Name) else None
        if scope is None or not isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef) or scope.parent is None:
            return None
        first = [*scope.node.args.posonlyargs, *scope.node.args.args][:1]
        owner = scope.parent.node
        is_self = bool(first) and first[0].arg == node.id  # type: ignore[attr-defined]  # a name
        return owner if is_self and isinstance(owner, ast.ClassDef) else None

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def branches(self, node: ast.AST) -> list[tuple[ast.AST, str]]:
        """Return the statements around a node that may skip it, each with the name of its part, from the outside in."""
        path: list[tuple[ast.AST, str]] = []
        for around in self.around(node):
            if isinstance(around, MAY_SKIP):
                parts = [name for name in ("orelse", "finalbody", "handlers") if node in getattr(around, name, [])]
                path.append((around, parts[0] if parts else "body"))
            node = around
        return path[::-1]

    def is_guarded(self, node: ast.AST) -> bool:
        """Return whether an import may fail: a `try` with another way stands around it."""
        return any(isinstance(around, ast.Try) and part == "body" for around, part in self.branches(node))

    # --- text ---

    def offset(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        if line not in self._bytes:
            end = self.starts[line] if line < len(self.starts) else len(self.text)
            self._bytes[line] = self.text[start:end].encode("utf-8", "surrogatepass")
        return start + len(self._bytes[line][:column].decode("utf-8", "surrogatepass"))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def line_start(self, place: int) -> int:
        return self.starts[bisect_right(self.starts, place) - 1]

    def line_end(self, place: int) -> int:
        start = self.line_start(place)
        return start + len(self.text[start : self.next_line(place)].rstrip("\r\n"))

    def next_line(self, place: int) -> int:
        """Return where the line after that of a place begins; the end of the text if there is none."""
        number = bisect_right(self.starts, place)
        return self.starts[number] if number < len(self.starts) else len(self.text)


def bind(node: ast.AST, scope: Scope, stars: list[str]) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                scope.bind(name, Binding(alias.name if alias.asname else name))
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    stars.append(module)
                else:
                    scope.bind(alias.asname or alias.name, Binding(f"{module}.{alias.name}"))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            scope.bind(node.name, Binding(node=node))
        case ast.Global() | ast.Nonlocal():
            for name in node.names:
                target = scope.parent or scope
                while target.parent is not None and (isinstance(node, ast.Global) or name not in target.bindings):
                    target = target.parent
                scope.elsewhere[name] = target
        case ast.Assign():
            for part in node.targets:
                bind_target(part, node.value, scope)
        case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
            bind_target(node.target, node.value, scope)
        case ast.For() | ast.AsyncFor() | ast.comprehension() | ast.AugAssign():
            bind_target(node.target, None, scope)
        case ast.withitem() if node.optional_vars is not None:
            bind_target(node.optional_vars, None, scope)
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
            scope.bind(node.name, Binding())


def bind_target(target: ast.AST, value: ast.AST | None, scope: Scope) -> None:
    """Add the names of the left side of an assignment; of a value that is not known, None."""
    if isinstance(target, ast.Name):
        scope.bind(target.id, Binding(node=value))
    elif isinstance(target, ast.Starred):
        bind_target(target.value, None, scope)
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
        for place, part in enumerate(target.elts):
            if isinstance(part, ast.Name) and values is None and value is not None:
                scope.bind(part.id, Binding(node=value, place=place))
            else:
                bind_target(part, values[place] if values and isinstance(part, ast.Name) else None, scope)


class Edits:
    """Changes of the text of a script by place. Those that overlap are applied together: what one removes stays removed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.changes: list[tuple[int, int, str]] = []

    def replace(self, start: int, end: int, text: str = "") -> None:
        self.changes.append((start, end, text))

    def replace_node(self, node: ast.AST, text: str) -> None:
        self.replace(*self.script.span(node), text)

    def result(self) -> str:
        parts, place = [], 0
        for start, end, text in sorted(self.changes, key=lambda change: change[:2]):
            if start < place and end <= place and not (start == end == place):
                continue
            parts += [self.script.text[place : max(start, place)], text]
            place = max(place, end)
        return "".join([*parts, self.script.text[place:]])

    def remove_items(self, nodes: Sequence[ast.AST], removed: Collection[ast.AST], end: int) -> list[str]:
        """Remove some items of a list up to `end`, with their lines; return the comments of these lines."""
        text, comments = self.script.text, []
        items = [self.script.span(node) for node in nodes]
        gone = [number for number, node in enumerate(nodes) if node in removed]
        if len(gone) == len(nodes):
            self.replace(items[0][0], end)
            return []
        ends = [*(start for start, _ in items[1:]), end]
        commas = [comma_after(text, item[1], limit) for item, limit in zip(items, ends, strict=True)]
        for number in gone:
            start, stop = items[number]
            comma = commas[number]
            last = stop if comma is None else comma + 1
            first_of_line, end_of_line = self.script.line_start(start), self.script.line_end(last)
            before, after = text[first_of_line:start], text[last:end_of_line]
            rest = after.strip()
            if not before.strip() and (not rest or rest.startswith("#")):
                comments += [rest] if rest else []
                self.replace(first_of_line, self.script.next_line(last))
            elif comma is not None and rest:
                self.replace(start, last + len(after) - len(after.lstrip()))
            elif comma is not None:
                self.replace(first_of_line + len(before.rstrip()), last)
            else:
                stay = [place for place in range(number) if place not in gone]
                mark = commas[stay[-1]] if stay else None
                self.replace(start if mark is None or "#" in text[mark:start] else mark, stop)
        return comments


def comma_after(text: str, start: int, end: int) -> int | None:
    """Return the place of the next comma in a part of a text without literals; None if there is none."""
    # A comment up to the end of its line may contain a comma, too.
    marks = re.compile(r"#[^\r\n]*|,").finditer(text, start, end)
    return next((mark.start() for mark in marks if mark.group() == ","), None)
