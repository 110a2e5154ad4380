"""Check the files around the code: the Makefile, CI, the citation file and the templates agree with each other."""

from __future__ import annotations

import re

import yaml
from house import ROOT

import glassloop

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def targets() -> set[str]:
    """Return the targets of the Makefile that `make help` lists."""
    return {*re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}


def test_ci_runs_every_check_of_the_makefile_on_every_supported_python() -> None:
    commands = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*commands} == {"lint", "test", "test-rest", "docs", "wheel"}
    assert {*commands} <= targets()
    matrix = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["check"]["strategy"]["matrix"]
    assert matrix["target"] == commands
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_citation_names_this_version_and_the_issue_forms_can_be_read() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (glassloop.__version__, "Apache-2.0")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert path.name == "config.yml" or {"name", "description", "body"} <= {*form}


def test_every_command_of_the_makefile_is_phony_and_described() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = {*re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split()}
    assert phony == targets()
