"""Every file of examples/ runs to its end, on a few steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LINES = {
    "plain_loop.py": (["24"], "'accuracy':"),
    "one_batch.py": ([], "after one step"),
    "custom_loss.py": (["2"], "'eval_accuracy':"),
    "gradients.py": (["2"], "layer 5:"),
    "layer_rates.py": (["2"], "2 steps, mean loss"),
}


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LINES)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LINES)
def test_example_runs(name: str, tmp_path: Path) -> None:
    arguments, expected = LINES[name]
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
