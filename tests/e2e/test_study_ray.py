"""A study on a Ray cluster of two nodes on this machine: one node is killed midway, and every run is there, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SHOWN, environment
from trials import Servers, weights_of, write_data

SCRIPT = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from glassloop import Study

def kill_when_it_trains() -> None:
    while not any(Path("out/runs").glob("*/run.json")):  # the first run came back; the second node works on another
        time.sleep(0.05)
    cluster.remove_node(second, allow_graceful=False)

if __name__ == "__main__":
    small = {"num_cpus": 1, "object_store_memory": 10**8}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    threading.Thread(target=kill_when_it_trains, daemon=True).start()
    record = Study(
        "data", model=sys.argv[1], vary={"learning_rate": [1e-3, 2e-3]}, seeds=2, max_steps=6, device="cpu", precision="fp32",
        per_device_train_batch_size=8, output_dir="out", on=cluster.address,
    ).run()
    assert record.status == "finished", record
    print("nodes", sum(node["Alive"] for node in ray.nodes()) if ray.is_initialized() else 1)
    cluster.shutdown()
"""


@pytest.mark.exhaustive
def test_a_node_is_killed_and_every_run_ends_as_alone(tmp_path: Path, lively_dir: Path, servers: Servers, cache: dict) -> None:
    pytest.importorskip("ray")
    write_data(tmp_path / "data", 90, 30)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", str(lively_dir)], cwd=tmp_path, env=environment(RAY_DEDUP_LOGS="0", **cache),
        capture_output=True, encoding="utf-8", timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    runs = json.loads((tmp_path / "out" / "study.json").read_text(encoding="utf-8"))["runs"]
    assert [entry["status"] for entry in runs.values()] == ["finished"] * 6

    for name in runs:
        settings = (tmp_path / "out" / "runs" / f"{name}.toml").read_text(encoding="utf-8")
        (tmp_path / "alone.toml").write_text(settings.replace(f"out/runs/{name}", f"alone-{name}"), encoding="utf-8")
        alone = servers.run("train", "--config", "alone.toml", folder=tmp_path, **SHOWN, **cache)
        assert alone.code == 0, alone.err
        assert weights_of(tmp_path / f"alone-{name}") == weights_of(tmp_path / "out" / "runs" / name)
