"""Check the documents: links lead somewhere, the commands they show are valid, and the reference is complete."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import conf
import generate_reference
import house
import pytest
import site_pages
import transformers
import typer
from check_site import problems_of
from site_pages import with_links

from glassloop import PUBLIC, DataSettings, Trainer
from glassloop.cli.main import app
from glassloop.runs.record import FAILED, FINISHED, KILLED, RUNNING, STOPPED
from glassloop.settings.training import TrainingArguments

ROOT = Path(__file__).parents[2]
WANTED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/index.md", "docs/decisions.md", "docs/log.md"),
    *("docs/tutorial/first-run.md", "docs/how-to/index.md", "docs/explanation/one-loop.md", "docs/reference/settings.md"),
    "docs/course.md",
)
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE
)
MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(?:work|root|home|tmp)/")
COMMANDS = typer.main.get_command(app)
ALWAYS = ("--help", "-h", "--debug")
VALUE_IS_OPTIONAL = ("--resume",)
SHELLS = ("", "sh", "bash", "shell", "console", "text")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- files and links ---------------------------------------------------------------------------------------------
def test_the_documents_are_there_and_not_empty() -> None:
    for name in WANTED:
        assert len((ROOT / name).read_text(encoding="utf-8")) > 100, f"write {name}"


def links_of(text: str) -> list[str]:
    """The targets of links and images in Markdown, not those inside code."""
    bare = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return [next(filter(None, groups)) for groups in LINK.findall(bare)]


def anchors_of(text: str) -> set[str]:
    """The anchors that a Markdown page has for its headings, made as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        while (anchor := slug if number == 1 else f"{slug}-{number - 1}") in found:
            number += 1
        found.add(anchor)
    return found


def lost_links(path: Path) -> Iterator[str]:
    """Yield the relative links of a document that lead nowhere."""
    for target in links_of(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
            continue
        place, _, anchor = target.partition("#")
        where = (path.parent / unquote(place)).resolve() if place else path
        there = where.exists() and where.is_relative_to(ROOT)
        if there and anchor and where.suffix == ".md":
            there = unquote(anchor) in anchors_of(where.read_text(encoding="utf-8"))
        if not there:
            yield target


def test_every_relative_link_leads_to_a_file() -> None:
    lost = [f"{name_of(path)}: {target}" for path in DOCUMENTS for target in lost_links(path)]
    assert not lost, "these links lead nowhere"


def test_the_guides_for_contributors_are_short() -> None:
    words = {name: len((ROOT / name).read_text(encoding="utf-8").split()) for name in ("CONTRIBUTING.md", "docs/decisions.md")}
    assert words["CONTRIBUTING.md"] <= 1500
    assert words["docs/decisions.md"] <= 3000


# --- commands ----------------------------------------------------------------------------------------------------
def shown_commands(text: str) -> Iterator[list[str]]:
    """The words of every `glassloop …` command in the code blocks of a Markdown text."""
    for block in FENCE.finditer(text):
        if block["language"].strip().lower() not in SHELLS:
            continue
        for line in re.sub(r"\\\n", " ", block["code"]).splitlines():
            yield from commands_in(line)


def commands_in(line: str) -> Iterator[list[str]]:
    """`A=1 glassloop data x | head && glassloop doctor` holds two commands."""
    line = re.sub(r"^\s*[$>%]\s+", "", line)
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = [*lexer]
    except ValueError:  # output that is shown, with a lone quote in it
        return
    parts: list[list[str]] = [[]]
    for word in words:
        if re.fullmatch(r"[|&;<>]+", word):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        while part and re.match(r"\w+=|(time|uv|run|env|torchrun)$", part[0]):
            part = part[1:]
        part = part[2:] if [Path(word).name for word in part[:2]] in (["python", "-m"], ["python3", "-m"]) else part
        if part and Path(part[0]).name == "glassloop":
            yield part[1:]


def fault_in(words: list[str]) -> str | None:
    """Why a command cannot be typed like that; None where it can."""
    general = {flag for param in COMMANDS.params for flag in param.opts}
    rest = [word for word in words if word not in ALWAYS]
    if not rest or rest[0] in general:
        return None
    if rest[0] not in COMMANDS.commands:
        return f"there is no command {rest[0]!r}"
    params = COMMANDS.commands[rest[0]].params
    options = {
        flag: param for param in params if param.param_type_name == "option" for flag in (*param.opts, *param.secondary_opts)
    }
    named = [param for param in params if param.param_type_name == "argument"]
    most = 99 if any(param.nargs == -1 for param in named) else len(named)  # -1: any number
    arguments, queue = 0, rest[1:]
    while queue and not (rest[0] == "run" and arguments):  # what follows a script belongs to the script
        word = queue.pop(0)
        flag, equals, _ = word.partition("=")
        if not word.startswith("--"):
            arguments += word not in ("…", "...")
        elif flag not in options:
            return f"glassloop {rest[0]} has no flag {flag}"
        elif not equals and not options[flag].is_flag:
            if queue and not (flag in VALUE_IS_OPTIONAL and queue[0].startswith("--")):
                queue.pop(0)
            elif flag not in VALUE_IS_OPTIONAL:
                return f"{flag} has no value"
    return f"glassloop {rest[0]} takes {most} arguments, not {arguments}" if arguments > most else None


def test_every_command_that_is_shown_can_be_typed() -> None:
    faults = [
        f"{name_of(path)}: glassloop {' '.join(words)}: {fault}"
        for path in DOCUMENTS
        for words in shown_commands(path.read_text(encoding="utf-8"))
        if (fault := fault_in(words))
    ]
    assert not faults, "\n".join(faults)
    assert [*shown_commands((ROOT / "README.md").read_text(encoding="utf-8"))], "a README without a command to type"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```bash\nglassloop data a.csv --seed 7\n```", [["data", "a.csv", "--seed", "7"]]),
        ("```\n$ glassloop doctor  # looks\n```", [["doctor"]]),
        ("```sh\nA=1 python -m glassloop data \\\n  --seed 7 | head\n```", [["data", "--seed", "7"]]),
        ("```sh\n.venv/bin/glassloop doctor && glassloop --version\n```", [["doctor"], ["--version"]]),
        ("```python\nglassloop data\n```", []),
        ("glassloop data", []),
    ],
)
def test_commands_are_found(text: str, words: list[list[str]]) -> None:
    assert [*shown_commands(text)] == words


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        *((words, None) for words in ("data a.csv --split_seed 7 --debug", "data --split_seed=7", "--version", "--help")),
        *((words, None) for words in ("data --help", "train a.csv --resume", "train a.csv --resume --seed 7")),
        ("dta", "there is no command 'dta'"),
        ("data --sede 7", "glassloop data has no flag --sede"),
        ("data a b", "glassloop data takes 1 arguments, not 2"),
        ("data --split_seed", "--split_seed has no value"),
        ("train --resume runs/a --sede 7", "glassloop train has no flag --sede"),
    ],
)
def test_faults_are_seen(command: str, fault: str | None) -> None:
    assert fault_in(command.split()) == fault


def test_links_are_found() -> None:
    text = "[a](b.md) ![c](d.png 'e') <img src=\"f.png\">\n[g]: h.md\n`[i](j)`\n```\n[k](l)\n```\n[m](n.md#o)"
    assert sorted(links_of(text)) == ["b.md", "d.png", "f.png", "h.md", "n.md#o"]
    assert anchors_of("# One Two!\n## `code` & more\n# One two\n```\n# no\n```") == {"one-two", "code--more", "one-two-1"}


def test_comments_that_cite_a_section_of_the_log_name_its_heading() -> None:
    headings = {
        *re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", (ROOT / "docs/log.md").read_text(encoding="utf-8")), re.MULTILINE)
    }
    cited = re.compile(r'docs/log\.md,[\s#]+"([^"]+)"')
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".j2")]
    found = {(name_of(path), " ".join(title.replace("#", " ").split()))
             for path in sources for title in cited.findall(path.read_text(encoding="utf-8"))}  # fmt: skip
    assert found, "the pattern finds nothing"
    assert not {(path, title) for path, title in found if title not in headings}


def test_documents_have_no_placeholders() -> None:
    """A line with one word in capitals, to be filled later."""
    left = [
        (name_of(path), line) for path in DOCUMENTS
        for line in FENCE.sub("", path.read_text(encoding="utf-8")).splitlines() if re.fullmatch(r"[A-Z]{3,}", line.strip())
    ]  # fmt: skip
    assert not left


# --- code, settings and names ------------------------------------------------------------------------------------
def blocks_of(path: Path, language: str) -> list[str]:
    """Return the code blocks of a document that are written in `language`."""
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [block["code"] for block in found if block["language"].strip() == language]


def test_code_and_settings_in_documents_are_valid() -> None:
    for path in DOCUMENTS:
        for code in blocks_of(path, "python"):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and node.module == "glassloop":
                    unknown = [alias.name for alias in node.names if alias.name not in PUBLIC]
                    assert not unknown, f"{name_of(path)} imports {unknown} from glassloop"
        for code in blocks_of(path, "toml"):
            found = tomllib.loads(code)
            TrainingArguments(**found.get("training", {}))
            DataSettings(**found.get("data", {}))


def test_files_and_commands_of_the_project_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    lost = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        files = re.findall(r"`(?:python )?((?:src|tests|benchmarks|tools|examples|docs)/[\w./-]+)", text)
        lost += [f"{name_of(path)}: {name}" for name in files if not (ROOT / name).exists()]
        lost += [f"{name_of(path)}: make {name}" for name in re.findall(r"`make ([a-z-]+)", text) if name not in targets]
    assert not lost


def texts_in(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_messages_cite_no_file_of_the_repository() -> None:
    """A user who installed the wheel does not have it."""
    cited = re.compile(r"\b(?:docs|tests|benchmarks|tools|examples)/[\w/.-]+\.(?:md|py|ipynb)|\bCONTRIBUTING\.md")
    found = [(module, text) for module in house.PATHS for text in texts_in(house.tree_of(module)) if cited.search(text)]
    assert not found
    assert cited.search("use LoRA from Python: docs/how-to/lora.md")


def test_the_documents_list_what_the_code_has() -> None:
    """The variables that users set, the statuses of a run, and the arguments that only our Trainer has."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    internal = {"GLASSLOOP_ERROR_FILE", "GLASSLOOP_SHARE", "GLASSLOOP_FAULT"}  # between processes, and for tests
    page = (ROOT / "docs/reference/run-folder.md").read_text(encoding="utf-8")
    listed = {*re.findall(r"^\| `(GLASSLOOP_[A-Z_]+)`", page, re.MULTILINE)}
    assert {*re.findall(r"\bGLASSLOOP_[A-Z_]+", sources)} - internal == listed
    guide = (ROOT / "docs/how-to/notebooks.md").read_text(encoding="utf-8")
    assert all(f'"{status}"' in guide for status in (RUNNING, FINISHED, STOPPED, FAILED, KILLED))
    arguments = inspect.signature(Trainer).parameters
    assert {"loss", "on_gradients", "accelerator", "backend", "measures", "quiet"} <= {*arguments}


def test_option_names_stay_as_they_are_on_the_site() -> None:
    """Smart quotes make a dash of the two in --header."""
    assert not conf.smartquotes


# --- the site ----------------------------------------------------------------------------------------------------
def test_the_table_of_transformers_lists_every_field_of_the_installed_version() -> None:
    rows = generate_reference.settings_of_transformers().splitlines()
    listed = {name: row.split(" | ")[1] for row in rows[3:] for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    own = {entry.name for entry in dataclasses.fields(TrainingArguments)}  # on the page of settings
    theirs = {entry.name for entry in dataclasses.fields(transformers.TrainingArguments) if not entry.name.startswith("_")}
    assert not theirs - {*listed} - own
    assert {*listed.values()} == {"renamed", "kept", "no effect", "refused"}


def test_the_reference_lists_every_setting_command_and_public_name() -> None:
    for kind in (TrainingArguments, DataSettings):
        rows = generate_reference.settings(kind.__name__).replace("`", "").splitlines()
        for entry in dataclasses.fields(kind):
            assert any(
                row.startswith(f"| {entry.name} | ") and entry.metadata["help"].replace("|", r"\|") in row for row in rows
            )
    commands = generate_reference.commands()
    for verb, command in COMMANDS.commands.items():
        if command.hidden:
            continue
        section = commands.partition(f"## {verb}\n")[2].partition("\n## ")[0]
        assert command.help.splitlines()[0] in section.replace("`", "")
        kinds = [kind for kind in (TrainingArguments, DataSettings) if f"settings.md#{kind.__name__.lower()}" in section]
        from_settings = {entry.name for kind in kinds for entry in dataclasses.fields(kind)}
        for param in command.params:
            assert param.name in from_settings or param.opts[0] in section or param.name.upper() in section
    names = generate_reference.python_names()
    assert all(f":: glassloop.{name}\n" in names for name in PUBLIC)
    assert "## Other" not in names, "put the new public name into a group of docs/generate_reference.py"


def test_links_out_of_the_documents_lead_to_pages_of_the_site() -> None:
    page = ROOT / "docs" / "how-to"
    assert with_links("[a](../log.md#b)", page, page) == f"[a]({site_pages.REPOSITORY}/blob/main/docs/log.md#b)"
    assert with_links("[a](resume.md#b)", page, page) == "[a](resume.md#b)"
    assert with_links("[a](../../CHANGELOG.md)", page, page) == f"[a]({site_pages.REPOSITORY}/blob/main/CHANGELOG.md)"
    assert with_links("[a](../../README.md)", page, page) == "[a](../index.md)"
    assert with_links("[a](https://b.org/c)", page, page) == "[a](https://b.org/c)"
    assert with_links("[a](docs/course.md)", ROOT, ROOT / "docs") == "[a](course.md)"
    source = "../../examples/plain_loop.py"
    assert with_links(f"[a]({source}#L3)", page, page) == '<a href="../source/examples/plain_loop.py.html#L3">a</a>'
    house = (ROOT / "tools" / "house.py").read_text(encoding="utf-8").splitlines()
    line = 1 + next(number for number, text in enumerate(house) if text.startswith("def imports_of("))
    link = with_links("[`house.imports_of`](../../tools/house.py)", page, page)
    assert link == f'<a href="../source/tools/house.py.html#L{line}">`house.imports_of`</a>'


def test_a_built_site_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y">b</a> <a href="#x">x</a> <a href="https://c.org">c</a></p>')
    (tmp_path / "b.html").write_text('<p id="y"></p>')
    assert not problems_of(tmp_path)
    (tmp_path / "b.html").write_text('<a href="c.html"></a><script src="https://c.org/d.js"></script><a href="http://e"></a>')
    assert len(problems_of(tmp_path)) == 4


# --- paths of a machine ------------------------------------------------------------------------------------------
def tracked_texts() -> list[Path]:
    """The text files that git tracks, without the tests."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = [name for name in listed.decode().split("\0") if name and not name.startswith("tests/")]
    return [ROOT / name for name in names if (ROOT / name).is_file() and b"\0" not in (ROOT / name).read_bytes()[:8000]]


def test_no_path_of_a_machine_is_written_down() -> None:
    found = [
        f"{name_of(path)}, line {number}: {line.strip()[:100]}"
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_paths_of_a_machine_are_seen() -> None:
    for text in ("see /tmp/main/x", "`/tmp/venv/bin`", "in /home/me/data", "'/home/.cache'", "(/tmp/x)"):
        assert MACHINE_PATH.search(text), text
    for text in ("https://example.org/home/page", "docs/home/x", "./tmp/x", "~/tmp/x", "/usr/bin/env", "homework/tmp"):
        assert not MACHINE_PATH.search(text), text
