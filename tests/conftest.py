"""What all tests share: a cache of their own, the real MRPC where it is, and tiny models made on the spot."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads would only wait for each other
os.environ["GLASSLOOP_NO_REPORT"] = "1"  # tests train hundreds of runs; those about reports delete it

import sklearn.linear_model  # noqa: F401  # else each run of a test would start a process for its regression on words
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # run Triton kernels on the CPU; Triton reads this when it is imported

import families
import tiers
import trials

ROOT = Path(__file__).parent.parent

# A shell may start the tests with signals ignored (nohup, a background job), and what the tests start would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.assign_tiers(items)
    config.stash[tiers.ONLY_EXHAUSTIVE] = tiers.only_exhaustive(items)


def pytest_collection() -> None:
    gc.disable()  # while everything is imported: what that makes stays, and looking through it takes a third of the time


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # tests look only through what they make
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else triton reports leaks


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache, or depends on where the user keeps data."""
    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    monkeypatch.delenv("GLASSLOOP_DATA", raising=False)
    return session_cache


def data_place() -> Path | None:
    chosen = os.environ.get("GLASSLOOP_DATA")
    places = [Path(chosen)] if chosen else [ROOT.parent / "shared" / "data"]
    return next((place for place in places if (place / "glue" / "MRPC" / "train.tsv").is_file()), None)


DATA_PLACE = data_place()


@pytest.fixture
def glue_dir() -> Path:
    """The folder that holds MRPC/; the test is skipped where the real data is missing."""
    if DATA_PLACE is None:
        pytest.skip("the real MRPC is not here: set GLASSLOOP_DATA to a folder that holds glue/MRPC/")
    return DATA_PLACE / "glue"


@pytest.fixture(scope="session")
def packaged() -> Path:
    """The folder of the packaged model. Only its absence is a reason to skip: one that is damaged is an error."""
    from importlib.metadata import PackageNotFoundError, version

    from glassloop.models.loading import PACKAGED, PACKAGED_INSTALL, quickstart_model

    try:
        version(PACKAGED)
    except PackageNotFoundError:
        pytest.skip(f"the packaged model is not installed: {PACKAGED_INSTALL}")
    return quickstart_model()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[trials.Servers]:
    """The process that forks trials: commands and scripts that need not import everything again."""
    found = trials.Servers(tmp_path_factory.mktemp("trials"))
    yield found
    found.close()


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file into the test's own folder and returns its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A real BERT tokenizer over a hundred words."""
    return families.tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_model_dir(tiny_tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder of two layers, 32 wide, without a classification head, and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    families.tiny_model(max_position_embeddings=64).base_model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lively_dir(tiny_tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder whose answers differ from text to text by far more than rounding: a wrong order would show."""
    folder = tmp_path_factory.mktemp("models") / "lively"
    families.tiny_model(max_position_embeddings=64, initializer_range=0.3).base_model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder
