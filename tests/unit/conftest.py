"""What the unit tests share: an error whose sentences are read, a few encoded pairs to train on, and two finished runs."""

from __future__ import annotations

import csv
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassloop.base.errors import SettingsError


@pytest.fixture
def says():
    """`with says(problem, remedy):` the block must raise a `SettingsError` (or `kind`) with exactly these sentences."""

    @contextmanager
    def check(problem: str, remedy: str | None = None, kind: type[Exception] = SettingsError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert caught.value.problem == problem
        assert remedy is None or caught.value.remedy == remedy

    return check


@pytest.fixture
def no_hang() -> Iterator[None]:
    """End a test that takes far longer than its work: half a minute, where linear code takes a second."""

    def stop(*_: object) -> None:
        raise TimeoutError("the work grows faster than the data")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def few(tiny_tokenizer, session_cache):
    """Encoded pairs: 29 to train on (no multiple of any batch size), ten each for validation and test."""
    from glassloop import encode, load_examples

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        pairs = load_examples("quickstart", rows=29, split_seed=3)
        return {name: encoding.rows for name, encoding in encode(pairs, tiny_tokenizer, 64).items()}


REVIEWS = [
    (f"{'very ' * (number % 6)}{'good' if number % 3 else 'bad'} film {number}", "pos, really" if number % 3 else "neg")
    for number in range(60)
]


@pytest.fixture(scope="session")
def text_run(lively_dir, session_cache, tmp_path_factory) -> Path:
    """The folder of a finished run on single texts; its labels are not in the order of the alphabet, and one holds a comma."""
    from glassloop.settings.file import GivenSettings
    from glassloop.study.run import train_run

    folder = tmp_path_factory.mktemp("text-run")
    for name, rows in {"train": REVIEWS[:40], "validation": REVIEWS[40:51], "test": REVIEWS[51:]}.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([("text", "label"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {"output_dir": str(folder / "run"), "learning_rate": 5e-3, "num_train_epochs": 4, "max_length": 24}
        settings |= {"warmup_steps": 0, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
        return train_run(GivenSettings(str(folder), str(lively_dir), settings, {"labels": ["pos, really", "neg"]}))


@pytest.fixture(scope="session")
def pair_run(lively_dir, session_cache, tmp_path_factory) -> Path:
    """The folder of a finished run on pairs."""
    from glassloop.settings.file import GivenSettings
    from glassloop.study.run import train_run

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {"output_dir": str(tmp_path_factory.mktemp("pair-run") / "run"), "max_steps": 3, "learning_rate": 5e-3}
        settings |= {"device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
        return train_run(GivenSettings("quickstart", str(lively_dir), settings, {"rows": 29, "split_seed": 3}))


@pytest.fixture(scope="session")
def seeds_folder(text_run, lively_dir, session_cache, tmp_path_factory) -> Path:
    """The folder of three seeds on single texts: 1 and 2 are finished, 3 is not."""
    from glassloop.runs.record import FINISHED, read_run
    from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
    from glassloop.settings.file import GivenSettings, RunSettings
    from glassloop.study.run import train_run

    folder, first = tmp_path_factory.mktemp("seeds"), read_run(text_run)
    shutil.copytree(text_run, folder / "seed-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {**first.settings.to_dict(), "seed": 2, "max_steps": 4, "output_dir": str(folder / "seed-2")}
        train_run(GivenSettings(first.data.source, str(lively_dir), settings, first.data.given()))
    entries = {1: SeedRecord(status=FINISHED), 2: SeedRecord(status=FINISHED), 3: SeedRecord()}
    write_seeds(SeedsRecord(RunSettings(first.data.source), entries, folder))
    return folder
