"""Every file of examples/ runs to its end, on a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import Servers

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LINES = {
    "one_batch.py": ([], "after one step"),
    "plain_loop.py": (["24"], "'accuracy':"),
    "custom_loss.py": (["2"], "'eval_accuracy':"),
    "gradients.py": (["2"], "layer 5:"),
    "layer_rates.py": (["2"], "2 steps, mean loss"),
}


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LINES)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LINES)
def test_example_runs(name: str, tmp_path: Path, servers: Servers, session_cache: Path) -> None:
    arguments, expected = LINES[name]
    cache = {"GLASSLOOP_CACHE": str(session_cache)}
    ended = servers.run(*arguments, script=EXAMPLES / name, folder=tmp_path, timeout=180, **cache)
    assert ended.code == 0, ended.err
    assert expected in ended.out
