"""The equivalence certificate: all claims hold on a tiny model, and a broken promise is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glassloop import verify as verify_module
from glassloop.verify import Claim, certificate, verify, weight_difference


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes are shown in tests/contract; here they would only take time."""
    monkeypatch.setattr(verify_module, "two_processes", lambda trial: trial.train(dropout=False)[0][:, 0])


def test_all_claims_hold(one_process: None, tiny_model_dir: Path, capsys: pytest.CaptureFixture) -> None:
    assert verify("quickstart", str(tiny_model_dir), {"rows": 60})
    out = capsys.readouterr().out
    assert out.count("✓") == 8
    assert "stopped after step 3 and resumed" in out


def test_a_broken_promise_is_seen(one_process: None, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassloop.engine import backends

    monkeypatch.setattr(backends.AccelerateBackend, "backward", lambda self, loss: self.accelerator.backward(loss * 1.01))
    claims = {claim.name: claim for claim in certificate("quickstart", str(tiny_model_dir), {"rows": 60})}
    broken = [name for name, claim in claims.items() if not claim.holds]
    assert broken == ["plain loop and Accelerate: weights"]


def test_differences_are_measured() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    second.load_state_dict(first.state_dict())
    assert weight_difference(first, second) == 0.0
    with torch.no_grad():
        second.bias[1] += 0.5
    assert weight_difference(first, second) == pytest.approx(0.5)
    assert not Claim("x", 0.1, 0.0).holds
    assert Claim("x", 0.0, 0.0).holds


def test_a_missing_two_process_run_is_an_error(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from glassloop.errors import SettingsError

    def failed(*args: Any, **options: Any) -> Any:
        return type("Done", (), {"returncode": 1, "stderr": "first\nno network here"})()

    monkeypatch.setattr(verify_module.subprocess, "run", failed)
    trial = verify_module.Trial("quickstart", str(tiny_model_dir), {"rows": 60}, tmp_path)
    with pytest.raises(SettingsError, match="no network here"):
        verify_module.two_processes(trial)
