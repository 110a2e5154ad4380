"""What the fault tests share: trials in forked children, small data, and the run that was never stopped."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import trials


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty-one training rows and thirteen for validation: last batches and groups are short."""
    return trials.write_data(tmp_path_factory.mktemp("data") / "small")


class Runs:
    """Starts runs of the small data with the small settings, and keeps the reference runs."""

    def __init__(self, servers: trials.Servers, data: Path, model: Path, folder: Path) -> None:
        self.servers, self.data, self.model, self.folder = servers, data, model, folder
        self.numbers, self.references = itertools.count(1), {}

    def new(self) -> Path:
        """The path of a run folder that is not there yet."""
        return self.folder / f"run-{next(self.numbers)}"

    def arguments(self, run: Path, **settings: Any) -> list[str]:
        chosen = {**trials.SMALL, **settings}
        data, model = chosen.pop("data", self.data), chosen.pop("model", self.model)
        kept = {name: value for name, value in chosen.items() if value is not None}
        return ["train", str(data), *trials.flags(model=model, output_dir=run, **kept)]

    def start(self, run: Path, hooks: Any = (), environment: dict[str, str] | None = None, **settings: Any) -> trials.Trial:
        return self.servers.start(*self.arguments(run, **settings), hooks=hooks, **(environment or {}))

    def train(self, run: Path, hooks: Any = (), environment: dict[str, str] | None = None, **settings: Any) -> trials.Ended:
        return self.start(run, hooks, environment, **settings).wait()

    def resume(self, run: Path, *more: str, hooks: Any = (), **environment: str) -> trials.Ended:
        return self.servers.run("train", "--resume", str(run), *more, hooks=hooks, **environment)

    def reference(self, **settings: Any) -> Path:
        """The run of these settings that was never stopped."""
        key = tuple(sorted(settings.items()))
        if key not in self.references:
            run = self.new()
            ended = self.train(run, **settings)
            assert ended.code == 0, ended.err
            self.references[key] = run
        return self.references[key]

    def resumes_the_same(self, run: Path, **settings: Any) -> trials.Ended:
        """Go on with a run: it ends like the run that was never stopped."""
        ended = self.resume(run)
        assert ended.code == 0, ended.err
        trials.same_end(self.reference(**settings), run)
        return ended


@pytest.fixture(scope="session")
def runs(servers: trials.Servers, small_data: Path, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(servers, small_data, tiny_model_dir, tmp_path_factory.mktemp("runs"))
