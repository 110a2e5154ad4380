"""`glassloop port`: rewrite a script for transformers' Trainer."""

from __future__ import annotations

import ast
import io
import stat
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.base.errors import DataError, SettingsError, visible
from glassloop.base.files import near_name, replacing, user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.compat.port import Ported


BYTE_ORDER_MARK = "\ufeff"
SUFFIXES = (".py", ".ipynb")


def port(
    file: Annotated[str, typer.Argument(help="Python script or notebook (.py or .ipynb).")],
    out: Annotated[str | None, typer.Option("-o", "--out", help="New file to write. Default: show the changes only.")] = None,
    in_place: Annotated[bool, typer.Option("--in_place", help="Write the changes to FILE itself.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Rewrite a script for transformers' Trainer to run on Glassloop."""
    with starting():
        from glassloop.compat.port import TITLES, difference

    if out is not None and in_place:
        raise SettingsError("--out and --in_place exclude each other", "choose one of them")
    path = user_path(file)
    name = near_name(str(path))
    text, encoding = read_source(path)
    ported = ported_text(text, path)
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


def read_source(path: Path) -> tuple[str, str]:
    """Return the text of a script or notebook, with its own line ends, and its encoding.

    Raises `DataError` if the file cannot be read.
    """
    name = visible(near_name(str(path)))
    if path.is_dir():
        raise DataError(f"{name} is a folder", "name one .py or .ipynb file")
    if not path.is_file():
        raise DataError(f"there is no file {name}", "check the path")
    if path.suffix not in SUFFIXES:
        raise DataError(f"{name} is neither a .py nor an .ipynb file", "rename it if it is one of them")
    content = path.read_bytes()
    encoding = declared_encoding(content, name) if path.suffix == ".py" else "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        what = "UTF-8" if encoding == "utf-8" else encoding
        raise DataError(f"{name} is not {what} (byte {error.start:,})", "save it as UTF-8") from error
    if not text.strip(f"{BYTE_ORDER_MARK} \t\r\n"):
        raise DataError(f"{name} is empty", "name a file with code")
    return text, encoding


def declared_encoding(content: bytes, name: str) -> str:
    """Return the encoding that the first lines of a script declare. Raises `DataError` if Python does not know it."""
    try:
        found = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    except SyntaxError as error:
        if "invalid or missing encoding" in str(error.msg):
            return "utf-8"  # bytes that are not UTF-8: decoding them says where
        raise DataError(f"{name}: {error.msg}", "save it as UTF-8, without a declaration") from error
    return "utf-8" if found == "utf-8-sig" else found


def ported_text(text: str, path: Path) -> Ported:
    """Return the rewritten script or notebook."""
    from glassloop.compat.port import Ported, ported_notebook, rewritten

    if path.suffix == ".ipynb":
        return ported_notebook(text, visible(near_name(str(path))))
    mark, code = (BYTE_ORDER_MARK, text[1:]) if text.startswith(BYTE_ORDER_MARK) else ("", text)
    refuse_other_languages(code, visible(near_name(str(path))))
    new, findings = rewritten(code)
    return Ported(mark + new, findings, code, new)


def refuse_other_languages(code: str, name: str) -> None:
    """Raise `DataError` if code is not valid Python 3."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        if "Missing parentheses in call to" in str(error.msg) or "multiple exception types must be" in str(error.msg):
            raise DataError(
                f"{name}, line {error.lineno}: the script is for Python 2", "convert it to Python 3 first"
            ) from error
        raise DataError(f"{name}, line {error.lineno}: {error.msg}", "correct it: the file is not valid Python") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{name} is not Python: {error}", "name a file with Python code") from error
