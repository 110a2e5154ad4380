"""The launchers people use, on the CPU: torchrun, accelerate launch with its config files, two machines, a restart."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SHOWN, environment, run_command
from families import tiny_model
from safetensors.torch import load_file
from trials import KILL, STEP, Ended, Servers, differences, flags, write_data

from glassloop import load_model
from glassloop.backends.machine import bf16_found

TESTS = Path(__file__).parent.parent
TRAIN = ["train", "data", *flags(model="still", num_train_epochs=2, learning_rate=1e-3, logging_steps=1, save_strategy="steps"),
         *flags(save_steps=5, disable_tqdm=True, device="cpu", pooling="head")]  # fmt: skip
# A head that is fitted to embeddings enlarges rounding errors: test_51 in tests/faults/test_processes.py has one.
TWO = ["--per_device_train_batch_size", "4"]  # eight rows a step, as one process alone
TORCHRUN = ("-m", "torch.distributed.run")
ACCELERATE = ("-m", "accelerate.commands.launch", "--config_file")
CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: {kind}
num_processes: {number}
num_machines: 1
machine_rank: 0
use_cpu: true
mixed_precision: '{precision}'
"""
FSDP = """fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""


@pytest.fixture(scope="module")
def place(tiny_tokenizer, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a model without dropout, configs of accelerate, and the run of one process with the whole batch."""
    folder = tmp_path_factory.mktemp("launchers")
    write_data(folder / "data")
    tiny_model(dropout=0.0, max_position_embeddings=64).base_model.save_pretrained(folder / "still")
    tiny_tokenizer.save_pretrained(folder / "still")
    for name, kind, number, precision in (
        *(("two", "MULTI_GPU", 2, "no"), ("two-bf16", "MULTI_GPU", 2, "bf16"), ("one-bf16", "'NO'", 1, "bf16")),
        *(("fsdp", "FSDP", 2, "no"), ("fsdp-1", "FSDP", 2, "no"), ("cpu", "MULTI_CPU", 2, "no")),
    ):
        config = CONFIG.format(kind=kind, number=number, precision=precision)
        (folder / f"{name}.yaml").write_text(config + (FSDP if name == "fsdp" else ""))
    arguments = [*TRAIN, "--output_dir", "one", "--per_device_train_batch_size", "8"]
    ended = servers.run(*arguments, folder=folder, **SHOWN, **place_of(folder))
    assert ended.code == 0, ended.err
    return folder


def place_of(folder: Path) -> dict[str, str]:
    return {"GLASSLOOP_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}


def start(folder: Path, run: str, *more: str, launcher: tuple[str, ...]) -> Ended:
    return run_command(*TRAIN, "--output_dir", run, *more, folder=folder, launcher=launcher, **place_of(folder))


def described(place: Path, run: str) -> dict[str, Any]:
    return json.loads((place / run / "run.json").read_text(encoding="utf-8"))


def same_as_one(place: Path, run: str) -> None:
    """The same loss in every step, the same weights at the end, and a saved model that loads."""
    found = described(place, run)
    assert (found["status"], found["processes"], found["backend"], found["precision"]) == ("finished", 2, "accelerate", "fp32")
    stories = [
        [json.loads(line) for line in (place / name / "history.jsonl").read_text().splitlines()] for name in ("one", run)
    ]
    losses = [torch.tensor([entry["loss"] for entry in story]) for story in stories]
    assert len(losses[0]) == 16
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-6)
    one, two = (load_file(place / name / "model" / "model.safetensors") for name in ("one", run))
    assert set(one) == set(two)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)
    assert load_model(str(place / run / "model")).num_labels == 2


@pytest.fixture(scope="module")
def two(place: Path) -> str:
    """The run of two processes of torchrun that was never stopped."""
    ended = start(place, "torchrun", *TWO, launcher=(*TORCHRUN, "--standalone", "--nproc_per_node", "2"))
    assert ended.code == 0, ended.err
    return "torchrun"


def test_torchrun(place: Path, two: str) -> None:
    same_as_one(place, two)


@pytest.mark.exhaustive
def test_accelerate_launch_with_a_config_of_two_processes(place: Path, two: str) -> None:
    """`use_cpu` with MULTI_GPU: that is how accelerate starts several processes on a CPU without mpirun."""
    ended = start(place, "accelerate", *TWO, launcher=(*ACCELERATE, "two.yaml"))
    assert ended.code == 0, ended.err
    same_as_one(place, "accelerate")
    assert not differences(place / two, place / "accelerate")  # equal to the last bit


@pytest.mark.exhaustive
@pytest.mark.parametrize(("config", "processes"), [("one-bf16", 1), ("two-bf16", 2)])
def test_the_precision_of_a_config_is_the_runs(place: Path, config: str, processes: int) -> None:
    if "works" not in bf16_found().found:
        pytest.skip("bf16 does not work on this CPU")
    ended = start(place, config, *TWO, "--max_steps", "2", launcher=(*ACCELERATE, f"{config}.yaml"))
    assert ended.code == 0, ended.err
    found = described(place, config)
    assert (found["backend"], found["precision"], found["processes"]) == ("accelerate", "bf16", processes)
    assert any(line.startswith("device") and "bf16, backend accelerate" in line for line in ended.lines)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("fsdp-1", "FSDP version 1 is not supported"),
        ("cpu", "accelerate launch was asked for several processes but started one: on a CPU it needs mpirun"),
    ],
)
def test_a_config_that_would_not_do_what_it_says_is_refused(place: Path, config: str, problem: str) -> None:
    ended = start(place, config, *TWO, launcher=(*ACCELERATE, f"{config}.yaml"))
    assert ended.code != 0
    assert problem in ended.err
    assert not (place / config).exists()


@pytest.mark.exhaustive
def test_two_machines(place: Path, two: str) -> None:
    """Two launchers of one process each that find each other by an address."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    settings = environment(**place_of(place))
    started = []
    for machine in ("0", "1"):
        where = ["--nnodes", "2", "--node_rank", machine, "--master_addr", "127.0.0.1", "--master_port", port]
        command = [sys.executable, *TORCHRUN, *where, "--nproc_per_node", "1", "-m", "glassloop", *TRAIN, *TWO]
        started.append(
            subprocess.Popen(
                [*command, "--output_dir", "machines"], cwd=place, env=settings, stderr=subprocess.PIPE, encoding="utf-8"
            )
        )
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], "".join(said)
    same_as_one(place, "machines")
    assert not differences(place / two, place / "machines")


def killed(place: Path, run: str, *launcher: str) -> str:
    """A run of two processes, of which one is killed in step 12; what was said."""
    settings = {**place_of(place), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    settings["TRIAL_HOOKS"] = json.dumps([{"target": STEP, "call": 12, "action": KILL, "rank": 1}])
    done = subprocess.run(
        [sys.executable, *launcher, str(TESTS / "trials.py"), "run", *TRAIN, *TWO, "--output_dir", run, "--resume"],
        cwd=place, env=environment(**settings), capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resuming after step 10" in done.stderr
    return done.stderr


@pytest.mark.exhaustive
def test_torchrun_starts_a_run_again_whose_process_was_killed(place: Path, two: str) -> None:
    """Killed in step 12, started again by the launcher, on from the checkpoint of step 10: the end is the same."""
    killed(place, "again", *TORCHRUN, "--standalone", "--nproc_per_node", "2", "--max_restarts", "1")
    assert not differences(place / two, place / "again")


@pytest.mark.exhaustive
def test_accelerate_launch_with_a_config_of_fsdp_whose_process_was_killed(place: Path) -> None:
    """The model is split over two processes, before the kill and after it."""
    said = killed(place, "fsdp", *ACCELERATE, "fsdp.yaml", "--max_restarts", "1", "--rdzv_backend", "c10d")
    assert said.count("step 1/16") == 1
    same_as_one(place, "fsdp")
    assert described(place, "fsdp")["savings"] == ["weights, gradients and optimizer split over 2 processes (FSDP)"]
