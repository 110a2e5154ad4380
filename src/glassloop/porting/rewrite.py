"""Rewrite the imports of a script, and the names and arguments that change with them. Everything else stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource

from glassloop.porting.findings import Finding
from glassloop.porting.names import MOVED_BY_CALL, REPLACED_ARGUMENTS
from glassloop.porting.uses import Uses, dotted, literal, moved_names

OURS = "glassloop"


def rewritten(text: str) -> tuple[str, list[Finding]]:
    """Return a script that runs on Glassloop, and what a person should know about it. Raises if the script is not Python."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    uses = Uses()
    wrapper.visit(uses)
    rewriter = Rewriter(uses)
    module = wrapper.visit(rewriter)
    return module.code, sorted(uses.findings)


class Rewriter(cst.CSTTransformer):  # type: ignore[misc]  # libcst has no types here
    """Replaces imports and names as `Uses` has decided.

    Args:
        uses: What the script uses.
    """

    METADATA_DEPENDENCIES = (QualifiedNameProvider,)

    def __init__(self, uses: Uses) -> None:
        super().__init__()
        self.uses, self.moved = uses, moved_names(uses)
        self.depth, self.is_imported = 0, False  # whether `import glassloop` stands at the top of the script
        self.comments: dict[cst.CSTNode, list[str]] = {}
        self.bases: dict[str, int] = {}  # what attributes were replaced on, such as transformers, and how often

    def visit_Module(self, node: cst.Module) -> None:  # noqa: N802
        """Count what will be replaced before any import is rewritten."""
        counter = Replaced(self)
        node.visit(counter)
        self.bases = counter.bases

    def imported(self, node: cst.CSTNode) -> str:
        """Return where the thing that a node names was imported from."""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        return next((one.name for one in found if one.source is QualifiedNameSource.IMPORT), "")

    def target(self, node: cst.CSTNode) -> str | None:
        """Return the name of Glassloop that an expression such as transformers.Trainer becomes."""
        name = self.imported(node)
        if name in MOVED_BY_CALL:
            replaced = node in self.uses.portable and not (isinstance(node, cst.Name) and name in self.moved)
            return MOVED_BY_CALL[name] if replaced else None
        return self.moved.get(name) if isinstance(node, cst.Attribute) else None

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:  # noqa: N802
        target = self.target(original_node)
        return updated_node if target is None else ours(target, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        if isinstance(original_node.func, cst.Name) and (target := self.target(original_node.func)) is not None:
            updated_node = updated_node.with_changes(func=ours(target, updated_node.func))
        if self.uses.calls_instead(original_node):
            updated_node = updated_node.with_changes(func=updated_node.func.value)
        called = self.imported(original_node.func)
        pairs = [
            (before, replaced(after) if before.keyword and self.uses.replaces(called, before.keyword.value) else after)
            for before, after in zip(original_node.args, updated_node.args, strict=True)
        ]
        kept = [after for before, after in pairs if after is not None and before not in self.uses.removed]
        if len(kept) == len(updated_node.args):
            return updated_node.with_changes(args=kept)
        if kept and pairs[-1][1] is not kept[-1]:  # the last argument is gone: its comma and line break are the new end
            kept[-1] = as_last(kept[-1], updated_node.args[-1])
        return updated_node.with_changes(args=kept)

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel:
        module = dotted(original_node.module)
        if original_node.relative or isinstance(original_node.names, cst.ImportStar):
            return updated_node
        aliases = list(updated_node.names)
        places = {f"{module}.{dotted(alias.name)}": alias for alias in aliases}
        moving = {place: alias for place, alias in places.items() if place in self.moved}
        extra = self.imported_once() if any(place in self.bases for place in places) else []
        if not moving and not extra:
            return updated_node
        renamed = [with_name(alias, self.moved[place]) for place, alias in moving.items()]
        if len(moving) == len(aliases):
            return flat([updated_node.with_changes(module=cst.Name(OURS), names=renamed), *extra])
        made: list[cst.CSTNode] = [updated_node]
        if moving:
            last = aliases[-1]
            kept = [alias for alias in aliases if all(alias is not other for other in moving.values())]
            if kept[-1] is not last:
                kept[-1] = as_last(kept[-1], last)
            new = cst.ImportFrom(cst.Name(OURS), [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in renamed])
            self.comments[new] = [comment for alias in moving.values() for comment in comments_of(alias.comma)]
            made = [updated_node.with_changes(names=kept), new]
        return flat([*made, *extra])

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import | cst.FlattenSentinel:  # noqa: N802
        bases = [base_of(alias) for alias in updated_node.names]
        if not any(base in self.bases for base in bases):
            return updated_node
        kept = [
            alias
            for base, alias in zip(bases, updated_node.names, strict=True)
            if self.uses.used.get(base, 0) > self.bases.get(base, 0) or base not in self.bases
        ]
        made = self.imported_once()
        if not kept:
            return flat(made) if made else cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return flat([updated_node.with_changes(names=kept), *made])

    def imported_once(self) -> list[cst.CSTNode]:
        """Return `import glassloop`; nothing at the top of a script that has it already."""
        if self.is_imported and self.depth == 0:
            return []
        self.is_imported = self.is_imported or self.depth == 0
        return [cst.Import([cst.ImportAlias(cst.Name(OURS))])]

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Count the blocks around a node."""
        self.depth += isinstance(node, cst.BaseSuite)
        return bool(super().on_visit(node))

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:
        """Count the blocks around a node."""
        found: object = super().on_leave(original_node, updated_node)
        self.depth -= isinstance(original_node, cst.BaseSuite)
        return found

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel:
        """Give each import that was split a line of its own."""
        if len(original_node.body) > 1 or len(updated_node.body) == len(original_node.body):
            return updated_node
        if not updated_node.body:
            ends = [*updated_node.leading_lines, updated_node.trailing_whitespace]
            has_comment = any(line.comment is not None for line in ends)
            again = cst.Import([cst.ImportAlias(cst.Name(OURS))])
            return updated_node.with_changes(body=[again]) if has_comment else cst.RemoveFromParent()
        parts = [part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for part in updated_node.body]
        lines = [updated_node.with_changes(body=[parts[0]])]
        for before, part in zip(updated_node.body[1:], parts[1:], strict=True):
            comments = self.comments.get(before, [])
            lines.append(cst.SimpleStatementLine([part], trailing_whitespace=comment_at_end(comments)))
        return cst.FlattenSentinel(lines)


class Replaced(cst.CSTVisitor):  # type: ignore[misc]
    """Counts the expressions that will be replaced, by what they are looked up on."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__()
        self.rewriter = rewriter
        self.bases: dict[str, int] = {}

    def visit_Attribute(self, node: cst.Attribute) -> bool:  # noqa: N802
        if self.rewriter.target(node) is None:
            return True
        base = node.value
        while isinstance(base, cst.Attribute):
            base = base.value
        self.count(self.rewriter.imported(base))
        return False

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        if isinstance(node.func, cst.Name) and self.rewriter.target(node.func) is not None:
            self.count(self.rewriter.imported(node.func))

    def count(self, name: str) -> None:
        self.bases[name] = self.bases.get(name, 0) + 1


def ours(name: str, like: cst.BaseExpression) -> cst.Attribute:
    """Return glassloop.NAME, in the parentheses of the expression it replaces."""
    return cst.Attribute(cst.Name(OURS), cst.Name(name), lpar=like.lpar, rpar=like.rpar)


def base_of(alias: cst.ImportAlias) -> str:
    """Return what the name that an import binds stands for: that of the package, unless it has its own name."""
    name = dotted(alias.name)
    return name if alias.asname is not None else name.partition(".")[0]


def flat(parts: Sequence[cst.CSTNode]) -> cst.ImportFrom | cst.FlattenSentinel:
    """Return one statement, or several in its place."""
    return parts[0] if len(parts) == 1 else cst.FlattenSentinel(parts)


def with_name(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """Return an imported name that is called differently now; the script keeps its own name for it."""
    if dotted(alias.name) == name:
        return alias
    kept = alias.asname
    if kept is None:
        space = cst.SimpleWhitespace(" ")
        kept = cst.AsName(alias.name, whitespace_before_as=space, whitespace_after_as=space)
    same = isinstance(kept.name, cst.Name) and kept.name.value == name
    return alias.with_changes(name=cst.Name(name), asname=None if same else kept)


def replaced(argument: cst.Arg) -> cst.Arg | None:
    """Return an argument under its present name; None if it is False, which asks for nothing."""
    name, on, off = REPLACED_ARGUMENTS[argument.keyword.value]
    value = literal(argument.value)
    if value in (False, None):
        return None
    text = on if value is True else f"{on} if {cst.Module([]).code_for_node(argument.value)} else {off}"
    return argument.with_changes(keyword=cst.Name(name), value=cst.parse_expression(text))


def as_last(node: cst.CSTNode, last: cst.CSTNode) -> cst.CSTNode:
    """Return a list item as the last one: its comma is that of the former last item, its comment stays."""
    end = getattr(last.comma, "whitespace_after", None)
    if not comments_of(node.comma):
        return node.with_changes(comma=last.comma)
    if not isinstance(end, cst.ParenthesizedWhitespace):
        return node
    line = node.comma.whitespace_after.first_line
    return node.with_changes(comma=last.comma.with_changes(whitespace_after=end.with_changes(first_line=line)))


def comments_of(comma: cst.Comma | cst.MaybeSentinel) -> list[str]:
    """Return the comments behind a comma."""
    space = getattr(comma, "whitespace_after", None)
    lines = [getattr(space, "first_line", None), *getattr(space, "empty_lines", ())]
    return [line.comment.value for line in lines if line is not None and line.comment is not None]


def comment_at_end(comments: list[str]) -> cst.TrailingWhitespace:
    """Return the end of a line with comments."""
    if not comments:
        return cst.TrailingWhitespace()
    return cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment("  ".join(comments)))
