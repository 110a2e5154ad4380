"""The notebooks of examples/notebooks: their code runs, and what they store is what it gives, on no particular machine."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import run_notebooks
from run_notebooks import empty_folder, is_code, notebooks, read_cells, run_cells, source_of

NAMES = [path.name for path in notebooks()]
SIZES = {f"rows={rows}": "rows=24" for rows in (2400, 1600)}  # a few steps instead of a few hundred
OFTEN = {f"step % {steps} ": "step % 1 " for steps in (25, 50)}  # a line of the log for each of them


def outputs_of(name: str) -> list[list[dict]]:
    return [cell["outputs"] for cell in read_cells(run_notebooks.FOLDER / name) if is_code(cell)]


def test_the_page_of_the_course_lists_the_notebooks_and_each_can_be_installed() -> None:
    page = (run_notebooks.FOLDER.parents[1] / "docs" / "course.md").read_text(encoding="utf-8")
    assert [*NAMES] == sorted(re.findall(r"examples/notebooks/([\w-]+\.ipynb)", page))
    for name in NAMES:
        first = next(cell for cell in read_cells(run_notebooks.FOLDER / name) if is_code(cell))
        assert source_of(first).startswith("%pip install --quiet glassloop\n"), name


@pytest.mark.exhaustive
@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_in_a_kernel_of_jupyter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))  # a shared one makes another notebook say that it waits
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    if find_spec("ipykernel") is None:
        pytest.skip("could not import 'ipykernel'")
    notebook = nbformat.read(run_notebooks.FOLDER / name, as_version=4)
    for cell in notebook.cells:
        for old, new in (SIZES | OFTEN).items():
            cell.source = cell.source.replace(old, new)
        cell.source = re.sub(r"^%pip .*", "", cell.source, flags=re.MULTILINE)  # tests install nothing
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.usefixtures("packaged")
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["04-trainer.ipynb", *(name for name in NAMES if name != "04-trainer.ipynb")])
def test_the_code_of_a_notebook_runs(name: str, english_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny model and few rows, every cell ends, and gives outputs of the kinds that are stored."""
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of the test above: where it is, progress is shown as HTML
    cells = read_cells(run_notebooks.FOLDER / name)
    changes = SIZES | OFTEN | {"quickstart_model()": f"__import__('pathlib').Path({str(english_bert)!r})"}
    with empty_folder():
        ran = [*run_cells(cells, changes)]
    kinds = [[entry["output_type"] for entry in outputs] for outputs in outputs_of(name)]
    assert [[entry["output_type"] for entry in outputs] for outputs in ran] == kinds, [
        entry["text"] for outputs in ran for entry in outputs if entry["output_type"] == "stream"
    ]
    assert any("f1" in json.dumps(outputs) for outputs in ran)


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_that_are_stored_fit_every_machine(name: str) -> None:
    outputs = [entry for cell in outputs_of(name) for entry in cell]
    assert len(outputs) >= 3, "run: python tools/run_notebooks.py"
    assert {entry["output_type"] for entry in outputs} <= {"stream", "execute_result"}, "an error is stored"
    assert not [entry for entry in outputs if entry.get("name") == "stderr"]
    assert not run_notebooks.MACHINE.search(json.dumps(outputs, ensure_ascii=False))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_in_the_format_of_jupyter(name: str) -> None:
    content = json.loads((run_notebooks.FOLDER / name).read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)], "the cells ran in their order"
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        assert {*cell} == {"cell_type", "id", "metadata", "source"} | (
            {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        )
        assert source_of(cell).strip()


def test_a_cell_gives_what_it_prints_and_its_last_value() -> None:
    names: dict[str, object] = {}
    assert run_notebooks.run_cell("x = 2", names, "cell") == []
    printed, value = run_notebooks.run_cell("print('a')\nx + 1", names, "cell")
    assert printed["text"] == ["a\n"]
    assert value["data"] == {"text/plain": ["3"]}
    assert run_notebooks.run_cell("None", names, "cell") == []


def test_a_view_is_stored_beside_its_text() -> None:
    class Seen:
        def __repr__(self) -> str:
            return "seen"

        def _repr_html_(self) -> str:
            return "<b>seen</b>"

    assert run_notebooks.shown(Seen()) == {"text/html": ["<b>seen</b>"], "text/plain": ["seen"]}


def test_what_depends_on_the_machine_is_found() -> None:
    for text in ("saved in /home/me/x", "'/opt/venv/lib/model'", "<A object at 0x7f00>", r"C:\x"):
        assert run_notebooks.MACHINE.search(text), text
    for text in ("<table></table>", "rows/s and 3/4, text/plain", "runs/notebook"):
        assert not run_notebooks.MACHINE.search(text), text


def test_a_refreshed_notebook_keeps_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# A"]},
        {"cell_type": "code", "metadata": {"x": 1}, "source": "print(1)\n2", "outputs": [], "execution_count": None},
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    run_notebooks.refresh(path)
    text, code = read_cells(path)
    assert (source_of(text), source_of(code)) == ("# A", "print(1)\n2")
    assert [entry["output_type"] for entry in code["outputs"]] == ["stream", "execute_result"]
    path.write_text(path.read_text(encoding="utf-8").replace("print(1)", "print('/home/me/secret')"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"a\.ipynb: an output depends on this machine: /home/me/secret"):
        run_notebooks.refresh(path)
