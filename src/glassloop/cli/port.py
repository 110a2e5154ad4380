"""`glassloop port`: rewrite a script for transformers' Trainer."""

from __future__ import annotations

import ast
import io
import stat
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.errors import DataError, SettingsError, visible
from glassloop.base.files import near_name, replacing, user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.compat.port import Ported

BYTE_ORDER_MARK = "\ufeff"


def port(
    file: Annotated[str, Argument(help="Python script or notebook (.py or .ipynb).")],
    out: Annotated[str | None, Option("-o", "--out", help="New file to write. Default: show the changes only.")] = None,
    in_place: Annotated[bool, Option("--in_place", help="Write the changes to FILE itself.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Rewrite a script for transformers' Trainer to run on Glassloop."""
    with starting():
        from glassloop.compat.port import TITLES, difference

    if out is not None and in_place:
        raise SettingsError("--out and --in_place exclude each other", "choose one of them")
    path = user_path(file)
    name = near_name(str(path))
    ported, encoding = ported_file(path)
    target = path if in_place else None
    if out is not None:
        target = user_path(out)
        if target.exists():
            raise SettingsError(f"{near_name(str(target))} exists", "choose another --out, or use --in_place")
    diff = difference(ported.before, ported.after, name)
    for line in diff.splitlines():
        show(line.expandtabs())
    if not ported.changed:
        show(f"{name} needs no change" if not ported.findings else f"{name}: nothing was changed")
    findings: dict[str, list[dict[str, object]]] = {}
    for kind, title in TITLES.items():
        of_kind = [finding for finding in ported.findings if finding.kind == kind]
        findings[kind] = [{"cell": one.cell, "line": one.line, "problem": one.problem, "remedy": one.remedy} for one in of_kind]
        for line in [title, *(f"  {one}" for one in of_kind)] if of_kind else []:
            show(line.replace("\n", "\n      "))
    if target is not None and (ported.changed or target != path):
        with replacing(target.resolve()) as temporary:  # a symbolic link stays one: the file that it leads to is written
            temporary.write_bytes(ported.text.encode(encoding))
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        show(f"written: {near_name(str(target))}")
    return CommandResult({"file": str(path), "changed": ported.changed, "diff": diff, **findings, "out": target})


def ported_file(path: Path) -> tuple[Ported, str]:
    """Return a rewritten script or notebook, with its own line ends, and its encoding."""
    from glassloop.compat.port import Ported, ported_notebook, rewritten

    name = visible(near_name(str(path)))
    if path.is_dir():
        raise DataError(f"{name} is a folder", "name one .py or .ipynb file")
    if not path.is_file():
        raise DataError(f"there is no file {name}", "check the path")
    if path.suffix not in (".py", ".ipynb"):
        raise DataError(f"{name} is neither a .py nor an .ipynb file", "rename it if it is one of them")
    content, encoding = path.read_bytes(), "utf-8"
    try:
        if path.suffix == ".py":
            encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0].replace("utf-8-sig", "utf-8")
    except SyntaxError as error:  # bytes that are not UTF-8 are another one: decoding them says where
        if "invalid or missing encoding" not in str(error.msg):
            raise DataError(f"{name}: {error.msg}", "save it as UTF-8, without a declaration") from error
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        what = "UTF-8" if encoding == "utf-8" else encoding
        raise DataError(f"{name} is not {what} (byte {error.start:,})", "save it as UTF-8") from error
    if not text.strip(f"{BYTE_ORDER_MARK} \t\r\n"):
        raise DataError(f"{name} is empty", "name a file with code")
    if path.suffix == ".ipynb":
        return ported_notebook(text, name), encoding
    code = text.removeprefix(BYTE_ORDER_MARK)
    try:
        ast.parse(code)
    except SyntaxError as error:
        where = f"{name}, line {error.lineno}"
        if "Missing parentheses in call to" in str(error.msg) or "multiple exception types must be" in str(error.msg):
            raise DataError(f"{where}: the script is for Python 2", "convert it to Python 3 first") from error
        raise DataError(f"{where}: {error.msg}", "correct it: the file is not valid Python") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{name} is not Python: {error}", "name a file with Python code") from error
    new, findings = rewritten(code)
    return Ported(text[: len(text) - len(code)] + new, findings, code, new), encoding
