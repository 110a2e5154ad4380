"""`glassloop train --seeds`: the table, the exit status, and what can be resumed with which settings."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from fake_seeds import FakeSeeds

from glassloop.base.errors import ModelError
from glassloop.settings.file import GivenSettings
from glassloop.study.seeds import settled, train_with_seeds


class Runner(FakeSeeds):
    """Calls `train_with_seeds` as the command does, with children that only pretend."""

    def __call__(
        self, count: int | None, *, resume: bool | str = False, does: dict[int, str] | None = None, **given: Any
    ) -> tuple[int, list[str]]:
        """The exit status, and the lines on standard error."""
        training = given.pop("training", {}) | ({} if resume else {"output_dir": str(self.out)})
        source = given.pop("source", None if resume else "rows.csv")
        rest = {"at_once": None, "restart": False, "processes": 1} | given
        if does is not None:
            self.does(does)
        code = 0
        try:
            code = train_with_seeds(
                GivenSettings(source, training=training),
                count,
                resume=(resume if isinstance(resume, str) else str(self.out)) if resume else None,
                **rest,
            ).exit_status
        except KeyboardInterrupt:
            code = 130
        except SystemExit as left:
            code = int(left.code or 0)
        return code, self.lines()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(tmp_path, monkeypatch, capsys)


def test_the_seeds_start_at_the_seed_and_a_table_follows(run: Runner) -> None:
    code, lines = run(2, training={"seed": 7})
    assert code == 0
    assert [*run.record["seeds"]] == ["7", "8"]
    assert lines[5:] == [
        "                      loss      f1",
        "seed 7              0.0700  0.5000",
        "seed 8              0.0800  0.5000",
        "mean of 2           0.0750  0.5000",
        "standard deviation  0.0071  0.0000",
        "majority baseline        -  0.4000",
    ]


def test_all_seeds_share_the_settings_that_the_rule_chooses(write, lively_dir: Path, capsys) -> None:
    rows = "text,label\n" + "".join(f"film {row},{'ab'[row % 2]}\n" for row in range(40))
    given = GivenSettings(str(write("rows.csv", rows)), str(lively_dir), {"num_train_epochs": 2})
    found = settled(given).training
    assert (found.num_train_epochs, found.per_device_train_batch_size, found.warmup_steps) == (2, 8, 0.0)
    assert found.learning_rate > 5e-5
    assert "chosen batch size, learning rate, warm-up: from 36 training rows" in capsys.readouterr().err
    glue = GivenSettings("glue/mrpc", "no such model", {})
    assert settled(glue) == glue.checked(), "nothing is loaded"


def test_no_deviation_is_made_up_for_one(run: Runner) -> None:
    code, lines = run(1)
    assert code == 0
    assert run.record["standard_deviation"] is None
    assert [line.split()[0] for line in lines[-4:]] == ["loss", "seed", "mean", "majority"]


def test_one_fails_and_the_others_continue(run: Runner) -> None:
    code, lines = run(3, does={43: "fail"})
    assert code == 3
    assert "seed 43: failed" in lines
    assert any(line.startswith("seed 44: finished") for line in lines)
    assert "mean of 2           0.4300  0.5000" in lines
    assert lines[-4:] == [
        f"seed 43 failed with exit status 3 (log: {run.out}/seed-43.log):",
        "  data: row 3 is empty",
        "  try:  fill it",
        f"resume with: glassloop train --seeds 3 --resume {run.out}",
    ]
    code, lines = run(4, resume=True, does={})
    assert code == 0
    assert lines[0] == f"seed 42: already finished, in {run.out}/seed-42"
    assert "mean of 4           0.4350  0.5000" in lines


def test_killed_without_a_result(run: Runner) -> None:
    found, lines = run(1, does={42: "die"})
    assert found == 137
    assert lines[-2] == "  a library crashed"
    assert not any(line.startswith("mean") for line in lines)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_and_no_table_follows(run: Runner, number: int, code: int) -> None:
    found, lines = run.signalled(number, 2, lambda: run(2))
    assert found == code
    assert lines[-1].startswith("stopped by SIG")
    assert run(2, resume=True)[0] == 0


def test_what_cannot_be_resumed(run: Runner, says, write) -> None:
    with says(f"{run.out}: no seeds to resume: seeds.json: missing", kind=ModelError):
        run(2, resume=True)
    run(2)
    remedy = "use --seeds 2, or a larger number to add seeds"
    with says(f"{run.out} was started with 2 seeds, starting at 42", remedy):
        run(1, resume=True)
    with says(f"{run.out} was started with 2 seeds, starting at 42"):
        run(2, resume=True, training={"seed": 3})
    alone = run.out / "seed-42"
    with says(f"{alone} contains a single run, not one run per seed", f"resume it alone: glassloop train --resume {alone}"):
        run(2, resume=str(alone))
    write("out/seeds.json", "[]")
    with pytest.raises(ModelError):
        run(2, resume=True)


def test_the_same_command_starts_the_seeds_and_continues_them(run: Runner) -> None:
    code, lines = run(2, resume=True, source="rows.csv", does={43: "fail"})
    assert (code, (run.out / "seeds.json").exists()) == (3, True), lines
    code, lines = run(2, resume=True, source="rows.csv", does={})
    assert (code, any("seed 42: already finished" in line for line in lines)) == (0, True)


def test_other_settings_are_refused_and_the_same_may_be_repeated(run: Runner, says) -> None:
    run(2, training={"max_steps": 4})
    assert run(2, resume=True, source="rows.csv", training={"max_steps": 4})[0] == 0
    with says(
        f"{run.out} was started with different settings: source: rows.csv then, other.csv now; max_steps: 4 then, 5 now",
        f"use only --seeds and --resume {run.out}",
    ):
        run(2, resume=True, source="other.csv", training={"max_steps": 5})


def test_what_cannot_be_combined(run: Runner, says, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "omit --processes: each seed trains in one process"
    with says("--seeds and several processes cannot be combined", remedy):
        run(2, processes=2)
    with says("--seeds_at_once needs --seeds", "set the number of seeds, for example --seeds 5"):
        run(None, at_once=2)
    with says("--seeds and --restart cannot be combined", "restart the run of one seed: --resume RUN/seed-1 --restart"):
        run(2, restart=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with says("--seeds and several processes cannot be combined"):
        run(2)
    assert not run.out.exists()
