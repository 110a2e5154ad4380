"""What the README and the first guides show can be typed: their commands run in their order, and so does their Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from trials import ROOT, Servers

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands that need a hub, a package index or a browser, or that do not end.
NOT_RUN = ("glassloop serve", "glassloop ui", "glassloop push", "pip ", "python3 -m venv", ". .venv", "make ")
LONG = re.compile(r"^glassloop (train|study)\b(?!.*--resume)")
FEW_STEPS = {"train": " --max_steps 2 --save_strategy steps --save_steps 1", "study": " --max_steps 2"}
PAGES = {
    "README.md": "",
    "docs/index.md": "",
    "docs/tutorial/own-data.md": "",
    "docs/how-to/class-imbalance.md": "glassloop train tickets.csv --text body --label urgent --output_dir runs/tickets",
    "docs/how-to/several-labels.md": "",
    "docs/how-to/scores.md": "",
    "docs/how-to/early-stopping.md": "",
    "docs/how-to/migrate.md": "",
    "docs/explanation/loop-line-by-line.md": "",
    "docs/explanation/gradients.md": "",
}
GOOD = ("negative", "positive")
FILES = {
    "reviews.csv": ("review,sentiment", lambda row: f"a {GOOD[row % 2]} film {row},{GOOD[row % 2]}"),
    "new.csv": ("review", lambda row: f"film {row}"),
    "new-reviews.csv": ("review", lambda row: f"film {row}"),
    "tickets.csv": ("body,urgent,tags", lambda row: f"ticket {row},{'no' if row % 4 else 'yes'},{'a;b' if row % 3 else 'b'}"),
    "pairs.csv": ("first,second,similarity", lambda row: f"one {row},two {row},{row / 7:.2f}"),
    "rows.csv": ("text,label", lambda row: f"row {row} {GOOD[row % 2]},{row % 2}"),
}
NUM_ROWS = 240  # of which 24 are held out: calibrate needs 20


def commands_of(text: str) -> list[str]:
    """Return the commands of a page, without comments. A line that ends with a backslash continues."""
    blocks = [code for language, code in FENCE.findall(text) if language == "sh"]
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    bare = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [line for line in bare if line and not line.startswith(NOT_RUN)]


def shortened(command: str) -> str:
    """Return a command with few steps, and without models of the hub, other options as shown."""
    found = LONG.match(command)
    command = re.sub(r"--model microsoft/\S+", "", command.replace("BAAI/bge-small-en-v1.5", "quickstart"))
    few = "" if "--method frozen" in command or not found else FEW_STEPS[found[1]]
    return command + few


@pytest.mark.exhaustive
@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_typed(page: str, tmp_path: Path, session_cache: Path, servers: Servers) -> None:
    for name, (header, row) in FILES.items():
        lines = [header, *(row(number) for number in range(NUM_ROWS))]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = (ROOT / page).read_text(encoding="utf-8")
    for command in [*filter(None, [PAGES[page]]), *commands_of(text)]:
        program, *words = shlex.split(shortened(command))
        if program == "glassloop":
            if words[0] == "evaluate" and "test" in words:  # these files have no test split
                words[words.index("test")] = "validation"
            out = servers.run(*words, folder=tmp_path, timeout=300, GLASSLOOP_CACHE=str(session_cache))
            assert out.code == 0, f"{command}\n{out.err}"
    environment = {**os.environ, "GLASSLOOP_CACHE": str(session_cache), "PYTHONPATH": str(ROOT / "src")}
    for code in [code for language, code in FENCE.findall(text) if language == "python"]:
        code = code.replace('label="sentiment")', 'label="sentiment", max_steps=2)').replace("=rows, ", "=rows, ")
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{code}\n{ended.stderr}"


def test_the_commands_of_a_page_are_found() -> None:
    text = "```sh\nglassloop train a.csv \\\n    --seeds 2  # twice\npip install x\n```\n```python\nimport x\n```\n"
    assert commands_of(text) == ["glassloop train a.csv --seeds 2"]
    assert shortened("glassloop train a.csv").endswith("--save_steps 1")
    assert shortened("glassloop train --resume a") == "glassloop train --resume a"
